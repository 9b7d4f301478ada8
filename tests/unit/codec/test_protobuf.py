"""Protobuf's binary format by hand: what is written is read back, and what is foreign is refused, not guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples, some_examples

from quire.codec.protobuf import bytes_field, message_fields, number_field, text_field, varint

FIELDS = st.lists(st.tuples(st.integers(1, 15), st.one_of(st.integers(0, 2**35 - 1), st.binary(max_size=200))))


def written(fields: list[tuple[int, int | bytes]]) -> bytes:
    return b"".join(number_field(n, v) if isinstance(v, int) else bytes_field(n, v) for n, v in fields)


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**14, "808001"),
        (2**21, "80808001"),
        (2**63 - 1, "ffffffffffffffff7f"),
        (-1, "ffffffffffffffffff01"),
        (-(2**63), "80808080808080808001"),
    ],
)
def test_numbers_take_as_few_bytes_as_they_need(number: int, data: str) -> None:
    assert varint(number) == bytes.fromhex(data)


def test_a_field_above_15_has_a_tag_of_two_bytes() -> None:
    assert number_field(100, 1) == bytes.fromhex("a00601")
    assert text_field(1, "ä") == bytes.fromhex("0a02c3a4")


@some_examples
@given(FIELDS)
def test_what_was_written_is_read_back(fields: list[tuple[int, int | bytes]]) -> None:
    assert list(message_fields(written(fields))) == fields


@pytest.mark.parametrize("data", ["08", "0880", "0a05616263", "0d00000000", "a00601", "08ffffffffffffffffff01", "0b0c"])
def test_what_we_do_not_write_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        list(message_fields(bytes.fromhex(data)))


@many_examples
@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        fields = list(message_fields(data))
    except ValueError:
        return
    assert list(message_fields(written(fields))) == fields
