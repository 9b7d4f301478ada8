"""Open files: few, shared, and never closed under a reader."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.bookie.watched_disk import WatchedDisk

from quire.bookie.open_files import OpenFiles
from quire.codec.entry_log import LogId
from quire.errors import StoreClosed
from quire.testing import Simulation, simulate

FILES = 6
SEEDS = range(20)


def path_of(log_id: LogId) -> str:
    return f"/{log_id}"


def on_files(seed: int, files_open_max: int, check: Callable[[WatchedDisk, OpenFiles], Awaitable[None]]) -> None:
    """Run `check` on files /0 to /5, each of which holds its own number."""

    async def main(sim: Simulation) -> None:
        disk = WatchedDisk(sim.host("machine").disk)
        for number in range(FILES):
            async with await disk.create(path_of(LogId(number))) as file:
                await file.pwritev([b"%d" % number], 0)
        disk.opens = 0
        files = OpenFiles(disk, path_of, files_open_max=files_open_max)
        await check(disk, files)
        await files.aclose()
        assert disk.open_files == []

    simulate(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_number_of_readers_get_their_own_file_and_few_stay_open(seed: int) -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        async def read(number: int) -> None:
            assert await files.pread(LogId(number), 10, 0) == b"%d" % number

        await asyncio.gather(*(read(n % FILES) for n in range(30)))
        assert len(files) == len(disk.open_files) == 2
        for number in range(FILES):
            await read(number)
            assert len(disk.open_files) == 2

    on_files(seed, 2, check)


def test_a_file_is_opened_once_for_all_who_wait_for_it() -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        await asyncio.gather(*(files.pread(LogId(1), 10, 0) for _ in range(10)))
        assert disk.opens == 1

    on_files(1, 2, check)


def test_the_file_that_waited_longest_is_closed_first() -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        for number in (0, 1, 2, 0, 3):
            await files.pread(LogId(number), 10, 0)
        assert sorted(disk.open_files) == ["/0", "/2", "/3"]

    on_files(1, 3, check)


def test_an_adopted_file_stays_open_until_it_is_released() -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        files.adopt(LogId(9), await disk.create("/9"))
        for number in range(FILES):
            await files.pread(LogId(number), 10, 0)
            assert "/9" in disk.open_files
        assert await files.pread(LogId(9), 10, 0) == b""
        await files.release(LogId(9))
        await files.pread(LogId(0), 10, 0)
        assert disk.open_files == ["/0"]

    on_files(1, 1, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deleted_file_is_closed_after_its_last_reader(seed: int) -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        reading = [asyncio.create_task(files.pread(LogId(1), 10, 0)) for _ in range(3)]
        await files.pread(LogId(2), 10, 0)  # As long as the seed says: the others have begun, or are done.
        await files.forget(LogId(1))
        for task in reading:
            assert await task == b"1"
        assert disk.open_files == ["/2"]
        await files.forget(LogId(5))
        assert await files.pread(LogId(1), 10, 0) == b"1"

    on_files(seed, 4, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelled_readers_leave_nothing_behind(seed: int) -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        tasks = [asyncio.create_task(files.pread(LogId(n % FILES), 10, 0)) for n in range(12)]
        await files.pread(LogId(0), 10, 0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert await files.pread(LogId(3), 10, 0) == b"3"
        assert len(files) == len(disk.open_files) <= 2

    on_files(seed, 2, check)


def test_a_file_that_cannot_be_opened_leaves_nothing_behind() -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        results = await asyncio.gather(*(files.pread(LogId(77), 10, 0) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [FileNotFoundError] * 3
        assert len(files) == 0

    on_files(1, 2, check)


def test_nothing_is_read_after_the_end() -> None:
    async def check(disk: WatchedDisk, files: OpenFiles) -> None:
        await files.pread(LogId(1), 10, 0)
        await files.aclose()
        with pytest.raises(StoreClosed):
            await files.pread(LogId(1), 10, 0)

    on_files(1, 2, check)
