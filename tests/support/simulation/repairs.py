"""A simulated world of autorecovery: bookies that die for good, new ones, and processes that repair.

What a repair may never do is judged at the very moment, with every write to the metadata:
  LastIsForeign   only a writer, or a recovery that closes the ledger, changes the last ensemble of one that is not
                  closed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from quire.codec.ledger_metadata import decode_ledger_metadata
from quire.errors import DamagedMetadata, NoSuchLedger, QuireError
from quire.ledger.client import LedgerClient
from quire.metadata import Cluster, Set, StoredLedger
from quire.metadata.underreplication import Underreplication
from quire.replication.autorecovery import open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.testing import SimBookie, Simulation
from quire.types import LedgerMetadata, LedgerState
from tests.support.ledgers.history import LedgerHistory, check
from tests.support.simulation.copies import check_whole
from tests.support.simulation.ledgers import SETTINGS, LedgerWorld, Plan
from tests.support.simulation.world import STORE_SETTINGS, URI, name_of

REPAIR = AutorecoverySettings(
    bookie_check_interval_s=20.0,
    ledger_check_interval_s=8.0,
    verification_percentage=100.0,
    open_ledger_grace_s=2.0,
    failed_ledger_backoff_s=4.0,
    failure_pause_s=0.5,
    bytes_per_s=0.0,
    idle_s=3.0,
)
HOSTS = ("autorecovery0", "autorecovery1")
_WHOLE_S = 120.0  # So long repairs may take when nothing is in their way any more.


class RepairWorld(LedgerWorld):
    """One run. `settings` are those of every autorecovery process."""

    repairers: tuple[str, ...] = ("autorecovery",)
    """How the names of hosts begin that look after what others have written."""

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster, settings: AutorecoverySettings = REPAIR) -> None:
        super().__init__(sim, plan, cluster)
        self.settings = settings
        self._whole: dict[int, object] = {}  # Ledgers that were found whole, and the version of their metadata.
        self.violations: list[str] = []
        self.marks = Underreplication(cluster.store, cluster.uri.root, sim.host("metadata").runtime, "test")
        _watch_metadata(self)

    # --- Autorecovery

    def start_repairs(self, hosts: Sequence[str] = HOSTS) -> None:
        for name in hosts:
            if name not in self.client_names:
                self.spawn(name, self._recover(name))

    async def _recover(self, name: str) -> None:
        while True:
            with suppress(QuireError):  # The metadata cannot be reached just now: the process is started again.
                async with open_autorecovery(
                    URI,
                    name=name,
                    settings=self.settings,
                    ledger_settings=SETTINGS,
                    store_settings=STORE_SETTINGS,
                    runtime=self.sim.host(name).runtime,
                ) as autorecovery:
                    await autorecovery.run()
            await asyncio.sleep(0.5)

    # --- Bookies

    async def add_bookie(self) -> SimBookie:
        bookie = self._bookie(f"new{len(self.bookies)}")
        self.bookies.append(bookie)
        await bookie.start()
        return bookie

    @property
    def alive(self) -> list[SimBookie]:
        return [bookie for bookie in self.bookies if name_of(bookie) not in self.lost]

    async def collect_garbage(self) -> None:
        await asyncio.sleep(1.5)  # Until all is in the index.
        for bookie in self.alive:
            garbage = bookie.bookie.garbage
            assert garbage is not None
            await garbage.collect()

    # --- The proof

    def on_changed(self, host: str, path: str, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Somebody has changed the metadata of a ledger."""
        if host.startswith(self.repairers):
            self.events["metadata repaired"] += 1
            if _touches_last(old, new):
                self.violations.append(f"{host} changed the last ensemble of {path}: {old} to {new}")

    async def wait_whole(self) -> None:
        """Nothing is in the way: so every ledger gets all its copies, on bookies that live, without a hand."""
        async with self.ledgers("inspector") as ledgers:
            patience_s, problem = _WHOLE_S, "nobody looked"
            self._whole.clear()
            while patience_s > 0:
                await asyncio.sleep(1.0)
                patience_s -= 1.0
                found = await self._unrepaired(ledgers)
                if found is None:
                    return
                problem = found
            raise AssertionError(f"not repaired after {_WHOLE_S} s: {problem}")

    async def _unrepaired(self, ledgers: LedgerClient) -> str | None:
        """What is left to do, if anything. Cheap things first."""
        assert not self.violations, str(self.violations)
        async for mark in self.marks.marks():
            return f"ledger {mark.ledger_id} is marked for {mark.replicas}"
        listing = await self.cluster.bookies.listing()
        for history in self.histories:
            stored = await self._stored(history)
            if stored is None or self._whole.get(history.ledger_id) == stored.version:
                continue
            problem = await check_whole(ledgers, stored, listing.writable | listing.readonly)
            if problem is not None:
                return problem
            if stored.metadata.state is LedgerState.CLOSED:
                self._whole[history.ledger_id] = stored.version
        return None

    async def _stored(self, history: LedgerHistory) -> StoredLedger | None:
        try:
            return await self.cluster.ledgers.read(history.ledger_id)
        except NoSuchLedger:
            return None

    async def prove(self) -> None:
        """Writers are gone. Everything acknowledged is there, and in as many copies as it should."""
        async with self.ledgers("checker") as ledgers:
            for history in self.kept:
                await ledgers.recover(history.ledger_id)
            await self.wait_whole()
            for history in self.kept:
                await check(ledgers, history, excused=self.lost)
        assert not self.violations, str(self.violations)


# --- What repairs may not do


def _watch_metadata(world: RepairWorld) -> None:
    """Have the world told of every change of a ledger's metadata, and whose it is."""
    tree = world.tree
    carry_out = tree.carry_out

    def watched(ops: Any, session: Any, now_ms: int) -> Any:
        before = {op.path: decoded(tree, op.path) for op in ops if isinstance(op, Set)}
        try:
            return carry_out(ops, session, now_ms)
        finally:
            for path, old in before.items():
                new = decoded(tree, path)
                if old is not None and new is not None and old != new:  # Then the session was alive.
                    world.on_changed(tree._host_of[tree._clients[session]], path, old, new)

    tree.carry_out = watched  # type: ignore[method-assign]


def _touches_last(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    is_repair = old.state is not LedgerState.CLOSED and new.state is old.state
    return is_repair and old.fragments[-1] != new.fragments[-1]


def decoded(tree: Any, path: str) -> LedgerMetadata | None:
    """What a node says, if it is that of a ledger."""
    node = tree.find(path)
    if node is None or b"BookieMetadataFormatVersion" not in node.data:
        return None
    try:
        return decode_ledger_metadata(node.data)
    except DamagedMetadata:
        return None
