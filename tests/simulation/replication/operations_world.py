"""A simulated world of operators: as that of autorecovery, with bookies that collect garbage, and leave."""

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace

from quire.bookie.garbage import GarbageSettings
from quire.codec.underreplication import UNDERREPLICATION, lock_path
from quire.errors import NoSuchNode, QuireError
from quire.ledger.repair.fragment_check import members_of
from quire.metadata import ANY_VERSION, Cluster
from quire.replication.settings import AutorecoverySettings
from quire.testing import SimBookie, Simulation
from quire.types import BookieId, LedgerId, LedgerMetadata, LedgerState
from tests.simulation.replication.watching import Claims, WatchedBookie, drop_problem
from tests.support.simulation.ledgers import Plan
from tests.support.simulation.repairs import REPAIR, RepairWorld, decoded
from tests.support.simulation.world import name_of

GARBAGE = GarbageSettings(
    interval_s=0.4,
    minor_interval_s=2.0,
    major_interval_s=4.0,
    moved_interval_s=0.4,
    metadata_reads_per_s=1e6,
    free_bytes_min=0,
)
_LEFT_S = 120.0  # So long it may take to let bookies go when nothing is in the way any more.


class OperationsWorld(RepairWorld):
    """One run. Bookies in `leaving` are down, and an operator wants to be rid of them."""

    repairers = ("autorecovery", "rebalancer", "decommissioner")

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster, settings: AutorecoverySettings = REPAIR) -> None:
        self._claims = Claims(self)
        self.leaving: list[SimBookie] = []
        self.left: list[SimBookie] = []
        self._lives = asyncio.Lock()  # Operators start and stop bookies while other things happen to them.
        self._numbers = itertools.count()
        self.has_lost = False  # Whether a disk was lost.
        self._drained: list[SimBookie] = []
        super().__init__(sim, plan, cluster, settings)

    def _bookie(self, name: str) -> SimBookie:
        settings = replace(super()._bookie(name).settings, garbage=GARBAGE)
        bookie = WatchedBookie(self.sim, name, self.cluster, settings=settings)
        bookie.world = self
        return bookie

    async def remove_lock(self, ledger_id: LedgerId, *, after_s: float) -> None:
        """So long after somebody took it, who does not hear of it."""
        path = f"{self.cluster.uri.root}/{UNDERREPLICATION}/{lock_path(ledger_id)}"
        async with self.cluster.store.watch(path) as watch:
            while await self.cluster.store.exists(path) is None:
                await watch.wait_changed()
        await asyncio.sleep(after_s)
        with suppress(NoSuchNode):
            await self.cluster.store.delete(path, expected=ANY_VERSION)

    # --- Judging

    def metadata_of(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        """As it is stored at this moment."""
        return decoded(self.tree, self._path(ledger_id))

    def _path(self, ledger_id: LedgerId) -> str:
        return self.cluster.ledgers.path(ledger_id)

    def on_dropped(self, bookie: BookieId, ledger_id: LedgerId) -> None:
        metadata = self.metadata_of(ledger_id)
        self.events["ledgers dropped" if metadata is None else "moved ledgers dropped"] += 1
        problem = drop_problem(bookie, metadata)
        if problem is not None:
            self.violations.append(f"ledger {ledger_id}: {problem}")

    def on_changed(self, host: str, path: str, old: LedgerMetadata, new: LedgerMetadata) -> None:
        super().on_changed(host, path, old, new)
        ledger_id = next((each.ledger_id for each in self.histories if self._path(each.ledger_id) == path), None)
        if ledger_id is not None and old.state is LedgerState.CLOSED:
            self.events[f"changed by {host.rstrip('0123456789')}"] += 1
            self._claims.on_changed(host, ledger_id, old, new)

    # --- Bookies that leave

    async def drain(self, bookie: SimBookie) -> None:
        """As the admin API does it."""
        if bookie.is_running and bookie.bookie.space is not None:
            self._drained.append(bookie)
            await bookie.bookie.space.set_read_only(True, why="drained")
            self.events["drained"] += 1

    async def begin_to_leave(self, bookie: SimBookie) -> None:
        self.leaving.append(bookie)
        await self.crash(bookie, power_loss=False)

    async def stop_leaving(self) -> None:
        """Stop those that came back once more."""
        for bookie in list(self.leaving):
            await self.crash(bookie, power_loss=False)

    @property
    def settled(self) -> frozenset[LedgerId]:
        """Ledgers that are closed now."""
        known = ((each.ledger_id, self.metadata_of(each.ledger_id)) for each in self.histories)
        return frozenset(each for each, found in known if found is not None and found.state is LedgerState.CLOSED)

    async def on_left(self, bookie: SimBookie, settled: frozenset[LedgerId]) -> None:
        """An operator was told that nobody needs the bookie any more, and throws its disk away. `settled` were closed
        when it went about it: of the others, a writer that has not heard of it yet may name it once more."""
        name = name_of(bookie)
        self.leaving.remove(bookie)
        self.left.append(bookie)
        self.bookies.remove(bookie)
        self.lost.add(name)
        await self.crash(bookie, power_loss=False)
        bookie.wipe()
        self.events["left"] += 1
        for ledger_id in sorted(settled):
            metadata = self.metadata_of(ledger_id)
            if metadata is not None and name in members_of(metadata):
                self.violations.append(f"{name} is said to be needed no more, and ledger {ledger_id} names it")

    async def wait_left(self) -> None:
        """Nothing is in the way: so whoever leaves can go; unless a disk was lost, and who leaves has the last copy."""
        await self.stop_leaving()
        patience_s = _LEFT_S
        while self.leaving and patience_s > 0:
            patience_s -= 0.5
            await self.pause(0.5)
        if self.leaving:
            assert self.has_lost, f"not let go after {_LEFT_S} s: {[each.host.name for each in self.leaving]}"
            self.events["had to stay"] += len(self.leaving)
            self.leaving.clear()
            await self.mend()

    async def start(self, bookie: SimBookie) -> None:
        if bookie not in self.leaving or (self.rng.random() < 0.1 and self._has_cookie(bookie)):
            async with self._lives:
                await super().start(bookie)

    async def crash(self, bookie: SimBookie, *, power_loss: bool) -> None:
        async with self._lives:
            await super().crash(bookie, power_loss=power_loss)

    def _has_cookie(self, bookie: SimBookie) -> bool:
        return self.tree.find(f"{self.cluster.uri.root}/cookies/{bookie.host.name}") is not None

    async def add_bookie(self) -> SimBookie:
        bookie = self._bookie(f"new{next(self._numbers)}")
        self.bookies.append(bookie)
        await bookie.start()
        return bookie

    async def _away(self) -> list[str]:
        for bookie in list(self._drained):
            if bookie.is_running and bookie.bookie.space is not None:
                await bookie.bookie.space.set_read_only(False)
                self._drained.remove(bookie)
        leaving = {each.host.name for each in self.leaving}
        return [name for name in await super()._away() if name not in leaving]

    # --- The proof

    async def settle(self) -> None:
        """Everything that was noticed has been judged."""
        await self._claims.settle()
        assert not self.violations, str(self.violations)

    async def wait_tidy(self) -> None:
        """Every bookie gives back what is not its own, and nothing else."""
        patience_s, problem = 60.0, ""
        while patience_s > 0:
            patience_s -= 0.5
            await self.pause(0.5)
            problem = await self._litter()
            if not problem:
                return
        raise AssertionError(f"not tidied up: {problem}")

    async def _litter(self) -> str:
        for bookie in self.alive:
            try:
                here = await bookie.bookie.service.storage.ledger_ids()
            except QuireError as error:
                return f"{bookie.host.name}: {error!r}"
            for ledger_id in here:
                metadata = self.metadata_of(ledger_id)
                if metadata is None or drop_problem(name_of(bookie), metadata) is None:
                    return f"{bookie.host.name} has ledger {ledger_id}, which is {metadata}"
        return ""
