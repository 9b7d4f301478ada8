"""`Disk` on the operating system's files: each call is one trip to a small pool of threads.

The event loop's thread never blocks on a file. Threads are few on purpose: a disk has few heads, and what waits for a
thread waits in order. Give a journal an `OsDisk` of its own, so that its syncs never stand behind a hundred reads, and
one that keeps no pages: what is read only after a crash has no business in memory, where it drives out what is read.

Whatever needs a descriptor waits a while if there is none left: a process, or a system, that has too much open is no
failed disk. It waits outside the pool, where others may be about to close something.

A file descriptor is a number that the kernel reuses. Were one closed while a write is still queued in the pool, that
write could land in another file; so `aclose` waits for every operation that was accepted.
"""

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from quire.runtime.descriptors import is_shortage
from quire.runtime.direct_io import BLOCK_BYTES, DIRECT_BYTES_MIN, DirectRefusedError, DirectWriter
from quire.runtime.disk import Buffer, DiskUsage, StrPath, closed_error
from quire.runtime.network import are_worth_joining

_THREADS_MAX: Final = 8
_BUFFERS_PER_CALL_MAX: Final = os.sysconf("SC_IOV_MAX")
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700  # What is in a log is for its owner alone.
_SHORTAGE_TRIES, _SHORTAGE_PAUSE_S = 600, 0.05  # Half a minute: as long as somebody waits for an answer.
_PAGES_BYTES_MAX: Final = 1 << 20  # What a file keeps in memory on a disk that keeps no pages: each hint is a call.

P = ParamSpec("P")
T = TypeVar("T")


class OsDisk:
    """The real file system. Its threads start with the first call and end with `aclose`."""

    def __init__(self, *, threads_max: int = _THREADS_MAX, keeps_pages: bool = True) -> None:
        """With `keeps_pages` false, whatever is written with `sync` leaves the kernel's memory soon after."""
        self.keeps_pages = keeps_pages or not hasattr(os, "posix_fadvise")  # A hint that not every system takes.
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="quire-disk")
        self._handles: dict[_Handle, None] = {}  # A dict for its order: also under a simulated loop.
        self.direct_writer = DirectWriter()
        self._closed = False

    async def open(self, path: StrPath, *, writable: bool = False) -> "OsFile":
        return await self._open(path, os.O_RDWR if writable else os.O_RDONLY)

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> "OsFile":
        file = await self._open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL))
        file.is_direct = direct
        return file

    async def listdir(self, path: StrPath) -> list[str]:
        return sorted(await self._patiently(lambda: self._run(os.listdir, os.fspath(path))))

    async def makedirs(self, path: StrPath) -> None:
        await self._patiently(lambda: self._run(_makedirs, os.fspath(path)))

    async def rename(self, source: StrPath, target: StrPath) -> None:
        await self._run(os.replace, source, target)

    async def unlink(self, path: StrPath) -> None:
        await self._run(os.unlink, path)

    async def exists(self, path: StrPath) -> bool:
        return await self._run(os.path.exists, path)

    async def sync_directory(self, path: StrPath) -> None:
        await self._patiently(lambda: self._run(_sync_directory, os.fspath(path)))

    async def usage(self, path: StrPath) -> DiskUsage:
        stat = await self._run(os.statvfs, path)
        return DiskUsage(total_bytes=stat.f_blocks * stat.f_frsize, free_bytes=stat.f_bavail * stat.f_frsize)

    async def lock(self, path: StrPath, *, owner: str = "") -> "OsFileLock":
        name = os.fspath(path)
        named = owner or f"process {os.getpid()}"
        descriptor = await self._patiently(lambda: self._acquire(_lock, name, named))
        return OsFileLock(self, name, descriptor)

    async def aclose(self) -> None:
        self._closed = True
        for handle in list(self._handles):
            await handle.aclose()
        # Joining may wait for a slow system call, so it does not belong on the loop's thread either.
        await asyncio.to_thread(self._pool.shutdown)

    async def _open(self, path: StrPath, flags: int) -> "OsFile":
        name = os.fspath(path)
        opened = await self._patiently(lambda: self._acquire(os.open, name, flags | os.O_CLOEXEC, _FILE_MODE))
        return OsFile(self, name, opened)

    async def _patiently(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a call that needs a descriptor, again and again if there is none. Nothing has happened then."""
        for _ in range(_SHORTAGE_TRIES):
            try:
                return await run()
            except OSError as error:
                if not is_shortage(error):
                    raise
            await asyncio.sleep(_SHORTAGE_PAUSE_S)
        return await run()

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise OSError(errno.EBADF, "the disk is closed")
        return await asyncio.shield(self._submit(call, *args, **kwargs))

    async def _acquire(self, call: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
        """Run a call that returns a descriptor; nobody may lose one by being cancelled meanwhile."""
        if self._closed:
            raise OSError(errno.EBADF, "the disk is closed")
        acquiring = self._submit(call, *args, **kwargs)
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            acquiring.add_done_callback(_close_unclaimed)
            raise

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a blocking call. Awaited only through a shield: a call that was queued runs to its end.

        If a cancellation could drop it from the queue, nobody could say whether it happened.
        """
        return asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))


