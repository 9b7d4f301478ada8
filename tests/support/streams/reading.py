"""Readers of a stream that is laid by hand, on a simulated cluster: what tests of reading have in common."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quire.codec.stream.records import LogRecord
from quire.stream.context import StreamContext
from quire.stream.reader import StreamReader, open_stream_reader
from quire.stream.settings import StreamSettings
from quire.testing import SimTree, Simulation, sim_tree, simulate
from tests.support.streams.cluster import SETTINGS, StreamCluster, stream_cluster
from tests.support.streams.raw import RawStream

READER = "reader"


@dataclass
class ReaderWorld:
    """`stream` is written through a client of its own; `context` is that of the readers, on the host `reader`."""

    sim: Simulation
    cluster: StreamCluster
    stream: RawStream
    context: StreamContext
    settings: StreamSettings
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def tree(self) -> SimTree:
        return sim_tree(self.cluster.cluster)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    def open(self, **options: Any) -> AbstractAsyncContextManager[StreamReader]:
        settings = options.pop("settings", self.settings)
        return open_stream_reader(self.context, self.stream.name, settings, **options)

    async def read(self, count: int, **options: Any) -> list[LogRecord]:
        """The first `count` records that a reader gives."""
        async with self.open(**options) as reader:
            return await take(reader, count)

    async def read_sealed(self, **options: Any) -> list[LogRecord]:
        """All records of a sealed stream."""
        async with asyncio.timeout(600), self.open(**options) as reader:
            return [record async for record in reader]

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by, for things that must not happen."""
        await asyncio.sleep(seconds)

    def spawn(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task


async def take(reader: StreamReader, count: int, *, within_s: float = 300.0) -> list[LogRecord]:
    """The next `count` records."""
    async with asyncio.timeout(within_s):
        return [await anext(reader) for _ in range(count)]


async def is_silent(reader: StreamReader, *, for_s: float = 30.0) -> bool:
    """Whether nothing comes for a while."""
    return await reader.read_many(1, timeout_s=for_s) == []


async def eventually(condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
    """Return once `condition` holds. In virtual time, which costs nothing."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - whatever changes, nobody would tell
            await asyncio.sleep(0.05)


Check: TypeAlias = Callable[[ReaderWorld], Awaitable[None]]


def on_stream(
    check: Check, *, seeds: int | Sequence[int] = 2, settings: StreamSettings = SETTINGS, bookies: int = 3
) -> None:
    """Run `check` on an empty stream, once for each seed."""

    async def main(sim: Simulation) -> None:
        async with stream_cluster(sim, bookies=bookies) as cluster, cluster.context("writer") as writer:
            stream = await RawStream.create(writer)

            async def run() -> None:
                async with cluster.context(READER) as context:
                    world = ReaderWorld(sim, cluster, stream, context, settings)
                    await check(world)
                    await asyncio.gather(*world.tasks)

            await sim.host(READER).spawn(run())
            await stream.close()

    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        simulate(seed, main, time_limit_s=3000)
