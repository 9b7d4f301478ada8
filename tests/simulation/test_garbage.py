"""Garbage collection and compaction on a disk that crashes, fails and fills up: what was acknowledged stays.

The real storage, collector and compactor run on the simulated disk, with the simulated twin of the index, and with a
metadata store that is slow and sometimes out of reach. Ledgers are created, written, written again, fenced and deleted
meanwhile, with checkpoints in between.
"""

import asyncio
import enum
import errno
import os
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.bookie.compaction import Compactor
from quire.bookie.garbage import GarbageCollector, GarbageReport, GarbageSettings
from quire.bookie.index import DeleteTombstone, LocationMove, PutLocations
from quire.bookie.journal import JournalSettings
from quire.bookie.ledger_storage import Absence, LedgerStorage
from quire.bookie.log_survey import LogLoad, LogSurveyor, newest_log
from quire.bookie.settings import StorageSettings
from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.errors import Damaged, MetadataUnavailable
from quire.metadata import MetadataStore, StoreSettings
from quire.metadata.cluster import Cluster, init_cluster
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.ledgers import Ledgers
from quire.metadata.uri import parse_uri
from quire.protocol.fencing import Refusal
from quire.runtime import Runtime
from quire.testing import SimHost, Simulation, simulate
from quire.testing.disk_faults import CAPACITY_BYTES
from quire.testing.sim_index import SimIndexFolder
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum
from tests.support.tiers import one_in

FOLDER, KEY, URI = "/bookie", b"k" * 20, "memory:"
METADATA = LedgerMetadata(
    quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), (BookieId("b1:3181"),)),)
)
SETTINGS = StorageSettings(
    cache_bytes_max=30_000,
    read_cache_bytes_max=0,  # What is read comes from the logs.
    journal=JournalSettings(
        file_bytes_max=20_000, preallocate_bytes=4_096, group_bytes_max=6_000, queue_bytes_max=30_000
    ),
)
BOOTS = 3
SEEDS = range(2000 if os.environ.get("QUIRE_TEST_LONG") else 40)


class Flaw(enum.Enum):
    NONE = "is correct"
    LISTS_FIRST = "lists the metadata before it looks at what is here, and does not look twice"
    SHORT_LISTS = "takes a listing that broke off for the whole, and does not look twice"
    NO_TOMBSTONES = "drops tombstones before their time"
    UNSETTLED_LOGS = "looks at logs that a checkpoint is writing"
    UNSYNCED_COPIES = "points to copies that are not durable"
    BLIND_MOVES = "moves entries that were written anew meanwhile"
    EARLY_DELETION = "deletes a log before the index is durable"


class FlawedCollector(GarbageCollector):
    def __init__(self, storage: LedgerStorage, ledgers: Ledgers, host: SimHost, world: "World") -> None:
        async def free_bytes() -> int:
            return (await host.runtime.disk.usage(FOLDER)).free_bytes

        settings = GarbageSettings(
            interval_s=host.rng.choice([0.05, 0.2]),
            minor_interval_s=0.1,
            major_interval_s=0.3,
            major_live_ratio_max=world.major_live_ratio_max,
            free_bytes_min=4_000,
        )
        super().__init__(storage, ledgers, host.runtime, settings, free_bytes=free_bytes, on_failure=world.on_failure)
        self._flaw = world.flaw
        if world.flaw in (Flaw.LISTS_FIRST, Flaw.SHORT_LISTS):
            storage.delete = _deleting_all(storage)  # type: ignore[method-assign]
        self._surveyor = FlawedSurveyor(storage, rows_max=host.rng.choice([0, 20, 10_000]))
        self._surveyor.flaw = world.flaw
        self._compactor = FlawedCompactor(
            storage,
            host.clock,
            self.counters,
            self._undisturbed,
            bytes_per_s=host.rng.choice([200_000, 10**9]),
            free_bytes=free_bytes,
            free_bytes_min=4_000,
            batch_bytes=host.rng.choice([1, 1000, 10_000]),
        )
        self._compactor.flaw = world.flaw

    async def _ledgers_here(self) -> set[LedgerId]:
        if self._flaw is Flaw.LISTS_FIRST:
            self._early = [each async for each in self._ledgers.scan()]
            await asyncio.sleep(0.005)
        return await super()._ledgers_here()

    async def _listed(self, here: Collection[LedgerId]) -> set[LedgerId]:
        if self._flaw is Flaw.LISTS_FIRST:
            return set(self._early)
        if self._flaw is not Flaw.SHORT_LISTS:
            return await super()._listed(here)
        listed: set[LedgerId] = set()
        try:
            async for ledger_id in self._ledgers.scan():
                listed.add(ledger_id)
        except MetadataUnavailable:
            pass
        return listed

    async def _check_gone(self, ledger_id: LedgerId) -> None:
        if self._flaw not in (Flaw.LISTS_FIRST, Flaw.SHORT_LISTS):
            await super()._check_gone(ledger_id)

    async def _drop_tombstones(self) -> None:
        if self._flaw is Flaw.NO_TOMBSTONES:
            index = self._storage.index
            index.commit(*(DeleteTombstone(ledger_id) for ledger_id, _ in index.tombstones()))
        await super()._drop_tombstones()