class _Handle:
    """A descriptor that is closed once, after the last call that uses it."""

    def __init__(self, disk: OsDisk, path: str, descriptor: int) -> None:
        self._disk = disk
        self._path = path
        self._descriptor = descriptor
        self._running = 0
        self._idle = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        disk._handles[self] = None

    @property
    def path(self) -> str:
        return self._path

    async def aclose(self) -> None:
        if self._closing is None:
            if self._running == 0:
                self._idle.set()
            self._closing = asyncio.create_task(self._close(), name=f"close {self._path}")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _close(self) -> None:
        await self._idle.wait()
        self._disk._handles.pop(self, None)
        await self._disk._submit(os.close, self._descriptor)

    async def _run(self, call: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closing is not None:
            raise closed_error(self._path)
        running = self._disk._submit(call, self._descriptor, *args, **kwargs)
        self._running += 1
        running.add_done_callback(self._on_done)
        return await asyncio.shield(running)

    def _on_done(self, _: asyncio.Future[T]) -> None:
        self._running -= 1
        if self._running == 0 and self._closing is not None:
            self._idle.set()


class OsFile(_Handle):
    """An open file of the operating system."""

    is_direct = False  # Whether large writes should go past the kernel's memory.
    _kept_from = 0  # On a disk that keeps no pages: where the part begins that is still in the kernel's memory.

    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        if sync and not self._disk.keeps_pages:
            return await self._run(self._write_and_let_go, buffers, offset)
        return await self._run(self._write_and_sync if sync else self._write, buffers, offset)

    def _write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> float:
        size = sum(map(len, buffers)) if self.is_direct else 0
        if size < DIRECT_BYTES_MIN:
            _write_all(descriptor, buffers, offset)
            return 0.0
        if are_worth_joining(buffers, size):
            buffers = [b"".join(buffers)]  # A step in Python for each would keep the event loop's thread waiting.
        begin, end = -offset % BLOCK_BYTES, size - (offset + size) % BLOCK_BYTES  # Of the whole blocks.
        _write_all(descriptor, _cut(buffers, 0, begin), offset)
        try:
            begin += self._disk.direct_writer.write(descriptor, _cut(buffers, begin, end), offset + begin)
        except DirectRefusedError:
            self.is_direct = False
        _write_all(descriptor, _cut(buffers, begin, size), offset + begin)
        return 0.0

    def _write_and_sync(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> float:
        self._write(descriptor, buffers, offset)
        began = time.perf_counter()
        os.fdatasync(descriptor)
        return time.perf_counter() - began

    def _write_and_let_go(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> float:
        """Pages must be on the disk to be let go. The last one stays: the next write may begin within it."""
        sync_s = self._write_and_sync(descriptor, buffers, offset)
        end = offset + sum(map(len, buffers))
        if end - self._kept_from >= _PAGES_BYTES_MAX:
            with suppress(OSError):  # A mere hint: the bytes are durable, whatever becomes of it.
                os.posix_fadvise(descriptor, self._kept_from, end - self._kept_from, os.POSIX_FADV_DONTNEED)
            self._kept_from = end
        return sync_s

    async def pread(self, count: int, offset: int) -> bytes:
        return await self._run(_read_all, count, offset)

    async def fdatasync(self) -> None:
        await self._run(os.fdatasync)

    async def fsync(self) -> None:
        await self._run(os.fsync)

    async def truncate(self, size: int) -> None:
        await self._run(os.ftruncate, size)

    async def preallocate(self, offset: int, count: int) -> None:
        await self._run(os.posix_fallocate, offset, count)

    async def size(self) -> int:
        return (await self._run(os.fstat)).st_size


class OsFileLock(_Handle):
    """A `flock`: bound to the open file, so it also excludes other parts of the same process, and dies with it."""


def _write_all(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    for start in range(0, len(buffers), _BUFFERS_PER_CALL_MAX):
        chunk = buffers[start : start + _BUFFERS_PER_CALL_MAX]
        total = sum(map(len, chunk))
        written = os.pwritev(descriptor, chunk, offset)
        # A short write is no error yet: on a full disk the call for the rest is the one that says ENOSPC.
        while written < total:
            more = os.pwritev(descriptor, _cut(chunk, written, total), offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the disk accepts no more bytes and gives no reason")
            written += more
        offset += total


def _cut(buffers: Sequence[Buffer], begin: int, end: int) -> list[Buffer]:
    """The bytes from `begin` to `end` of all buffers together."""
    found: list[Buffer] = []
    at = 0
    for buffer in buffers:
        first, last = max(0, begin - at), min(len(buffer), end - at)
        if first < last:
            found.append(buffer if last - first == len(buffer) else memoryview(buffer)[first:last])
        at += len(buffer)
    return found


def _read_all(descriptor: int, count: int, offset: int) -> bytes:
    data = os.pread(descriptor, count, offset)
    if len(data) == count or not data:
        return data
    parts = [data]
    missing = count - len(data)
    while missing and data:  # A signal, or a read beyond 2 GiB, may cut a read short before the end of the file.
        data = os.pread(descriptor, missing, offset + count - missing)
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _makedirs(path: str) -> None:
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _makedirs(parent)
    try:
        os.mkdir(path, _FOLDER_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    # Also when it existed: whoever created it may have died before this line.
    if parent != path:
        _sync_directory(parent)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: str, owner: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        _write_all(descriptor, [owner.encode()], 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise BlockingIOError(errno.EWOULDBLOCK, f"locked by {holder or 'somebody else'}", path) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _close_unclaimed(acquiring: asyncio.Future[int]) -> None:
    if not acquiring.cancelled() and acquiring.exception() is None:
        os.close(acquiring.result())
