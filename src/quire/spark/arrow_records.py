"""Entries of a stream as Arrow batches, without an object for any record.

Most entries hold records of one kind, and many hold records of one size: those are found by their stride, and moved as
a block. Others are walked from header to header. What is rarer (control records, record sets, an entry of which only a
part is wanted) is decoded by the codec, record by record. All three give the same (a test compares them).

Invariants:
  AsTheCodec   a batch has the records that `decode_entry` gives, in order, without those that no application sees.
  Bounded      a batch is handed out when it is full: it has one entry more than `rows` or `bytes_max` at most.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quire.codec.stream.entries import decode_entry, records_span
from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.codec.stream.records import CONTROL, END_OF_STREAM
from quire.errors import DamagedEntry, InvariantBroken
from quire.spark.schema import Column
from quire.types import EntryId, Lssn

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 8 << 20

_UNSEEN: Final = CONTROL | END_OF_STREAM
_BLOCK_BYTES_MIN: Final = 1024  # Below that a walk is faster than numpy's overhead.
_MS_MIN, _MS_MAX = -62_135_596_800_000, 253_402_300_799_999  # The years 1 to 9999.

_unpack = Struct(">HIHqI").unpack_from
_unpack_size = Struct(">I").unpack_from
_SIZE_AT: Final = 16

_ARROW: Final = {
    "stream": pa.string(),
    "dlsn": pa.string(),
    "segment": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int64(),
    "txid": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),
    "payload": pa.binary(),
}

_Numbers: TypeAlias = NDArray[np.int64]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """What Spark expects of batches with these columns."""
    return pa.schema([pa.field(column.name, _ARROW[column.source], column.is_nullable) for column in columns])


class _Block(NamedTuple):
    """Records of one size, with their headers, as they stand in an entry."""

    data: bytes
    at: int
    size: int  # Of each payload.
    heads: NDArray[Any]


class _Walked(NamedTuple):
    """Records of any sizes, with their slots if those are not simply counted."""

    txids: Sequence[int]
    sizes: Sequence[int]
    payloads: Sequence[bytes]
    slots: Sequence[int] | None


class ArrowRecords:
    """Gathers records, and hands them out as batches of the columns that were asked for."""

    def __init__(self, columns: Sequence[Column], *, rows: int = BATCH_ROWS, bytes_max: int = BATCH_BYTES) -> None:
        self._columns, self._rows_max, self._bytes_max = columns, rows, bytes_max
        self._wanted = {column.source for column in columns}
        self._schema = arrow_schema(columns)
        self._streams: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.rows, self._bytes = 0, 0
        self._parts: list[tuple[int, _Block | _Walked]] = []  # With the count of records.
        self._runs: list[tuple[int, int, int, int]] = []  # Count, stream, LSSN and entry of each part.

    @property
    def is_full(self) -> bool:
        return self.rows >= self._rows_max or self._bytes >= self._bytes_max

    def add(
        self,
        stream: str,
        lssn: Lssn,
        entry_id: EntryId,
        payload: bytes,
        *,
        is_enveloped: bool = True,
        first_slot: int = 0,
        end_slot: int | None = None,
    ) -> bool:
        """Take the records of an entry, or of its slots in that range. Whether the stream may go on behind it.

        Raises `DamagedEntry`, and has taken nothing then.
        """
        part: _Block | _Walked | None = None
        is_last = False
        if first_slot <= 0 and end_slot is None:
            part = self._plain(payload, is_enveloped)
        if part is None:
            records = decode_entry(payload, lssn=lssn, entry_id=entry_id, enveloped=is_enveloped)
            is_last = any(record.flags & END_OF_STREAM for record in records)
            seen = [
                record
                for record in records
                if not record.flags & _UNSEEN
                and record.slot_id >= first_slot
                and (end_slot is None or record.slot_id < end_slot)
            ]
            payloads = [record.payload for record in seen]
            part = _Walked(
                [record.txid for record in seen],
                list(map(len, payloads)),
                payloads,
                [record.slot_id for record in seen],
            )
        count = len(part.heads) if isinstance(part, _Block) else len(part.txids)
        if count:
            if not self._streams or self._streams[-1] != stream:
                self._streams.append(stream)
            self._parts.append((count, part))
            self._runs.append((count, len(self._streams) - 1, lssn, entry_id))
            self.rows += count
            self._bytes += count * part.size if isinstance(part, _Block) else sum(part.sizes)
        return not is_last

    def _plain(self, payload: bytes, is_enveloped: bool) -> _Block | _Walked | None:
        """The records of an entry that holds nothing but plain ones; None for any other, also for a damaged one."""
        try:
            data, at, end = records_span(payload) if is_enveloped else (payload, 0, len(payload))
            if end - at >= _BLOCK_BYTES_MIN:
                block = _block(data, at, end)
                if block is not None:
                    return block
            return self._walk(data, at, end)
        except (DamagedEntry, struct.error):
            return None  # The codec says what is wrong with it.

    def _walk(self, data: bytes, at: int, end: int) -> _Walked | None:
        unpack, header_bytes = _unpack, RECORD_HEADER_BYTES
        txids: list[int] = []
        sizes: list[int] = []
        payloads: list[bytes] = []
        add_txid, add_size, add_payload = txids.append, sizes.append, payloads.append
        with_payload = "payload" in self._wanted
        while at < end:
            _, _, flags, txid, size = unpack(data, at)
            if flags:
                return None
            at += header_bytes
            add_txid(txid)
            add_size(size)
            if with_payload:
                add_payload(data[at : at + size])
            at += size
        return _Walked(txids, sizes, payloads, None) if at == end else None

    # --- Batches

    def take(self) -> pa.RecordBatch:
        """All that was gathered. There has to be something."""
        if not self.rows:
            raise InvariantBroken("a batch of no records was asked for")
        counts, streams, lssns, entries = (np.array(each, dtype=np.int64) for each in zip(*self._runs, strict=True))
        made: dict[str, pa.Array] = {}
        wanted = self._wanted
        if "stream" in wanted:
            made["stream"] = pa.DictionaryArray.from_arrays(
                np.repeat(streams, counts).astype(np.int32), pa.array(self._streams, pa.string())
            ).dictionary_decode()
        if wanted & {"segment", "dlsn"}:
            made["segment"] = _int64(np.repeat(lssns, counts))
        if wanted & {"entry", "dlsn"}:
            made["entry"] = _int64(np.repeat(entries, counts))
        if wanted & {"slot", "dlsn"}:
            made["slot"] = _int64(self._slots(counts))
        if wanted & {"txid", "time"}:
            made["txid"] = _int64(self._txids())
        if "payload" in wanted:
            made["payload"] = self._payloads()
        self._streams = self._streams[-1:]
        self._clear()
        return self._batch(made)

    def of_table(self, stream: str, table: pa.Table) -> pa.RecordBatch:
        """Rows of a file in cold storage, which have the same numbers and payloads."""
        made = {name: table.column(name).combine_chunks() for name in ("segment", "entry", "slot", "txid", "payload")}
        if "stream" in self._wanted:
            made["stream"] = pa.repeat(pa.scalar(stream), table.num_rows)
        return self._batch(made)

    def _batch(self, made: dict[str, pa.Array]) -> pa.RecordBatch:
        if "dlsn" in self._wanted:
            texts = [made[name].cast(pa.string()) for name in ("segment", "entry", "slot")]
            made["dlsn"] = pc.binary_join_element_wise(*texts, ":")
        if "time" in self._wanted:
            made["time"] = _times(made["txid"])
        return pa.RecordBatch.from_arrays([made[column.source] for column in self._columns], schema=self._schema)

    def _slots(self, counts: _Numbers) -> _Numbers:
        ends = np.cumsum(counts)
        slots = np.arange(self.rows, dtype=np.int64) - np.repeat(ends - counts, counts)
        for end, (count, part) in zip(ends, self._parts, strict=True):
            if isinstance(part, _Walked) and part.slots is not None:
                slots[end - count : end] = part.slots
        return slots

    def _txids(self) -> _Numbers:
        txids, at = np.empty(self.rows, dtype=np.int64), 0
        for count, part in self._parts:
            txids[at : at + count] = part.heads["txid"] if isinstance(part, _Block) else part.txids
            at += count
        return txids

    def _payloads(self) -> pa.Array:
        offsets, data = np.zeros(self.rows + 1, dtype=np.int32), np.empty(self._bytes, dtype=np.uint8)
        sizes = offsets[1:]
        row, at = 0, 0
        for count, part in self._parts:
            if isinstance(part, _Block):
                size, stride = part.size, part.size + RECORD_HEADER_BYTES
                end = at + count * size
                stored = np.frombuffer(part.data, np.uint8, count * stride, part.at).reshape(count, stride)
                data[at:end].reshape(count, size)[...] = stored[:, RECORD_HEADER_BYTES:]
                sizes[row : row + count] = size
            else:
                joined = b"".join(part.payloads)
                end = at + len(joined)
                data[at:end] = np.frombuffer(joined, np.uint8)
                sizes[row : row + count] = part.sizes
            row, at = row + count, end
        np.cumsum(sizes, out=sizes)
        return pa.BinaryArray.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


@lru_cache(maxsize=4096)
def _head_type(stride: int) -> np.dtype[Any]:
    """The numbers of a header, at the beginning of every record of that size."""
    fields = {"names": ["flags", "txid", "size"], "formats": [">u2", ">i8", ">u4"], "offsets": [6, 8, _SIZE_AT]}
    return np.dtype({**fields, "itemsize": stride})  # type: ignore[call-overload, no-any-return]


def _block(data: bytes, at: int, end: int) -> _Block | None:
    """Records that are all as large as the first one. If each header that would follow says so, each of them is one."""
    (size,) = _unpack_size(data, at + _SIZE_AT)
    stride = size + RECORD_HEADER_BYTES
    count, rest = divmod(end - at, stride)
    if rest or not count:
        return None
    heads: NDArray[Any] = np.frombuffer(data, _head_type(stride), count, at)
    if heads["flags"].any() or not (heads["size"] == size).all():
        return None
    return _Block(data, at, size, heads)


def _int64(numbers: _Numbers) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _times(txids: pa.Array) -> pa.Array:
    numbers = txids.to_numpy()
    is_no_time = (numbers < _MS_MIN) | (numbers > _MS_MAX)
    micros = np.where(is_no_time, 0, numbers) * 1000
    mask = is_no_time if is_no_time.any() else None
    return pa.array(micros, pa.int64(), mask=mask).cast(_ARROW["time"])
