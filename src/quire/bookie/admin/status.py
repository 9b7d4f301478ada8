"""The bookie as operators see it: healthy or not, what it holds, and every reason for what it does not do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from quire.bookie.admin.server import AdminServer
from quire.bookie.admin.source import BookieStatus, GcStatus, Health, JournalStatus
from quire.bookie.bookie import Bookie
from quire.bookie.garbage import GarbageCollector
from quire.errors import Refused
from quire.protocol.space import SpaceMode
from quire.telemetry.metrics import Registry


class BookieAdmin:
    """What the admin API asks of a bookie."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    @property
    def metrics(self) -> Registry:
        return self._bookie.metrics.registry

    def health(self) -> Health:
        """A read-only bookie is healthy: it serves what it has."""
        bookie = self._bookie
        if bookie.failure is not None:
            return Health(False, "failed", [str(bookie.failure)])
        if not bookie.is_ready:
            return Health(False, "stopping" if bookie.service.is_stopping else "starting")
        reasons = list(bookie.space.reasons) if bookie.space is not None else []
        return Health(True, "readonly" if bookie.is_readonly else "writable", reasons)

    def status(self) -> BookieStatus:
        bookie, storage = self._bookie, self._bookie.service.storage
        marks = zip(bookie.settings.folders.journals, storage.journals.marks, strict=True)
        journals: list[JournalStatus] = [
            {"file": f"{folder}/{mark.file_id:016x}.journal", "file_id": mark.file_id, "offset": mark.offset}
            for folder, mark in marks
        ]
        usage = bookie.usage
        return {
            "bookie_id": bookie.bookie_id,
            "running": bookie.is_ready,
            "readonly": bookie.is_readonly,
            "stopping": bookie.service.is_stopping,
            "high_priority_writes": bookie.service.mode is not SpaceMode.CLOSED,
            "free_bytes": usage.free_bytes,
            "total_bytes": usage.total_bytes,
            "journals": journals,
            "gc": self._gc(),
            "details": self._details(),
        }

    def _gc(self) -> GcStatus:
        garbage = self._garbage
        report, counters = garbage.report(), garbage.counters
        is_running = report.outcome == "running"
        return {
            "forced": is_running and report.is_forced,
            "major_running": is_running and report.compaction == "major",
            "minor_running": is_running and report.compaction == "minor",
            "major_suspended": report.major_suspended,
            "minor_suspended": report.minor_suspended,
            "last_major_ms": counters.last_major_ms,
            "last_minor_ms": counters.last_minor_ms,
            "major_count": counters.major_compactions,
            "minor_count": counters.minor_compactions,
        }

    def _details(self) -> dict[str, Any]:
        bookie, storage = self._bookie, self._bookie.service.storage
        identity = bookie.identity
        return {
            "address": f"{bookie.address[0]}:{bookie.address[1]}",
            "started_unclean": identity is not None and identity.was_unclean,
            "journal_damages": [asdict(damage) for damage in storage.damages],
            "connections": len(bookie.service.connections),
            "write_cache_bytes": storage.write_cache.total_bytes,
            "read_cache_bytes": storage.read_cache.bytes,
            "garbage": asdict(self._garbage.report()),
            "garbage_counters": asdict(self._garbage.counters),
            "steps": [asdict(step) for step in bookie.history.steps],
        }

    @property
    def _garbage(self) -> GarbageCollector:
        if self._bookie.garbage is None:
            raise Refused("the bookie has not started whole yet")
        return self._bookie.garbage

    async def trigger_gc(self, *, major: bool, minor: bool) -> None:
        self._garbage.trigger(minor=minor, major=major)

    async def set_readonly(self, readonly: bool) -> None:
        space = self._bookie.space
        if space is None:
            raise Refused("the bookie has not started whole yet")
        await space.set_read_only(readonly, why="through the admin API")

    def suspend_compaction(self, *, major: bool, minor: bool) -> None:
        self._garbage.suspend(minor=minor, major=major)

    def resume_compaction(self, *, major: bool, minor: bool) -> None:
        self._garbage.resume(minor=minor, major=major)


@asynccontextmanager
async def serve_admin(
    bookie: Bookie, *, host: str = "127.0.0.1", port: int = 0, hosts: tuple[str, ...] = ()
) -> AsyncIterator[tuple[str, int]]:
    """Serve metrics and the admin API of a bookie. It asks for no password: keep it on loopback. Yields where it
    listens.

    `hosts` are names by which clients ask for it, other than where it listens and the advertised one.
    """
    advertised = bookie.settings.advertised_host
    names = hosts if advertised is None else (advertised, *hosts)
    async with AdminServer(BookieAdmin(bookie), host, port, hosts=names) as server:
        yield server.address
