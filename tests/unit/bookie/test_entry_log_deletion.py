"""What is in each entry log, and deleting those that nobody needs."""

import asyncio

import pytest
from tests.unit.bookie.entry_log_samples import (
    FOLDER,
    body,
    check_all,
    damage,
    entries,
    on_disk,
    path,
    run_of,
)
from tests.unit.bookie.watched_disk import WatchedDisk

from quire.bookie.entry_log import EntryLogs, LogUsage
from quire.codec.entry_log import (
    LogId,
    log_name,
)
from quire.errors import DamagedEntry, InvalidArgument
from quire.runtime import read_file
from quire.testing import SimDisk, Simulation, simulate
from quire.types import EntryId, LedgerId


def test_usage_tells_sizes_and_what_ledgers_take_up() -> None:
    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER, log_bytes_max=1200)
        await logs.open()
        assert logs.usage() == []
        await logs.append([*run_of(1, 3), *run_of(2, 2), *run_of(1, 1, size=10)])
        sizes = [len(await read_file(disk, path(n))) for n in (1, 2)]
        assert logs.usage() == [LogUsage(LogId(1), sizes[0], False), LogUsage(LogId(2), sizes[1], True)]
        for _ in range(2):
            assert await logs.ledgers_in(LogId(1)) == {1: (3, 396), 2: (2, 264)}
            assert await logs.ledgers_in(LogId(2)) == {1: (1, 42)}
            # The second time around log 2 has no footer, since its writer was not closed.
            logs = EntryLogs(disk, FOLDER)
            await logs.open()
        with pytest.raises(DamagedEntry):
            await logs.ledgers_in(LogId(3))

    on_disk(check)


def test_a_finished_log_is_known_without_reading_it() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            await logs.append(run_of(1, 500))
        watched = WatchedDisk(disk)
        async with EntryLogs(watched, FOLDER) as logs:
            watched.reads = 0
            assert await logs.ledgers_in(LogId(1)) == {1: (500, 66_000)}
            assert watched.reads == 2

    on_disk(check)


def test_a_deleted_log_stays_deleted() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("bookie")
        logs = EntryLogs(host.disk, FOLDER, log_bytes_max=1000)
        await logs.open()
        stored = run_of(1, 8)
        locations = await logs.append(stored)
        await logs.sync()
        await check_all(logs, stored, locations)
        assert [log.log_id for log in logs.usage()] == [1, 2, 3]
        with pytest.raises(InvalidArgument, match="newest"):
            await logs.delete(LogId(3))
        with pytest.raises(InvalidArgument, match="there is none"):
            await logs.delete(LogId(4))
        await logs.delete(LogId(1))
        assert [log.log_id for log in logs.usage()] == [2, 3]
        with pytest.raises(DamagedEntry, match="no such log"):
            await logs.read(locations[0], LedgerId(1), EntryId(0))
        with pytest.raises(InvalidArgument, match="there is none"):
            await logs.delete(LogId(1))
        await host.crash()
        logs = EntryLogs(host.disk, FOLDER)
        await logs.open()
        assert [log.log_id for log in logs.usage()] == [2, 3]
        with pytest.raises(InvalidArgument, match="newest"):  # Else its id would be used again after the next start.
            await logs.delete(LogId(3))
        await logs.append(entries((2, 0)))
        await logs.delete(LogId(3))

    for seed in range(10):
        simulate(seed, main)


@pytest.mark.parametrize("seed", range(20))
def test_reads_under_way_survive_the_deletion_of_their_log(seed: int) -> None:
    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        async with EntryLogs(watched, FOLDER, log_bytes_max=1000) as logs:
            stored = run_of(1, 6)
            locations = await logs.append(stored)
            reads = [logs.read(locations[n % 3], LedgerId(1), EntryId(n % 3)) for n in range(9)]
            *results, deleted = await asyncio.gather(*reads, logs.delete(LogId(1)), return_exceptions=True)
            assert deleted is None
            for number, result in enumerate(results):
                assert result == body(1, number % 3) or isinstance(result, DamagedEntry)
            assert watched.open_files == [path(2) + ".new"]  # Opened before it got its name.

    on_disk(check, seed=seed)


def test_a_log_deleted_by_two_at_once_is_gone_for_good_before_either_hears_of_it() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("bookie")
        logs = EntryLogs(host.disk, FOLDER, log_bytes_max=700)
        await logs.open()
        await logs.append(run_of(1, 3))
        host.disk.faults.latency_by_operation_s["sync_directory"] = (1.0, 1.0)
        deleting = [asyncio.create_task(logs.delete(LogId(1))) for _ in range(2)]
        await asyncio.wait(deleting, return_when=asyncio.FIRST_COMPLETED)
        await host.crash()
        assert log_name(LogId(1)) not in await host.disk.listdir(FOLDER)
        outcomes = await asyncio.gather(*deleting, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1

    for seed in range(10):
        simulate(seed, main)


def test_a_log_that_cannot_be_deleted_is_still_there() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=700) as logs:
            locations = await logs.append(run_of(1, 3))
            disk.faults.fail_next("unlink")
            with pytest.raises(OSError, match="Input/output"):
                await logs.delete(LogId(1))
            await check_all(logs, run_of(1, 1), locations[:1])
            await damage(disk, 1, 20)
            with pytest.raises(DamagedEntry, match="not to be trusted"):
                await logs.delete(LogId(1))
            assert await disk.exists(path(1))

    on_disk(check)


def test_after_a_failed_sync_of_the_folder_no_new_log_is_trusted() -> None:
    """The sync that comes next says nothing about the names that the failed one lost."""

    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER, log_bytes_max=700)
        await logs.open()
        await logs.append(run_of(1, 3))
        disk.faults.fail_next("sync_directory")
        with pytest.raises(OSError, match="Input/output"):
            await logs.delete(LogId(1))
        with pytest.raises(OSError, match="nothing is written"):
            await logs.append(run_of(2, 3))

    on_disk(check)


def test_a_new_log_hears_of_the_sync_that_failed_for_a_deletion() -> None:
    """Both wait for the folder: the second one succeeds, with a name that the first one may have lost."""

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=700) as logs:
            await logs.append(run_of(1, 2))
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        disk.faults.fail_next("sync_directory")
        disk.faults.latency_by_operation_s["sync_directory"] = (1.0, 1.0)
        deleting = asyncio.create_task(logs.delete(LogId(1)))
        await asyncio.sleep(0.5)
        with pytest.raises(OSError, match="nothing is written"):
            await logs.append(run_of(2, 1))
        with pytest.raises(OSError, match="Input/output"):
            await deleting

    on_disk(check)
