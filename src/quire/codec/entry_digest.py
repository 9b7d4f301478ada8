"""Whether an entry matches its own digest, as far as a bookie can tell without a password.

The wire does not say which digest a ledger has. But an entry that happens to carry its own CRC32C at the right place is
one chance in four billion, so one match tells the type, and from then on every entry of the ledger must match. Ledgers
with a MAC, or without a digest, never match; after a few entries nobody tries any more.

    before the first match   0, 1, 2, … the number of entries tried
    after it                 CRC32 or CRC32C
    no match in a while      UNCHECKED
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import google_crc32c
from isal.isal_zlib import crc32

from quire.codec.entry import HEADER_BYTES

WRONG: Final = -1  # The entry does not match the digest that others of its ledger had.
CRC32C: Final = 101
CRC32: Final = 102
UNCHECKED: Final = 103

_TRIES_MAX: Final = 8
_u32 = Struct(">I").unpack_from
_CRC32_END: Final = HEADER_BYTES + 8
_CRC32C_END: Final = HEADER_BYTES + 4


def check_digest(entry: bytes, known: int) -> int:
    """What is known of the ledger's digest after this entry, or `WRONG`."""
    if known == CRC32C:
        return CRC32C if _is_crc32c(entry) else WRONG
    if known == UNCHECKED:
        return UNCHECKED
    if known == CRC32:
        return CRC32 if _is_crc32(entry) else WRONG
    if _is_crc32c(entry):
        return CRC32C
    if _is_crc32(entry):
        return CRC32
    return known + 1 if known < _TRIES_MAX else UNCHECKED


def all_match(entries: Sequence[bytes], known: int) -> bool:
    """Whether it is certain that all of these match the ledger's digest, and nothing is to be learned from them."""
    if known == CRC32C:
        value, extend = google_crc32c.value, google_crc32c.extend
        return all(
            extend(value(entry[:HEADER_BYTES]), entry[_CRC32C_END:]) == _u32(entry, HEADER_BYTES)[0]
            for entry in entries
        )
    return known == UNCHECKED or (known == CRC32 and all(map(_is_crc32, entries)))


def _is_crc32c(entry: bytes) -> bool:
    crc: int = google_crc32c.extend(google_crc32c.value(entry[:HEADER_BYTES]), entry[_CRC32C_END:])
    return entry[HEADER_BYTES:_CRC32C_END] == crc.to_bytes(4, "big")


def _is_crc32(entry: bytes) -> bool:
    crc = crc32(memoryview(entry)[_CRC32_END:], crc32(memoryview(entry)[:HEADER_BYTES]))
    return entry[HEADER_BYTES:_CRC32_END] == crc.to_bytes(8, "big")
