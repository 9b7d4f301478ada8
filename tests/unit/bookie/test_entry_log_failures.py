"""Entry logs on a disk that fails: the first error is the last thing that was tried."""

import asyncio
import errno
from typing import Any

import pytest
from tests.unit.bookie.entry_log_samples import (
    FOLDER,
    check_all,
    entries,
    error_of,
    on_disk,
    run_of,
)
from tests.unit.bookie.watched_disk import WatchedDisk

from quire.bookie.entry_log import EntryLogs
from quire.codec.entry_log import (
    LogId,
)
from quire.testing import SimDisk

OPERATIONS = ["create", "write", "sync", "rename", "sync_directory"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("when", ["first log", "next log"])
def test_after_a_failed_write_or_sync_nothing_is_written_any_more(operation: Any, when: str) -> None:
    """FirstErrorIsLast. Reading goes on, and closing does not complain again."""

    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        logs = EntryLogs(watched, FOLDER, log_bytes_max=700)
        await logs.open()
        stored = entries((1, 0)) if when == "next log" else []
        locations = await logs.append(stored)
        disk.faults.fail_next(operation, code=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            await logs.append(entries((1, 1), (1, 2), (1, 3)))
        for _ in range(3):
            watched.writes = 0
            for call in (logs.append(entries((1, 4))), logs.sync()):
                error = await error_of(call)
                assert isinstance(error, OSError)
                assert error.errno == errno.ENOSPC
                assert "nothing is written after a failure" in str(error)
            assert watched.writes == 0
        await check_all(logs, stored, locations)
        await logs.aclose()
        assert watched.open_files == []

    on_disk(check)


def test_a_full_disk_ends_writing_and_loses_nothing_that_was_synced() -> None:
    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        stored = run_of(1, 5)
        locations = await logs.append(stored)
        await logs.sync()
        disk.limit_free_bytes(1000)
        with pytest.raises(OSError, match="No space"):
            await logs.append(run_of(2, 20))
        await check_all(logs, stored, locations)
        disk.crash()
        async with EntryLogs(disk, FOLDER) as logs:
            await check_all(logs, stored, locations)
            scan = logs.scan(LogId(1))
            found = [entry async for entry in scan]
            assert [(*entry[:2], entry.body) for entry in found[:5]] == stored
            assert scan.report.damaged == ()

    on_disk(check)


@pytest.mark.parametrize("seed", range(20))
def test_a_failed_sync_is_heard_of_by_all_who_wait(seed: int) -> None:
    """OneSyncAtATime: the kernel tells one caller only, so the others must not ask it by themselves."""

    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        await logs.append(run_of(1, 5))
        disk.faults.fail_next("sync")
        results = await asyncio.gather(*(logs.sync() for _ in range(4)), return_exceptions=True)
        assert [type(result) for result in results] == [OSError] * 4

    on_disk(check, seed=seed)


def test_a_sync_without_anything_new_does_not_touch_the_disk() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=700) as logs:
            await logs.sync()
            await logs.append(run_of(1, 3))
            await logs.sync()
            disk.faults.fail_next("sync")
            await logs.sync()
            disk.faults.repair()
            await logs.append(run_of(2, 1))
            disk.faults.fail_next("sync")
            with pytest.raises(OSError, match="Input/output"):
                await logs.sync()

    on_disk(check)


def test_the_error_of_a_cancelled_call_is_not_forgotten() -> None:
    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.open()
        await logs.append(run_of(1, 1))
        disk.faults.fail_next("sync")
        disk.faults.latency_by_operation_s["sync"] = (1.0, 1.0)
        syncing = asyncio.create_task(logs.sync())
        await asyncio.sleep(0.5)
        syncing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await syncing
        with pytest.raises(OSError, match="nothing is written"):
            await logs.sync()
        await logs.aclose()

    on_disk(check)
