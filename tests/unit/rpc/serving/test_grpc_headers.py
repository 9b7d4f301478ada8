"""What calls say in their headers, and what is made of headers that others wrote."""

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner, ProxyFailed, ProxyOutcomeUnknown
from quire.rpc.serving.grpc_headers import (
    STATUSES,
    caller_of,
    error_in,
    request_headers,
    trailers,
    wrong_request,
)
from quire.rpc.serving.results import result_of

printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ", exclude_characters=",")
ids = st.text(printable, min_size=1, max_size=20)


def read(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


@given(ids, st.integers(1, 1000), st.lists(ids, max_size=3))
def test_a_caller_is_told_as_it_is(client_id: str, attempt: int, tried: list[str]) -> None:
    block = request_headers("/p", address="h:1", client_id=client_id, attempt=attempt, tried=tried, timeout_s=None)
    headers = read(block)
    assert wrong_request(headers) is None
    caller = caller_of(headers, peer="x")
    assert caller is not None
    assert (caller.client_id, caller.attempt, caller.tried, caller.peer) == (client_id, attempt, tuple(tried), "x")


@pytest.mark.parametrize("client_id", ["", "x" * 1000])
def test_a_caller_without_a_sensible_id_is_nobody(client_id: str) -> None:
    assert caller_of({"x-client-id": client_id}, peer="") is None


@pytest.mark.parametrize("attempt", ["", "-1", "x", "99999999999999", "²"])
def test_an_attempt_that_is_no_number_is_the_first(attempt: str) -> None:
    caller = caller_of({"x-client-id": "c", "x-attempt": attempt}, peer="")
    assert caller is not None
    assert caller.attempt == 1


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("parent", "trace_id"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"00-{TRACE}-00f067aa0ba902b7", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        ("\n", None),
        (None, None),
    ],
)
def test_the_trace_that_a_call_belongs_to_is_among_what_is_logged_of_it(
    parent: str | None, trace_id: str | None
) -> None:
    headers = {"x-client-id": "c"} | ({} if parent is None else {"traceparent": parent})
    caller = caller_of(headers, peer="p")
    assert caller is not None
    assert caller.facts() == {"client_id": "c", "peer": "p"} | ({} if trace_id is None else {"trace_id": trace_id})


def test_the_numbers_of_statuses_are_those_of_grpc() -> None:
    assert [STATUSES[name] for name in ("OK", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "UNAUTHENTICATED")] == [
        0,
        4,
        12,
        16,
    ]


def test_an_end_says_what_went_wrong() -> None:
    error = NotOwner("ask b", proxy=pb.Owner(host="b", port=1), owner_live=True)
    headers = read(trailers(result_of(error)))
    assert headers["grpc-status"] == str(STATUSES["FAILED_PRECONDITION"])
    found = error_in(headers, address="a:1")
    assert isinstance(found, NotOwner)
    assert found.facts["proxy"] == error.facts["proxy"]
    assert error_in({"grpc-status": "0"}, address="a:1") is None


@pytest.mark.parametrize("found", ["not base64!", "AAAA", "_"])
def test_a_result_that_cannot_be_read_leaves_the_status(found: str) -> None:
    assert isinstance(error_in({"grpc-status": "13", "quire-result-bin": found}, address="a:1"), ProxyFailed)


@pytest.mark.parametrize("status", ["", "14", "99", "x"])
def test_what_is_not_clear_is_unknown(status: str) -> None:
    assert isinstance(error_in({"grpc-status": status}, address="a:1"), ProxyOutcomeUnknown)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({":method": "GET", "content-type": "application/grpc"}, "405"),
        ({":method": "POST", "content-type": "application/json"}, "415"),
        ({":method": "POST"}, "415"),
        ({":method": "POST", "content-type": "application/grpc+proto"}, None),
    ],
)
def test_what_is_no_call_has_a_status_of_http(headers: dict[str, str], status: str | None) -> None:
    assert wrong_request(headers) == status