def _deleting_all(storage: LedgerStorage) -> Callable[..., Coroutine[Any, Any, None]]:
    """Without the second net: also ledgers that were added to since somebody looked."""
    delete = LedgerStorage.delete

    async def delete_all(ledger_ids: Iterable[LedgerId], *, tombstones_until_ms: int, touched_max: int) -> None:
        await delete(storage, ledger_ids, tombstones_until_ms=tombstones_until_ms)

    return delete_all


class FlawedSurveyor(LogSurveyor):
    flaw = Flaw.NONE

    async def survey(self) -> list[LogLoad]:
        if self.flaw is not Flaw.UNSETTLED_LOGS:
            return await super().survey()
        logs, live = self._storage.logs, set(await self._storage.ledger_ids())
        known, fresh = newest_log(logs) or 0, []
        for _ in range(100):  # Until a checkpoint has finished a log: one that it began would be left alone as growing.
            fresh = [each for each in logs.usage() if each.log_id > known and not each.is_growing]
            if fresh:
                break
            await asyncio.sleep(0.002)
        return [await self._load(each.log_id, each.log_bytes, live) for each in fresh]


class FlawedCompactor(Compactor):
    flaw = Flaw.NONE

    async def _sync_copies(self) -> None:
        if self.flaw is not Flaw.UNSYNCED_COPIES:
            await super()._sync_copies()

    async def _point_to(self, moves: list[LocationMove]) -> None:
        if self.flaw is Flaw.BLIND_MOVES:
            places = [(move.ledger_id, move.entry_id, move.new) for move in moves]
            async with self._storage.checkpointing:
                self._storage.index.commit(PutLocations(places), sync=False)
        else:
            await super()._point_to(moves)

    async def _make_durable(self) -> None:
        if self.flaw is not Flaw.EARLY_DELETION:
            await super()._make_durable()


class SlowDriver(MemoryDriver):
    """Takes its time, and loses every now and then the connection."""

    def __init__(self, tree: MemoryTree, runtime: Runtime, *, failures: float) -> None:
        super().__init__(tree, StoreSettings(), runtime)
        self._runtime, self._failures = runtime, failures

    async def _reach(self) -> None:
        await self._clock.sleep(self._runtime.rng.random() * 0.001)
        if self._runtime.rng.random() < self._failures:
            raise MetadataUnavailable("simulated")
        await super()._reach()


