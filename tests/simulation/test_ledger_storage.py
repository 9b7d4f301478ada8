"""A bookie's storage on a disk that crashes: acknowledged entries and fences are there afterwards, whatever happened.

The real storage, journal and entry logs run on the simulated disk, with the simulated twin of the index.
"""

import asyncio
import enum
import os
from dataclasses import dataclass, field

import pytest

from quire.bookie.index import Index
from quire.bookie.journal import JournalSettings
from quire.bookie.ledger_storage import Absence, LedgerStorage
from quire.bookie.settings import StorageSettings
from quire.bookie.write_cache import WriteCache
from quire.codec.checkpoint import Checkpoint, JournalPlace, encode_checkpoint
from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.codec.entry_log import Entry
from quire.errors import Damaged, DamagedEntry
from quire.protocol.fencing import Refusal
from quire.runtime import Runtime, replace_file
from quire.testing import SimHost, Simulation, simulate
from quire.testing.sim_index import SimIndexFolder
from quire.types import NO_ENTRY, EntryId, LedgerId
from tests.support.tiers import one_in

FOLDER = "/bookie"
KEY, WRONG = b"k" * 20, b"w" * 20
SETTINGS = StorageSettings(
    cache_bytes_max=60_000,
    log_bytes_max=40_000,
    journal=JournalSettings(
        file_bytes_max=20_000, preallocate_bytes=4_096, group_bytes_max=6_000, queue_bytes_max=30_000
    ),
)
LEDGERS = [LedgerId(number) for number in range(4)]
BOOTS = 5
SEEDS = range(1500 if os.environ.get("QUIRE_TEST_LONG") else 150)


class Flaw(enum.Enum):
    NONE = "is correct"
    LATE_MARK = "samples the journal's mark after it took the cache"
    MARK_FIRST = "stores the checkpoint before the index is durable"
    FORGETS_FENCES = "checkpoints ledgers only if they have entries"


class TakenEarly(WriteCache):
    """A cache whose entries were taken before the checkpoint looked at the journals' marks."""

    taken: list[Entry] | None = None

    def begin_flush(self) -> list[Entry]:
        taken, self.taken = self.taken, None
        return super().begin_flush() if taken is None else taken


class FlawedStorage(LedgerStorage):
    flaw = Flaw.NONE

    def __init__(self, runtime: Runtime, folder: str, index: Index, settings: StorageSettings) -> None:
        super().__init__(runtime, folder, index, settings)
        if self.flaw is Flaw.LATE_MARK:
            self.write_cache = self.reader._write_cache = TakenEarly()

    async def checkpoint(self) -> None:
        if isinstance(self.write_cache, TakenEarly) and not self.write_cache._flushing:
            self.write_cache.taken = self.write_cache.begin_flush()
            await asyncio.sleep(0.005)
        if self.flaw is Flaw.FORGETS_FENCES:
            self.table._changed = {each: None for each in self.table._changed if each in self.write_cache.ledgers}
        if self.flaw is Flaw.MARK_FIRST:
            marks = [JournalPlace(mark.file_id, mark.offset, mark.number) for mark in self.journals.marks]
            checkpoint = Checkpoint(0, tuple(marks))
            await replace_file(self._disk, f"{self.folder}/checkpoint", encode_checkpoint(checkpoint))
        await super().checkpoint()


@dataclass
class World:
    """What the storage was asked for, and what it acknowledged."""

    flaw: Flaw = Flaw.NONE
    given: dict[tuple[LedgerId, EntryId], bytes] = field(default_factory=dict)
    acknowledged: set[tuple[LedgerId, EntryId]] = field(default_factory=set)
    fenced: set[LedgerId] = field(default_factory=set)  # Acknowledged fences.
    waiting: list[tuple[int, str, LedgerId, EntryId]] = field(default_factory=list)
    journals: int = 1
    checked: int = 0

    def on_durable(self, journal: int, number: int) -> None:
        def is_durable(each: tuple[int, str, LedgerId, EntryId]) -> bool:
            return each[2] % self.journals == journal and each[0] <= number

        for _, kind, ledger_id, entry_id in filter(is_durable, self.waiting):
            if kind == "add":
                self.acknowledged.add((ledger_id, entry_id))
            else:
                self.fenced.add(ledger_id)
        self.waiting = [each for each in self.waiting if not is_durable(each)]

    @property
    def journal_folders(self) -> list[str]:
        return [f"{FOLDER}/journal{number or ''}" for number in range(self.journals)]


