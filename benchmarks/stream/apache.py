"""Apache DistributedLog as the other side of benchmarks of streams, on Apache's Java bookies, and its ZooKeeper.

The client is `benchmarks/apache/ApacheStreams.java`. How it is run, and its bookies: see `benchmarks.apache.cluster`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from benchmarks.apache.cluster import ApacheCluster, open_apache_cluster
from benchmarks.ledger.figures import Work
from benchmarks.stream.figures import Delivery, StreamCase
from benchmarks.stream.turns import Load, StreamBench, StreamSide


@asynccontextmanager
async def open_apache_streams(
    folder: str,
    bench: StreamBench,
    *,
    settings: Mapping[str, str],
    stream_settings: Mapping[str, str],
) -> AsyncIterator[StreamSide]:
    """ZooKeeper, bookies and a client, once all are ready. Raises `InvalidArgument` and `BookieFailed`."""
    async with open_apache_cluster(
        folder,
        client="ApacheStreams",
        arguments=[f"{name}={value}" for name, value in stream_settings.items()],
        bookies=bench.bookies,
        settings=settings,
    ) as cluster:
        yield ApacheStreams(cluster)


class ApacheStreams:
    """What `open_apache_streams` opens."""

    name = "apache"

    def __init__(self, cluster: ApacheCluster) -> None:
        self._cluster = cluster

    def cpu_s(self) -> float:
        return self._cluster.cpu_s()

    async def write(self, turn: int, case: StreamCase, load: Load) -> tuple[Work, Work]:
        before_s = self.cpu_s()
        answer = await self._ask("open", turn, case)
        between_s = self.cpu_s()
        opened = Work(case.streams, answer[0] / 1e9, answer[1] / 1e9, between_s - before_s)
        answer = await self._ask("write", turn, case, load.records, load.call_records, load.calls)
        written = Work(case.streams * load.records, answer[0] / 1e9, answer[1] / 1e9, self.cpu_s() - between_s)
        await self._ask("close", turn, case)
        return opened, written

    async def read(self, turn: int, case: StreamCase, load: Load) -> Work:
        before_s = self.cpu_s()
        count, wall_ns, cpu_ns = await self._ask("read", turn, case, 1 + load.records)
        return Work(count, wall_ns / 1e9, cpu_ns / 1e9, self.cpu_s() - before_s)

    async def deliver(self, turn: int, case: StreamCase, records: int, rate: int) -> Delivery:
        await self._ask("follow", turn, case, records)
        before_s = self.cpu_s()
        wall_ns, cpu_ns, *waits_ns = await self._ask("deliver", turn, case, records, rate)
        work = Work(records, wall_ns / 1e9, cpu_ns / 1e9, self.cpu_s() - before_s)
        await self._ask("close", turn, case)
        return Delivery(work, [wait_ns / 1e9 for wait_ns in waits_ns])

    async def delete(self, turn: int, case: StreamCase) -> None:
        await self._ask("delete", turn, case)

    async def _ask(self, command: str, turn: int, case: StreamCase, *numbers: int) -> list[int]:
        return await self._cluster.ask(command, turn, *case.quorum, case.streams, case.record_bytes, *numbers)
