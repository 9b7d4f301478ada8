"""Damaged entry logs: whatever happened to the bytes, no wrong ones come back, and none are said not to exist."""

import pytest
from tests.unit.bookie.entry_log_samples import FOLDER, body, damage, entries, error_of, on_disk, path, run_of

from quire.bookie.entry_log import EntryLogs
from quire.codec.entry_log import (
    HEADER_BYTES,
    Entry,
    LedgerUsage,
    Location,
    LogId,
    location_of,
    log_name,
    split_location,
)
from quire.errors import DamagedEntry, InvalidArgument
from quire.runtime import read_file
from quire.testing import SimDisk, Simulation, simulate
from quire.types import EntryId, LedgerId


def test_whatever_is_not_the_entry_is_damage_and_says_where() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=600) as logs:
            [first] = await logs.append(entries((1, 0)))
            [second] = await logs.append(entries((1, 1)))
            assert (split_location(first)[0], split_location(second)[0]) == (1, 2)
            cases: list[tuple[int, int, int, str]] = [
                (first, 1, 1, "entry 1:0 is there instead"),
                (first, 2, 0, "entry 1:0 is there instead"),
                (first + 1, 1, 0, "no record begins here"),
                (location_of(LogId(1), 0), 1, 0, "no record begins here"),
                (location_of(LogId(1), HEADER_BYTES + 132), 1, 0, "no record begins here"),  # The footer.
                (location_of(LogId(1), 100_000), 1, 0, "the log ends at"),
                (location_of(LogId(2), HEADER_BYTES + 132), 1, 0, "the log ends at"),
                (location_of(LogId(3), HEADER_BYTES), 1, 0, "no such log"),
                (0, 1, 0, "no such log"),
                (-1, 1, 0, "no such log"),
                (2**63, 1, 0, "no such log"),
            ]
            for location, ledger_id, entry_id, problem in cases:
                with pytest.raises(DamagedEntry, match=problem) as caught:
                    await logs.read(Location(location), LedgerId(ledger_id), EntryId(entry_id))
                assert f"at {location & 0xFFFFFFFF}:" in str(caught.value)
                assert caught.value.facts["offset"] == location & 0xFFFFFFFF
                assert caught.value.facts["log_id"] == location >> 32
            assert path(1) in str(await error_of(logs.read(Location(first + 1), LedgerId(1), EntryId(0))))

    on_disk(check)


@pytest.mark.parametrize("which", ["growing", "finished", "unfinished"])
def test_a_changed_byte_anywhere_never_gives_wrong_bytes_nor_silence(which: str) -> None:
    """Every byte of a log in turn, header and footer included; the records it belongs to are then damaged."""
    stored = [*run_of(1, 3, size=40), *entries((2, 0), size=0)]

    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        locations = await logs.append(stored)
        await logs.sync()
        if which == "finished":
            await logs.aclose()
        if which != "growing":
            logs = EntryLogs(disk, FOLDER)
            await logs.open()
        size = len(await read_file(disk, path(1)))
        assert size == HEADER_BYTES + 3 * 72 + 32 + (2 * 24 + 32 if which == "finished" else 0)
        for offset in range(size):
            before = await damage(disk, 1, offset)
            for (ledger_id, entry_id, expected), location in zip(stored, locations, strict=True):
                start = split_location(location)[1]
                if start <= offset < start + 32 + len(expected):
                    with pytest.raises(DamagedEntry):
                        await logs.read(location, ledger_id, entry_id)
                else:
                    assert await logs.read(location, ledger_id, entry_id) == expected
            async with await disk.open(path(1), writable=True) as file:
                await file.pwritev([before], offset)

    on_disk(check)


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_between_two_runs_is_never_an_answer(seed: int) -> None:
    """Anywhere in any of three logs, of which a crash left one unfinished: what is told about them stays true."""
    stored = [*run_of(1, 6), *run_of(2, 6), *run_of(3, 6)]

    async def main(sim: Simulation) -> None:
        host = sim.host("bookie")
        logs = EntryLogs(host.disk, FOLDER, log_bytes_max=1400)
        await logs.open()
        locations: list[Location] = []
        for entry in stored:
            locations += await logs.append([entry])
            await logs.sync()
        await host.crash()
        disk = host.disk
        names = await disk.listdir(FOLDER)
        assert names == [log_name(LogId(n)) for n in (1, 2, 3)]
        log_id = sim.rng.randrange(3) + 1
        at = sim.rng.randrange(len(await read_file(disk, path(log_id))))
        disk.flip_bit(path(log_id), at)
        logs = EntryLogs(disk, FOLDER)
        refused = await logs.open()
        assert [log.log_id for log in refused] == ([log_id] if at < HEADER_BYTES else [])
        damaged = []
        for (ledger_id, entry_id, expected), location in zip(stored, locations, strict=True):
            try:
                assert await logs.read(location, ledger_id, entry_id) == expected
            except DamagedEntry:
                damaged.append(location)
        for number in (1, 2, 3):
            await _check_contents(logs, LogId(number), stored, locations, damaged)
        if refused:
            with pytest.raises(InvalidArgument, match=r"not to be trusted|newest"):
                await logs.delete(LogId(log_id))
        assert await disk.listdir(FOLDER) == names

    simulate(seed, main)


