"""What admin APIs over HTTP have in common: every error is a sentence in JSON, bodies are small, scrapes are gentle.

Imported only when a server starts: it needs starlette.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quire.errors import QuireError, Refused
from quire.runtime.http_guard import Refusal
from quire.telemetry.events import Logger
from quire.telemetry.metrics import Registry

BODY_BYTES_MAX: Final = 16 << 10
BODY_TIMEOUT_S: Final = 10.0  # A client that never sends the rest must not be waited for.

CLOSING: Final = {"connection": "close"}

_EOF: Final = b"# EOF\n"  # How OpenMetrics ends.

Handler = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """What the client sent is wrong; the message says how."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def admin_application(paths: Mapping[str, Mapping[str, Handler]], log: Logger) -> Starlette:
    """An application that has these paths, each with a handler for each method."""
    routes = [Route(path, _answering(handlers, log), methods=list(handlers)) for path, handlers in paths.items()]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_routed})


def _answering(handlers: Mapping[str, Handler], log: Logger) -> Handler:
    """The one place where errors become answers: a client never sees a traceback, and the log has it."""

    async def answer(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(request)
        except BadRequest as error:
            return error_answer(error.status, str(error))
        except Refused as error:
            log.warning("admin.request_refused", method=request.method, path=request.url.path, error=str(error))
            return error_answer(409, str(error), hint=error.hint)
        except Exception as error:
            log.error("admin.request_failed", method=request.method, path=request.url.path, exc_info=error)
            if isinstance(error, QuireError):
                return error_answer(500, str(error), hint=error.hint)
            return error_answer(500, f"The request could not be answered: {type(error).__name__}: {error}")

    return answer


async def _not_routed(request: Request, error: Exception) -> Response:
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    sentence = {404: f"There is no {request.url.path} here.", 405: f"{request.method} is not possible here."}
    return error_answer(status, sentence.get(status, str(error)), headers=headers)


async def json_body(request: Request, *known: str) -> dict[str, object]:
    """The request's body, a JSON object of known names only; nothing at all counts as an empty one."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > BODY_BYTES_MAX:
                    raise BadRequest(f"The body may have {BODY_BYTES_MAX} bytes at most.", status=413)
    except TimeoutError:
        raise BadRequest(f"The body did not arrive within {BODY_TIMEOUT_S:g} s.", status=408) from None
    except ClientDisconnect:
        raise BadRequest("The client left before its body had arrived.") from None
    try:
        body = json.loads(data) if data.strip() else {}
    except (ValueError, RecursionError):
        raise BadRequest("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    if unknown := sorted(set(body) - set(known)):
        raise BadRequest(f"Nothing is known of {', '.join(unknown)}; possible: {', '.join(known)}.")
    return body


def error_answer(status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    closing = CLOSING if status in (408, 413) else {}  # The rest of the body will not be read.
    body = {"error": message, "hint": hint} if hint else {"error": message}
    return JSONResponse(body, status, {**(headers or {}), **closing})


def refusal_answer(refusal: Refusal) -> Response:
    """To a request that is not meant for this server."""
    body = {"error": refusal.message, "code": refusal.code, "hint": refusal.hint}
    return JSONResponse(body, refusal.status, CLOSING)


async def metrics_answer(request: Request, registry: Registry) -> Response:
    """What is counted, in the format that the scraper asks for. The event loop has other work: one metric at a time."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    parts = []
    for metric in list(registry.collect()):  # All of one moment, then written bit by bit.
        parts.append(encode(_Single(metric)).removesuffix(_EOF))
        await asyncio.sleep(0)  # Hundreds of lines at once would keep others waiting for milliseconds.
    end = _EOF if content_type.startswith("application/openmetrics-text") else b""
    return Response(b"".join([*parts, end]), headers={"content-type": content_type})


class _Single:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]
