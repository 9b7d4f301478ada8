"""Bodies as values: what is taken, what is refused, and that nothing else can happen."""

import json
from base64 import b64encode
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument, QuireError, RecordTooLarge
from quire.proxy.gateway.bodies import (
    Commit,
    MediaType,
    check_encoding,
    commit_of,
    json_object,
    media_type,
    records_of,
    truncation_of,
)
from quire.proxy.gateway.limits import RECORD_BYTES_MAX, RECORDS_MAX, TXID_LAST
from quire.proxy.gateway.problems import Rejected
from quire.types import DLSN

AS_JSON = MediaType("application/json", "")
AS_NDJSON = MediaType("application/x-ndjson", "")


@given(st.binary(max_size=100), st.sampled_from(["", "text/plain", "application/x-www-form-urlencoded", "image/png"]))
def test_a_body_of_any_other_type_is_one_record(body: bytes, kind: str) -> None:
    assert records_of(MediaType(kind, ""), body) == ([body], None)


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=20)), min_size=1, max_size=20))
def test_json_records_are_what_was_put_in(given_records: list[tuple[bool, str]]) -> None:
    payloads = [text.encode() for _, text in given_records]
    body = {
        "records": [
            {"text": text} if as_text else {"b64": b64encode(text.encode()).decode()} for as_text, text in given_records
        ]
    }
    assert records_of(AS_JSON, json.dumps(body).encode()) == (payloads, None)


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda line: line.strip() and b"\n" not in line), min_size=1))
def test_each_line_is_a_record(lines: list[bytes]) -> None:
    expected = [line.removesuffix(b"\r") for line in lines]
    assert records_of(AS_NDJSON, b"\n".join(lines)) == (expected, None)
    assert records_of(AS_NDJSON, b"\r\n".join(lines) + b"\r\n\r\n") == (lines, None)


def test_txids_are_those_of_each_record_or_of_the_body() -> None:
    own = {"records": [{"text": "a", "txid": 3}, {"text": "b", "txid": TXID_LAST}]}
    assert records_of(AS_JSON, json.dumps(own).encode()).txids == [3, TXID_LAST]
    common = {"records": [{"text": "a"}, {"text": "b", "txid": 9.0}], "txid": 5}  # 9.0 is 9 in JSON.
    assert records_of(AS_JSON, json.dumps(common).encode()).txids == [5, 9]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "no list"),
        ({"records": {}}, "no list"),
        ({"records": []}, "no record"),
        ({"records": ["a"]}, "record 0 is no object"),
        ({"records": [{}]}, "either text or b64"),
        ({"records": [{"text": "a", "b64": "YQ=="}]}, "either text or b64"),
        ({"records": [{"text": None, "b64": "YQ=="}]}, "either text or b64"),
        ({"records": [{"text": 1}]}, "either text or b64"),
        ({"records": [{"b64": "a?b="}]}, "no base64"),
        ({"records": [{"b64": "é"}]}, "no base64"),
        ({"records": [{"b64": "YQ"}]}, "no base64"),
        ({"records": [{"text": "\ud800"}]}, "half of a character"),
        ({"records": [{"text": "a", "key": 1}]}, "'key', of which nothing is known"),
        ({"records": [{"text": "a"}], "stream": "x"}, "'stream', of which nothing is known"),
        ({"records": [{"text": "a", "txid": 1}, {"text": "b"}]}, "others have none"),
        ({"records": [{"text": "a", "txid": True}]}, "whole number"),
        ({"records": [{"text": "a", "txid": None}]}, "whole number"),
        ({"records": [{"text": "a", "txid": -1}]}, "whole number"),
        ({"records": [{"text": "a", "txid": TXID_LAST + 1}]}, "whole number"),
        ({"records": [{"text": "a", "txid": 1.5}]}, "whole number"),
        ({"records": [{"text": "a", "txid": 2.0**53}]}, "whole number"),
    ],
)
def test_what_is_wrong_with_json_is_told(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        records_of(AS_JSON, json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b"nul", b'{"records":' + b"9" * 5000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        records_of(AS_JSON, body)


@given(st.binary(max_size=200), st.sampled_from([AS_JSON, AS_NDJSON]))
def test_no_body_raises_anything_else(body: bytes, media: MediaType) -> None:
    try:
        assert records_of(media, body).payloads
    except (QuireError, Rejected):
        pass


def test_too_many_records_and_too_large_ones_are_refused() -> None:
    with pytest.raises(Rejected) as refused:
        records_of(AS_NDJSON, b"1\n" * (RECORDS_MAX + 1))
    assert refused.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert len(records_of(AS_NDJSON, b"1\n" * RECORDS_MAX).payloads) == RECORDS_MAX
    with pytest.raises(RecordTooLarge):
        records_of(AS_NDJSON, b"1" * (RECORD_BYTES_MAX + 1))


def test_types_are_read_as_http_writes_them() -> None:
    assert media_type('Application/JSON; Charset="UTF-8"; x') == ("application/json", "utf-8")
    assert media_type("") == ("", "")


def test_what_would_have_to_be_decoded_first_is_refused() -> None:
    check_encoding(AS_JSON, "")
    check_encoding(MediaType("application/json", "utf-8"), "Identity")
    check_encoding(MediaType("text/plain", "latin-1"), "")  # It is stored as it came.
    for media, encoding in ((AS_JSON, "gzip"), (MediaType("application/json", "latin-1"), "")):
        with pytest.raises(Rejected) as refused:
            check_encoding(media, encoding)
        assert refused.value.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


def test_truncations_and_commits_are_read() -> None:
    place = DLSN.parse("3:17:0")
    assert truncation_of(b'{"dlsn": "3:17:0"}') == place
    assert truncation_of(b'{"txid": 7}') == 7
    assert commit_of(b'{"position": "3:17:0"}') == Commit(place, reset=False)
    assert commit_of(b'{"position": "3:17:0", "reset": true}') == Commit(place, reset=True)
    assert json_object(b"  ") == {}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"dlsn": "3:17:0", "txid": 1}', b'{"dlsn": 1}', b'{"dlsn": "latest"}', b'{"txid": "1"}']
)
def test_a_truncation_needs_one_place(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        truncation_of(body)


@pytest.mark.parametrize("body", [b"{}", b'{"position": null}', b'{"position": "3:17:0", "reset": 1}', b'{"at": 1}'])
def test_a_commit_needs_a_position(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        commit_of(body)
