"""Errors as the gateway tells them: a status, and one form of JSON for all of them. Pure.

    {"code": "LOG_NOT_FOUND", "message": "there is no stream 'a'", "hint": "…", "applied": "NO", "retry_after_ms": 0}

Codes and statuses are those of `quire.rpc.serving.results`; what goes wrong with HTTP itself has codes of its own. Two
facts are added where there are any: `owner`, who holds the stream, and `earliest`, the first place that is left of it.
"""

import math
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.rpc.serving.results import failure_inside, is_not_applied, meaning_of, result_of
from quire.types import DLSN

RETRY_AFTER_MS: Final = 1000  # Where nothing better is known of something that passes.

HTTP_CODES: Final = {
    HTTPStatus.NOT_FOUND: "NO_SUCH_PATH",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.REQUEST_TIMEOUT: "BODY_TIMEOUT",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "BODY_TOO_LARGE",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UNSUPPORTED_MEDIA_TYPE",
    HTTPStatus.NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    HTTPStatus.BAD_REQUEST: "INVALID_REQUEST",
}
"""Of what the gateway refuses by itself, without asking anybody."""

_LATER: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_UNREAD: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class Rejected(Exception):
    """The request is wrong as HTTP, or asks for what is not here. Nothing was done."""

    def __init__(
        self, status: HTTPStatus, message: str, *, hint: str = "", allow: str = "", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.hint, self.allow = status, hint, allow
        self.code = code or HTTP_CODES[status]


class Problem(NamedTuple):
    """An error, ready to be sent."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def problem_of(error: Exception) -> Problem:
    """How an error is told. Of what is nobody's error but a bug's, nothing is told but that."""
    if isinstance(error, Rejected):
        headers = {"allow": error.allow} if error.allow else {}
        return _problem(error.status, error.code, str(error), error.hint, "NO", headers=headers)
    if not isinstance(error, QuireError):
        inside = failure_inside()
        return _problem(500, _name(inside.code), inside.message, inside.hint, _applied(inside.applied))
    # Of an error that came from a proxy the proxy's own result says most; the facts of ours are the rest.
    told = error.facts.get("result")
    result = told if isinstance(told, pb.Result) else result_of(error)
    status = meaning_of(result.code).http
    if status == HTTPStatus.TEMPORARY_REDIRECT:
        status = HTTPStatus.SERVICE_UNAVAILABLE  # Redirects are followed here: the client could not.
    applied = "NO" if is_not_applied(error) else "UNKNOWN"
    problem = _problem(
        status, _name(result.code), str(error), error.hint, applied, retry_after_ms=result.retry_after_ms
    )
    owner, earliest = _owner(error), earliest_left(error)
    if owner is not None:
        problem.body["owner"] = owner
    if earliest is not None:
        problem.body["earliest"] = str(earliest)
    return problem


def earliest_left(error: QuireError) -> DLSN | None:
    """Where to go on behind what was truncated, if the error says so."""
    earliest = error.facts.get("earliest")
    return earliest if isinstance(earliest, DLSN) else None


def _owner(error: QuireError) -> str | None:
    proxy, owner = error.facts.get("proxy"), error.facts.get("owner")
    if isinstance(proxy, pb.Owner):
        return f"{proxy.host}:{proxy.port}"
    return owner if isinstance(owner, str) and owner else None


def _problem(
    status: int,
    code: str,
    message: str,
    hint: str,
    applied: str,
    *,
    retry_after_ms: int = 0,
    headers: dict[str, str] | None = None,
) -> Problem:
    headers = dict(headers or {})
    if status in _LATER and not retry_after_ms:
        retry_after_ms = RETRY_AFTER_MS
    if retry_after_ms:
        headers["retry-after"] = str(math.ceil(retry_after_ms / 1000))
    if status in _UNREAD:
        headers["connection"] = "close"  # The rest of the body will not be read.
    body = {"code": code, "message": message, "hint": hint, "applied": applied, "retry_after_ms": retry_after_ms}
    return Problem(int(status), body, headers)


def _name(code: int) -> str:
    try:
        return pb.Code.Name(code)
    except ValueError:
        return pb.Code.Name(pb.INTERNAL)


def _applied(applied: int) -> str:
    return pb.Applied.Name(applied)
