"""Power failures at any moment: what was synced is there afterwards, and nothing else is ever wrong.

The same workload runs on careless disks and with careless writers. Each must be caught by some seed; else the workload
would prove nothing about the careful one.
"""

import asyncio
import enum
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.tiers import one_in
from tests.unit.bookie.watched_disk import Carelessness, WatchedDisk

from quire.bookie import entry_log
from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_log_writer import LogWriter
from quire.codec.entry_log import Entry, LedgerUsage, Location, LogId, split_location
from quire.errors import DamagedEntry, InvalidArgument
from quire.testing import SimHost, Simulation, simulate
from quire.types import EntryId, LedgerId

FOLDER = "/ledgers"
SEEDS = range(220)
LIVES = 3


class Model:
    """What the entry logs were told, and what they promised. Bodies tell their own ids, so no two are alike."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.written: dict[Location, tuple[int, int]] = {}  # Whatever `append` returned and `delete` did not take.
        self.durable: set[Location] = set()
        self.deleted: set[LogId] = set()
        self.newest = 0

    def make_entries(self, sim: Simulation) -> list[Entry]:
        batch: list[Entry] = []
        for _ in range(sim.rng.randrange(1, 7)):
            key = (sim.rng.randrange(3), len(self.bodies))
            size = sim.rng.choice([0, 10, 100, 700, 2500])
            self.bodies[key] = (b"%d:%d;" % key * size)[:size]
            batch.append((LedgerId(key[0]), EntryId(key[1]), self.bodies[key]))
        return batch

    def on_appended(self, batch: list[Entry], locations: list[Location]) -> None:
        for (ledger_id, entry_id, _), location in zip(batch, locations, strict=True):
            assert location not in self.written, "two entries at one location"
            self.written[location] = (ledger_id, entry_id)
            self.newest = max(self.newest, split_location(location)[0])

    def on_delete(self, log_id: LogId) -> None:
        self.written = {at: key for at, key in self.written.items() if split_location(at)[0] != log_id}
        self.durable &= self.written.keys()

    def on_crash(self) -> None:
        """Only what was durable is of interest any longer."""
        self.written = {at: key for at, key in self.written.items() if at in self.durable}


async def _write(sim: Simulation, logs: EntryLogs, model: Model) -> None:
    """Append, sync, delete and lose patience at random, until the disk fails or the power does."""
    while True:
        match sim.rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                batch = model.make_entries(sim)
                model.on_appended(batch, await logs.append(batch))
            case 5 | 6 | 7:
                before = set(model.written)
                await logs.sync()
                model.durable |= before & model.written.keys()
            case 8:
                try:
                    async with asyncio.timeout(sim.rng.random() * 0.003):
                        await logs.append(model.make_entries(sim))
                except TimeoutError:
                    pass  # It may be in the log or not; nobody knows where.
            case 9:
                old = [log.log_id for log in logs.usage()][:-1]
                if old and sim.rng.random() < 0.3:
                    log_id = old[0]
                    model.on_delete(log_id)
                    try:
                        await logs.delete(log_id)
                    except InvalidArgument:
                        continue  # The other writer was faster.
                    model.deleted.add(log_id)


async def _live(sim: Simulation, host: SimHost, logs: EntryLogs, model: Model) -> None:
    """Two writers at once, and now and then a disk that fails to sync, until the machine stops."""
    # Slower than writing: most of the time something is written and not synced.
    host.disk.faults.latency_by_operation_s["sync"] = (0.001, 0.01)
    writers = [host.spawn(_write(sim, logs, model)) for _ in range(2)]
    await asyncio.sleep(sim.rng.random() * 0.15)
    if sim.rng.random() < 0.3:
        host.disk.faults.fail_next("sync")
        await asyncio.sleep(sim.rng.random() * 0.05)
    failed = [task.exception() for task in writers if task.done()]
    await host.crash(power_loss=sim.rng.random() < 0.8)
    host.disk.faults.repair()
    for error in failed:
        if error is not None and not isinstance(error, OSError):
            raise error


async def _check(logs: EntryLogs, model: Model) -> None:
    """After a crash: every promise is kept, and everything that is there is true."""
    assert logs.refused() == [], "a crash is no damage"
    for location, (ledger_id, entry_id) in model.written.items():
        try:
            body = await logs.read(location, LedgerId(ledger_id), EntryId(entry_id))
        except DamagedEntry as error:
            assert location not in model.durable, f"a synced entry is lost: {error}"
        else:
            assert body == model.bodies[ledger_id, entry_id], "wrong bytes"
    here = [log.log_id for log in logs.usage()]
    assert not model.deleted.intersection(here), "a deleted log is back"
    found: set[Location] = set()
    for log_id in here:
        scan = logs.scan(log_id)
        totals: dict[LedgerId, LedgerUsage] = {}
        async for entry in scan:
            assert entry.body == model.bodies[entry.ledger_id, entry.entry_id], "wrong bytes in a scan"
            found.add(entry.location)
            known = model.written.get(entry.location, (entry.ledger_id, entry.entry_id))
            assert known == (entry.ledger_id, entry.entry_id), "another entry at a known location"
            count, size = totals.get(entry.ledger_id, LedgerUsage(0, 0))
            totals[entry.ledger_id] = LedgerUsage(count + 1, size + 32 + len(entry.body))
        assert scan.report.damaged == (), "a crash is no damage"
        assert await logs.ledgers_in(log_id) == totals
    assert model.durable <= found, "a scan misses synced entries"


async def workload(sim: Simulation, carelessness: Carelessness = Carelessness.NONE) -> tuple[int, int]:
    """A few lives, each ended by a crash. Returns how many entries were promised and how many logs there were."""
    host, model = sim.host("bookie"), Model()
    promised = 0
    for _ in range(LIVES):
        logs = EntryLogs(WatchedDisk(host.disk, carelessness), FOLDER, log_bytes_max=8000, files_open_max=2)
        await logs.open()
        await _live(sim, host, logs, model)
        promised += len(model.durable)
        async with EntryLogs(host.disk, FOLDER, files_open_max=2) as logs:
            await _check(logs, model)
            [location] = await logs.append(batch := [(LedgerId(0), EntryId(len(model.bodies)), b"after")])
            assert split_location(location)[0] > model.newest, "a log id was used again"
            model.bodies[0, len(model.bodies)] = b"after"
            model.on_appended([*batch], [location])
            await logs.sync()
            model.durable.add(location)
        model.on_crash()
    return promised, model.newest


@pytest.mark.parametrize("seed", one_in(5, SEEDS))
def test_what_was_synced_survives_and_nothing_is_ever_wrong(seed: int) -> None:
    simulate(seed, workload)


def test_the_workload_does_something() -> None:
    results = [simulate(seed, workload) for seed in range(10)]
    assert sum(promised for promised, _ in results) > 300
    assert max(newest for _, newest in results) > 12


def _caught(run: Callable[[Simulation], Coroutine[Any, Any, object]]) -> str | None:
    """The first complaint of any seed."""
    for seed in SEEDS:
        try:
            simulate(seed, run)
        except AssertionError as error:
            assert f"seed {seed}" in "".join(error.__notes__)
            return str(error)
    return None


@pytest.mark.parametrize("carelessness", [item for item in Carelessness if item is not Carelessness.NONE])
def test_each_careless_disk_is_caught_by_some_seed(carelessness: Carelessness) -> None:
    assert _caught(lambda sim: workload(sim, carelessness)), f"no seed finds a disk that {carelessness.value}"


class SyncsLate(LogWriter):
    """Believes that a sync covers what was written while it was under way."""

    async def _sync(self, target: Location) -> None:
        await super()._sync(target)
        self._synced = self._written()


class FootersFirst(LogWriter):
    """Writes the footer of a log whose records are not durable yet."""

    async def _finish(self) -> None:
        content = self._content
        if content is not None:
            await self._file.pwritev([content.footer()], content.end)
        await super()._finish()


class SyncsAtOnce(LogWriter):
    """Lets everybody sync as they please."""

    async def _sync(self, target: Location) -> None:
        if self._synced < target:
            written, file = self._written(), self._file
            await file.fdatasync()
            self._synced = max(self._synced, written)


class Forgets(LogWriter):
    """Leaves a log behind without syncing it."""

    async def _finish(self) -> None:
        content, self._content = self._content, None
        if content is not None:
            await self._files.release(content.log_id)


class Flaw(enum.Enum):
    SYNCS_LATE = SyncsLate
    FOOTERS_FIRST = FootersFirst
    SYNCS_AT_ONCE = SyncsAtOnce
    FORGETS = Forgets


@pytest.mark.parametrize("flaw", Flaw, ids=lambda flaw: flaw.name)
def test_each_careless_writer_is_caught_by_some_seed(flaw: Flaw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "LogWriter", flaw.value)
    assert _caught(workload), f"no seed finds a writer that {flaw.value.__doc__}"
