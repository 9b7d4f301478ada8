"""What every `Disk` does. Crashes are not part of it: no test can cut the power of a real machine."""

import asyncio
import errno

import pytest

from quire.runtime import Disk, read_file, replace_file
from tests.contract.disk.checks import OnDisk


def test_what_was_written_is_read_back_at_its_offset(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([b"head", bytearray(b"-"), memoryview(b"tail")], 0)
            await file.pwritev([b"T"], 5)
            assert await file.pread(100, 0) == b"head-Tail"
            assert await file.pread(4, 5) == b"Tail"
            assert await file.size() == 9

    on_disk(check)


def test_a_read_is_short_only_at_the_end_of_the_file(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([b"12345"], 0)
            assert await file.pread(3, 0) == b"123"
            assert await file.pread(3, 3) == b"45"
            assert await file.pread(3, 5) == b""
            assert await file.pread(3, 99) == b""
            assert await file.pread(0, 0) == b""

    on_disk(check)


def test_a_gap_before_a_write_reads_as_zeros(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([b"x"], 4)
            assert await file.pread(9, 0) == b"\0\0\0\0x"

    on_disk(check)


def test_one_call_writes_more_buffers_than_one_system_call_takes(on_disk: OnDisk) -> None:
    buffers = [number.to_bytes(3, "big") for number in range(3000)]

    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev(buffers, 7, sync=True)
            assert await file.pread(10_000, 7) == b"".join(buffers)

    on_disk(check)


@pytest.mark.parametrize("sync", [False, True])
def test_large_writes_to_a_direct_file_are_read_back_at_once(on_disk: OnDisk, sync: bool) -> None:
    """Whole blocks go another way than what is before and behind them. Sizes and offsets fit them, and do not."""
    sizes = [100, 300_000, 4096, 262_144, 131_071, 131_072, 1, 1_400_003, 5000, 2 << 20, 64 << 10]

    async def check(disk: Disk, base: str) -> None:
        written = bytearray()
        async with await disk.create(f"{base}/log", direct=True) as file:
            for number, size in enumerate(sizes):
                piece = (number + 1).to_bytes() * (size // 2) + b"." * (size - size // 2)
                third = size // 3
                await file.pwritev(
                    [piece[:third], b"", bytearray(piece[third:-7]), memoryview(piece)[-7:]], len(written), sync=sync
                )
                written += piece
                assert await file.size() == len(written)
                assert await file.pread(len(written), 0) == written
            await file.pwritev([b"xx"] * 200_000, 1000, sync=sync)  # Over what is there, and in many small parts.
            written[1000:401_000] = b"x" * 400_000
            assert await file.pread(len(written), 0) == written
            await file.truncate(900_001)
        assert await read_file(disk, f"{base}/log") == written[:900_001]

    on_disk(check)


def test_writing_nothing_changes_nothing(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([], 100)
            await file.pwritev([b"", b""], 100)
            assert await file.size() == 0

    on_disk(check)


def test_truncate_cuts_and_lengthens(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([b"123456"], 0)
            await file.truncate(2)
            await file.truncate(4)
            assert await file.pread(10, 0) == b"12\0\0"

    on_disk(check)


def test_preallocate_adds_zeros_and_keeps_what_is_there(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.pwritev([b"abc"], 0)
            await file.preallocate(0, 8)
            assert await file.pread(10, 0) == b"abc\0\0\0\0\0"
            await file.preallocate(0, 2)
            assert await file.size() == 8

    on_disk(check)


def test_create_refuses_a_name_in_use_unless_told_to_replace(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await replace_file(disk, f"{base}/log", b"old")
        with pytest.raises(FileExistsError):
            await disk.create(f"{base}/log")
        async with await disk.create(f"{base}/log", replace=True) as file:
            assert await file.size() == 0
            assert file.path == f"{base}/log"

    on_disk(check)


def test_what_is_not_there_is_named_as_missing(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        gone = f"{base}/gone"
        for attempt in (
            disk.open(gone),
            disk.create(f"{gone}/log"),
            disk.unlink(gone),
            disk.rename(gone, f"{base}/here"),
            disk.listdir(gone),
            disk.sync_directory(gone),
            disk.usage(gone),
            disk.lock(f"{gone}/lock"),
        ):
            with pytest.raises(FileNotFoundError):
                await attempt
        assert await disk.listdir(base) == []

    on_disk(check)


def test_a_file_opened_for_reading_refuses_changes(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await replace_file(disk, f"{base}/log", b"kept")
        async with await disk.open(f"{base}/log") as file:
            for attempt in (file.pwritev([b"x"], 0), file.truncate(0), file.preallocate(0, 9)):
                with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument|not open for writing"):
                    await attempt
            assert await file.pread(9, 0) == b"kept"
        async with await disk.open(f"{base}/log", writable=True) as file:
            await file.pwritev([b"K"], 0)
        assert await read_file(disk, f"{base}/log") == b"Kept"

    on_disk(check)


def test_rename_replaces_the_target_and_open_files_stay_what_they_are(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await replace_file(disk, f"{base}/a", b"A")
        await replace_file(disk, f"{base}/b", b"B")
        old = await disk.open(f"{base}/b")
        await disk.rename(f"{base}/a", f"{base}/b")
        assert await disk.listdir(base) == ["b"]
        assert await read_file(disk, f"{base}/b") == b"A"
        assert await old.pread(9, 0) == b"B"
        await disk.unlink(f"{base}/b")
        assert not await disk.exists(f"{base}/b")
        assert await old.pread(9, 0) == b"B"
        await old.aclose()

    on_disk(check)


def test_a_file_moves_between_directories(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await disk.makedirs(f"{base}/x")
        await replace_file(disk, f"{base}/log", b"data")
        await disk.rename(f"{base}/log", f"{base}/x/log")
        assert await disk.listdir(base) == ["x"]
        assert await read_file(disk, f"{base}/x/log") == b"data"
        with pytest.raises(FileNotFoundError):
            await disk.rename(f"{base}/x/log", f"{base}/no/such/place")
        assert await disk.listdir(f"{base}/x") == ["log"]

    on_disk(check)


def test_directories_are_made_with_their_parents_and_listed_in_order(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await disk.makedirs(f"{base}/d/e/f")
        await disk.makedirs(f"{base}/d/e/f")
        for name in ("b", "a", "c"):
            await (await disk.create(f"{base}/d/{name}")).aclose()
        assert await disk.listdir(f"{base}/d") == ["a", "b", "c", "e"]
        assert await disk.exists(f"{base}/d/e/f")
        with pytest.raises(FileExistsError):
            await disk.makedirs(f"{base}/d/a")
        with pytest.raises(NotADirectoryError):
            await disk.listdir(f"{base}/d/a")
        with pytest.raises(IsADirectoryError):
            await disk.unlink(f"{base}/d/e")
        with pytest.raises(FileExistsError):
            await disk.create(f"{base}/d/e")

    on_disk(check)


def test_a_lock_has_one_holder_and_names_it(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        lock = await disk.lock(f"{base}/lock", owner="bookie b1")
        with pytest.raises(BlockingIOError, match="bookie b1"):
            await disk.lock(f"{base}/lock")
        await lock.aclose()
        async with await disk.lock(f"{base}/lock"):
            with pytest.raises(BlockingIOError, match="process"):
                await disk.lock(f"{base}/lock", owner="bookie b1")
        assert await disk.exists(f"{base}/lock")

    on_disk(check)


def test_usage_shows_the_space(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        usage = await disk.usage(base)
        assert 0 < usage.free_bytes <= usage.total_bytes

    on_disk(check)


def test_a_closed_file_refuses_everything_and_may_be_closed_again(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        file = await disk.create(f"{base}/log")
        await file.aclose()
        await file.aclose()
        for attempt in (file.pwritev([b"x"], 0), file.pread(1, 0), file.fdatasync(), file.fsync(), file.size()):
            with pytest.raises(OSError, match="closed") as caught:
                await attempt
            assert caught.value.errno == errno.EBADF

    on_disk(check)


def test_closing_waits_for_the_writes_under_way(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        file = await disk.create(f"{base}/log")
        begun: list[int] = []
        all_begun = asyncio.Event()

        async def write(number: int) -> None:
            begun.append(number)
            if len(begun) == 20:
                all_begun.set()
            await file.pwritev([bytes([number]) * 1000], number * 1000)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(write(number))
            await all_begun.wait()
            await file.aclose()
            assert await read_file(disk, f"{base}/log") == b"".join(bytes([n]) * 1000 for n in range(20))

    on_disk(check)


def test_overlapping_calls_on_one_file_do_not_disturb_each_other(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        async with await disk.create(f"{base}/log") as file:
            await file.preallocate(0, 40_000)
            await asyncio.gather(
                *(file.pwritev([bytes([n]) * 1000], n * 1000, sync=n % 7 == 0) for n in range(40)),
                *(file.fdatasync() for _ in range(5)),
            )
            blocks = await asyncio.gather(*(file.pread(1000, n * 1000) for n in range(40)))
            assert blocks == [bytes([n]) * 1000 for n in range(40)]

    on_disk(check)


def test_replace_file_swaps_the_content_as_a_whole(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        await replace_file(disk, f"{base}/mark", b"a longer first value")
        await replace_file(disk, f"{base}/mark", b"second")
        assert await read_file(disk, f"{base}/mark") == b"second"
        assert await disk.listdir(base) == ["mark"]

    on_disk(check)


def test_a_closed_disk_refuses_everything(on_disk: OnDisk) -> None:
    async def check(disk: Disk, base: str) -> None:
        file = await disk.create(f"{base}/log")
        await disk.aclose()
        with pytest.raises(OSError, match=r"closed|stopped"):
            await disk.open(f"{base}/log")
        with pytest.raises(OSError, match=r"closed|stopped"):
            await file.pread(1, 0)

    on_disk(check)
