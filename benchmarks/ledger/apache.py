"""Apache BookKeeper as the other side of `python -m benchmarks ledger`: its Java client on its Java bookies.

The client is `benchmarks/apache/ApacheLedgers.java`. How it is run, and its bookies: see `benchmarks.apache.cluster`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.apache.cluster import ApacheCluster, open_apache_cluster
from benchmarks.ledger.figures import Case, Work
from benchmarks.ledger.measure import LedgerBench, Side

_BATCH_BYTES: Final = 1 << 20  # As much as Quire's client asks for at once.


@asynccontextmanager
async def open_apache(folder: str, bench: LedgerBench, *, settings: Mapping[str, str]) -> AsyncIterator[Side]:
    """ZooKeeper, bookies and a client, once all are ready. Raises `InvalidArgument` and `BookieFailed`."""
    async with open_apache_cluster(
        folder,
        client="ApacheLedgers",
        bookies=bench.bookies,
        settings=settings,
    ) as cluster:
        yield ApacheSide(cluster, bench)


class ApacheSide:
    """What `open_apache` opens."""

    name = "apache"

    def __init__(self, cluster: ApacheCluster, bench: LedgerBench) -> None:
        self._cluster, self._bench = cluster, bench

    def cpu_s(self) -> float:
        return self._cluster.cpu_s()

    async def append(self, case: Case, entries: int) -> tuple[int, Work]:
        before = self.cpu_s()
        window = self._bench.window_of(case)
        ledger_id, *took = await self._cluster.ask("append", *case.quorum, entries, case.entry_bytes, window)
        return ledger_id, self._work(entries, took, before)

    async def read(self, ledger_id: int, case: Case) -> Work:
        before = self.cpu_s()
        count, *took = await self._cluster.ask("read", ledger_id, _BATCH_BYTES)
        return self._work(count, took, before)

    async def append_paced(self, case: Case, entries: int, rate: int) -> tuple[int, list[float]]:
        ledger_id, *waits = await self._cluster.ask("paced", *case.quorum, entries, case.entry_bytes, rate)
        return ledger_id, [wait / 1e9 for wait in waits]

    async def delete(self, ledger_id: int) -> None:
        await self._cluster.ask("delete", ledger_id)

    def _work(self, entries: int, took: Sequence[int], before_s: float) -> Work:
        return Work(entries, took[0] / 1e9, took[1] / 1e9, self.cpu_s() - before_s)
