"""The simulated world: bookies, metadata, the hosts of clients, and what all of them went through.

Every area of `tests/simulation` has a subclass with what is its own.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from quire.bookie.bookie import BookieSettings
from quire.bookie.garbage import GarbageSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.space import SpaceSettings
from quire.errors import Damaged, QuireError, WrongDisk
from quire.metadata import Cluster, StoreSettings
from quire.testing import SimBookie, Simulation, sim_cluster, sim_tree
from quire.testing.sim_bookie import SMALL_STORAGE
from quire.types import BookieId, Quorum, bookie_id

URI = "memory:simulated"
STORE_SETTINGS = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)
FREE_BYTES_MIN = 1 << 20
_BACK_S = 60.0  # So long a bookie may take to come back.
_ANSWER_S = 90.0  # A healthy cluster answers an append within this time, or says that it cannot.


@dataclass(frozen=True, slots=True)
class Setting:
    """What any plan says of its world. Times are upper limits: the seed chooses."""

    faults: dict[Any, float] = field(default_factory=dict)
    """Weights."""

    quorums: tuple[Quorum, ...] = ()
    """One of them is drawn, if there are any."""

    bookies: int = 3
    lasts_s: float = 3.0
    """How long there is trouble."""

    fault_pause_s: float = 0.5
    slow_chance: float = 0.2
    """That a client and a bookie are far from one another."""

    slow_s: tuple[float, ...] = (0.02, 0.1)
    sync_s: tuple[float, float] | None = None
    """How long a flush takes; None for hardly any time."""

    checkpoint_interval_s: float = 0.5


PlanT = TypeVar("PlanT", bound=Setting)


class World(Generic[PlanT]):
    """One run. `events` counts what happened, so that a test can tell whether a plan is worth something."""

    def __init__(self, sim: Simulation, plan: PlanT, cluster: Cluster) -> None:
        self.sim, self.plan, self.cluster, self.rng = sim, plan, cluster, sim.rng
        self.tree = sim_tree(cluster)
        self.quorum = sim.rng.choice(plan.quorums) if plan.quorums else Quorum(3, 3, 2)
        self.bookies = [self._bookie(f"b{number}") for number in range(plan.bookies)]
        self.lost: set[BookieId] = set()  # Their disks were exchanged, or have damage.
        self.damaged: set[BookieId] = set()  # Of these: they may serve, or find out when they are started again.
        self.events: Counter[str] = Counter()
        self.waiting: set[tuple[int, bytes]] = set()  # Appends that were not answered yet.
        self.over = asyncio.Event()  # Everything was repaired: nobody has an excuse any more.
        self._clients: dict[str, list[asyncio.Task[None]]] = {}

    def _bookie(self, name: str) -> SimBookie:
        settings = BookieSettings(
            BookieFolders("/data", ("/journal",)),
            checkpoint_interval_s=self.plan.checkpoint_interval_s,
            storage=SMALL_STORAGE,
            space=SpaceSettings(reserve_bytes=0, free_bytes_min=FREE_BYTES_MIN, check_interval_s=0.3),
            # When it is asked for, which is not within any interval, every log is compacted.
            garbage=GarbageSettings(major_live_ratio_max=1.0),
            # A machine that lost power leaves its registration behind, and must not wait for it to go.
            folder_token=lambda _: name,
        )
        bookie = SimBookie(self.sim, name, self.cluster, settings=settings)
        if self.plan.sync_s is not None:
            bookie.host.disk.faults.latency_by_operation_s["sync"] = self.plan.sync_s
        return bookie

    @classmethod
    @asynccontextmanager
    async def open(cls, sim: Simulation, plan: Any, **more: Any) -> AsyncIterator[Self]:
        """A world that has begun, for the block."""
        async with sim_cluster(sim) as cluster:
            world = cls(sim, plan, cluster, **more)
            await world.begin()
            yield world
            await world.finish()

    async def begin(self) -> None:
        for bookie in self.bookies:
            await bookie.start()

    async def finish(self) -> None:
        """End whoever is left, and stop all bookies."""
        for name in self.client_names:
            await self.end_client(name)
        for bookie in self.bookies:
            if bookie.is_running:
                await bookie.stop()

    def tally(self) -> Counter[str]:
        """How often what happened."""
        return self.events

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass: for clients, which do not know that they are simulated."""
        await asyncio.sleep(seconds)

    # --- Clients

    @property
    def client_names(self) -> list[str]:
        return list(self._clients)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a client on a host of this name. Whatever it raises fails the run, unless its host crashes."""
        self._clients.setdefault(name, []).append(self.sim.host(name).spawn(work, name=name))

    @contextmanager
    def expecting(self, number: int, payload: bytes) -> Iterator[None]:
        """Around an append to this ledger, or of this writer: while the block runs somebody waits for an answer."""
        self.waiting.add((number, payload))
        try:
            yield
        finally:
            self.waiting.discard((number, payload))

    async def answered(self) -> None:
        """Everything is well again, so whoever waits for an append gets its answer. Else something hangs."""
        waiting, patience_s = set(self.waiting), _ANSWER_S
        while waiting & self.waiting:
            assert patience_s > 0, f"nobody answers these appends: {sorted(waiting & self.waiting)}"
            patience_s -= 0.5
            await asyncio.sleep(0.5)

    async def crash_client(self, name: str) -> None:
        """The host dies, and with it what it was doing. What it was told before counts."""
        self.events["client crashed"] += 1
        self._clients.pop(name, None)
        self.tree.abandon(name)
        await self.sim.host(name).crash()

    async def end_client(self, name: str) -> None:
        """Cancel what a client is doing, and let it say goodbye."""
        tasks = self._clients.pop(name, [])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def end_clients(self, names: list[str], *, within_s: float) -> None:
        """Wait for clients that end by themselves. Raises what they raise."""
        tasks = [task for name in names for task in self._clients.pop(name, [])]
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=within_s)
            assert not pending, f"clients hang: {[task.get_name() for task in pending]}"
        for task in tasks:
            task.result()

    def note(self, name: str, error: QuireError) -> None:
        self.events[f"{name.rstrip('0123456789')}: {type(error).__name__}"] += 1

    # --- Bookies

    async def start(self, bookie: SimBookie) -> None:
        """Start a bookie that is down. One whose disk is in trouble, or that cannot reach the metadata, stays down."""
        if bookie.is_running:
            return
        try:
            await bookie.start()
        except QuireError as error:
            self.note("start", error)
            if isinstance(error, WrongDisk | Damaged):
                assert name_of(bookie) in self.lost, f"bookie {bookie.host.name}: {error!r}"
            elif self.over.is_set():
                raise

    async def crash(self, bookie: SimBookie, *, power_loss: bool) -> None:
        if bookie.is_running:
            self.events["bookie crashed"] += 1
            if self.rng.random() < 0.5:
                self.tree.abandon(bookie.host.name)
            await bookie.crash(power_loss=power_loss)

    async def wipe(self, bookie: SimBookie) -> None:
        """Exchange the disk of a bookie. It must notice, and stay down."""
        self.lost.add(name_of(bookie))
        self.damaged.discard(name_of(bookie))
        await self.crash(bookie, power_loss=True)
        bookie.wipe()
        self.events["wiped"] += 1
        await self.start(bookie)

    async def repair(self) -> None:
        """Everything that can be repaired is, for good."""
        self.over.set()
        await self.mend()

    async def mend(self) -> None:
        """The same, and there may be trouble again."""
        self.tree.repair()
        self.sim.network.heal()
        self.sim.network.link_latency_s.clear()
        for bookie in self.bookies:
            faults = bookie.host.disk.faults
            faults.foreign_bytes = 0
            faults.latency_by_operation_s.clear()
            faults.repair()
        patience_s = _BACK_S
        while away := await self._away():
            assert patience_s > 0, f"bookies do not come back: {away}"
            for bookie in self.bookies:
                await self.start(bookie)
            patience_s -= 0.1
            await asyncio.sleep(0.1)

    async def _away(self) -> list[str]:
        """Bookies that should serve and do not: those that are down, about to stop, not registered yet, or read-only
        because they have not seen yet that there is room again.
        """
        listing = await self.cluster.bookies.listing()
        return [
            bookie.host.name
            for bookie in self.bookies
            if not (bookie.is_running and bookie.bookie.failure is None) or name_of(bookie) not in listing.writable
            if name_of(bookie) not in self.lost
        ]


def name_of(bookie: SimBookie) -> BookieId:
    return bookie_id(bookie.host.name)
