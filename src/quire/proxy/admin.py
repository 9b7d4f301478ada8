"""The admin API of one proxy over HTTP: its health, its metrics, and what it is doing.

    async with ProxyAdmin(source, port=8080) as admin:
        print(admin.address)

Paths (`/debug` and its parts answer JSON made for people who look for a cause, and may change):
  /healthz          200 while the process does its work
  /readyz           200 while clients should be sent here: it is in the live set, not draining, and its loop is quick
  /metrics          Prometheus
  /debug/NAME       what the proxy tells of itself under that name; /debug lists the names
  /admin/drain      POST: give up all streams in good order, then stop

Whoever reaches the port may use it, so it listens on loopback unless told otherwise.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire.proxy.loop_lag import LoopLag
from quire.runtime import Clock
from quire.runtime.http_answers import BadRequest, admin_application, metrics_answer
from quire.runtime.http_server import HttpServer
from quire.telemetry.events import logger
from quire.telemetry.metrics import Registry

LAG_MAX_S: Final = 0.25  # A loop that is later than this answers nobody in time.
_log = logger("proxy.admin")


class AdminSource(Protocol):
    """A proxy, as far as its admin API knows it."""

    @property
    def metrics(self) -> Registry: ...

    @property
    def not_ready(self) -> list[str]:
        """Why clients should go elsewhere; nothing if they should not."""
        ...

    def debug(self) -> Mapping[str, Any]:
        """What is going on, part by part."""
        ...

    def ask_to_drain(self) -> None:
        """Begin to stop in good order. Returns at once; fine if it has begun."""
        ...


class ProxyAdmin:
    """Serves a source while its block runs. Raises `OSError` on entry if the address cannot be had."""

    def __init__(self, source: AdminSource, clock: Clock, host: str = "127.0.0.1", port: int = 0) -> None:
        self._source, self._lag = source, LoopLag(clock)
        self._stack = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._lag)
        server = HttpServer(self._application(), *self.address, name="proxy admin")
        await self._stack.enter_async_context(server)
        self.address = server.address
        _log.info("admin.listening", host=self.address[0], port=self.address[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def _application(self) -> Starlette:
        return admin_application(
            {
                "/healthz": {"GET": self._healthz},
                "/readyz": {"GET": self._readyz},
                "/metrics": {"GET": self._metrics},
                "/debug": {"GET": self._names},
                "/debug/{name}": {"GET": self._debug},
                "/debug/streams/{stream:path}": {"GET": self._stream},
                "/admin/drain": {"POST": self._drain},
            },
            _log,
        )

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def _readyz(self, request: Request) -> Response:
        reasons = list(self._source.not_ready)
        if self._lag.worst_s > LAG_MAX_S:
            reasons.append(f"the event loop was {self._lag.worst_s:.2f} s late in the last {self._lag.window_s:g} s")
        return JSONResponse({"ok": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _metrics(self, request: Request) -> Response:
        return await metrics_answer(request, self._source.metrics)

    async def _names(self, request: Request) -> Response:
        return JSONResponse({"names": sorted([*self._source.debug(), "tasks", "loop"])})

    async def _debug(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "tasks":
            tasks = sorted(task.get_name() for task in asyncio.all_tasks())
            return JSONResponse({"count": len(tasks), "names": tasks})
        if name == "loop":
            return JSONResponse({"worst_lag_s": self._lag.worst_s, "window_s": self._lag.window_s})
        parts = self._source.debug()
        if name not in parts:
            raise BadRequest(f"Nothing is called {name!r}; there are: {', '.join(sorted(parts))}.", status=404)
        return JSONResponse(parts[name])

    async def _stream(self, request: Request) -> Response:
        stream, streams = request.path_params["stream"], self._source.debug().get("streams", {})
        if stream not in streams:
            raise BadRequest(f"Nothing is known here of a stream {stream!r}.", status=404)
        return JSONResponse(streams[stream])

    async def _drain(self, request: Request) -> Response:
        _log.info("admin.drain")
        self._source.ask_to_drain()
        return JSONResponse({"draining": True}, 202)
