"""What the admin API of a proxy answers; `server.py` has the list of paths. Imported for the first client."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire.errors import NotAuthenticated
from quire.proxy.admin.source import AdminSource
from quire.proxy.loop_lag import LoopLag
from quire.rpc.serving.tokens import Tokens
from quire.runtime.http_answers import BadRequest, admin_application, json_body, metrics_answer
from quire.telemetry.events import Seldom, logger

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_log = logger("proxy.admin")


class AdminPaths:
    """Answers for one proxy."""

    def __init__(
        self, source: AdminSource, lag: LoopLag, tokens: Tokens | None, config: Mapping[str, Any] | None
    ) -> None:
        self._source, self._lag, self._tokens, self._config = source, lag, tokens, config
        self._tell_refused = Seldom(_log.warning, "admin.refused")

    def application(self) -> Starlette:
        return admin_application(
            {
                "/healthz": {"GET": self._healthz},
                "/readyz": {"GET": self._readyz},
                "/metrics": {"GET": self._metrics},
                "/debug": {"GET": self._names},
                "/debug/{name}": {"GET": self._debug},
                "/debug/streams/{stream:path}": {"GET": self._stream},
                "/admin/drain": {"POST": self._drain},
                "/admin/loglevel": {"POST": self._loglevel},
            },
            _log,
        )

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def _readyz(self, request: Request) -> Response:
        reasons = list(self._source.not_ready)
        state = "not ready" if reasons else "up"
        if self._lag.worst_s > self._lag.late_s_max:
            reasons.append(f"the event loop was {self._lag.worst_s:.2f} s late in the last {self._lag.window_s:g} s")
            state = "busy" if state == "up" else state
        return JSONResponse({"ok": not reasons, "state": state, "reasons": reasons}, 503 if reasons else 200)

    async def _metrics(self, request: Request) -> Response:
        return await metrics_answer(request, self._source.metrics)

    async def _names(self, request: Request) -> Response:
        return JSONResponse({"names": sorted({*self._parts(), "tasks", "loop"})})

    def _parts(self) -> dict[str, Any]:
        own = {} if self._config is None else {"config": self._config}
        return {**self._source.debug(), **own}

    async def _debug(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "tasks":
            tasks = sorted(task.get_name() for task in asyncio.all_tasks())
            slow = [each.shown() for each in self._lag.slow]
            return JSONResponse({"count": len(tasks), "names": tasks, "slow_callbacks": slow})
        if name == "loop":
            return JSONResponse({"worst_lag_s": self._lag.worst_s, "window_s": self._lag.window_s})
        parts = self._parts()
        if name not in parts:
            raise BadRequest(f"Nothing is called {name!r}; there are: {', '.join(sorted(parts))}.", status=404)
        return JSONResponse(parts[name])

    async def _stream(self, request: Request) -> Response:
        stream, streams = request.path_params["stream"], self._source.debug().get("streams", {})
        if stream not in streams:
            raise BadRequest(f"Nothing is known here of a stream {stream!r}.", status=404)
        return JSONResponse(streams[stream])

    async def _drain(self, request: Request) -> Response:
        self._check_token(request)
        _log.info("admin.drain")
        self._source.ask_to_drain()
        return JSONResponse({"draining": True}, 202)

    async def _loglevel(self, request: Request) -> Response:
        self._check_token(request)
        body = await json_body(request, "level", "logger")
        level, name = str(body.get("level", "")).upper(), str(body.get("logger", ""))
        if level not in _LEVELS:
            raise BadRequest(f"A level is one of {', '.join(_LEVELS)}.")
        full = f"quire.{name.removeprefix('quire').strip('.')}".rstrip(".")
        _log.info("admin.loglevel", logger_=full, level_=level)
        logging.getLogger(full).setLevel(level)
        return JSONResponse({"logger": full, "level": level})

    def _check_token(self, request: Request) -> None:
        """Whoever changes something shows a token, where calls need one."""
        if self._tokens is None:
            return
        try:
            self._tokens.check(request.headers.get("authorization", ""))
        except NotAuthenticated as error:
            now_s = asyncio.get_running_loop().time()
            self._tell_refused(now_s, path=request.url.path, cause=error.facts["cause"])
            raise BadRequest(f"{error}.", status=401) from error
