"""The stage of a simulation: bookies, metadata, the hosts of clients, and what all of them went through."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.space import SpaceSettings
from quire.errors import Damaged, QuireError, WrongDisk
from quire.metadata import Cluster, StoreSettings
from quire.testing import SimBookie, Simulation, sim_tree
from quire.testing.sim_bookie import SMALL_STORAGE
from quire.types import BookieId, Quorum, bookie_id

URI = "memory:simulated"
STORE_SETTINGS = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)
FREE_BYTES_MIN = 1 << 20
_BACK_S = 60.0  # So long a bookie may take to come back.
_ANSWER_S = 90.0  # A healthy cluster answers an append within this time, or says that it cannot.


class Setting(Protocol):
    """What a plan says of the stage. Times are upper limits: the seed chooses."""

    @property
    def quorums(self) -> tuple[Quorum, ...]: ...
    @property
    def bookies(self) -> int: ...
    @property
    def fault_pause_s(self) -> float: ...
    @property
    def slow_chance(self) -> float:
        """That a client and a bookie are far from one another."""

    @property
    def slow_s(self) -> tuple[float, ...]: ...
    @property
    def sync_s(self) -> tuple[float, float] | None:
        """How long a flush takes; None for hardly any time."""


class Stage:
    """One run. `events` counts what happened, so that a test can tell whether a plan is worth something."""

    def __init__(self, sim: Simulation, setting: Setting, cluster: Cluster) -> None:
        self.sim, self.setting, self.cluster, self.rng = sim, setting, cluster, sim.rng
        self.tree = sim_tree(cluster)
        self.quorum: Quorum = sim.rng.choice(setting.quorums)
        self.bookies = [self._bookie(f"b{number}") for number in range(setting.bookies)]
        self.lost: set[BookieId] = set()  # Their disks were exchanged, or have damage.
        self.events: Counter[str] = Counter()
        self.waiting: set[tuple[int, bytes]] = set()  # Appends that were not answered yet.
        self.over = asyncio.Event()  # Everything was repaired: nobody has an excuse any more.
        self._clients: dict[str, list[asyncio.Task[None]]] = {}

    def _bookie(self, name: str) -> SimBookie:
        settings = BookieSettings(
            BookieFolders("/data", ("/journal",)),
            checkpoint_interval_s=0.5,
            storage=SMALL_STORAGE,
            space=SpaceSettings(reserve_bytes=0, free_bytes_min=FREE_BYTES_MIN, check_interval_s=0.3),
            # A machine that lost power leaves its registration behind, and must not wait for it to go.
            folder_token=lambda _: name,
        )
        bookie = SimBookie(self.sim, name, self.cluster, settings=settings)
        if self.setting.sync_s is not None:
            bookie.host.disk.faults.latency_by_operation_s["sync"] = self.setting.sync_s
        return bookie

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
                assert bookie_id(bookie.host.name) in self.lost, f"bookie {bookie.host.name}: {error!r}"
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
        self.lost.add(bookie_id(bookie.host.name))
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
            if not (bookie.is_running and bookie.bookie.failure is None)
            or bookie_id(bookie.host.name) not in listing.writable
            if bookie_id(bookie.host.name) not in self.lost
        ]
