"""Paths, parameters and headers as values."""

from itertools import pairwise
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument, QuireError
from quire.proxy.gateway.problems import Rejected
from quire.proxy.gateway.queries import (
    fetch_of,
    listed_before,
    page_of,
    parse_query,
    producer_of,
    segment_text,
    tail_of,
)
from quire.types import DLSN


def test_a_read_has_defaults() -> None:
    assert fetch_of(b"") == ("earliest", 1000, 1 << 20, 1.0, False, False)
    asked = fetch_of(b"from=%3E3%3A17%3A0&limit=5&max_bytes=10&wait_ms=30000&as=text&truncated=skip")
    assert asked == (DLSN.parse("3:17:1"), 5, 10, 30.0, True, True)


@pytest.mark.parametrize(
    "query",
    [
        b"limit=0",
        b"limit=10001",
        b"limit=",
        b"limit=-1",
        b"limit=1e3",
        b"limit=\xc2\xb2",
        b"wait_ms=30001",
        b"max_bytes=4194305",
        b"as=json",
        b"truncated=maybe",
        b"from=yesterday",
        b"form=earliest",
        b"limit=1&limit=2",
        b"from=%ff",
        b"&".join(b"a%d=1" % number for number in range(100)),
    ],
)
def test_what_is_out_of_range_misspelt_or_twice_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidArgument):
        fetch_of(query)


@given(st.binary(max_size=100))
def test_no_query_raises_anything_else(raw: bytes) -> None:
    for parse in (fetch_of, page_of, lambda raw: tail_of(raw, None)):
        try:
            parse(raw)
        except QuireError:
            pass


@given(st.dictionaries(st.sampled_from(["prefix", "page", "limit"]), st.text(max_size=10)))
def test_what_was_encoded_comes_out(parameters: dict[str, str]) -> None:
    try:
        raw = urlencode(parameters).encode()
    except UnicodeEncodeError:
        return
    assert parse_query(raw, "prefix", "page", "limit") == parameters


def test_the_last_event_comes_before_the_url() -> None:
    assert tail_of(b"from=earliest", "3:17:0").start == DLSN.parse("3:17:1")
    assert tail_of(b"from=earliest", "").start == "earliest"
    assert tail_of(b"", None) == ("latest", False, True)


@given(st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()))
def test_a_segment_holds_any_name(name: str) -> None:
    assert segment_text(quote(name, safe="")) == name
    assert "/" not in quote(name, safe="")


def test_a_segment_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(Rejected):
        segment_text("%ff")


def test_a_producer_is_a_uuid_or_a_name() -> None:
    uuid = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
    assert producer_of(f"{uuid}/7") == (uuid.bytes, 7)
    assert producer_of(f"{uuid.hex}/7") == (uuid.bytes, 7)
    assert producer_of("billing/eu/1").producer != producer_of("billing/us/1").producer
    assert len(producer_of("billing/1").producer) == 16


@pytest.mark.parametrize("key", ["", "billing", "billing/", "/1", "billing/0", "billing/-1", "billing/9" + "9" * 19])
def test_a_key_without_a_number_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument):
        producer_of(key)


def test_nested_streams_are_listed_behind_those_that_they_are_nested_in() -> None:
    names = ["a", "a/b", "a/b/c", "a/c", "a-", "b"]
    assert sorted(names, key=lambda name: name.split("/")) == names
    assert all(listed_before(name, after) for name, after in pairwise(names))
    assert not listed_before("a", "a")
