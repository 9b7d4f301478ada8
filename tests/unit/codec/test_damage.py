"""How decoders complain."""

import pytest

from quire.codec.damage import check_text, decimal, reading, shown, utf8
from quire.errors import DamagedMetadata, InvalidArgument, InvalidName
from quire.types import bookie_id


def test_while_reading_the_bytes_are_to_blame_not_the_caller() -> None:
    with pytest.raises(DamagedMetadata, match="cookie: 'a b' cannot be a bookie id") as caught, reading("cookie"):
        bookie_id("a b")
    assert isinstance(caught.value.__cause__, InvalidName)
    assert caught.value.facts == {"bookie_id": "a b"}
    assert "quire metadata check" in caught.value.hint


def test_reading_lets_other_errors_through() -> None:
    with pytest.raises(ZeroDivisionError), reading("cookie"):
        _ = 1 // 0


@pytest.mark.parametrize("text", ["0", "7", "-1", "007", str(2**63 - 1), str(-(2**63))])
def test_plain_decimal_digits_are_a_number(text: str) -> None:
    assert decimal(text, "x") == int(text)


@pytest.mark.parametrize("text", ["", "-", "+1", " 1", "1 ", "1_0", "0x1", "1.0", "\u0663", "9" * 5000, str(2**63)])
def test_whatever_else_python_takes_for_a_number_is_none(text: str) -> None:
    with pytest.raises(DamagedMetadata, match="x should be a number"):
        decimal(text, "x")


@pytest.mark.parametrize(("text", "ok"), [("0", False), ("1", True), ("2", True), ("3", False)])
def test_a_number_has_its_bounds(text: str, ok: bool) -> None:
    if ok:
        assert decimal(text, "x", low=1, high=2) == int(text)
    else:
        with pytest.raises(DamagedMetadata, match="from 1 to 2"):
            decimal(text, "x", low=1, high=2)


def test_long_values_are_cut_in_messages() -> None:
    assert shown("short") == "'short'"
    assert len(shown("x" * 10_000)) == 80


def test_text_is_utf8_in_both_directions() -> None:
    assert utf8("\u00e9".encode(), "x") == "\u00e9"
    with pytest.raises(DamagedMetadata, match="x: byte 2 is not UTF-8"):
        utf8(b"ab\xff", "x")
    check_text("\u00e9\U0001f600")
    with pytest.raises(InvalidArgument, match="not valid text"):
        check_text("\ud800")
