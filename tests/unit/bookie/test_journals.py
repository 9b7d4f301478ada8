"""Several journals: each counts for itself, and a failure of one is a failure of all."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.unit.bookie.storage_samples import JOURNAL, until

from quire.bookie.journal import JournalMark
from quire.bookie.journals import Journals, Replays
from quire.errors import WrongDisk
from quire.testing import SimHost, Simulation, simulate
from quire.types import LedgerId

FOLDERS = ["/journal0", "/journal1"]
EVEN, ODD = LedgerId(0), LedgerId(1)
START = [JournalMark(0, 0, 0)] * 2
ONE_BY_ONE = replace(JOURNAL, group_bytes_max=512)  # Of records with a body of 500 bytes each is a group of its own.
BODY = bytes(500)


class Told:
    """Two journals, and what they told."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.durable: list[tuple[int, int]] = []
        self.failures: list[Exception] = []
        self.journals: Journals

    async def open(self) -> None:
        for folder in FOLDERS:
            await self.host.disk.makedirs(folder)
        self.journals = await Journals.open(
            self.host.runtime,
            FOLDERS,
            ONE_BY_ONE,
            after=START,
            on_durable=lambda journal, number: self.durable.append((journal, number)),
            on_failure=self.failures.append,
        )

    def append(self, ledger_id: LedgerId, count: int = 1) -> int:
        return [self.journals.of(ledger_id).append(ledger_id, entry_id, BODY) for entry_id in range(count)][-1]


def on_journals(check: Callable[[Told], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        told = Told(sim.host("bookie"))
        await told.open()
        await check(told)

    simulate(1, main)


def test_exchanged_journals_are_refused() -> None:
    """Ledgers are dealt out by the place of a journal, and each journal has a mark of its own."""

    async def check(told: Told) -> None:
        for ledger_id in (EVEN, ODD):
            await told.journals.wait_durable(ledger_id, told.append(ledger_id))
        replays = Replays(told.host.disk, FOLDERS, start=START)
        assert [record.ledger_id async for record in replays.records()] == [EVEN, ODD]
        for folders in (FOLDERS[::-1], FOLDERS[:1], [*FOLDERS, FOLDERS[0]]):
            replays = Replays(told.host.disk, folders, start=[START[0]] * len(folders))
            with pytest.raises(WrongDisk, match="of 2, not"):
                assert [record async for record in replays.records()]

    on_journals(check)


def test_each_journal_counts_for_itself() -> None:
    async def check(told: Told) -> None:
        told.host.disk.faults.latency_by_operation_s["sync"] = (0.01, 0.01)
        last = told.append(EVEN, 5)
        first = told.append(ODD)
        assert (last, first) == (5, 1)
        await told.journals.wait_durable(ODD, first)
        assert told.journals.of(EVEN).durable < last
        await told.journals.wait_durable(EVEN, last)
        assert [number for journal, number in told.durable if journal == 0] == [1, 2, 3, 4, 5]

    on_journals(check)


def test_whoever_waits_for_less_is_told_first_also_if_he_came_later() -> None:
    """As with a fence that was set some time ago, and is asked for again."""

    async def check(told: Told) -> None:
        last = told.append(EVEN, 6)
        woken: list[int] = []

        async def wait(number: int) -> None:
            await told.journals.wait_durable(EVEN, number)
            woken.append(number)
            assert number <= told.journals.of(EVEN).durable < number + 2

        tasks = []
        for number in (last, 4, 2, 5, 2):
            tasks.append(asyncio.create_task(wait(number)))
            await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert woken == [2, 2, 4, 6]
        await wait(last)  # At once: nobody has to tell.

    on_journals(check)


def test_the_failure_of_one_journal_reaches_everybody_and_is_told_once() -> None:
    """Its bookie stops, so nothing of the other journal is acknowledged any more either."""

    async def check(told: Told) -> None:
        told.host.disk.faults.latency_by_operation_s["sync"] = (0.02, 0.02)
        told.host.disk.faults.fail_next("sync", path=f"{FOLDERS[0]}/{1:016x}.journal")
        waits = [
            asyncio.create_task(told.journals.wait_durable(ledger_id, number + 1))
            for ledger_id in (EVEN, ODD)
            for number in range(told.append(ledger_id, 3))
        ]
        ended = await asyncio.gather(*waits, return_exceptions=True)
        told_before = [each for each in ended if each is None]
        assert len(told_before) <= 1, "the flush of the other journal may have ended in the same moment"
        assert {getattr(each, "errno", None) for each in ended if each is not None} == {errno.EIO}
        with pytest.raises(OSError, match="error"):
            await told.journals.wait_durable(ODD, told.append(ODD))
        told.host.disk.faults.fail_next("sync", times=10)
        await until(lambda: told.journals.all[1]._failure is not None)
        assert told.failures == [told.journals.failure]

    on_journals(check)


def test_a_journal_that_cannot_be_opened_closes_those_before_it() -> None:
    async def main(sim: Simulation) -> None:
        told, mine = Told(sim.host("bookie")), asyncio.all_tasks()
        told.host.disk.faults.fail_next("create", path=f"{FOLDERS[1]}/{1:016x}.journal")
        with pytest.raises(OSError, match="error"):
            await told.open()
        assert asyncio.all_tasks() == mine
        await told.open()

    simulate(1, main)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_journal_that_cannot_be_closed_does_not_keep_the_others_open(broken: int) -> None:
    async def check(told: Told) -> None:
        async def fail() -> None:
            raise OSError(errno.EIO, "it does not close")

        whole = 1 - broken
        number = told.append(LedgerId(whole))
        told.journals.all[broken].aclose = fail  # type: ignore[method-assign]
        with pytest.raises(OSError, match="does not close"):
            await told.journals.aclose()
        assert (whole, number) in told.durable
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert f"journal {FOLDERS[whole]}" not in names

    on_journals(check)
