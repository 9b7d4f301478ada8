"""Records of a stream, one after the other, as they stand in an entry.

    record   unused (2) position (4) flags (2) txid (8) length (4) payload

Numbers have their most significant byte first. Apache sees the first three as one number of 64 bits. The position
counts the application's records of a segment, from 1 on. A record set has the position of its first member. Control
records and the end of the stream do not count: they repeat the position of the last record that does.

Every record of every stream passes through here, so that both ways take runs, and few steps for each record.
"""

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from struct import Struct
from typing import Final, NamedTuple

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, POSITION_MAX, RECORD_HEADER_BYTES, TXID_MAX
from quire.codec.stream.record_sets import decode_record_set, record_set_count
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import DLSN, EntryId, Lssn, SlotId

CONTROL: Final = 0x1
END_OF_STREAM: Final = 0x2
RECORD_SET: Final = 0x4

CONTROL_PAYLOAD: Final = b"control"
KEEPALIVE_PAYLOAD: Final = b"keepalive"
END_OF_STREAM_PAYLOAD: Final = b"endOfStream"

_HEADER = Struct(">HIHqI")  # Apache's length is signed: a negative one reads as one that no entry has.
_pack = _HEADER.pack
_unpack = _HEADER.unpack_from
_new = tuple.__new__  # Half of what calling the class costs.


class LogRecord(NamedTuple):
    """A record as it is read. A tuple, since readers make one for each record."""

    dlsn: DLSN
    txid: int
    payload: bytes
    position: int
    flags: int = 0

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
    _check(position, position + len(payloads) - 1, largest_bytes=max(map(len, payloads)))
    if min(txids, default=0) < 0 or max(txids, default=0) >= TXID_MAX:
        raise InvalidArgument(f"txids run from 0 to {TXID_MAX - 1}, not from {min(txids)} to {max(txids)}")
    if len(payloads) != len(txids):
        raise InvalidArgument(f"{len(payloads)} payloads have {len(txids)} txids")
    positions = range(position, position + len(payloads))
    headers = map(_pack, repeat(0), positions, repeat(0), txids, map(len, payloads))
    return b"".join(chain.from_iterable(zip(headers, payloads, strict=True)))


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
    new, unpack, dlsn, record = _new, _unpack, DLSN, LogRecord
    records: list[LogRecord] = []
    append = records.append
    slot = 0
    try:
        while at < end:
            _, position, flags, txid, size = unpack(data, at)
            begin = at + RECORD_HEADER_BYTES
            at = begin + size
            if at > end:
                raise _cut_short(slot)
            if flags & RECORD_SET:
                whole = record(dlsn(lssn, entry_id, SlotId(slot)), txid, data[begin:at], position, flags)
                if expand_sets:
                    records += (members := _members(whole))
                    slot += len(members)
                else:
                    append(whole)
                    slot += record_set_count(whole.payload)
            else:
                append(new(record, (new(dlsn, (lssn, entry_id, slot)), txid, data[begin:at], position, flags)))
                slot += 1
    except struct.error:
        raise _cut_short(slot) from None  # Less than a header is left.
    except DamagedEntry as error:
        error.facts["slot_id"] = slot  # A damaged set does not know where it is.
        raise
    return records


def _members(record_set: LogRecord) -> list[LogRecord]:
    (lssn, entry_id, slot), txid, payload, position, _ = record_set
    new, dlsn, record = _new, DLSN, LogRecord
    return [
        new(record, (new(dlsn, (lssn, entry_id, slot + place)), txid, member, position + place, 0))
        for place, member in enumerate(decode_record_set(payload))
    ]


def _cut_short(slot: int) -> DamagedEntry:
    return DamagedEntry(f"the record at slot {slot} is cut short", slot_id=slot)
