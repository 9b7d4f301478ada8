"""What the commands of `quire autorecovery` do with the metadata, but for running it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from quire.codec import underreplication as nodes
from quire.errors import NotRunning
from quire.metadata import Cluster, StoreSettings, open_cluster
from quire.metadata.underreplication import Underreplication
from quire.runtime import real_runtime

_CHECKS: Final = {
    "ledger": nodes.CHECK_ALL_LEDGERS_CTIME,
    "placement": nodes.PLACEMENT_POLICY_CHECK_CTIME,
    "replicas": nodes.REPLICAS_CHECK_CTIME,
}


@asynccontextmanager
async def _opened(uri: str, timeout_s: float) -> AsyncIterator[tuple[Cluster, Underreplication]]:
    settings = StoreSettings(operation_timeout_s=timeout_s, create_missing=False)
    async with open_cluster(uri, settings=settings) as cluster:
        yield cluster, Underreplication(cluster.store, cluster.uri.root, real_runtime(), "quire autorecovery")


async def shown_status(uri: str, *, timeout_s: float) -> dict[str, Any]:
    async with _opened(uri, timeout_s) as (cluster, marks):
        listing = await cluster.bookies.listing()
        known = await cluster.bookies.known()
        marked = [mark.ledger_id async for mark in marks.marks()]
        holders = [await marks.lock_holder(ledger_id) for ledger_id in marked]
        return {
            "enabled": await marks.is_enabled(),
            "auditor": await marks.auditor(),
            "lost_bookies": sorted(known - listing.writable - listing.readonly),
            "delay_s": await marks.delay_s(),
            "marked": len(marked),
            "locked": sum(holder is not None for holder in holders),
            "checks": {name: _shown_ms(await marks.check_time_ms(node)) for name, node in _CHECKS.items()},
        }


async def switch(uri: str, enabled: bool, *, timeout_s: float) -> bool:
    async with _opened(uri, timeout_s) as (_, marks):
        return await (marks.enable() if enabled else marks.disable())


async def shown_delay(uri: str, seconds: int | None, *, timeout_s: float) -> int:
    async with _opened(uri, timeout_s) as (_, marks):
        if seconds is not None:
            await marks.set_delay(seconds)
        return await marks.delay_s()


async def trigger_audit(uri: str, *, timeout_s: float) -> str:
    """Write the delay that is there once more. Raises `NotRunning` if nobody would notice."""
    async with _opened(uri, timeout_s) as (_, marks):
        auditor = await marks.auditor()
        if auditor is None:
            raise NotRunning(
                "there is no auditor in this cluster", hint="Start one with `quire autorecovery run`, or Apache's."
            )
        await marks.set_delay(await marks.delay_s())
        return auditor


async def listed_marks(uri: str, missing: str | None, *, timeout_s: float) -> list[dict[str, Any]]:
    async with _opened(uri, timeout_s) as (_, marks):
        return [
            {
                "ledger_id": mark.ledger_id,
                "missing": list(mark.replicas),
                "since": _shown_ms(mark.ctime_ms),
                "worker": await marks.lock_holder(mark.ledger_id),
            }
            async for mark in marks.marks()
            if missing is None or missing in mark.replicas
        ]


def _shown_ms(time_ms: int | None) -> str | None:
    if time_ms is None or time_ms < 0:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
