"""A few simulated bookies and one autorecovery process, for tests that look at one decision each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.client import LedgerClient
from quire.replication.autorecovery import Autorecovery, Roles, open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.testing import SimBookie, Simulation, simulate
from quire.types import LedgerId, LedgerMetadata, Quorum
from tests.support.simulation.ledgers import SETTINGS, Plan
from tests.support.simulation.repairs import RepairWorld
from tests.support.simulation.world import STORE_SETTINGS, URI, name_of

QUIET = AutorecoverySettings(
    bookie_check_interval_s=0.0,
    ledger_check_interval_s=0.0,
    open_ledger_grace_s=5.0,
    failed_ledger_backoff_s=32.0,
    failure_pause_s=0.5,
    bytes_per_s=0.0,
    idle_s=5.0,
)


class RepairScene(RepairWorld):
    """Ledgers have three copies, of which two are waited for."""

    @asynccontextmanager
    async def autorecovery(
        self,
        name: str = "autorecovery0",
        roles: Roles | None = None,
        placement: PolicyName | PlacementSettings = "rack-aware",
        **changed: object,
    ) -> AsyncIterator[Autorecovery]:
        """Running for the block."""
        settings = replace(QUIET, **changed)  # type: ignore[arg-type]
        opened, running = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def live() -> None:
            async with open_autorecovery(
                URI,
                name=name,
                settings=settings,
                roles=roles,
                placement=placement,
                ledger_settings=SETTINGS,
                store_settings=STORE_SETTINGS,
                runtime=self.sim.host(name).runtime,
            ) as autorecovery:
                opened.set_result(autorecovery)
                running.set()
                await autorecovery.run()

        self.spawn(name, live())
        yield await opened
        await self.end_client(name)

    async def ledger(self, ledgers: LedgerClient, entries: int = 10, *, size: int = 10) -> LedgerId:
        """A closed one."""
        async with self.create(ledgers) as writer:
            for number in range(entries):
                await writer.append(b"%d" % number + bytes(size))
            return writer.id

    async def abandoned(self, entries: int = 10) -> LedgerId:
        """One that is open, whose writer is dead, with all entries in the logs of its bookies."""
        written = asyncio.get_running_loop().create_future()

        async def write() -> None:
            async with self.ledgers("dying") as ledgers, self.create(ledgers) as writer:
                for number in range(entries):
                    await writer.append(b"%d" % number + bytes(4000))
                written.set_result(writer.id)
                await asyncio.Event().wait()

        self.spawn("dying", write())
        ledger_id: LedgerId = await written
        await asyncio.sleep(2.0)
        await self.crash_client("dying")
        return ledger_id

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self.cluster.ledgers.read(ledger_id)).metadata

    async def member(self, ledger_id: LedgerId, place: int = 0) -> SimBookie:
        name = (await self.metadata(ledger_id)).fragments[-1].bookies[place]
        return next(bookie for bookie in self.bookies if name_of(bookie) == name)

    async def lose(self, bookie: SimBookie) -> None:
        """The bookie dies with its disk. Returns when nobody takes it for alive any more."""
        await self.wipe(bookie)
        while name_of(bookie) in (await self.cluster.bookies.listing()).writable:
            await self.pause(0.5)

    async def marked(self) -> list[LedgerId]:
        return [mark.ledger_id async for mark in self.marks.marks()]

    async def names(self, ledger_id: LedgerId, bookie: SimBookie) -> bool:
        return any(name_of(bookie) in each.bookies for each in (await self.metadata(ledger_id)).fragments)


def on_world(
    check: Callable[[RepairScene], Awaitable[None]], *, bookies: int = 4, quorum: Quorum | None = None
) -> None:
    """Run a check against started bookies."""

    async def main(sim: Simulation) -> None:
        async with RepairScene.open(sim, Plan(bookies=bookies).having((3, 3, 2))) as world:
            world.quorum = quorum or world.quorum
            await check(world)
            assert not world.violations, str(world.violations)

    simulate(1, main, time_limit_s=2000.0)