@dataclass
class World:
    """What the bookie was asked for, and what it acknowledged."""

    flaw: Flaw
    ledgers: Ledgers  # As the clients see them.
    tree: MemoryTree
    log_bytes_max: int
    major_live_ratio_max: float
    metadata_failures: float
    bodies: dict[tuple[LedgerId, EntryId], list[bytes]] = field(default_factory=dict)  # In the order they were sent.
    acknowledged: dict[tuple[LedgerId, EntryId], int] = field(default_factory=dict)  # Which of them was, last.
    live: list[LedgerId] = field(default_factory=list)
    deleted: set[LedgerId] = field(default_factory=set)
    fenced: set[LedgerId] = field(default_factory=set)
    waiting: list[tuple[int, LedgerId, EntryId | None, int]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False
    checked: int = 0
    reports: list[GarbageReport] = field(default_factory=list)
    compacted: int = 0
    reclaimed: int = 0

    def on_durable(self, _: int, number: int) -> None:
        for durable, ledger_id, entry_id, version in self.waiting:
            if durable <= number:
                if entry_id is None:
                    self.fenced.add(ledger_id)
                else:
                    self.acknowledged[ledger_id, entry_id] = version
        self.waiting = [each for each in self.waiting if each[0] > number]

    def on_failure(self, _: Exception) -> None:
        self.stopped.set()


async def open_storage(world: World, host: SimHost, index: SimIndexFolder) -> LedgerStorage:
    world.waiting, world.stopped = [], asyncio.Event()
    return await LedgerStorage.open(
        host.runtime,
        FOLDER,
        lambda position: index.open(create=position is None, position_min=position),
        replace(SETTINGS, log_bytes_max=world.log_bytes_max),
        on_durable=world.on_durable,
        on_failure=world.on_failure,
    )


def open_collector(world: World, host: SimHost, storage: LedgerStorage) -> FlawedCollector:
    store = MetadataStore(SlowDriver(world.tree, host.runtime, failures=world.metadata_failures))
    return FlawedCollector(storage, Ledgers(store, "/ledgers", world.ledgers.layout, host.rng), host, world)


def entry(ledger_id: LedgerId, entry_id: EntryId, payload: bytes = b"") -> bytes:
    return EntryCodec(ledger_id, Crc32cDigest()).prefix(entry_id, payload, lac=NO_ENTRY, length=0) + payload


async def check(world: World, storage: LedgerStorage) -> None:
    """Of every ledger that exists, all that was acknowledged is there, at least as new as it was acknowledged."""
    for (ledger_id, entry_id), bodies in world.bodies.items():
        if ledger_id in world.deleted:
            continue
        found = await storage.read(ledger_id, entry_id)
        newest = world.acknowledged.get((ledger_id, entry_id))
        if newest is None:
            assert found in (*bodies, Absence.NO_ENTRY, Absence.NO_LEDGER), f"nobody sent {found!r:.60}"
        else:
            assert found in bodies[newest:], f"entry {ledger_id}:{entry_id} is {found!r:.60}"
            world.checked += 1
    for ledger_id in world.fenced:
        body = entry(ledger_id, EntryId(99))
        refused = storage.add(ledger_id, EntryId(99), NO_ENTRY, body, KEY, recovery=False)
        assert refused is Refusal.FENCED, f"the fence of ledger {ledger_id} is forgotten: {refused}"


async def write(world: World, host: SimHost, storage: LedgerStorage) -> None:
    """Create, add, add again, fence and delete."""
    rng = host.rng
    for _ in range(rng.randrange(40, 200)):
        if world.stopped.is_set():
            return
        kind = rng.random()
        if len(world.live) < 2 or kind < 0.08:
            number = len(world.live) + len(world.deleted)
            created = await world.ledgers.create(METADATA, with_id=number * 7_001)  # In several folders of the tree.
            world.live.append(created.ledger_id)
            add(world, storage, created.ledger_id, EntryId(0), rng.bytes(10))
        elif kind < 0.15:
            ledger_id = rng.choice(world.live)
            world.live.remove(ledger_id)
            world.deleted.add(ledger_id)
            await world.ledgers.remove(ledger_id)
        elif kind < 0.19:
            ledger_id = rng.choice(world.live)
            number_or = storage.fence(ledger_id, KEY)
            assert isinstance(number_or, int)
            if number_or > storage.journals.of(ledger_id).durable:
                world.waiting.append((number_or, ledger_id, None, 0))
            else:
                world.fenced.add(ledger_id)
        elif storage.has_room:
            ledger_id = rng.choice(world.live)
            entry_id = EntryId(rng.randrange(12))  # So many of them are written again.
            add(world, storage, ledger_id, entry_id, rng.bytes(rng.randrange(1200)))
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.05)


