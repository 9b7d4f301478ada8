"""Positions in URLs: all forms of the specification, and nothing that could not be stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.proxy.gateway.positions import parse_event_id, parse_place, parse_start
from quire.stream.positions import parse_position
from quire.stream.start import Time, Txid
from quire.types import DLSN


def test_every_form_is_known() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_start("3:17:0") == DLSN.parse("3:17:0")
    assert parse_start(">3:17:0") == DLSN.parse("3:17:1")
    assert parse_start("tx:7") == Txid(7)
    assert parse_start("t:1700000000000") == Time(1_700_000_000_000)
    assert parse_start("t:2026-01-01T00:00:00Z") == parse_position("t:2026-01-01T00:00:00Z")
    assert parse_start("t:2026-01-01") == parse_position("t:2026-01-01")


def test_a_plus_that_became_a_space_is_a_plus() -> None:
    assert parse_start("t:2026-01-01T00:00:00 02:00") == parse_position("t:2026-01-01T00:00:00+02:00")


def test_an_event_stream_goes_on_behind_its_last_event() -> None:
    assert parse_event_id(" 3:17:0") == DLSN.parse("3:17:1")


@pytest.mark.parametrize(
    "text", ["", "3:17", "t:", "t:99999999999999999", "9223372036854775807:0:0", "1:-2:0", "-1:0:0"]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    for parse in (parse_start, parse_event_id, parse_place):
        with pytest.raises(InvalidArgument):
            parse(text)


@given(st.text(max_size=30) | st.from_regex(r"t:[-0-9T: Z+]{0,30}|>?-?[0-9]{1,20}:-?[0-9]{1,20}:-?[0-9]{1,20}"))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        parse_start(text)
    except InvalidArgument:
        pass
