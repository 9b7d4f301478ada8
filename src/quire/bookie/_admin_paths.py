"""What the admin API answers: one method for each answer, and every error a sentence in JSON.

Paths and bodies below /api/v1 are those of Apache BookKeeper where it has them, so that its scripts go on working; ours
are /healthz and /api/v1/bookie/status. The event loop is the bookie's, so a scrape is written one metric at a time.
Imported only when an admin server starts.
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
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from quire.bookie.admin import AdminSource
from quire.errors import QuireError, Refused
from quire.telemetry.events import logger

BODY_BYTES_MAX: Final = 16 << 10
BODY_TIMEOUT_S: Final = 10.0  # A client that never sends the rest must not be waited for.

_EOF: Final = b"# EOF\n"  # How OpenMetrics ends.

_Handler = Callable[[Request], Awaitable[Response]]
_log = logger("bookie.admin")


class _BadRequest(Exception):
    """What the client sent is wrong; the message says how."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class AdminPaths:
    """One method for each answer. Every error becomes a sentence in JSON."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def application(self) -> Starlette:
        bookie = "/api/v1/bookie"
        paths: dict[str, dict[str, _Handler]] = {
            "/healthz": {"GET": self._healthz},
            "/heartbeat": {"GET": self._heartbeat},
            "/metrics": {"GET": self._metrics},
            f"{bookie}/status": {"GET": self._status},
            f"{bookie}/state": {"GET": self._state},
            f"{bookie}/is_ready": {"GET": self._is_ready},
            f"{bookie}/info": {"GET": self._info},
            f"{bookie}/state/readonly": {"GET": self._readonly, "PUT": self._set_readonly},
            f"{bookie}/gc": {"GET": self._gc, "PUT": self._trigger_gc},
            f"{bookie}/gc_details": {"GET": self._gc_details},
            f"{bookie}/gc/suspend_compaction": {"GET": self._suspended, "PUT": self._suspend},
            f"{bookie}/gc/resume_compaction": {"PUT": self._resume},
            f"{bookie}/last_log_mark": {"GET": self._last_log_mark},
        }
        return Starlette(
            routes=[Route(path, _answering(handlers), methods=list(handlers)) for path, handlers in paths.items()],
            exception_handlers={HTTPException: _not_routed},
        )

    # --- Ours

    async def _healthz(self, request: Request) -> Response:
        health = self._source.health()
        body = {"ok": health.ok, "state": health.state, "reasons": health.reasons}
        return JSONResponse(body, 200 if health.ok else 503)

    async def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        parts = []
        for metric in list(self._source.metrics.collect()):  # All of one moment, then written bit by bit.
            parts.append(encode(_Single(metric)).removesuffix(_EOF))
            await asyncio.sleep(0)  # Hundreds of lines at once would keep adds waiting for milliseconds.
        end = _EOF if content_type.startswith("application/openmetrics-text") else b""
        return Response(b"".join([*parts, end]), headers={"content-type": content_type})

    async def _status(self, request: Request) -> Response:
        health, status = self._source.health(), self._source.status()
        return JSONResponse({"ok": health.ok, "state": health.state, "reasons": health.reasons, **status})

    # --- Apache's

    async def _heartbeat(self, request: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def _state(self, request: Request) -> Response:
        status = self._source.status()
        body = {
            "running": status["running"],
            "readOnly": status["readonly"],
            "shuttingDown": status["stopping"],
            "availableForHighPriorityWrites": status["high_priority_writes"],
        }
        return JSONResponse(body)

    async def _is_ready(self, request: Request) -> Response:
        status = self._source.status()
        if status["running"] and not status["stopping"]:
            return PlainTextResponse("OK")
        return _error(503, "The bookie has not started whole yet, or is stopping.")

    async def _info(self, request: Request) -> Response:
        status = self._source.status()
        return JSONResponse({"freeSpace": status["free_bytes"], "totalSpace": status["total_bytes"]})

    async def _readonly(self, request: Request) -> Response:
        return JSONResponse({"readOnly": self._source.status()["readonly"]})

    async def _set_readonly(self, request: Request) -> Response:
        wanted = _flag(await _body(request, "readOnly"), "readOnly")
        if wanted is None:
            raise _BadRequest('The body must be {"readOnly": true} or {"readOnly": false}.')
        _log.info("admin.set_readonly", readonly=wanted)
        await self._source.set_readonly(wanted)  # Also if it is so already: what an operator wants, only they undo.
        return await self._readonly(request)

    async def _gc(self, request: Request) -> Response:
        return JSONResponse({"is_in_force_gc": _word(self._source.status()["gc"]["forced"])})

    async def _trigger_gc(self, request: Request) -> Response:
        body, status = await _body(request, "forceMajor", "forceMinor"), self._source.status()
        major, minor = _flag(body, "forceMajor"), _flag(body, "forceMinor")
        major = not status["gc"]["major_suspended"] if major is None else major
        minor = not status["gc"]["minor_suspended"] if minor is None else minor
        _log.info("admin.trigger_gc", major=major, minor=minor)
        await self._source.trigger_gc(major=major, minor=minor)
        return JSONResponse(f"Triggered GC on BookieServer: {status['bookie_id']}")

    async def _gc_details(self, request: Request) -> Response:
        gc = self._source.status()["gc"]
        details = {
            "forceCompacting": gc["forced"],
            "majorCompacting": gc["major_running"],
            "minorCompacting": gc["minor_running"],
            "lastMajorCompactionTime": gc["last_major_ms"],
            "lastMinorCompactionTime": gc["last_minor_ms"],
            "majorCompactionCounter": gc["major_count"],
            "minorCompactionCounter": gc["minor_count"],
        }
        return JSONResponse([details])  # Apache has one for each ledger folder.

    async def _suspended(self, request: Request) -> Response:
        gc = self._source.status()["gc"]
        body = {"isMajorGcSuspended": gc["major_suspended"], "isMinorGcSuspended": gc["minor_suspended"]}
        return JSONResponse({name: _word(value) for name, value in body.items()})

    async def _suspend(self, request: Request) -> Response:
        major, minor = await _chosen(request, "suspendMajor", "suspendMinor")
        _log.info("admin.suspend_compaction", major=major, minor=minor)
        self._source.suspend_compaction(major=major, minor=minor)
        return await self._suspended(request)

    async def _resume(self, request: Request) -> Response:
        major, minor = await _chosen(request, "resumeMajor", "resumeMinor")
        _log.info("admin.resume_compaction", major=major, minor=minor)
        self._source.resume_compaction(major=major, minor=minor)
        return await self._suspended(request)

    async def _last_log_mark(self, request: Request) -> Response:
        marks = {
            f"LastLogMark: Journal Id - {mark['file_id']}({mark['file']})": f"Pos - {mark['offset']}"
            for mark in self._source.status()["journals"]
        }
        return JSONResponse(marks)


def _answering(handlers: dict[str, _Handler]) -> _Handler:
    """The one place where errors become answers: a client never sees a traceback, and the log has it."""

    async def answer(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(request)
        except _BadRequest as error:
            return _error(error.status, str(error))
        except Refused as error:
            _log.warning("admin.request_refused", method=request.method, path=request.url.path, error=str(error))
            return _error(409, str(error), hint=error.hint)
        except Exception as error:
            _log.error("admin.request_failed", method=request.method, path=request.url.path, exc_info=error)
            if isinstance(error, QuireError):
                return _error(500, str(error), hint=error.hint)
            return _error(500, f"The bookie could not answer: {type(error).__name__}: {error}")

    return answer


async def _not_routed(request: Request, error: Exception) -> Response:
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    sentence = {404: f"There is no {request.url.path} here.", 405: f"{request.method} is not possible here."}
    return _error(status, sentence.get(status, str(error)), headers=headers)


async def _body(request: Request, *known: str) -> dict[str, object]:
    """The request's body, a JSON object of known names only; nothing at all counts as an empty one."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > BODY_BYTES_MAX:
                    raise _BadRequest(f"The body may have {BODY_BYTES_MAX} bytes at most.", status=413)
    except TimeoutError:
        raise _BadRequest(f"The body did not arrive within {BODY_TIMEOUT_S:g} s.", status=408) from None
    except ClientDisconnect:
        raise _BadRequest("The client left before its body had arrived.") from None
    try:
        body = json.loads(data) if data.strip() else {}
    except (ValueError, RecursionError):
        raise _BadRequest("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise _BadRequest("The body must be a JSON object.")
    if unknown := sorted(set(body) - set(known)):
        raise _BadRequest(f"Nothing is known of {', '.join(unknown)}; possible: {', '.join(known)}.")
    return body


def _flag(body: dict[str, object], name: str) -> bool | None:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    if value in ("true", "false"):  # Apache's own scripts send words.
        return value == "true"
    raise _BadRequest(f"{name} must be true or false.")


async def _chosen(request: Request, major: str, minor: str) -> tuple[bool, bool]:
    body = await _body(request, major, minor)
    flags = _flag(body, major), _flag(body, minor)
    if flags == (None, None):
        raise _BadRequest(f"Say which: {major}, {minor}, or both.")
    return flags[0] or False, flags[1] or False


def _word(value: bool) -> str:
    return "true" if value else "false"  # Where Apache answers with words instead of truth values.


def _error(status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    closing = {"connection": "close"} if status in (408, 413) else {}  # The rest of the body will not be read.
    body = {"error": message, "hint": hint} if hint else {"error": message}
    return JSONResponse(body, status, {**(headers or {}), **closing})


class _Single:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]