def add(world: World, storage: LedgerStorage, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
    fenced, body = storage.is_fenced(ledger_id), entry(ledger_id, entry_id, payload)
    number = storage.add(ledger_id, entry_id, NO_ENTRY, body, KEY, recovery=fenced)
    assert isinstance(number, int), f"ledger {ledger_id} exists and refuses an add: {number}"
    bodies = world.bodies.setdefault((ledger_id, entry_id), [])
    bodies.append(body)
    world.waiting.append((number, ledger_id, entry_id, len(bodies) - 1))


async def checkpoint_now_and_then(host: SimHost, storage: LedgerStorage) -> None:
    try:
        while True:
            await asyncio.sleep(host.rng.random() * 0.2)
            await storage.checkpoint()
    except OSError:
        return  # The disk failed: a bookie would stop here, and so does this life, sooner or later.


async def tidy_up(world: World, host: SimHost, collector: FlawedCollector) -> None:
    """Mostly as it comes, sometimes asked for, sometimes cancelled half way and begun anew."""
    while not world.stopped.is_set():
        running = asyncio.create_task(collector.run())
        try:
            for _ in range(host.rng.randrange(2, 12)):
                collector.trigger(minor=host.rng.random() < 0.5, major=host.rng.random() < 0.7)
                await asyncio.sleep(host.rng.random() * 0.3)
                if host.rng.random() < 0.1:
                    collector.suspend()
                    await asyncio.sleep(host.rng.random() * 0.02)
                    collector.resume()
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()  # It ended by itself, since the storage failed; or it found a bug.
            world.reports.append(collector.report())


async def live(world: World, host: SimHost, index: SimIndexFolder) -> None:
    storage = await open_storage(world, host, index)
    await check(world, storage)
    world.is_open = True
    collector = open_collector(world, host, storage)
    background = [
        asyncio.create_task(checkpoint_now_and_then(host, storage)),
        asyncio.create_task(tidy_up(world, host, collector)),
    ]
    try:
        await write(world, host, storage)
    finally:
        for task in background:
            task.cancel()
        results = await asyncio.gather(*background, return_exceptions=True)
        world.compacted += collector.counters.compacted_entries
        world.reclaimed += collector.counters.reclaimed_bytes
    for result in results:
        if isinstance(result, Exception):
            raise result
    if not world.stopped.is_set() and host.rng.random() < 0.5:
        await check(world, storage)
        await storage.aclose()


async def live_and_die(sim: Simulation, flaw: Flaw) -> World:
    host, tree = sim.host("bookie"), MemoryTree()
    clients: Cluster = await init_cluster(
        MetadataStore(MemoryDriver(tree, StoreSettings(), sim.host("client").runtime)),
        parse_uri(URI),
        sim.host("client").runtime,
    )
    world = World(
        flaw,
        clients.ledgers,
        tree,
        log_bytes_max=sim.rng.choice([3_000, 6_000]),
        major_live_ratio_max=sim.rng.choice([0.8, 1.0]),
        metadata_failures=sim.rng.choice([0, 0.05]),
    )
    index = SimIndexFolder(host.rng)
    host.disk.faults.latency_by_operation_s["sync"] = (0.001, sim.rng.choice([0.005, 0.04]))
    for _ in range(BOOTS):
        life = host.spawn(live(world, host, index))
        await asyncio.wait([life], timeout=0.1 + sim.rng.random() * 0.3)
        if world.is_open:  # A disk that cannot be read at the start is another story.
            break_something(sim, host, index)
        world.is_open = False
        await asyncio.wait([life], timeout=sim.rng.random() * 3)
        if life.done() and not life.cancelled() and not isinstance(life.exception(), OSError):
            life.result()
        power_loss = sim.rng.random() < 0.7
        await host.crash(power_loss=power_loss)
        index.crash() if power_loss else index.kill()
        host.disk.faults.repair()
        index.faults.repair()
        host.disk.faults.capacity_bytes = CAPACITY_BYTES
    storage = await open_storage(world, host, index)
    await check(world, storage)
    await give_everything_back(world, host, storage)
    await check(world, storage)
    return world


def break_something(sim: Simulation, host: SimHost, index: SimIndexFolder) -> None:
    kind = sim.rng.random()
    if kind < 0.1:
        host.disk.faults.fail_next("sync")
    elif kind < 0.2:
        host.disk.faults.fail_next(sim.rng.choice(["write", "read", "unlink", "sync_directory"]))
    elif kind < 0.3:
        index.faults.fail_next(sim.rng.choice(["commit", "sync"]))
    elif kind < 0.45:
        host.disk.limit_free_bytes(sim.rng.randrange(60_000))
    elif kind < 0.5:
        host.disk.faults.fail_next("create", code=errno.ENOSPC)


async def give_everything_back(world: World, host: SimHost, storage: LedgerStorage) -> None:
    """With a disk and a metadata store that work, nothing of a deleted ledger stays, but in the newest log."""
    world.flaw, world.metadata_failures = Flaw.NONE, 0.0
    collector = open_collector(world, host, storage)
    for _ in range(2):
        report = await collector.collect(minor=True, major=True)
        assert (report.outcome, report.error) == ("done", None)
    assert not world.deleted.intersection(await storage.ledger_ids())
    for log in await collector._surveyor.survey():
        dead = world.deleted.intersection(await storage.logs.ledgers_in(log.log_id))
        ratio = 0.0 if log.live_ratio is None else log.live_ratio
        assert not dead or ratio >= world.major_live_ratio_max, f"of ledgers {dead} something stays: {log}"
    assert all(log.reason for log in report.logs)


@pytest.mark.parametrize("seed", one_in(5, SEEDS))
def test_what_was_acknowledged_survives_and_what_was_deleted_goes(seed: int) -> None:
    simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE))


@pytest.mark.extended
def test_the_workload_is_worth_something() -> None:
    worlds = [simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE)) for seed in range(15)]
    assert sum(world.checked for world in worlds) > 1000
    assert sum(world.compacted for world in worlds) > 150
    assert sum(world.reclaimed for world in worlds) > 300_000
    assert sum(len(world.fenced & world.deleted) for world in worlds) > 10
    reasons = {log.reason for world in worlds for report in world.reports for log in report.logs}
    for reason in ("newest log", "metadata listing failed", "is above", "is due at"):
        assert any(reason in each for each in reasons), f"no log stays because of: {reason}"


@pytest.mark.extended
@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE], ids=lambda flaw: flaw.name)
def test_each_flaw_is_found_by_some_seed(flaw: Flaw) -> None:
    def is_found(seed: int) -> bool:
        try:
            simulate(seed, lambda sim: live_and_die(sim, flaw))
        except (AssertionError, Damaged):
            return True
        return False

    assert any(is_found(seed) for seed in range(200)), f"no seed finds a collector that {flaw.value}"
