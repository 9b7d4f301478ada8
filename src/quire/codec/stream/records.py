"""Records of a stream, one after the other, as they stand in an entry.

    record   unused (2) position (4) flags (2) txid (8) length (4) payload

Numbers have their most significant byte first. Apache sees the first three as one number of 64 bits. The position
counts the application's records of a segment, from 1 on. A record set has the position of its first member. Control
records and the end of the stream do not count: they repeat the position of the last record that does.

Every record of every stream passes through here, so that both ways take runs, and few steps for each record.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple, Self

from quire.codec.stream.limits import EXPANDED_BYTES_MAX, PAYLOAD_BYTES_MAX, POSITION_MAX, RECORD_HEADER_BYTES, TXID_MAX
from quire.codec.stream.record_sets import decode_record_set, expanded_bytes, record_set_count
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import DLSN, EntryId, Lssn, SlotId

CONTROL: Final = 0x1
END_OF_STREAM: Final = 0x2
RECORD_SET: Final = 0x4

CONTROL_PAYLOAD: Final = b"control"
KEEPALIVE_PAYLOAD: Final = b"keepalive"
END_OF_STREAM_PAYLOAD: Final = b"endOfStream"

_pack = Struct(">HIHqI").pack
_pack_plain = Struct(">QqI").pack  # The same without flags, in fewer steps: the position is all of the first number.
_POSITION_SHIFT: Final = 16
_POSITION: Final = range(2, 6)  # Which bytes of a header that is.
_TXID: Final = range(8, 16)
_FLAGS_AND_SIZE: Final = (*range(6, 8), *range(16, 20))
_ENCODED_ALIKE_MIN: Final = 32  # Fewer records are encoded faster one by one,
_DECODED_ALIKE_MIN: Final = 64  # and decoded.
_AT_ONCE: Final = 32  # Payloads that are cut out in one step.
_unpack = Struct(">2xIHqI").unpack_from  # Apache's length is signed: a negative one reads as one that no entry has.
_new = tuple.__new__  # Half of what calling the class costs.


class _Fields(NamedTuple):
    lssn: Lssn
    entry_id: EntryId
    slot_id: SlotId
    txid: int
    payload: bytes
    position: int
    flags: int


class LogRecord(_Fields):
    """A record as it is read. A tuple, since readers make one for each; its DLSN is made when it is asked for."""

    __slots__ = ()

    def __new__(cls, dlsn: DLSN, txid: int, payload: bytes, position: int, flags: int = 0) -> Self:
        return _new(cls, (*dlsn, txid, payload, position, flags))

    def __getnewargs__(self) -> tuple[DLSN, int, bytes, int, int]:
        return self.dlsn, self.txid, self.payload, self.position, self.flags

    @property
    def dlsn(self) -> DLSN:
        """Its place in the stream."""
        return _new(DLSN, self[:3])

    @property
    def is_control(self) -> bool:
        """Whether it is there for the LAC only. Applications never see one."""
        return self.flags & CONTROL != 0

    @property
    def is_end_of_stream(self) -> bool:
        return self.flags & END_OF_STREAM != 0

    @property
    def is_record_set(self) -> bool:
        """Whether it stands for several, because the reader asked not to take sets apart."""
        return self.flags & RECORD_SET != 0


def encode_records(payloads: Sequence[bytes], txids: Sequence[int], *, position: int) -> bytes:
    """Records of an application, the first of them at `position`, with one txid for each."""
    if not payloads:
        return b""
    count = len(payloads)
    if min(txids, default=0) < 0 or max(txids, default=0) >= TXID_MAX:
        raise InvalidArgument(f"txids run from 0 to {TXID_MAX - 1}, not from {min(txids)} to {max(txids)}")
    if count != len(txids):
        raise InvalidArgument(f"{count} payloads have {len(txids)} txids")
    _check(position, position + count - 1, largest_bytes=0)
    encoded = _encode_alike(payloads, txids, position) if count >= _ENCODED_ALIKE_MIN else None
    if encoded is None:
        numbers = range(position << _POSITION_SHIFT, position + count << _POSITION_SHIFT, 1 << _POSITION_SHIFT)
        parts = [b""] * (2 * count)
        parts[::2] = map(_pack_plain, numbers, txids, map(len, payloads))
        parts[1::2] = payloads
        encoded = b"".join(parts)
    if len(encoded) > PAYLOAD_BYTES_MAX:  # Only then may one of them be too large.
        _check(position, position, largest_bytes=max(map(len, payloads)))
    return encoded


def _encode_alike(payloads: Sequence[bytes], txids: Sequence[int], position: int) -> bytes | None:
    """The same for records of one size and one txid, as many programs append them: one header stands before all of
    them, and then the positions are written over it, each of their bytes for all records at once. None if these are
    not such.
    """
    count, size = len(payloads), len(payloads[0])
    if txids[0] != txids[-1] or txids.count(txids[0]) != count or list(map(len, payloads)).count(size) != count:
        return None
    run = bytearray(_pack_plain(0, txids[0], size)).join((b"", *payloads))
    positions = struct.pack(f">{count}I", *range(position, position + count))
    for place, column in enumerate(_POSITION):
        run[column :: RECORD_HEADER_BYTES + size] = positions[place :: len(_POSITION)]
    return bytes(run)


def encode_record(payload: bytes, *, txid: int, position: int, flags: int = 0) -> bytes:
    """One record of any kind. Which txid and position its kind has is up to the writer."""
    _check(position, position, largest_bytes=len(payload))
    try:
        return _pack(0, position, flags, txid, len(payload)) + payload
    except struct.error as error:
        raise InvalidArgument(f"txid {txid} or flags {flags:#x} do not fit into their bits", txid=txid) from error


def encode_control(*, txid: int, position: int, payload: bytes = CONTROL_PAYLOAD) -> bytes:
    """A control record, which makes the entries before it visible. It repeats the last txid and position."""
    return encode_record(payload, txid=txid, position=position, flags=CONTROL)


def encode_end_of_stream(*, position: int) -> bytes:
    """The record after which a stream has no more of them. It is no control record: it has a place of its own."""
    return encode_record(END_OF_STREAM_PAYLOAD, txid=TXID_MAX, position=position, flags=END_OF_STREAM)


def _check(first: int, last: int, *, largest_bytes: int) -> None:
    if first < 0 or last > POSITION_MAX:
        raise InvalidArgument(f"positions run from 0 to {POSITION_MAX}, not from {first} to {last}")
    if largest_bytes > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(
            f"a payload of {largest_bytes} bytes is too large for a record",
            hint=f"A record takes {PAYLOAD_BYTES_MAX} bytes: split the payload.",
            bytes=largest_bytes,
            bytes_max=PAYLOAD_BYTES_MAX,
        )


def decode_records(
    data: bytes, at: int, end: int, *, lssn: Lssn, entry_id: EntryId, expand_sets: bool = True
) -> list[LogRecord]:
    """The records that `data` holds from `at` to `end`, of all kinds. Raises `DamagedEntry`.

    The members of a set become records, unless `expand_sets` is False; the slots behind it are the same either way.
    """
    alike = _decode_alike(data, at, end, lssn, entry_id)
    if alike is not None:
        return alike
    new, unpack, record = _new, _unpack, LogRecord
    records: list[LogRecord] = []
    append = records.append
    slot = expanded = 0
    try:
        while at < end:
            position, flags, txid, size = unpack(data, at)
            begin = at + RECORD_HEADER_BYTES
            at = begin + size
            if at > end:
                raise _cut_short(slot)
            if flags & RECORD_SET:
                whole = new(record, (lssn, entry_id, slot, txid, data[begin:at], position, flags))
                if expand_sets:
                    expanded += expanded_bytes(whole.payload)
                    if expanded > EXPANDED_BYTES_MAX:
                        raise DamagedEntry(f"its record sets take more than {EXPANDED_BYTES_MAX} bytes")
                    records += (members := _members(whole))
                    slot += len(members)
                else:
                    append(whole)
                    slot += record_set_count(whole.payload)
            else:
                append(new(record, (lssn, entry_id, slot, txid, data[begin:at], position, flags)))
                slot += 1
    except struct.error:
        raise _cut_short(slot) from None  # Less than a header is left.
    except DamagedEntry as error:
        error.facts["slot_id"] = slot  # A damaged set does not know where it is.
        raise
    return records


def _decode_alike(data: bytes, at: int, end: int, lssn: Lssn, entry_id: EntryId) -> list[LogRecord] | None:
    """Plain records of one size, as many programs write them, all at once. None if these are not such, or so few that
    it would not pay.

    A column is one byte of all headers. Each record begins where we looked only if all before it have this size.
    """
    if end - at < _DECODED_ALIKE_MIN * RECORD_HEADER_BYTES:
        return None
    _, flags, txid, size = _unpack(data, at)
    step = RECORD_HEADER_BYTES + size
    count, rest = divmod(end - at, step)
    if rest or flags or count < _DECODED_ALIKE_MIN or not _is_constant(data, at, end, step, _FLAGS_AND_SIZE, count):
        return None
    positions = struct.unpack(f">{count}I", _columns(data, at, end, step, _POSITION, count))
    txids: Iterable[int] = repeat(txid)
    if not _is_constant(data, at, end, step, _TXID, count):
        txids = struct.unpack(f">{count}q", _columns(data, at, end, step, _TXID, count))
    fields = zip(
        repeat(lssn), repeat(entry_id), range(count), txids, _payloads(data, at, end, size), positions, repeat(0)
    )
    return list(map(_new, repeat(LogRecord), fields))


def _is_constant(data: bytes, at: int, end: int, step: int, columns: Iterable[int], count: int) -> bool:
    return all(data[at + column : end : step].count(data[at + column]) == count for column in columns)


def _columns(data: bytes, at: int, end: int, step: int, columns: range, count: int) -> bytearray:
    """These bytes of each header, one header's after the other's."""
    width = len(columns)
    found = bytearray(width * count)
    for place, column in enumerate(columns):
        found[place::width] = data[at + column : end : step]
    return found


def _payloads(data: bytes, at: int, end: int, size: int) -> list[bytes]:
    payloads: list[bytes] = []
    step = RECORD_HEADER_BYTES + size
    rest = end - (end - at) % (_AT_ONCE * step)
    for some in _payload_rows(size)(memoryview(data)[at:rest]):
        payloads += some
    payloads += [data[begin + RECORD_HEADER_BYTES : begin + step] for begin in range(rest, end, step)]
    return payloads


@lru_cache(maxsize=64)
def _payload_rows(size: int) -> Callable[[memoryview], Iterator[tuple[bytes, ...]]]:
    return Struct(f"{RECORD_HEADER_BYTES}x{size}s" * _AT_ONCE).iter_unpack


def _members(record_set: LogRecord) -> list[LogRecord]:
    lssn, entry_id, slot, txid, payload, position, _ = record_set
    new, record = _new, LogRecord
    return [
        new(record, (lssn, entry_id, slot + place, txid, member, position + place, 0))
        for place, member in enumerate(decode_record_set(payload))
    ]


def _cut_short(slot: int) -> DamagedEntry:
    return DamagedEntry(f"the record at slot {slot} is cut short", slot_id=slot)
