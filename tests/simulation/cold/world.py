"""A stream that is archived while it is written, read, truncated and purged, in cold storage that fails as well."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO

from quire.cold import ColdStore, ColdStores
from quire.cold.blocking import at_once
from quire.errors import ColdUnavailable, QuireError
from quire.metadata import Cluster
from quire.runtime import Rng
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.cold_nodes import ColdNodes
from quire.stream.context import StreamContext
from quire.testing import Simulation
from quire.types import Lssn
from tests.simulation.cold.changes import ColdChanges
from tests.simulation.streams.plan import Plan
from tests.simulation.streams.world import STREAM, StreamWorld

ROOT = "memory:archive"
ARCHIVERS = 2


class FlakyStore:
    """Cold storage that takes its time, and sometimes does not answer, or not before it has done what was asked."""

    def __init__(self, store: ColdStore, rng: Rng, is_peaceful: Callable[[], bool]) -> None:
        self._store, self._rng, self._is_peaceful = store, rng, is_peaceful
        self.root = store.root

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        await self._trouble()
        await self._store.create(name, content, size_bytes)
        await self._trouble()

    async def read(self, name: str, start: int, end: int) -> bytes:
        await self._trouble()
        return await self._store.read(name, start, end)

    async def size(self, name: str) -> int:
        await self._trouble()
        return await self._store.size(name)

    async def delete(self, name: str) -> None:
        await self._trouble()
        await self._store.delete(name)
        await self._trouble()

    async def names(self, prefix: str = "") -> list[str]:
        await self._trouble()
        return await self._store.names(prefix)

    async def aclose(self) -> None:
        pass

    async def _trouble(self) -> None:
        await asyncio.sleep(self._rng.choice([0.0, 0.001, 0.02]))
        if not self._is_peaceful() and self._rng.random() < 0.05:
            raise ColdUnavailable("cold storage does not answer (simulated)")


class FlakyStores(ColdStores):
    """Each store of which is flaky."""

    def __init__(self, rng: Rng, is_peaceful: Callable[[], bool]) -> None:
        super().__init__(run=at_once, memory={})
        self._rng, self._is_peaceful = rng, is_peaceful

    def at(self, root: str) -> ColdStore:
        return FlakyStore(super().at(root), self._rng, self._is_peaceful)


class ColdWorld(StreamWorld):
    """One run."""

    changes_type = ColdChanges

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster)
        self.cold = FlakyStores(self.rng, self.over.is_set)
        self.restores = 0

    def more_roles(self) -> dict[str, Callable[[StreamWorld, str], Coroutine[Any, Any, None]]]:
        return {f"archiver{number}": archive for number in range(ARCHIVERS)}

    async def settled(self, context: StreamContext) -> None:
        """In peace all can be archived, dropped and restored. What is left at the end is mixed."""
        nodes = ColdNodes(context.store, context.paths(STREAM))
        await archive_stream(context, STREAM, ROOT, settings=self.settings())
        await drop_hot(context, STREAM)
        self.restores += 1
        chain = await nodes.whole_chain()
        if chain and self.rng.random() < 0.5:
            first = self.rng.choice(chain).stored.segment.lssn
            await restore_segments(context, STREAM, first=first, settings=self.settings())
            self.restores += len(chain)
        await drop_hot(context, STREAM, DropPolicy(before=Lssn(0)))  # Deletes what is left of others' attempts.
        chain = await nodes.whole_chain()
        left = [placed.cold.cold.ledger_left for placed in chain if placed.cold is not None]
        assert not any(left), f"NotedLedgers: {left} are still there"
        hot = [placed.hot is not None for placed in chain]
        assert hot == sorted(hot), f"HotIsAChain: {hot}"
        self.events["cold at the end"] += hot.count(False)

    def ledgers_left_max(self) -> int:
        return super().ledgers_left_max()


async def archive(world: StreamWorld, name: str) -> None:
    """Archive, drop and restore, until all trouble is over."""
    assert isinstance(world, ColdWorld)
    while not world.over.is_set():
        try:
            async with world.context(name) as context:
                while not world.over.is_set():
                    await world.pause(world.rng.random() * 0.3)
                    await archive_once(world, context)
        except QuireError as error:
            world.note(name, error)


async def archive_once(world: ColdWorld, context: StreamContext) -> None:
    rng, settings, dice = world.rng, world.settings(), world.rng.random()
    lssns = [change.lssn for change in world.history.changes]
    some = Lssn(rng.choice(lssns)) if lssns else Lssn(1)
    if dice < 0.5:
        world.events["archived"] += len(await archive_stream(context, STREAM, ROOT, settings=settings))
    elif dice < 0.85:
        policy = DropPolicy(before=some) if rng.random() < 0.5 else None
        world.events["dropped"] += len(await drop_hot(context, STREAM, policy))
    else:
        world.restores += len(lssns)
        world.events["restored"] += len(await restore_segments(context, STREAM, first=some, settings=settings))
