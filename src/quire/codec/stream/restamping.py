"""Records of an entry with another txid, and everything else as it was."""

import struct
from struct import Struct
from typing import Final

from quire.codec.stream.entries import records_span
from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.errors import DamagedEntry

_TXID_AT: Final = 8
_SIZE_AT: Final = 16
_pack_txid = Struct(">q").pack_into
_unpack_size = Struct(">I").unpack_from


def restamped(entry: bytes, txid: int) -> tuple[bytes, int]:
    """The records of an enveloped entry, without the envelope, all with this txid; and how many they are.

    Raises `DamagedEntry`.
    """
    data, at, end = records_span(entry)
    records, at, end, count = bytearray(data[at:end]), 0, end - at, 0
    try:
        while at < end:
            (size,) = _unpack_size(records, at + _SIZE_AT)
            _pack_txid(records, at + _TXID_AT, txid)
            at += RECORD_HEADER_BYTES + size
            count += 1
    except struct.error as error:
        raise DamagedEntry(f"the record at slot {count} is cut short", slot_id=count) from error
    if at != end:
        raise DamagedEntry(f"the record at slot {count - 1} is cut short", slot_id=count - 1)
    return bytes(records), count
