"""The bookie's journal on a disk that crashes: whatever it called durable is there afterwards, in order, each once."""

import asyncio
import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from quire.bookie.journal import Journal, JournalMark, JournalSettings, Replay, journal_files
from quire.errors import DamagedJournal
from quire.runtime import Buffer, Disk, File
from quire.testing import SimHost, Simulation, simulate

FOLDER = "/journal"
SETTINGS = JournalSettings(
    file_bytes_max=24_000, preallocate_bytes=8_192, group_bytes_max=6_000, queue_bytes_max=20_000
)
BEGINNING: Final = JournalMark(0, 0, 0)
BOOTS = 6
SEEDS = [
    *range(3000 if os.environ.get("QUIRE_TEST_LONG") else 150),
    1745,
]  # 1745: a write that was cut off within a group's header.

Item = tuple[int, int, bytes]


class Flaw(enum.Enum):
    """Ways to get a journal wrong, each of which some seed must find."""

    NONE = "is correct"
    NO_SYNC = "acknowledges what was only written"
    EARLY = "acknowledges when a record is queued"
    NO_DIRECTORY_SYNC = "does not make a new file's name durable"
    GOES_ON = "goes on after a failed sync"
    TRUSTS_PAGES = "serves what it replayed without storing it again"


class FlawedJournal(Journal):
    """A journal with one of the flaws."""

    flaw = Flaw.NONE

    def append(self, ledger_id: int, entry_id: int, body: bytes | memoryview, *, deferred: bool = False) -> int:
        number = super().append(ledger_id, entry_id, body, deferred=deferred)
        if self.flaw is Flaw.EARLY:
            self._on_durable(number)
        return number

    @property
    def _open_file(self) -> File:
        file = super()._open_file
        return file if self.flaw not in (Flaw.NO_SYNC, Flaw.GOES_ON) else cast(File, CarelessFile(file, self.flaw))

    async def _begin_file(self) -> None:
        disk = self._disk
        if self.flaw is Flaw.NO_DIRECTORY_SYNC:
            self._disk = cast(Disk, CarelessDisk(disk))
        try:
            await super()._begin_file()
        finally:
            self._disk = disk


class CarelessFile:
    """A file that is not synced, or whose failed syncs are tried again."""

    def __init__(self, file: File, flaw: Flaw) -> None:
        self._file, self._flaw = file, flaw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        try:
            return await self._file.pwritev(buffers, offset, sync=sync and self._flaw is not Flaw.NO_SYNC)
        except OSError:
            await self._file.fdatasync()  # "It worked the second time."
            return 0.0


