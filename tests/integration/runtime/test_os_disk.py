"""`OsDisk` with real threads, descriptors and processes: cancellation, closing, limits and locks."""

import asyncio
import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.runtime import OsDisk, read_file
from quire.testing import run
from tests.support.waiting import eventually

LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
async def disk() -> AsyncIterator[OsDisk]:
    """One thread only, so that a single blocked call holds up all the others."""
    disk = OsDisk(threads_max=1)
    yield disk
    await disk.aclose()


class Blockage:
    """A named pipe: opening its reading end blocks a thread of the disk until `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)

    def release(self) -> None:
        # O_NONBLOCK: fails instead of waiting if nobody reads, so a wrong test cannot hang here.
        os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))

    def is_waited_for(self) -> bool:
        try:
            self.release()
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        return True


def _descriptors_of(path: Path) -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(1 for link in links if link.exists() and os.path.realpath(link) == str(path.resolve()))


async def _release(blockage: Blockage) -> None:
    """Let the blocked call go on, as soon as it blocks: only the pipe itself can tell when that is."""
    await eventually(lambda: asyncio.to_thread(blockage.is_waited_for), what="a thread opens the pipe")


async def test_the_loop_goes_on_while_a_call_blocks(disk: OsDisk, tmp_path: Path) -> None:
    blockage = Blockage(tmp_path)
    opening = asyncio.create_task(disk.open(blockage.path))
    await _release(blockage)
    async with asyncio.timeout(20):
        await (await opening).aclose()


async def test_a_cancelled_open_leaks_no_descriptor(disk: OsDisk, tmp_path: Path) -> None:
    blockage = Blockage(tmp_path)
    opening = asyncio.create_task(disk.open(blockage.path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await _release(blockage)
    assert not await disk.exists(tmp_path / "nothing")  # The only thread is free again: the open has returned.
    assert _descriptors_of(blockage.path) == 0


async def test_closing_a_file_waits_for_writes_that_are_still_queued(disk: OsDisk, tmp_path: Path) -> None:
    """Else the kernel could give the number to another file, and the write would land there."""
    blockage = Blockage(tmp_path)
    file = await disk.create(tmp_path / "log")
    opening = asyncio.create_task(disk.open(blockage.path))
    await asyncio.sleep(0)
    write = asyncio.create_task(file.pwritev([b"data"], 0))
    await asyncio.sleep(0)
    write.cancel()  # The wait ends; the write does not.
    closing = asyncio.create_task(file.aclose())
    await asyncio.wait([write])
    assert write.cancelled()
    assert not closing.done()
    assert _descriptors_of(tmp_path / "log") == 1
    await _release(blockage)
    await closing
    assert _descriptors_of(tmp_path / "log") == 0
    assert await read_file(disk, tmp_path / "log") == b"data"
    await (await opening).aclose()


async def test_closing_the_disk_closes_what_was_left_open(tmp_path: Path) -> None:
    disk = OsDisk()
    await disk.create(tmp_path / "log")
    await disk.lock(tmp_path / "lock")
    await disk.aclose()
    assert _descriptors_of(tmp_path / "log") == _descriptors_of(tmp_path / "lock") == 0
    await disk.aclose()


WRITE_TOO_MUCH = """
import asyncio, errno, resource, sys
from quire.runtime import OsDisk

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    async with await OsDisk().create(sys.argv[1]) as file:
        try:
            await file.pwritev([b"a" * 60_000, b"b" * 60_000, b"c"], 0)
        except OSError as error:
            print(errno.errorcode[error.errno], await file.size())

