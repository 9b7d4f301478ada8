"""The gateway as an ASGI application: which paths there are, and how every error becomes an answer.

    application = gateway_app({"default": client})      # For any ASGI server; `serve_gateway` in `server` is one.

A stream's name is one segment of a path: a slash in it is sent as `%2F`. So paths are matched as they were sent, and
only then decoded. What is not meant for the gateway is refused before it gets here: see `quire.runtime.http_guard`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import QuireError
from quire.proxy.gateway.admission import Admission
from quire.proxy.gateway.clients import StreamClient
from quire.proxy.gateway.handlers import Handlers
from quire.proxy.gateway.metrics import AnswerCounts, show_admissions
from quire.proxy.gateway.problems import Problem, Rejected, problem_of
from quire.proxy.gateway.settings import GatewaySettings
from quire.rpc.serving.tokens import Tokens
from quire.runtime.http_guard import Guarded, Hosts, Refusal
from quire.telemetry import names
from quire.telemetry.events import logger
from quire.telemetry.metrics import Registry

Handler = Callable[[Request], Awaitable[ASGIApp]]

_NAMESPACE: Final = "/v1/{namespace}/streams"
_STREAM: Final = f"{_NAMESPACE}/{{stream}}"
_READING: Final = ("fetch", "tail")  # These have limits of their own.

_log = logger("proxy.gateway")


def paths(handlers: Handlers) -> dict[str, dict[str, Handler]]:
    """The handler for each method of each path, as the OpenAPI description has them."""
    return {
        "/v1/openapi.json": {"GET": _description},
        _NAMESPACE: {"GET": handlers.list},
        f"{_STREAM}/records": {"POST": handlers.append, "GET": handlers.fetch},
        f"{_STREAM}/tail": {"GET": handlers.tail},
        f"{_STREAM}/owner": {"GET": handlers.owner},
        f"{_STREAM}/subscriptions/{{name}}": {
            "GET": handlers.position,
            "PUT": handlers.commit,
            "DELETE": handlers.forget,
        },
        f"{_STREAM}:truncate": {"POST": handlers.truncate},
        f"{_STREAM}:seal": {"POST": handlers.seal},
        f"{_STREAM}:heartbeat": {"POST": handlers.heartbeat},
        f"{_STREAM}:release": {"POST": handlers.release},
        _STREAM: {"GET": handlers.describe, "PUT": handlers.create, "DELETE": handlers.delete},
    }


class Gateway:
    """HTTP for the streams of some namespaces, each under the name that it has in paths."""

    def __init__(
        self,
        clients: Mapping[str, StreamClient],
        settings: GatewaySettings | None = None,
        *,
        registry: Registry | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """What it counts is shown in `registry`, if there is one. With `tokens` each request needs one."""
        self.settings, self._tokens = settings or GatewaySettings(), tokens
        self._handlers = Handlers(clients, self.settings, tokens)
        self._answers = AnswerCounts(registry)
        if registry is not None:
            show_admissions(registry, self._admissions, self._handlers.bodies)
            writers = self._handlers.writers
            registry.gauge(names.GATEWAY_WRITERS, lambda: sum(len(each.streams) for each in writers.values()))
        self.application = self._application()

    @property
    def _admissions(self) -> dict[str, Admission]:
        handlers = self._handlers
        return {"calls": handlers.calls, "fetches": handlers.fetches, "tails": handlers.tails}

    async def aclose(self) -> None:
        """End event streams and waiting reads, let appends end, and close all writers."""
        self.stop_reading()
        await self._handlers.aclose()

    def stop_reading(self) -> None:
        """End event streams and waiting reads, and take no others."""
        self._handlers.stopping.set()

    def refuse(self, refusal: Refusal) -> Response:
        """The answer to a request that is not meant for this gateway."""
        self._answers.count(refusal.status)
        problem = problem_of(
            Rejected(HTTPStatus(refusal.status), refusal.message, hint=refusal.hint, code=refusal.code)
        )
        return problem_response(problem._replace(headers={"connection": "close"}))

    def statistics(self) -> dict[str, Any]:
        """What the gateway does now, and how it answered since it began."""
        handlers = self._handlers
        admissions = self._admissions
        return {
            "answers": {str(status): count for status, count in self._answers.by_status().items()},
            "under_way": {name: each.used for name, each in admissions.items()},
            "body_bytes": handlers.bodies.used,
            "refused": {name: each.refused for name, each in (*admissions.items(), ("bodies", handlers.bodies))},
            "writers": {namespace: writers.streams for namespace, writers in handlers.writers.items()},
        }

    # --- As an application

    def _application(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await self.aclose()

        application = Starlette(
            routes=[Route(path, self._endpoint(handlers)) for path, handlers in paths(self._handlers).items()],
            exception_handlers={HTTPException: _not_routed},
            lifespan=lifespan,
        )
        application.router.redirect_slashes = False
        application.add_middleware(_AsSent)
        application.add_middleware(_Counted, answers=self._answers)
        return application

    def _endpoint(self, handlers: Mapping[str, Handler]) -> ASGIApp:
        """All methods of one path."""
        return _Endpoint(handlers, self._handlers, self._tokens)


class _Endpoint:
    """The one place where errors become answers: a client never sees a traceback, and the log has it."""

    def __init__(self, handlers: Mapping[str, Handler], state: Handlers, tokens: Tokens | None) -> None:
        self._handlers, self._state, self._tokens = handlers, state, tokens
        self._allow = ", ".join(sorted(handlers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            answer = Response(status_code=HTTPStatus.BAD_REQUEST)  # Nobody is there to read it.
        except (QuireError, Rejected) as error:
            answer = problem_response(problem_of(error))
        except Exception as error:
            _log.error("gateway.request_failed", method=request.method, path=scope["path"], exc_info=error)
            answer = problem_response(problem_of(error))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        if self._tokens is not None:
            self._tokens.check(request.headers.get("authorization", ""))
        handler = self._handlers.get(request.method)
        if handler is None:
            raise Rejected(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.method} is not possible here",
                hint=f"Possible: {self._allow}.",
                allow=self._allow,
            )
        if handler.__name__ in _READING:
            return await handler(request)
        with self._state.calls.one():
            return await handler(request)


class _AsSent:
    """Matches paths as they were sent: a `%2F` stays inside its segment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace"), "root_path": ""}
        await self._app(scope, receive, send)