async def open_storage(world: World, host: SimHost, index: SimIndexFolder, stopped: asyncio.Event) -> LedgerStorage:
    FlawedStorage.flaw = world.flaw
    world.waiting = []
    return await FlawedStorage.open(
        host.runtime,
        FOLDER,
        lambda position: index.open(create=position is None, position_min=position),
        SETTINGS,
        journal_folders=world.journal_folders,
        on_durable=world.on_durable,
        on_failure=lambda _: stopped.set(),
    )


def entry(ledger_id: LedgerId, entry_id: EntryId, payload: bytes = b"") -> bytes:
    return EntryCodec(ledger_id, Crc32cDigest()).prefix(entry_id, payload, lac=NO_ENTRY, length=0) + payload


def add(
    storage: LedgerStorage,
    ledger_id: LedgerId,
    entry_id: EntryId,
    body: bytes,
    *,
    key: bytes = KEY,
    recovery: bool = False,
) -> int | Refusal:
    return storage.add(ledger_id, entry_id, NO_ENTRY, body, key, recovery=recovery)


async def check(world: World, storage: LedgerStorage) -> None:
    """No acknowledged entry is lost or changed, no acknowledged fence forgotten, nothing appears out of nowhere."""
    for (ledger_id, entry_id), body in world.given.items():
        found = await storage.read(ledger_id, entry_id)
        if (ledger_id, entry_id) in world.acknowledged:
            assert found == body, f"entry {ledger_id}:{entry_id} was acknowledged and is {found!r:.60}"
            world.checked += 1
        else:
            assert found in (body, Absence.NO_ENTRY, Absence.NO_LEDGER)
    for ledger_id in world.fenced:
        assert storage.is_fenced(ledger_id), f"the fence of ledger {ledger_id} is forgotten"
        assert add(storage, ledger_id, EntryId(10**6), entry(ledger_id, EntryId(10**6))) is Refusal.FENCED
    for ledger_id in LEDGERS:
        last = storage.last_entry_id(ledger_id)
        acknowledged = [entry_id for ledger, entry_id in world.acknowledged if ledger == ledger_id]
        if acknowledged:
            assert not isinstance(last, Absence)
            assert last >= max(acknowledged)


async def live(world: World, host: SimHost, index: SimIndexFolder, *, boot: int) -> None:
    stopped = asyncio.Event()
    storage = await open_storage(world, host, index, stopped)
    await check(world, storage)
    rng = host.rng
    checkpoints = asyncio.create_task(_checkpoint_now_and_then(host, storage))
    for number in range(rng.randrange(80)):
        if stopped.is_set():
            break
        ledger_id, entry_id = rng.choice(LEDGERS), EntryId(boot * 1000 + number)
        kind = rng.random()
        if kind < 0.03:
            result = storage.fence(ledger_id, KEY)
            assert isinstance(result, int)
            if result > storage.journals.of(ledger_id).durable:
                world.waiting.append((result, "fence", ledger_id, entry_id))
            else:
                world.fenced.add(ledger_id)
        elif kind < 0.06 and not isinstance(storage.last_entry_id(ledger_id), Absence):
            assert add(storage, ledger_id, entry_id, entry(ledger_id, entry_id), key=WRONG) is Refusal.WRONG_KEY
        elif storage.has_room:
            body = entry(ledger_id, entry_id, rng.bytes(rng.randrange(2000)))
            recovery = rng.random() < 0.1
            fenced = storage.is_fenced(ledger_id)
            result = add(storage, ledger_id, entry_id, body, recovery=recovery)
            assert (result is Refusal.FENCED) == (fenced and not recovery)
            if isinstance(result, int):
                world.given[ledger_id, entry_id] = body
                world.waiting.append((result, "add", ledger_id, entry_id))
                assert await storage.read(ledger_id, entry_id) == body
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.02)
    checkpoints.cancel()
    await asyncio.gather(checkpoints, return_exceptions=True)
    if not stopped.is_set() and rng.random() < 0.5:
        await storage.aclose()  # Also while a checkpoint that nobody waits for any more is under way.


