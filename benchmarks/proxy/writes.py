"""Appending through a write proxy: how much later a record is safe than without it, and how many go through one.

Waits are measured at a rate that leaves everything half idle, in turns of a direct writer and of one behind the proxy,
each with a stream of its own; from when a record was due, so that a stall is counted against all who waited in it.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import quire
from benchmarks.ledger.figures import percentile
from benchmarks.ledger.measure import at_rate
from benchmarks.proxy.cluster import BOOKIE, WRITE_PROXY, ProxyCluster
from quire.stream.client_api import Client, StreamWriter
from quire.types import DLSN
from quire.values import dataclass

ADDED_P50_MS_MAX, ADDED_P99_MS_MAX = 1.5, 8.0
_WARM_UP_CALLS: Final = 200
_CALLS_UNDER_WAY: Final = 32


@dataclass(frozen=True, slots=True)
class AppendWaits:
    """At a fixed rate, all rounds together."""

    way: str
    records: int
    records_per_s: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class AddedWait:
    """By which the proxy is slower than the direct way: the median of the rounds, with the lowest and the highest."""

    share: str
    added_ms: float
    low_ms: float
    high_ms: float
    target_ms: float

    @property
    def is_met(self) -> bool:
        return self.added_ms <= self.target_ms


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of load, and what is asked of a process for it."""

    record_bytes: int
    call_records: int
    target_records_per_s: float


KINDS: Final = (Kind(256, 64, 20_000), Kind(1024, 62, 30e6 / 1024))  # With headers, 62 are what fits into 64 KiB.


@dataclass(frozen=True, slots=True)
class WriteThroughput:
    """As fast as it goes, with a bounded number of calls under way: the median of the rounds."""

    way: str
    record_bytes: int
    call_records: int
    records: int
    records_per_s: float
    mb_per_s: float
    client_cpu_us: float
    write_proxy_cpu_us: float
    bookies_cpu_us: float
    target_records_per_s: float | None

    @property
    def is_met(self) -> bool:
        return self.target_records_per_s is None or self.records_per_s >= self.target_records_per_s


async def bench_waits(
    cluster: ProxyCluster, *, rate: int, seconds: float, rounds: int
) -> tuple[list[AppendWaits], list[AddedWait]]:
    """Appends of 256 bytes, one by one."""
    count = max(1, round(rate * seconds))
    waits_s: dict[str, list[list[float]]] = {}
    for number in range(rounds):
        for way, uri in (("direct", cluster.direct_uri), ("proxy", cluster.uri)):
            async with quire.connect(uri) as client, client.open_writer(f"waits-{way}-{number}") as writer:
                await _paced(writer, min(count, _WARM_UP_CALLS), rate)
                waits_s.setdefault(way, []).append(await _paced(writer, count, rate))
    rows = []
    for way, turns in waits_s.items():
        waits_ms = sorted(wait_s * 1000 for turn in turns for wait_s in turn)
        p50_ms, p99_ms = (percentile(waits_ms, share) for share in (0.5, 0.99))
        rows.append(AppendWaits(way, len(waits_ms), rate, p50_ms, p99_ms, waits_ms[-1]))
    added = [
        _added(waits_s["direct"], waits_s["proxy"], share, name, target_ms)
        for share, name, target_ms in ((0.5, "p50", ADDED_P50_MS_MAX), (0.99, "p99", ADDED_P99_MS_MAX))
    ]
    return rows, added


def _added(
    direct: Sequence[Sequence[float]], proxied: Sequence[Sequence[float]], share: float, name: str, target_ms: float
) -> AddedWait:
    each = [
        (percentile(behind, share) - percentile(without, share)) * 1000
        for without, behind in zip(direct, proxied, strict=True)
    ]
    return AddedWait(name, median(each), min(each), max(each), target_ms)


async def _paced(writer: StreamWriter, count: int, rate: int) -> list[float]:
    """The seconds from when each record was due until it was acknowledged."""
    payload, waits_s = os.urandom(256), list[float]()
    appends: list[asyncio.Task[None]] = []

    async def append(due_s: float) -> None:
        await writer.append(payload)
        waits_s.append(time.perf_counter() - due_s)

    await at_rate(count, rate, lambda due_s: appends.append(asyncio.create_task(append(due_s))))
    await asyncio.gather(*appends)
    return waits_s


async def bench_throughput(cluster: ProxyCluster, *, seconds: float, rounds: int) -> list[WriteThroughput]:
    """One client and one stream, through the proxy and, for comparison, past it."""
    rows = []
    for kind in KINDS:
        turns: dict[str, list[WriteThroughput]] = {}
        for number in range(rounds):
            for way, uri in (("proxy", cluster.uri), ("direct", cluster.direct_uri)):
                async with quire.connect(uri) as client:
                    stream = f"filled-{way}-{kind.record_bytes}-{number}"
                    turns.setdefault(way, []).append(await _fill(cluster, client, way, stream, kind, seconds))
        rows += [sorted(each, key=lambda turn: turn.records_per_s)[len(each) // 2] for each in turns.values()]
    return rows


async def _fill(
    cluster: ProxyCluster, client: Client, way: str, stream: str, kind: Kind, seconds: float
) -> WriteThroughput:
    payloads, records = [os.urandom(kind.record_bytes)] * kind.call_records, 0

    async def append(writer: StreamWriter, until_s: float) -> None:
        nonlocal records
        while time.perf_counter() < until_s:
            dlsns: Sequence[DLSN] = await writer.append_many(payloads)
            records += len(dlsns)

    async with client.open_writer(stream) as writer:
        warm_s = time.perf_counter() + seconds / 5
        await asyncio.gather(*(append(writer, warm_s) for _ in range(_CALLS_UNDER_WAY)))
        records, before = 0, _now(cluster)
        until_s = time.perf_counter() + seconds
        await asyncio.gather(*(append(writer, until_s) for _ in range(_CALLS_UNDER_WAY)))
        wall_s, client_s, proxy_s, bookies_s = (
            after - began for after, began in zip(_now(cluster), before, strict=True)
        )
    per_s = records / wall_s
    return WriteThroughput(
        way,
        kind.record_bytes,
        kind.call_records,
        records,
        per_s,
        per_s * kind.record_bytes / 1e6,
        client_s / records * 1e6,
        proxy_s / records * 1e6,
        bookies_s / records * 1e6,
        kind.target_records_per_s if way == "proxy" else None,
    )


def _now(cluster: ProxyCluster) -> tuple[float, float, float, float]:
    return time.perf_counter(), time.process_time(), cluster.cpu_s(WRITE_PROXY), cluster.cpu_s(BOOKIE)