class _Counted:
    """Counts answers by their status."""

    def __init__(self, app: ASGIApp, answers: AnswerCounts) -> None:
        self._app, self._answers = app, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._answers.count(message["status"])
            await send(message)

        await self._app(scope, receive, counting)


def problem_response(problem: Problem) -> Response:
    return JSONResponse(problem.body, problem.status, problem.headers)


async def _not_routed(request: Request, error: Exception) -> Response:
    shown = request.scope["path"]
    return problem_response(
        problem_of(
            Rejected(HTTPStatus.NOT_FOUND, f"there is no {shown} here", hint="/v1/openapi.json tells what there is.")
        )
    )


async def _description(request: Request) -> ASGIApp:
    return Response(_openapi(), media_type="application/json")


@cache
def _openapi() -> bytes:
    return (files("quire.proxy.gateway") / "openapi.json").read_bytes()


def gateway_app(
    clients: Mapping[str, StreamClient], settings: GatewaySettings | None = None, *, hosts: Iterable[str] = ()
) -> ASGIApp:
    """The application alone, for an ASGI server that tells it when to stop (`lifespan`). `hosts` are the names by which
    clients ask for it; addresses, loopback and the name of this machine count in any case."""
    gateway = Gateway(clients, settings)
    return Guarded(gateway.application, Hosts(names=hosts), gateway.refuse)
