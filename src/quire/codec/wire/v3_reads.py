"""The frame of `v3` that answers a read with an entry, cheaper: written around the entry instead of with a copy of it.

    length  0A header  10 00  A2 06 length  08 00  10 ledger  18 entry id  22 length  entry  [28 LAC]

The same bytes as `v3.encode_response`.
"""

from typing import Final

from quire.codec.protobuf import varint
from quire.types import EntryId, LedgerId

_READ_HEADER: Final = b"\x08\x03\x10\x01\x18"  # Version 3, READ_ENTRY, and the tag of the transaction id.


def read_response_parts(
    txn_id: int, ledger_id: LedgerId, entry_id: EntryId, *, entry_bytes: int, max_lac: EntryId | None
) -> tuple[bytes, bytes]:
    """What goes before and after an entry of `entry_bytes` bytes in an answer of EOK."""
    header = _READ_HEADER + varint(txn_id)
    suffix = b"" if max_lac is None else b"\x28" + varint(max_lac)
    read = b"\x08\x00\x10%b\x18%b\x22%b" % (varint(ledger_id), varint(entry_id), varint(entry_bytes))
    after = entry_bytes + len(suffix)
    message = b"\x0a%c%b\x10\x00\xa2\x06%b%b" % (len(header), header, varint(len(read) + after), read)
    return (len(message) + after).to_bytes(4, "big") + message, suffix