async def _check_contents(
    logs: EntryLogs, log_id: LogId, stored: list[Entry], locations: list[Location], damaged: list[Location]
) -> None:
    """Scan and totals of one log agree with what was stored, or say that they cannot."""
    here = [index for index, location in enumerate(locations) if split_location(location)[0] == log_id]
    if any(log.log_id == log_id for log in logs.refused()):
        assert damaged == [], "a record proves by itself what it is"
        assert isinstance(await error_of(logs.ledgers_in(log_id)), DamagedEntry)
        return
    scan = logs.scan(log_id)
    found = [entry async for entry in scan]
    left = [index for index in here if locations[index] not in damaged]
    assert [(*entry[:2], entry.body) for entry in found] == [stored[index] for index in left]
    lost_last = here[-1] not in left and log_id == 3  # Cannot be told from a torn tail.
    assert bool(scan.report.damaged) == (left != here and not lost_last)
    totals: dict[int, LedgerUsage] = {}
    for index in here:
        count, size = totals.get(stored[index][0], LedgerUsage(0, 0))
        totals[stored[index][0]] = LedgerUsage(count + 1, size + 132)
    if log_id != 3 or left == here:
        assert await logs.ledgers_in(log_id) == totals  # From the footer, if there is one; damage is not its concern.
    elif not lost_last:
        assert isinstance(await error_of(logs.ledgers_in(log_id)), DamagedEntry)


def test_a_bad_sector_is_an_error_of_the_disk() -> None:
    """The caller knows what an unreadable disk means; it is not for us to call it a damaged entry."""

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            locations = await logs.append(run_of(1, 2, size=5000))
        async with EntryLogs(disk, FOLDER) as logs:
            disk.faults.fail_reads(path(1), split_location(locations[1])[1] + 100, HEADER_BYTES + 9000)
            assert await logs.read(locations[0], LedgerId(1), EntryId(0)) == body(1, 0, 5000)
            with pytest.raises(OSError, match="Input/output"):
                await logs.read(locations[1], LedgerId(1), EntryId(1))

    on_disk(check)


def test_a_file_that_somebody_took_away_is_damage() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            [location] = await logs.append(entries((1, 0)))
        async with EntryLogs(disk, FOLDER) as logs:
            await disk.unlink(path(1))
            with pytest.raises(DamagedEntry, match="the file is gone"):
                await logs.read(location, LedgerId(1), EntryId(0))
            with pytest.raises(DamagedEntry, match="the file is gone"):
                await logs.ledgers_in(LogId(1))

    on_disk(check)


def test_in_a_log_that_grows_nothing_is_torn() -> None:
    """The same broken record at the end of the log: this process knows that it was written, the next one does not."""

    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        [*_, last] = await logs.append(run_of(1, 3))
        await damage(disk, 1, split_location(last)[1] + 50)
        for kinds in ((1, 0), (0, 1)):
            scan = logs.scan(LogId(1))
            assert scan.report.entries == 0
            assert [entry.entry_id async for entry in scan] == [0, 1]
            assert (len(scan.report.damaged), len(scan.report.torn)) == kinds
            logs = EntryLogs(disk, FOLDER)
            await logs.open()

    on_disk(check)
