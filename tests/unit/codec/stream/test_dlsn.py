"""DLSNs: Apache's bytes and text, their order, and the special ones."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, many_examples
from tests.unit.codec.stream import vectors
from tests.unit.codec.stream.vectors import dlsn

from quire.codec.stream.dlsn import DLSN_BYTES, decode_dlsn, decode_dlsn_text, encode_dlsn, encode_dlsn_text
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BEFORE_INITIAL_DLSN, DLSN, INITIAL_DLSN, INVALID_DLSN

DLSNS = st.builds(dlsn, INT64, INT64, INT64)


def test_vector_i_as_bytes() -> None:
    assert encode_dlsn(vectors.DLSN_I) == vectors.DLSN_I_BYTES
    assert decode_dlsn(vectors.DLSN_I_BYTES) == vectors.DLSN_I
    assert decode_dlsn(memoryview(vectors.DLSN_I_BYTES)) == vectors.DLSN_I


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (vectors.DLSN_I, vectors.DLSN_I_TEXT),
        (INITIAL_DLSN, "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA=="),
        (BEFORE_INITIAL_DLSN, "AQAAAAAAAAABAAAAAAAAAAD//////////w=="),
        (INVALID_DLSN, "AQAAAAAAAAAA/////////////////////w=="),
    ],
)
def test_vector_i_as_text(place: DLSN, text: str) -> None:
    assert encode_dlsn_text(place) == text
    assert decode_dlsn_text(text) == place


def test_vector_i_of_version_0_is_read() -> None:
    """Nobody writes it any more, but a subscriber of old may have left one."""
    text = vectors.DLSN_I_TEXT_V0
    assert len(text) == 268
    assert hashlib.sha1(text.encode()).hexdigest() == vectors.DLSN_I_TEXT_V0_SHA1
    assert decode_dlsn_text(text) == vectors.DLSN_I


def test_the_special_ones_are_where_apache_has_them() -> None:
    assert INITIAL_DLSN == (1, 0, 0)
    assert BEFORE_INITIAL_DLSN == (1, 0, -1)
    assert INVALID_DLSN == (0, -1, -1)
    assert INVALID_DLSN < BEFORE_INITIAL_DLSN < INITIAL_DLSN
    assert BEFORE_INITIAL_DLSN.next_slot() == INITIAL_DLSN


def test_neighbours_are_in_order() -> None:
    place = vectors.DLSN_I
    assert place.next_slot() == (99, 88, 78)
    assert place.previous_slot() == (99, 88, 76)
    assert place.next_entry() == (99, 89, 0)
    assert place.next_segment() == (100, 0, 0)
    assert place.previous_slot() < place < place.next_slot() < place.next_entry() < place.next_segment()


@many_examples
@given(DLSNS)
def test_what_was_written_is_read_back(place: DLSN) -> None:
    data, text = encode_dlsn(place), encode_dlsn_text(place)
    assert (len(data), len(text)) == (DLSN_BYTES, 36)
    assert decode_dlsn(data) == decode_dlsn_text(text) == place
    assert decode_dlsn(b"\0" + data[1:] + bytes(175)) == place


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_cannot_be_written(number: int) -> None:
    with pytest.raises(InvalidArgument, match="64 bits") as caught:
        encode_dlsn(dlsn(1, number, 0))
    assert caught.value.facts == {"dlsn": (1, number, 0)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        vectors.DLSN_I_BYTES[:-1],
        vectors.DLSN_I_BYTES + b"\0",
        b"\2" + vectors.DLSN_I_BYTES[1:],
        b"\0" + vectors.DLSN_I_BYTES[1:],  # A version 0 without its padding.
        b"\1" + bytes(199),
    ],
)
def test_a_version_has_one_length(data: bytes) -> None:
    with pytest.raises(DamagedMetadata, match=f"a DLSN of {len(data)} bytes"):
        decode_dlsn(data)
    with pytest.raises(DamagedMetadata, match=f"a DLSN of {len(data)} bytes"):
        decode_dlsn_text(base64.b64encode(data).decode())


@pytest.mark.parametrize("text", ["AQ", "é" * 36, vectors.DLSN_I_TEXT + "\n", vectors.DLSN_I_TEXT.replace("Q", "-")])
def test_text_that_is_not_base64_is_damaged(text: str) -> None:
    with pytest.raises(DamagedMetadata, match="a DLSN should be base64"):
        decode_dlsn_text(text)


@many_examples
@given(st.binary(max_size=30) | st.binary(min_size=200, max_size=200), st.text(max_size=40))
def test_any_bytes_and_any_text_are_read_or_damaged(data: bytes, text: str) -> None:
    try:
        assert isinstance(decode_dlsn(data), DLSN)
    except DamagedMetadata as error:
        assert str(error)
    try:
        assert isinstance(decode_dlsn_text(text), DLSN)
    except DamagedMetadata as error:
        assert str(error)
