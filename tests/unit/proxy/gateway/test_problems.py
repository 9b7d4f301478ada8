"""Errors as answers: each of the tree has a status and a form, and what is a bug tells nothing."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

import quire.errors as errors
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.proxy.gateway.openapi_schemas import RESPONSES, SCHEMAS
from quire.proxy.gateway.problems import Rejected, problem_of
from quire.rpc.serving.results import error_of, result_of
from quire.types import DLSN

CODES = SCHEMAS["Problem"]["properties"]["code"]["enum"]


def kinds(kind: type[QuireError]) -> Iterator[type[QuireError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


KINDS = {kind.__name__: kind for kind in kinds(QuireError)}


@pytest.mark.parametrize("kind", [KINDS[name] for name in sorted(KINDS)])
def test_every_error_has_a_status_that_the_description_names(kind: type[QuireError]) -> None:
    problem = problem_of(kind("so it is"))
    assert str(problem.status) in RESPONSES
    assert problem.body["code"] in CODES
    assert problem.body["message"] == "so it is"
    assert set(problem.body) == {"code", "message", "hint", "applied", "retry_after_ms"}
    assert problem.body["applied"] == ("NO" if kind.outcome is errors.Outcome.NOT_APPLIED else "UNKNOWN")
    assert ("retry-after" in problem.headers) == (problem.status in (429, 503))


def test_what_a_proxy_said_is_passed_on() -> None:
    """Also its word on whether the call happened, which counts before that of the error's kind."""
    result = result_of(errors.AppendOutcomeUnknown("lost", retry_after_ms=1500), code=pb.FLUSH_TIMEOUT)
    result.applied = pb.NO
    problem = problem_of(error_of(result))
    assert (problem.status, problem.body["code"], problem.body["applied"]) == (504, "FLUSH_TIMEOUT", "NO")
    assert (problem.body["retry_after_ms"], problem.headers["retry-after"]) == (1500, "2")


def test_redirects_are_followed_here_and_never_told() -> None:
    owner = pb.Owner(host="proxy-1", port=4181)
    problem = problem_of(errors.NotOwner("elsewhere", proxy=owner))
    assert (problem.status, problem.body["code"], problem.body["owner"]) == (503, "NOT_OWNER", "proxy-1:4181")


def test_the_reason_of_a_refusal_is_told() -> None:
    assert problem_of(errors.StreamOwned("held", owner="host/7")).body["owner"] == "host/7"
    left = DLSN.parse("3:17:0")
    assert problem_of(errors.PositionTruncated("gone", earliest=left)).body["earliest"] == "3:17:0"


def test_a_bug_tells_nothing_but_that() -> None:
    problem = problem_of(ValueError("secret"))
    assert problem.status == 500
    assert "secret" not in str(problem)
    assert problem.body["applied"] == "UNKNOWN"


def test_a_body_that_is_not_read_ends_the_connection() -> None:
    assert problem_of(Rejected(HTTPStatus.REQUEST_TIMEOUT, "late")).headers["connection"] == "close"
    assert problem_of(Rejected(HTTPStatus.METHOD_NOT_ALLOWED, "no", allow="GET")).headers == {"allow": "GET"}