asyncio.run(main())
"""


def test_a_short_write_is_continued_until_the_system_says_why(tmp_path: Path) -> None:
    """A limit on the file's size makes the first call short; only the call for the rest fails."""
    done = subprocess.run(
        [sys.executable, "-c", WRITE_TOO_MUCH, str(tmp_path / "log")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("EFBIG 100000\n", "")
    assert (tmp_path / "log").read_bytes() == b"a" * 60_000 + b"b" * 40_000


HOLD_LOCK = """
import asyncio, sys
from quire.runtime import OsDisk

async def main():
    await OsDisk().lock(sys.argv[1], owner="the other process")
    print("locked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_lock_excludes_other_processes_until_they_die(disk: OsDisk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        async with asyncio.timeout(60):
            assert await holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError, match="the other process"):
            await disk.lock(path)
    finally:
        holder.kill()
        await holder.wait()
    async with await disk.lock(path):
        assert path.read_text() == f"process {os.getpid()}"


def test_real_files_can_be_used_from_a_simulated_loop(tmp_path: Path) -> None:
    """The calls then run on the loop, without threads: slow, but good for looking at a simulated node's files."""

    async def main() -> bytes:
        disk = OsDisk()
        async with await disk.create(tmp_path / "log") as file:
            await asyncio.gather(*(file.pwritev([bytes([n])], n, sync=True) for n in range(20)))
        content = await read_file(disk, tmp_path / "log")
        await disk.aclose()
        return content

    assert run(main(), seed=1) == bytes(range(20))


async def test_a_disk_that_keeps_no_pages_lets_go_of_what_is_durable(tmp_path: Path) -> None:
    """Method: `mincore`. Where the file system lets go of nothing when it is asked by hand, as one in memory does,
    nothing can be expected of ours either.
    """
    kept = OsDisk(), tmp_path / "kept"
    let_go = OsDisk(keeps_pages=False), tmp_path / "let go"
    for disk, path in (kept, let_go):
        async with await disk.create(path) as file:
            for start in range(0, 3 << 20, 1 << 19):
                await file.pwritev([bytes(1 << 19)], start, sync=True)
        await disk.aclose()
    assert _is_in_memory(kept[1])
    _let_go_by_hand(kept[1])
    assert _is_in_memory(let_go[1]) == _is_in_memory(kept[1])
    assert let_go[1].read_bytes() == bytes(3 << 20)


def _let_go_by_hand(path: Path) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_in_memory(path: Path) -> bool:
    """Whether the kernel has most of a file in its memory: that one page leaves it is never promised.

    A read that does not wait cannot tell, though it is what one thinks of first: it starts reading ahead, and a fast
    disk has answered before the kernel looks again.
    """
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages)
        del first  # Nothing can be unmapped while somebody points to it.
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in pages) > len(pages) // 2


# --- Past the kernel's memory

LARGE = bytes(range(256)) * 3000  # 768,000 bytes


def _stays_in_memory(folder: Path) -> bool:
    """Whether this file system is one that has all in memory, whatever it is asked for."""
    path = folder / "probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.pwrite(descriptor, mmap.mmap(-1, 65536), 0)
    os.close(descriptor)
    return _is_in_memory(path)


async def test_large_writes_to_a_direct_file_leave_nothing_in_the_kernels_memory(disk: OsDisk, tmp_path: Path) -> None:
    usual, direct = tmp_path / "usual", tmp_path / "direct"
    for path in (usual, direct):
        async with await disk.create(path, direct=path is direct) as file:
            await file.pwritev([LARGE], 5)
    assert _is_in_memory(usual)
    assert _is_in_memory(direct) is _stays_in_memory(tmp_path)
    assert direct.read_bytes() == usual.read_bytes()


async def test_a_direct_file_may_have_another_name_by_now(disk: OsDisk, tmp_path: Path) -> None:
    async with await disk.create(tmp_path / "log.new", direct=True) as file:
        await disk.rename(tmp_path / "log.new", tmp_path / "log")
        await file.pwritev([LARGE], 0)
        assert _descriptors_of(tmp_path / "log") == 1
        assert _is_in_memory(tmp_path / "log") is _stays_in_memory(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["log", "probe"]
    assert (tmp_path / "log").read_bytes() == LARGE


@pytest.mark.parametrize("refusal", ["memory", "open", "write", "second write", "short write"])
async def test_what_a_file_system_does_not_take_directly_is_written_as_usual(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Method: the calls that only this way uses are answered as file systems without it answer them."""
    writes: list[int] = []

    def refusing_open(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here")
        return real_open(path, flags, mode)

    def refusing_write(descriptor: int, data: memoryview, offset: int) -> int:
        writes.append(offset)
        if refusal == "short write":
            return real_write(descriptor, data[: len(data) // 8192 * 4096], offset)
        if refusal == "write" or len(writes) == 2:
            raise OSError(errno.EINVAL, "not so")
        return real_write(descriptor, data, offset)

    def no_memory(descriptor: int, length: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "no memory")

    real_open, real_write = os.open, os.pwrite
    if refusal == "memory":
        monkeypatch.setattr(mmap, "mmap", no_memory)
    elif refusal == "open":
        monkeypatch.setattr(os, "open", refusing_open)
    else:
        monkeypatch.setattr(os, "pwrite", refusing_write)
    async with await disk.create(tmp_path / "log", direct=True) as file:
        await file.pwritev([LARGE, LARGE], 3)
        await file.pwritev([LARGE], 2 * len(LARGE) + 3, sync=True)
    assert (tmp_path / "log").read_bytes() == bytes(3) + 3 * LARGE
    assert len(writes) == {"memory": 0, "open": 0, "write": 1, "second write": 2, "short write": 2}[refusal]


async def test_a_disk_that_fails_is_not_asked_again_another_way(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk is no refusal: whoever writes has to hear of it."""

    def failing_write(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    async with await disk.create(tmp_path / "log", direct=True) as file:
        monkeypatch.setattr(os, "pwrite", failing_write)
        with pytest.raises(OSError, match="full"):
            await file.pwritev([LARGE], 0)
        assert await file.size() == 0