class CarelessDisk:
    """A disk whose directories are never synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def sync_directory(self, path: str) -> None:
        del path


@dataclass
class World:
    """What the journal was given, what it called durable, and where its last checkpoint is."""

    flaw: Flaw
    mark: JournalMark = BEGINNING
    given: list[Item] = field(default_factory=list)  # Since the mark.
    durable: int = 0  # How many of them were acknowledged.
    replayed: int = 0

    async def run(self, host: SimHost) -> None:
        """One life of the process: replay, check, then write until something stops it."""
        runtime = host.runtime
        replay = Replay(runtime.disk, FOLDER, start=self.mark)
        found = [(record.ledger_id, record.entry_id, bytes(record.body)) async for record in replay.records()]
        assert replay.damages == [], "nothing was damaged, and the journal says so"
        assert found == self.given[: len(found)], "records are lost, repeated or out of order"
        assert len(found) >= self.durable, f"{self.durable} records were acknowledged, {len(found)} are left"
        self.replayed += len(found)
        stopped = asyncio.Event()
        FlawedJournal.flaw = self.flaw
        journal = await FlawedJournal.open(
            runtime,
            FOLDER,
            SETTINGS,
            after=replay.end,
            on_durable=lambda number: self._on_durable(number, base),
            on_failure=lambda _: stopped.set(),
        )
        if self.flaw is Flaw.TRUSTS_PAGES:
            self.given, self.durable = found, len(found)  # It answers reads for these from now on.
            base = len(found)
        else:
            self.given, self.durable, self.mark, base = [], 0, journal.mark, 0  # All of it is in the ledger storage.
            await journal.free_before(self.mark)
        writing = asyncio.create_task(self._write(host, journal))
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait([writing, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, stop):
            task.cancel()
        await asyncio.gather(writing, stop, return_exceptions=True)
        await journal.aclose()

    def _on_durable(self, number: int, base: int) -> None:
        assert base + number >= self.durable
        self.durable = base + number

    async def _write(self, host: SimHost, journal: Journal) -> None:
        rng = host.rng
        for number in range(rng.randrange(60)):
            if journal.has_room:
                size = rng.randrange(3000)
                item = (rng.randrange(3), number, rng.bytes(size) if rng.random() < 0.5 else bytes(size))
                self.given.append(item)
                journal.append(*item)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.02)


async def live_and_die(sim: Simulation, flaw: Flaw) -> int:
    host, world = sim.host("bookie"), World(flaw)
    host.disk.faults.latency_by_operation_s["sync"] = (0.001, 0.03)
    await host.disk.makedirs(FOLDER)
    for _ in range(BOOTS):
        life = host.spawn(world.run(host))
        if sim.rng.random() < 0.3:
            await asyncio.sleep(sim.rng.random() * 0.3)
            host.disk.faults.fail_next("sync")
        await asyncio.wait([life], timeout=sim.rng.random() * 0.6)
        if life.done() and not life.cancelled() and not isinstance(life.exception(), OSError):
            life.result()
        await host.crash(power_loss=sim.rng.random() < 0.7)
        host.disk.faults.repair()
    last = host.spawn(world.run(host))
    await asyncio.wait([last])
    last.result()
    return world.replayed


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_called_durable_survives(seed: int) -> None:
    simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE))


def test_the_workload_is_worth_something() -> None:
    assert sum(simulate(seed, lambda sim: live_and_die(sim, Flaw.NONE)) for seed in range(10)) > 200


@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE], ids=lambda flaw: flaw.name)
def test_each_flaw_is_found_by_some_seed(flaw: Flaw) -> None:
    def is_found(seed: int) -> bool:
        try:
            simulate(seed, lambda sim: live_and_die(sim, flaw))
        except (AssertionError, DamagedJournal):
            return True
        return False

    assert any(is_found(seed) for seed in range(200)), f"no seed finds a journal that {flaw.value}"


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_is_reported_and_hides_nothing_else(seed: int) -> None:
    """After a clean end one bit of one file is flipped: all records but those of one group are given, or the damage is
    noted; never is a record given wrong, or missing without a word.
    """

    async def main(sim: Simulation) -> None:
        host, world = sim.host("bookie"), World(Flaw.NONE)
        await host.disk.makedirs(FOLDER)
        await world.run(host)
        files = await journal_files(host.disk, FOLDER)
        name = f"{FOLDER}/{sim.rng.choice(files):016x}.journal"
        async with await host.disk.open(name) as file:
            size = await file.size()
        host.disk.flip_bit(name, sim.rng.randrange(size * 8) // 8)
        replay = Replay(host.disk, FOLDER, start=world.mark)
        found = [(record.ledger_id, record.entry_id, bytes(record.body)) async for record in replay.records()]
        assert set(found) <= set(world.given), "a record came back changed"
        assert [item for item in world.given if item in set(found)] == found, "out of order"
        if len(found) < len(world.given):
            assert replay.damages, "records are missing and nobody says so"

    simulate(seed, main)


def test_old_files_go_when_a_checkpoint_has_passed_them() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("bookie")
        await host.disk.makedirs(FOLDER)
        reached: list[int] = []
        journal = await Journal.open(
            host.runtime,
            FOLDER,
            SETTINGS,
            after=BEGINNING,
            on_durable=reached.append,
            on_failure=lambda error: pytest.fail(str(error)),
        )
        for number in range(100):
            journal.append(1, number, bytes(900))
            await asyncio.sleep(0.01)
        assert reached[-1] == journal.last == journal.durable == 100
        before = await journal_files(host.disk, FOLDER)
        mark = journal.mark
        assert await journal.free_before(mark) == len(before) - 1 > 1
        assert await journal_files(host.disk, FOLDER) == [mark.file_id]
        await journal.aclose()
        replay = Replay(host.disk, FOLDER, start=mark)
        assert [record async for record in replay.records()] == []
        assert replay.end == mark

    simulate(1, main)


def test_a_journal_without_its_marked_file_is_refused() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("bookie")
        await host.disk.makedirs(FOLDER)
        replay = Replay(host.disk, FOLDER, start=JournalMark(3, 512, 9))
        with pytest.raises(Exception, match="missing") as caught:
            [record async for record in replay.records()]
        assert getattr(caught.value, "hint", "")

    simulate(1, main)
