"""`quire bench ledger`: replicated entries, with the client and each bookie as a process of its own.

Every entry is on disk on its ack quorum before it counts. CPU time is that of the client's process, and of all bookies
together, divided by the number of entries; entries a second depend on how busy the machine is.
"""

import os
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from quire.cli.bench_process import BookieProcess, running_bookie
from quire.ledger.client import LedgerClient, open_ledgers
from quire.metadata import init_cluster, open_store, parse_uri
from quire.runtime import real_runtime

_RUN = 100  # Entries of one `append_many`: what a busy writer gathers in a turn of its loop.


@dataclass(frozen=True, slots=True)
class LedgerBench:
    """What to measure."""

    entries: int
    entry_bytes: int
    quorum: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LedgerFigure:
    """One way of using a ledger, and what an entry cost."""

    operation: str
    quorum: str
    entry_bytes: int
    entries: int
    entries_per_s: float
    client_cpu_us: float
    bookies_cpu_us: float


async def bench_ledger(benches: list[LedgerBench]) -> list[LedgerFigure]:
    """Write and read back a ledger for each of `benches`. Raises `BookieFailed` and what ledgers raise."""
    runtime = real_runtime()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        uri = parse_uri(f"sqlite:{folder}/metadata.db")
        async with open_store(uri, runtime=runtime) as store, AsyncExitStack() as stack:
            cluster = await init_cluster(store, uri, runtime)
            count = max(bench.quorum[0] for bench in benches)
            bookies = [
                await stack.enter_async_context(running_bookie(runtime, cluster, folder, name=f"b{number}"))
                for number in range(count)
            ]
            ledgers = await stack.enter_async_context(open_ledgers(uri.text, runtime=runtime))
            figures = []
            for bench in benches:
                figures += await _measure(ledgers, bookies, bench)
            return figures


async def _measure(ledgers: LedgerClient, bookies: list[BookieProcess], bench: LedgerBench) -> list[LedgerFigure]:
    payloads = [os.urandom(bench.entry_bytes)] * _RUN
    ensemble, write_quorum, ack_quorum = bench.quorum
    async with ledgers.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum) as ledger:
        meter = _Meter(bookies, bench)
        for _ in range(0, bench.entries, _RUN):
            await ledger.enqueue(payloads)
        await ledger.flush()
        written = meter.figure("append", ledger.last_add_confirmed + 1)
    async with ledgers.open(ledger.id) as reader:
        meter = _Meter(bookies, bench)
        count = 0
        async for _ in reader.read():
            count += 1
        return [written, meter.figure("read", count)]


class _Meter:
    def __init__(self, bookies: list[BookieProcess], bench: LedgerBench) -> None:
        self._bookies, self._bench = bookies, bench
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(bookie.cpu_s() for bookie in self._bookies)

    def figure(self, operation: str, entries: int) -> LedgerFigure:
        wall, client, bookies = (after - before for after, before in zip(self._now(), self._began, strict=True))
        quorum = "/".join(map(str, self._bench.quorum))
        return LedgerFigure(
            operation,
            quorum,
            self._bench.entry_bytes,
            entries,
            entries / wall,
            client / entries * 1e6,
            bookies / entries * 1e6,
        )
