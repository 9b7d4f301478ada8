"""What the admin API answers: one method for each answer, and every error a sentence in JSON.

Paths and bodies below /api/v1 are those of Apache BookKeeper where it has them, so that its scripts go on working; ours
are /healthz and /api/v1/bookie/status. The event loop is the bookie's, so a scrape is written one metric at a time.
Imported only when an admin server starts.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from quire.bookie.admin.source import AdminSource
from quire.runtime.http_answers import BadRequest, Handler, admin_application, error_answer, json_body, metrics_answer
from quire.telemetry.events import logger

_log = logger("bookie.admin")


class AdminPaths:
    """One method for each answer. Every error becomes a sentence in JSON."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def application(self) -> Starlette:
        bookie = "/api/v1/bookie"
        paths: dict[str, dict[str, Handler]] = {
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
        return admin_application(paths, _log)

    # --- Ours

    async def _healthz(self, request: Request) -> Response:
        health = self._source.health()
        body = {"ok": health.ok, "state": health.state, "reasons": health.reasons}
        return JSONResponse(body, 200 if health.ok else 503)

    async def _metrics(self, request: Request) -> Response:
        return await metrics_answer(request, self._source.metrics)

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
        return error_answer(503, "The bookie has not started whole yet, or is stopping.")

    async def _info(self, request: Request) -> Response:
        status = self._source.status()
        return JSONResponse({"freeSpace": status["free_bytes"], "totalSpace": status["total_bytes"]})

    async def _readonly(self, request: Request) -> Response:
        return JSONResponse({"readOnly": self._source.status()["readonly"]})

    async def _set_readonly(self, request: Request) -> Response:
        wanted = _flag(await json_body(request, "readOnly"), "readOnly")
        if wanted is None:
            raise BadRequest('The body must be {"readOnly": true} or {"readOnly": false}.')
        _log.info("admin.set_readonly", readonly=wanted)
        await self._source.set_readonly(wanted)  # Also if it is so already: what an operator wants, only they undo.
        return await self._readonly(request)

    async def _gc(self, request: Request) -> Response:
        return JSONResponse({"is_in_force_gc": _word(self._source.status()["gc"]["forced"])})

    async def _trigger_gc(self, request: Request) -> Response:
        body, status = await json_body(request, "forceMajor", "forceMinor"), self._source.status()
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


def _flag(body: dict[str, object], name: str) -> bool | None:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    if value in ("true", "false"):  # Apache's own scripts send words.
        return value == "true"
    raise BadRequest(f"{name} must be true or false.")


async def _chosen(request: Request, major: str, minor: str) -> tuple[bool, bool]:
    body = await json_body(request, major, minor)
    flags = _flag(body, major), _flag(body, minor)
    if flags == (None, None):
        raise BadRequest(f"Say which: {major}, {minor}, or both.")
    return flags[0] or False, flags[1] or False


def _word(value: bool) -> str:
    return "true" if value else "false"  # Where Apache answers with words instead of truth values.
