"""Digests and keys: values that others have published, and parts that are as good as the whole."""

import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import some_examples

from quire.codec.digest import KEY_BYTES, Buffer, digest_for, mac_key, master_key
from quire.types import DigestType

SIZES = {DigestType.DUMMY: 0, DigestType.CRC32: 8, DigestType.CRC32C: 4, DigestType.MAC: 20}


def number(digest_type: DigestType, data: bytes) -> int:
    return int.from_bytes(digest_for(digest_type, b"").of(data), "big")


def crc32c_bit_by_bit(data: bytes) -> int:
    """The definition, slowly: polynomial 0x1EDC6F41 reflected, all ones at start and end."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def test_checksums_of_the_usual_check_string() -> None:
    assert number(DigestType.CRC32C, b"123456789") == 0xE3069283
    assert number(DigestType.CRC32C, b"Some String") == 608512271
    assert number(DigestType.CRC32, b"123456789") == 0xCBF43926


def test_keys_come_from_the_password() -> None:
    assert (master_key(b"password"), mac_key(b"password")) == (vectors.MASTER_KEY, vectors.MAC_KEY)
    assert (master_key(b""), mac_key(b"")) == (vectors.EMPTY_MASTER_KEY, vectors.EMPTY_MAC_KEY)
    assert len(vectors.MASTER_KEY) == KEY_BYTES


@pytest.mark.parametrize("digest_type", DigestType)
def test_a_digest_has_the_size_of_its_type(digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"secret")
    assert digest.size == len(digest.of(b"anything")) == SIZES[digest_type]


def test_only_the_mac_depends_on_the_password() -> None:
    differing = [
        digest_type
        for digest_type in DigestType
        if digest_for(digest_type, b"a").of(b"x") != digest_for(digest_type, b"b").of(b"x")
    ]
    assert differing == [DigestType.MAC]


@some_examples
@given(st.binary(max_size=200), st.binary(max_size=10))
def test_digests_are_those_of_their_definitions(data: bytes, password: bytes) -> None:
    assert number(DigestType.CRC32C, data) == crc32c_bit_by_bit(data)
    assert number(DigestType.CRC32, data) == zlib.crc32(data)
    expected = hmac.digest(hashlib.sha1(b"mac" + password).digest(), data, "sha1")
    assert digest_for(DigestType.MAC, password).of(data) == expected


@some_examples
@given(
    st.sampled_from(DigestType),
    st.lists(st.binary(max_size=50), max_size=4),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_parts_of_any_kind_are_as_good_as_the_whole(
    digest_type: DigestType, parts: list[bytes], kind: type[Buffer]
) -> None:
    digest = digest_for(digest_type, b"secret")
    expected = digest.of(b"".join(parts))
    assert digest.of(*(kind(part) for part in parts)) == expected
    assert digest.of(b"".join(parts)) == expected  # One digest leaves nothing behind for the next.
