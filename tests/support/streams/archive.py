"""Streams with cold segments: what tests of archiving have in common."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire.codec.cold import ColdSegment
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot
from quire.stream.cold_nodes import ColdNodes, Placed
from quire.types import Lssn
from tests.support.streams.reading import ReaderWorld, on_stream

ROOT = "memory:archive"


@dataclass
class ColdWorld(ReaderWorld):
    """`objects` is what cold storage holds."""

    @property
    def objects(self) -> dict[str, bytes]:
        return self.memory.setdefault(ROOT, {})

    @property
    def memory(self) -> dict[str, dict[str, bytes]]:
        return self.context.cold._memory

    @property
    def name(self) -> str:
        return self.stream.name

    async def archive(self) -> list[ColdSegment]:
        return await archive_stream(self.context, self.name, ROOT, settings=self.settings)

    async def drop(self, before: int | None = None) -> list[Lssn]:
        return await drop_hot(self.context, self.name, DropPolicy(before=None if before is None else Lssn(before)))

    async def archive_and_drop(self, before: int | None = None) -> list[Lssn]:
        await self.archive()
        return await self.drop(before)

    async def chain(self) -> list[Placed]:
        return await ColdNodes(self.context.store, self.stream.paths).whole_chain()

    async def where(self) -> dict[int, str]:
        """Where each segment is."""
        kinds = {(True, False): "hot", (True, True): "both", (False, True): "cold"}
        chain = await self.chain()
        return {each.stored.segment.lssn: kinds[each.hot is not None, each.cold is not None] for each in chain}


def on_cold_stream(check: Callable[[ColdWorld], Awaitable[None]], *, seeds: int = 1) -> None:
    """Run `check` on an empty stream, once for each seed."""

    async def run(world: ReaderWorld) -> None:
        await check(ColdWorld(world.sim, world.cluster, world.stream, world.context, world.settings))

    on_stream(run, seeds=seeds)
