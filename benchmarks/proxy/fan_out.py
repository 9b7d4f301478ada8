"""Many readers at the tail of one stream, through one read proxy: what each record costs, and when readers have it."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

import quire
from benchmarks.ledger.figures import percentile
from benchmarks.ledger.measure import at_rate
from benchmarks.processes import no_collections
from benchmarks.proxy.cluster import BOOKIE, READ_PROXY, WRITE_PROXY, ProxyCluster
from benchmarks.proxy.messages import DUE
from benchmarks.proxy.readers import ReadersPlan, wait_ms
from quire.errors import Unavailable
from quire.values import dataclass

DELIVERY_P99_MS_MAX: Final = 50.0
_RECORD_BYTES: Final = 256
_LINE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """What to measure."""

    readers: int
    whole_readers: int
    readers_per_connection: int
    rate: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FanOut:
    """What was found, with so many readers that took nothing."""

    readers: int
    stuck_readers: int
    records: int
    fewest_records: int
    """Of the reader that had the fewest."""
    acked_p50_ms: float
    """From when an append was due until it was acknowledged: what readers wait for before the read proxy has a part."""
    acked_p99_ms: float
    p50_ms: float
    """From when it was due until each reader had the record."""
    p99_ms: float
    max_ms: float
    entries: int
    storage_reads: int
    """Requests that bookies answered, while all that was read."""
    reads_per_entry: float
    messages_per_s: float
    read_proxy_cpu_share: float
    """Of one core."""
    readers_cpu_share: float
    write_proxy_cpu_share: float
    bookies_cpu_share: float
    read_proxy_bytes: int
    """Memory of the process at the end."""
    read_proxy_growth_bytes: int
    """By how much it was more than before the first record."""
    cache_bytes: int

    @property
    def is_met(self) -> bool:
        return (
            self.p99_ms <= DELIVERY_P99_MS_MAX
            and self.reads_per_entry <= 1.05  # The place where each reader begins is looked up, too.
            and self.fewest_records == self.records
        )


async def bench_fan_out(cluster: ProxyCluster, plan: FanOutPlan, *, stuck_readers: int) -> FanOut:
    """One turn, with a stream of its own. Raises `Unavailable` if readers fail."""
    stream, count = f"fan-out-{os.urandom(4).hex()}", max(1, round(plan.rate * plan.seconds))
    async with quire.connect(cluster.uri) as client, client.open_writer(stream) as writer:
        readers = ReadersPlan(
            cluster.uri,
            cluster.address(READ_PROXY),
            cluster.uri.rpartition("/")[2],
            stream,
            plan.readers,
            min(plan.whole_readers, plan.readers),
            plan.readers_per_connection,
            stuck_readers,
        )
        async with _running(readers) as process:
            await _told(process, "open")
            memory, before = cluster.memory_bytes(READ_PROXY), await _now(cluster)
            appends: list[asyncio.Task[float]] = []

            async def append(due_s: float) -> float:
                await writer.append(DUE.pack(due_s) + os.urandom(_RECORD_BYTES - DUE.size))
                return (time.perf_counter() - due_s) * 1000

            with no_collections():
                await at_rate(count, plan.rate, lambda due_s: appends.append(asyncio.create_task(append(due_s))))
                acked_ms = sorted(await asyncio.gather(*appends))
            after = await _now(cluster)
            cache_bytes, memory_after = await cluster.cache_bytes(), cluster.memory_bytes(READ_PROXY)
            await writer.seal()
            seen = await _told(process, "done")
    wall_s, read_s, write_s, bookies_s, messages, reads, entries = (
        ended - began for ended, began in zip(after, before, strict=True)
    )
    waits = Counter({int(step): number for step, number in seen["waits"].items()})
    return FanOut(
        plan.readers,
        stuck_readers,
        len(acked_ms),
        seen["fewest"],
        percentile(acked_ms, 0.5),
        percentile(acked_ms, 0.99),
        wait_ms(waits, 0.5),
        wait_ms(waits, 0.99),
        wait_ms(waits, 1.0),
        round(entries),
        round(reads),
        reads / max(1, entries),
        messages / wall_s,
        read_s / wall_s,
        seen["cpu_s"] / wall_s,
        write_s / wall_s,
        bookies_s / wall_s,
        memory_after,
        memory_after - memory,
        cache_bytes,
    )


async def _now(cluster: ProxyCluster) -> tuple[float, ...]:
    cpu_s = [cluster.cpu_s(kind) for kind in (READ_PROXY, WRITE_PROXY, BOOKIE)]
    counts = await cluster.messages_sent(), await cluster.storage_reads(), await cluster.entries_read()
    return (time.perf_counter(), *cpu_s, *counts)


@asynccontextmanager
async def _running(plan: ReadersPlan) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.proxy.readers", json.dumps(asdict(plan))),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _told(process: asyncio.subprocess.Process, what: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    told: dict[str, Any] = json.loads(line) if line else {}
    if told.get("event") != what:
        raise Unavailable("the readers of the benchmark have ended before their time", told=told)
    return told
