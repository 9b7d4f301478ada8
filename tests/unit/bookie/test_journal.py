"""One journal: what its end says about what was in it, and what its own end does to whoever relies on it.

Crashes at any moment are in `tests/simulation/test_journal.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.bookie.storage_samples import JOURNAL, replace_content, until

from quire.bookie.journal import Journal, JournalMark, Replay
from quire.codec.journal import SECTOR, JournalNumber, Record
from quire.errors import WrongDisk
from quire.testing import SimHost, Simulation, simulate

FOLDER = "/journal"
FILE = f"{FOLDER}/{1:016x}.journal"
BEGINNING = JournalMark(0, 0, 0)
ONLY = JournalNumber()


class Told:
    """A journal, and what it told."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.events: list[tuple[str, int]] = []
        self.failures: list[Exception] = []
        self.journal: Journal

    async def open(self, number: JournalNumber = ONLY) -> None:
        await self.host.disk.makedirs(FOLDER)
        self.journal = await Journal.open(
            self.host.runtime,
            FOLDER,
            JOURNAL,
            after=BEGINNING,
            number=number,
            on_durable=self.on_durable,
            on_failure=self.failures.append,
        )
        self.journal.on_written = lambda number: self.events.append(("written", number))

    def on_durable(self, number: int) -> None:
        self.events.append(("durable", number))

    async def write(self, *entry_ids: int) -> None:
        """One group for each."""
        for entry_id in entry_ids:
            number = self.journal.append(1, entry_id, b"body")
            await until(lambda number=number: self.journal.durable >= number)  # type: ignore[misc]

    async def replay(self, start: JournalMark = BEGINNING) -> tuple[list[int], Replay]:
        replay = Replay(self.host.disk, FOLDER, start=start)
        return [record.entry_id async for record in replay.records()], replay


def on_journal(check: Callable[[Told], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        told = Told(sim.host("bookie"))
        await told.open()
        await check(told)

    simulate(1, main)


# --- The marked file


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(lambda _: b"", [], id="emptied"),
        pytest.param(lambda data: data[:100], [], id="cut within its header"),
        pytest.param(lambda data: data[:SECTOR], [], id="cut to its header"),
        pytest.param(lambda data: data[: 2 * SECTOR], [], id="an older copy"),
        pytest.param(lambda data: data[: 2 * SECTOR].ljust(len(data), b"\0"), [], id="an older copy with room"),
        pytest.param(lambda data: bytes(len(data)), [], id="zeros"),
        pytest.param(lambda data: bytes(SECTOR) + data[SECTOR:], [], id="zeros for a header"),
        pytest.param(
            lambda data: data[: 2 * SECTOR] + bytes(SECTOR) + data[3 * SECTOR :], [2], id="zeros before the mark"
        ),
    ],
)
def test_a_marked_file_that_does_not_reach_its_mark_is_damaged(
    change: Callable[[bytes], bytes], found: list[int]
) -> None:
    """Method: groups of one sector each hold entries 0 and 1, then comes the mark, then the group of entry 2."""

    async def check(told: Told) -> None:
        await told.write(0, 1)
        mark = told.journal.mark
        assert mark == JournalMark(1, 3 * SECTOR, 2)
        await told.write(2)
        entry_ids, replay = await told.replay(mark)
        assert (entry_ids, replay.damages) == ([2], [])
        await replace_content(told.host.disk, FILE, change)
        entry_ids, replay = await told.replay(mark)
        assert entry_ids == found
        assert [damage.file_id for damage in replay.damages] == [1]

    on_journal(check)


def test_a_marked_file_without_groups_needs_its_header() -> None:
    """The mark of a checkpoint right after the start: nothing was written behind the header yet, or it was lost."""

    async def check(told: Told) -> None:
        mark = told.journal.mark
        assert (await told.replay(mark))[1].damages == []
        await replace_content(told.host.disk, FILE, lambda _: b"")
        assert len((await told.replay(mark))[1].damages) == 1
        assert (await told.replay())[1].damages == [], (
            "a file that no checkpoint knows may have been cut short at birth"
        )

    on_journal(check)


# --- Which journal it is


def test_a_journal_of_another_number_is_refused() -> None:
    async def main(sim: Simulation) -> None:
        told = Told(sim.host("bookie"))
        await told.open(JournalNumber(1, 3))
        await told.write(0)
        replay = Replay(told.host.disk, FOLDER, start=BEGINNING, number=JournalNumber(1, 3))
        assert [record async for record in replay.records()] == [Record(1, 0, b"body")]
        for number in (ONLY, JournalNumber(0, 3), JournalNumber(1, 2)):
            with pytest.raises(WrongDisk, match="holds journal 2 of 3"):
                await anext(Replay(told.host.disk, FOLDER, start=BEGINNING, number=number).records())

    simulate(1, main)


# --- Whoever relies on it


def test_a_deferred_record_is_told_of_between_the_write_and_the_flush() -> None:
    async def check(told: Told) -> None:
        told.host.disk.faults.latency_by_operation_s["sync"] = (0.02, 0.02)
        number = told.journal.append(1, 0, b"body", deferred=True)
        await until(lambda: bool(told.events))
        assert (told.events, told.journal.durable) == ([("written", number)], 0)
        assert (await told.replay())[0] == [0], "it survives the process"
        await until(lambda: told.journal.durable == number)
        await told.write(1)
        assert told.events == [("written", number), ("durable", number), ("durable", number + 1)]

    on_journal(check)


def test_a_deferred_record_is_not_told_of_if_it_was_not_written() -> None:
    async def check(told: Told) -> None:
        told.host.disk.faults.fail_next("write")
        told.journal.append(1, 0, b"body", deferred=True)
        await until(lambda: bool(told.failures))
        assert told.events == []

    on_journal(check)


def test_a_bug_in_an_answer_ends_the_journal_and_is_told() -> None:
    """A journal that stood still, and said nothing, would leave every client waiting for ever."""

    async def check(told: Told) -> None:
        def bug(number: int) -> None:
            raise ValueError(f"no answer to {number}")

        told.journal._on_durable = bug
        told.journal.append(1, 0, b"body")
        await until(lambda: bool(told.failures))
        assert [str(error) for error in told.failures] == ["no answer to 1"]
        with pytest.raises(ValueError, match="no answer"):
            told.journal.append(1, 1, b"body")
        await asyncio.wait_for(told.journal.aclose(), 10)

    on_journal(check)
