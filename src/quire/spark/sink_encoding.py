"""Records from Arrow's columns: encoded by the batch, with nothing done for each record.

Headers are one array of numpy's. Arrow joins them with the payloads, element by element, and what it has in its buffer
then is what an entry holds: cut where an entry is full.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import value as crc_of
from numpy.typing import NDArray

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, TXID_MAX
from quire.errors import InvalidArgument, RecordTooLarge, TxidOutOfOrder

_HEADER: Final = np.dtype([("unused", ">u2"), ("position", ">u4"), ("flags", ">u2"), ("txid", ">i8"), ("size", ">u4")])
_CHUNK_BYTES: Final = 64 << 20  # Arrow's offsets have 31 bits; and what is encoded at once is copied once more.

assert _HEADER.itemsize == RECORD_HEADER_BYTES


class EncodedRun(NamedTuple):
    """The records of one entry."""

    data: memoryview
    records: int
    first_txid: int
    last_txid: int


class Rows(NamedTuple):
    """What records are made of."""

    payloads: pa.Array  # Binary, without nulls.
    txids: NDArray[np.int64]  # In order.

    @property
    def record_bytes(self) -> int:
        """What they take in an entry, with their headers."""
        return _total(self.payloads) + RECORD_HEADER_BYTES * len(self.payloads)


def payload_array(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """Payloads as one binary array. Raises `InvalidArgument` for nulls, `RecordTooLarge`."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # Too much for one array.
        raise InvalidArgument("a partition to be ordered has more than 2 GiB", hint="Use more partitions.")
    if whole.null_count:
        raise InvalidArgument(
            f"column {name!r} is NULL in {whole.null_count} rows, and a record has a payload",
            hint=f"Leave them out: WHERE {name} IS NOT NULL.",
        )
    payloads = whole.cast(pa.binary())
    largest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if largest > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {largest} bytes does not fit: {PAYLOAD_BYTES_MAX} is the most", bytes=largest
        )
    return payloads


def txid_array(column: pa.Array | pa.ChunkedArray, name: str, *, last: int = 0) -> NDArray[np.int64]:
    """Txids that follow `last`, in order. Raises `TxidOutOfOrder`, and `InvalidArgument` for nulls."""
    if column.null_count:
        raise InvalidArgument(f"column {name!r} is NULL in {column.null_count} rows, and each record has a txid")
    txids: NDArray[np.int64] = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    if not len(txids):
        return txids
    steps = np.flatnonzero(np.diff(txids) < 0)
    if len(steps) or txids[0] < last:
        before, after = (txids[steps[0]], txids[steps[0] + 1]) if len(steps) else (last, txids[0])
        raise TxidOutOfOrder(
            f"txid {after} follows {before} in column {name!r}",
            hint=f'Say .option("orderBy", "{name}"): records are ordered by it then.',
            txid=int(after),
            last_txid=int(before),
        )
    if txids[0] < 0 or txids[-1] >= TXID_MAX:
        raise TxidOutOfOrder(f"txids run from 0 to {TXID_MAX - 1}, not from {txids[0]} to {txids[-1]}")
    return txids


def rows_sum(payloads: pa.Array, txids: pa.Array | None) -> int:
    """What rows are: the same for the same rows, in whatever order, and however they are split. Sums of parts add up.

    It tells a batch from another one by mistake, not from one that was made to look alike.
    """
    crcs = np.fromiter(map(crc_of, payloads.to_pylist()), np.uint64, len(payloads))
    mixed = _mixed(crcs | pc.binary_length(payloads).to_numpy().astype(np.uint64) << np.uint64(32))
    if txids is not None:
        numbers = np.asarray(txids.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
        mixed = _mixed(mixed + numbers.view(np.uint64))
    return int(mixed.sum(dtype=np.uint64))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each bit depends on all bits of the number, so that sums differ where numbers do."""
    numbers = (numbers + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(31)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(29)


def rows_digest(sums: Iterable[int]) -> str:
    """The sums of all parts of a batch, as its sink's node keeps them."""
    whole = sum(sums) % (1 << 64)
    return base64.urlsafe_b64encode(whole.to_bytes(8)).decode().rstrip("=")


def encoded_runs(rows: Rows, *, position: int, entry_bytes: int) -> Iterator[EncodedRun]:
    """Entries of these records, the first of which is at `position`. Each is as full as `entry_bytes` lets it be."""
    payloads, txids = rows
    begin = 0
    while begin < len(payloads):
        count = _fitting(payloads, begin)
        chunk, numbers = payloads.slice(begin, count), txids[begin : begin + count]
        yield from _encoded(chunk, numbers, position + begin, entry_bytes)
        begin += count


def _encoded(payloads: pa.Array, txids: NDArray[np.int64], position: int, entry_bytes: int) -> Iterator[EncodedRun]:
    count = len(payloads)
    heads: NDArray[Any] = np.zeros(count, dtype=_HEADER)
    heads["position"] = np.arange(position, position + count)
    heads["txid"] = txids
    heads["size"] = pc.binary_length(payloads).to_numpy()
    headers = pa.Array.from_buffers(pa.binary(RECORD_HEADER_BYTES), count, [None, pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(headers.cast(pa.binary()), payloads, pa.scalar(b"", pa.binary()))
    _, offsets_buffer, data = joined.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=count + 1, offset=4 * joined.offset)
    view = memoryview(data).cast("B")
    begin = 0
    while begin < count:
        room = offsets[begin] + entry_bytes
        end = max(begin + 1, int(np.searchsorted(offsets, room, side="right")) - 1)
        run = view[offsets[begin] : offsets[end]]
        yield EncodedRun(run, end - begin, int(txids[begin]), int(txids[end - 1]))
        begin = end


def _fitting(payloads: pa.Array, begin: int) -> int:
    """How many of them are encoded at once."""
    rest = len(payloads) - begin
    total = _total(payloads.slice(begin)) + RECORD_HEADER_BYTES * rest
    return rest if total <= _CHUNK_BYTES else max(1, rest * _CHUNK_BYTES // total // 2)


def _total(payloads: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(payloads)).as_py() or 0)
