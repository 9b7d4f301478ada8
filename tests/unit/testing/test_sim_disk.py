"""`SimDisk`: crashes, and the faults a test can ask for. What any disk does is in tests/contract/disk."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime import File, read_file, replace_file
from quire.testing import SimDisk, Simulation, simulate

SEEDS = range(60)


def _on_disk(seed: int, check: Callable[[SimDisk], Awaitable[Any]]) -> Any:
    async def main(sim: Simulation) -> Any:
        return await check(sim.host("machine").disk)

    return simulate(seed, main)


def _outcomes(check: Callable[[SimDisk], Awaitable[Any]]) -> set[Any]:
    return {_on_disk(seed, check) for seed in SEEDS}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=1500), st.booleans()), min_size=1, max_size=8
    ),
    st.integers(0, 10**6),
)
def test_what_was_synced_is_never_lost(writes: list[tuple[int, bytes, bool]], seed: int) -> None:
    """SyncedBytes, through the whole disk: everything up to the last sync is there, or was written over since."""

    async def check(disk: SimDisk) -> None:
        file = await disk.create("/log")
        await disk.sync_directory("/")
        expected = bytearray()
        unsynced: set[int] = set()
        for offset, data, sync in writes:
            await file.pwritev([data], offset, sync=sync)
            expected.extend(bytes(max(0, offset + len(data) - len(expected))))
            expected[offset : offset + len(data)] = data
            unsynced = set() if sync else unsynced | set(range(offset, offset + len(data)))
            if sync:
                durable = bytes(expected)
        if any(sync for *_, sync in writes):
            disk.crash()
            after = await read_file(disk, "/log")
            assert len(after) >= len(durable)
            for index, byte in enumerate(durable):
                assert after[index] == byte or index in unsynced

    _on_disk(seed, check)


def test_unsynced_data_may_be_lost_kept_or_torn() -> None:
    async def check(disk: SimDisk) -> str:
        file = await disk.create("/log")
        await disk.sync_directory("/")
        await file.pwritev([b"x" * 5000], 0)
        disk.crash()
        after = await read_file(disk, "/log")
        return "kept" if after == b"x" * 5000 else "torn" if b"x" in after else "lost"

    assert _outcomes(check) == {"kept", "torn", "lost"}


def test_a_file_whose_directory_was_not_synced_may_be_gone_although_its_bytes_were() -> None:
    async def check(disk: SimDisk) -> bool:
        file = await disk.create("/log")
        await file.pwritev([b"data"], 0, sync=True)
        disk.crash()
        return await disk.exists("/log")

    assert _outcomes(check) == {True, False}


def test_a_rename_before_the_sync_of_the_bytes_may_leave_a_hollow_file() -> None:
    """The classic mistake: the name becomes durable, the bytes do not."""

    async def check(disk: SimDisk) -> bytes:
        await replace_file(disk, "/mark", b"old")
        file = await disk.create("/mark.new")
        await file.pwritev([b"new"], 0)
        await disk.rename("/mark.new", "/mark")
        await disk.sync_directory("/")
        disk.crash()
        return await read_file(disk, "/mark")

    outcomes = _outcomes(check)
    assert b"new" in outcomes
    assert b"" in outcomes


def test_directories_survive_at_once() -> None:
    async def check(disk: SimDisk) -> bool:
        await disk.makedirs("/a/b/c")
        disk.crash()
        return await disk.exists("/a/b/c")

    assert _outcomes(check) == {True}


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    """A group commit that acknowledges what was written during the sync loses data; a seed must be able to show it."""

    async def check(disk: SimDisk) -> bytes:
        file = await disk.create("/log")
        await disk.sync_directory("/")
        disk.faults.latency_by_operation_s["sync"] = (1.0, 1.0)
        await file.pwritev([b"A"], 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(file.fdatasync())
            await asyncio.sleep(0.5)
            await file.pwritev([b"B"], 1)
        disk.crash()
        return await read_file(disk, "/log")

    outcomes = _outcomes(check)
    assert {b"A", b"AB"} <= outcomes
    assert all(outcome.startswith(b"A") for outcome in outcomes)


def test_a_crash_interrupts_what_is_under_way_and_kills_open_files() -> None:
    async def check(disk: SimDisk) -> None:
        disk.faults.latency_s = (1.0, 1.0)
        file = await disk.create("/log")
        lock = await disk.lock("/lock")
        write = asyncio.create_task(file.pwritev([b"x"], 0, sync=True))
        listing = asyncio.create_task(disk.listdir("/"))
        await asyncio.sleep(0.5)
        disk.crash()
        for attempt in (write, listing, file.pread(1, 0), file.fdatasync(), file.size()):
            with pytest.raises(OSError, match="stopped") as caught:
                await attempt
            assert caught.value.errno == errno.EIO
        await file.aclose()
        async with await disk.lock("/lock"):
            await lock.aclose()  # The old holder's goodbye must not free the new holder's lock.
            with pytest.raises(BlockingIOError):
                await disk.lock("/lock")

    for seed in SEEDS:
        _on_disk(seed, check)


def test_when_only_the_process_dies_the_kernel_keeps_everything_until_the_power_fails() -> None:
    async def check(disk: SimDisk) -> bytes:
        file = await disk.create("/log")
        await disk.sync_directory("/")
        await file.pwritev([b"data"], 0)
        disk.kill()
        with pytest.raises(OSError, match="stopped"):
            await file.pread(1, 0)
        assert await read_file(disk, "/log") == b"data"
        disk.crash()
        return await read_file(disk, "/log")

    assert {b"", b"data"} <= _outcomes(check)


def test_a_predecessor_reaches_nothing_any_more() -> None:
    async def check(disk: SimDisk) -> None:
        await replace_file(disk, "/log", b"data")
        disk.limit_free_bytes(3)
        successor = disk.successor()
        with pytest.raises(OSError, match="stopped"):
            await disk.unlink("/log")
        assert await read_file(successor, "/log") == b"data"
        assert (await successor.usage("/")).free_bytes == 3

    _on_disk(1, check)


def test_a_full_disk_takes_what_fits_and_then_says_so() -> None:
    async def check(disk: SimDisk) -> None:
        file = await disk.create("/log")
        await file.pwritev([b"0123456789"], 0)
        disk.limit_free_bytes(5)
        await file.pwritev([b"over"], 3)  # No new space needed.
        with pytest.raises(OSError, match="No space left") as caught:
            await file.pwritev([b"abc", b"defgh"], 10, sync=True)
        assert caught.value.errno == errno.ENOSPC
        assert await file.pread(99, 0) == b"012over789abcde"
        assert (await disk.usage("/")).free_bytes == 0
        with pytest.raises(OSError, match="No space left"):
            await file.preallocate(0, 16)
        await file.truncate(2)
        await file.preallocate(0, 15)

    _on_disk(1, check)


def test_space_that_was_preallocated_can_be_written_on_a_full_disk() -> None:
    async def check(disk: SimDisk) -> None:
        file = await disk.create("/log")
        await file.preallocate(0, 1000)
        disk.limit_free_bytes(0)
        await file.pwritev([b"x" * 1000], 0, sync=True)

    _on_disk(1, check)


def test_a_failed_sync_loses_data_that_the_next_sync_claims_to_have() -> None:
    async def check(disk: SimDisk) -> bytes:
        file = await disk.create("/log")
        await disk.sync_directory("/")
        await file.pwritev([b"data"], 0)
        disk.faults.fail_next("sync")
        with pytest.raises(OSError, match="Input/output error") as caught:
            await file.fdatasync()
        assert caught.value.errno == errno.EIO
        await file.fsync()
        assert await file.pread(9, 0) == b"data"
        disk.crash()
        return await read_file(disk, "/log")

    assert {b"", b"data"} <= _outcomes(check)


def test_failures_hit_the_named_operation_and_file_as_often_as_asked() -> None:
    async def fails(attempt: Awaitable[Any]) -> bool:
        result: Any = (await asyncio.gather(attempt, return_exceptions=True))[0]
        return isinstance(result, OSError) and result.errno == errno.ENOSPC

    async def check(disk: SimDisk) -> None:
        log, other = await disk.create("/log"), await disk.create("/other")
        disk.faults.fail_next("write", code=errno.ENOSPC, path="/log", times=2)
        results = [await fails(file.pwritev([b"x"], 0)) for file in (other, log, log, log)]
        assert results == [False, True, True, False]
        disk.faults.fail_next("rename", code=errno.ENOSPC)
        assert await fails(disk.rename("/log", "/new"))
        disk.faults.fail_next("unlink", code=errno.ENOSPC)
        disk.faults.repair()
        assert not await fails(disk.unlink("/log"))
        with pytest.raises(ValueError, match="no disk operation"):
            disk.faults.fail_next("fsink")  # type: ignore[arg-type]

    _on_disk(1, check)


def test_a_bad_range_fails_the_reads_that_touch_it() -> None:
    async def check(disk: SimDisk) -> None:
        await replace_file(disk, "/log", b"0123456789")
        disk.faults.fail_reads("/log", 4, 6)
        file: File = await disk.open("/log")
        assert await file.pread(4, 0) == b"0123"
        assert await file.pread(9, 6) == b"6789"
        for count, offset in ((5, 0), (1, 5), (10, 0)):
            with pytest.raises(OSError, match="Input/output error"):
                await file.pread(count, offset)
        assert await file.pread(5, 20) == b""

    _on_disk(1, check)


def test_a_flipped_bit_is_one_bit() -> None:
    async def check(disk: SimDisk) -> int:
        await replace_file(disk, "/log", bytes(4))
        disk.flip_bit("/log", 2)
        after = await read_file(disk, "/log")
        assert after[:2] + after[3:] == bytes(3)
        assert after[2].bit_count() == 1
        return after[2]

    assert len(_outcomes(check)) > 4


def test_operations_take_the_time_they_are_told_to() -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.host("machine").disk
        disk.faults.latency_s = (0.0, 0.0)
        disk.faults.latency_by_operation_s["sync"] = (3.0, 3.0)
        file = await disk.create("/log")
        await file.pwritev([b"x"], 0)
        assert sim.loop.time() == 0
        await file.pwritev([b"x"], 0, sync=True)
        assert sim.loop.time() == 3

    simulate(1, main)


def test_replace_file_leaves_the_old_content_or_the_new_one_at_any_crash() -> None:
    """The promise of `replace_file`, with the power failing at a random moment of it."""

    async def main(sim: Simulation) -> bytes:
        host = sim.host("machine")
        await replace_file(host.disk, "/mark", b"old")
        task = host.spawn(replace_file(host.disk, "/mark", b"new"))
        await asyncio.sleep(sim.rng.random() * 0.012)
        finished = task.done()
        await host.crash()
        after = await read_file(host.disk, "/mark")
        assert after in ((b"new",) if finished else (b"old", b"new"))
        return after + (b" in time" if finished else b"")

    assert {simulate(seed, main) for seed in range(200)} == {b"old", b"new", b"new in time"}


def test_a_wiped_disk_is_empty_and_its_open_files_are_dead() -> None:
    async def check(disk: SimDisk) -> None:
        await disk.makedirs("/data")
        await replace_file(disk, "/data/file", b"precious")
        file = await disk.open("/data/file")
        assert disk.sizes("/data") == {"/data/file": 8}
        disk.wipe()
        assert await disk.listdir("/") == []
        assert disk.sizes("/") == {}
        with pytest.raises(OSError, match="has stopped"):
            await file.pread(1, 0)

    _on_disk(1, check)


def test_a_disk_that_others_fill_has_no_room_until_they_go() -> None:
    async def check(disk: SimDisk) -> None:
        await replace_file(disk, "/before", b"1")
        disk.fill(10)
        assert (await disk.usage("/")).free_bytes == 10
        with pytest.raises(OSError, match="No space left") as caught:
            await replace_file(disk, "/file", bytes(11))
        assert caught.value.errno == errno.ENOSPC
        disk.faults.foreign_bytes = 0
        await replace_file(disk, "/file", bytes(11))

    _on_disk(1, check)
