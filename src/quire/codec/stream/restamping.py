"""Records of an entry at another place of a segment, or with another txid, and everything else as it was."""

import struct
from struct import Struct
from typing import Final, NamedTuple

from quire.codec.stream.entries import records_span
from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.errors import DamagedEntry

_POSITION_AT: Final = 2
_TXID_AT: Final = 8
_SIZE_AT: Final = 16
_pack_position = Struct(">I").pack_into
_pack_txid = Struct(">q").pack_into
_unpack_txid = Struct(">q").unpack_from
_unpack_size = Struct(">I").unpack_from


class Restamped(NamedTuple):
    """Encoded records."""

    run: bytes
    records: int
    first_txid: int
    last_txid: int


def restamped(entry: bytes, *, position: int, txid: int | None = None) -> Restamped:
    """The records of an enveloped entry, without the envelope: from this position on, with `txid` or with their own.

    Raises `DamagedEntry`.
    """
    data, at, end = records_span(entry)
    records, at, end, count = bytearray(data[at:end]), 0, end - at, 0
    first = last = txid
    try:
        while at < end:
            (size,) = _unpack_size(records, at + _SIZE_AT)
            _pack_position(records, at + _POSITION_AT, position + count)
            if txid is None:
                (last,) = _unpack_txid(records, at + _TXID_AT)
                first = last if first is None else first
            else:
                _pack_txid(records, at + _TXID_AT, txid)
            at += RECORD_HEADER_BYTES + size
            count += 1
    except struct.error as error:
        raise DamagedEntry(f"the record at slot {count} is cut short", slot_id=count) from error
    if at != end:
        raise DamagedEntry(f"the record at slot {count - 1} is cut short", slot_id=count - 1)
    if first is None or last is None:
        raise DamagedEntry("an entry of a staged ledger has no records")
    return Restamped(bytes(records), count, first, last)
