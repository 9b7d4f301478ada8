"""Digests of entries, and the two keys that a ledger's password makes.

    digest type   bytes   holds
    DUMMY         0       nothing
    CRC32         8       four zero bytes, then the CRC-32 of zlib
    CRC32C        4       CRC-32C (Castagnoli)
    MAC           20      HMAC-SHA1 under the MAC key

The type is part of a ledger's metadata and never sent. Bookies look neither at digests nor at the MAC key; they compare
the master key, which a client presents for each ledger whatever its digest type.
"""

import hashlib
import hmac
from struct import Struct
from typing import ClassVar, Final, Protocol, TypeAlias

from google_crc32c import extend as _extend_crc32c
from isal.isal_zlib import crc32 as _extend_crc32  # A third of what Python's own takes.

from quire.types import DigestType

Buffer: TypeAlias = bytes | bytearray | memoryview

KEY_BYTES: Final = 20

_pack_u32 = Struct(">I").pack
_pack_u64 = Struct(">Q").pack


def master_key(password: bytes) -> bytes:
    """What a client presents to bookies to add to a ledger or to fence it. An empty password has a key as well."""
    return _key(b"ledger", password)


def mac_key(password: bytes) -> bytes:
    """The key of the MAC digest. It is never sent."""
    return _key(b"mac", password)


def _key(purpose: bytes, password: bytes) -> bytes:
    return hashlib.sha1(purpose + password, usedforsecurity=False).digest()  # Apache's choice; not ours to change.


class Digest(Protocol):
    """How one ledger's digests are made."""

    @property
    def size(self) -> int:
        """How many bytes a digest has."""

    def of(self, *parts: Buffer) -> bytes:
        """The digest of `parts`, as if they were one."""


class DummyDigest:
    """No digest at all: damage goes unnoticed."""

    size: ClassVar = 0

    def of(self, *_parts: Buffer) -> bytes:
        return b""


class Crc32Digest:
    size: ClassVar = 8

    def of(self, *parts: Buffer) -> bytes:
        crc = 0
        for part in parts:
            crc = _extend_crc32(part, crc)
        return _pack_u64(crc)


class Crc32cDigest:
    size: ClassVar = 4

    def of(self, *parts: Buffer) -> bytes:
        crc = 0
        for part in parts:
            # The library reads nothing but bytes, so that a view has to be copied. It is the fastest one all the same.
            crc = _extend_crc32c(crc, part if type(part) is bytes else bytes(part))
        return _pack_u32(crc)


class MacDigest:
    size: ClassVar = 20

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha1")  # Copied for each digest: setting up the key costs two hashes.

    def of(self, *parts: Buffer) -> bytes:
        mac = self._keyed.copy()
        for part in parts:
            mac.update(part)
        return mac.digest()


def digest_for(digest_type: DigestType, password: bytes) -> Digest:
    """The digests of a ledger with this type and password. Only MAC depends on the password."""
    match digest_type:
        case DigestType.CRC32C:
            return Crc32cDigest()
        case DigestType.CRC32:
            return Crc32Digest()
        case DigestType.MAC:
            return MacDigest(mac_key(password))
        case DigestType.DUMMY:
            return DummyDigest()