async def _checkpoint_now_and_then(host: SimHost, storage: LedgerStorage) -> None:
    try:
        while True:
            await asyncio.sleep(host.rng.random() * 0.1)
            await storage.checkpoint()
    except OSError:
        return  # The disk failed: a bookie would stop here, and so does this life, sooner or later.


async def live_and_die(sim: Simulation, flaw: Flaw) -> int:
    host, world = sim.host("bookie"), World(flaw, journals=sim.rng.choice([1, 2, 3]))
    index = SimIndexFolder(host.rng)
    host.disk.faults.latency_by_operation_s["sync"] = (0.001, 0.02)
    for boot in range(BOOTS):
        life = host.spawn(live(world, host, index, boot=boot))
        if sim.rng.random() < 0.2:
            await asyncio.sleep(sim.rng.random() * 0.3)
            host.disk.faults.fail_next("sync")
        await asyncio.wait([life], timeout=sim.rng.random())
        if life.done() and not life.cancelled() and not isinstance(life.exception(), OSError):
            life.result()
        power_loss = sim.rng.random() < 0.7
        await host.crash(power_loss=power_loss)
        index.crash() if power_loss else index.kill()
        host.disk.faults.repair()
    stopped = asyncio.Event()
    await check(world, await open_storage(world, host, index, stopped))
    return world.checked


@pytest.mark.parametrize("seed", one_in(5, SEEDS))
def test_what_was_acknowledged_survives(seed: int) -> None:
    simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE))


def test_the_workload_is_worth_something() -> None:
    assert sum(simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE)) for seed in range(10)) > 500


@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE], ids=lambda flaw: flaw.name)
def test_each_flaw_is_found_by_some_seed(flaw: Flaw) -> None:
    def is_found(seed: int) -> bool:
        try:
            simulate(seed, lambda sim: live_and_die(sim, flaw))
        except (AssertionError, Damaged):
            return True
        return False

    assert any(is_found(seed) for seed in range(200)), f"no seed finds a storage that {flaw.value}"


@pytest.mark.parametrize("seed", one_in(5, range(60)))
def test_a_flipped_bit_never_becomes_a_missing_or_another_entry(seed: int) -> None:
    """One bit of any file, after any end: the storage refuses to open, or every acknowledged entry is right, damaged,
    or of unknown fate.
    """

    async def main(sim: Simulation) -> None:
        host, world = sim.host("bookie"), World()
        index = SimIndexFolder(host.rng)
        await live(world, host, index, boot=0)
        await host.crash()
        index.crash()
        files = [
            f"{folder}/{name}"
            for folder in (FOLDER, f"{FOLDER}/journal", f"{FOLDER}/entries")
            for name in await host.disk.listdir(folder)
            if "." in name or name == "checkpoint"
        ]
        name = sim.rng.choice(files)
        async with await host.disk.open(name) as file:
            size = await file.size()
        if size:
            host.disk.flip_bit(name, sim.rng.randrange(size))
        try:
            storage = await open_storage(world, host, index, asyncio.Event())
        except Damaged:
            return
        for ledger_id, entry_id in world.acknowledged:
            try:
                found = await storage.read(ledger_id, entry_id)
            except DamagedEntry:
                continue
            assert found in (world.given[ledger_id, entry_id], Absence.UNKNOWN), f"{name}: {found!r:.60}"

    simulate(seed, main)
