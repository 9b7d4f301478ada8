"""`Disk` in memory, with the crashes of a real one: what was synced stays, the rest is up to the seed.

The same promises as in `quire.runtime.disk`, and not one more. A file's name needs its directory's sync, a sync covers
only what was written before it began, a failed sync loses data and the next one hides it. Code that passes here by luck
meets another seed.

A write may become visible at its start or at its end, as the seed says; a crash may find it half way.
"""

import asyncio
import errno
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

from quire.runtime import Buffer, DiskUsage, StrPath
from quire.runtime.disk import closed_error
from quire.testing.disk_faults import DiskFaults, Operation, ancestors, normal
from quire.testing.sim_rng import SimRng
from quire.testing.sim_stored import Content, StoredBytes, StoredNames

_ROOT: Final = "/"


class SimDisk:
    """A simulated machine's file system. `faults` says what is wrong with it, `content` what new files are kept in."""

    def __init__(self, rng: SimRng) -> None:
        self.faults = DiskFaults()
        self.content: Callable[[], Content] = bytearray
        self._rng = rng
        self._names = StoredNames()
        self._directories: dict[str, None] = {_ROOT: None}
        self._locks: dict[str, SimFileLock] = {}
        self._boots = 0
        self._off = False

    # --- What a test does to it -------------------------------------------------------------------------------

    def crash(self) -> None:
        """The machine loses power and comes back: unsynced changes are kept, lost or torn, open files are dead."""
        self.kill()
        self._names.crash(self._rng)
        for content in self._names.files.values():
            content.crash(self._rng)

    def kill(self) -> None:
        """Only the process dies: open files are dead and locks free, but the kernel still has every change."""
        self._boots += 1
        self._locks.clear()

    def successor(self) -> "SimDisk":
        """The same storage for the next process; this object refuses every call from now on.

        A dying process still runs its `finally` blocks in a simulation: they must not reach the files any more.
        """
        disk = SimDisk(self._rng)
        disk.faults, disk.content = self.faults, self.content
        disk._names, disk._directories = self._names, self._directories
        self.kill()
        self._off = True
        return disk

    def wipe(self) -> None:
        """Forget every file and folder, as if somebody had put in a new disk. Open files are dead."""
        self.kill()
        self._names = StoredNames()
        self._directories = {_ROOT: None}

    def sizes(self, folder: StrPath) -> dict[str, int]:
        """The files below a folder, sorted, and how many bytes each of them has."""
        inside = normal(folder).rstrip("/") + "/"
        return {
            name: len(self._names.files[name].visible) for name in sorted(self._names.files) if name.startswith(inside)
        }

    def flip_bit(self, path: StrPath, offset: int) -> None:
        """Flip one bit of a stored byte; the seed picks which."""
        self._content(normal(path)).flip_bit(offset, self._rng.randrange(8))

    def limit_free_bytes(self, count: int) -> None:
        """Let the disk be full after `count` more bytes."""
        self.faults.capacity_bytes = self._used_bytes() + count

    def fill(self, free_bytes: int) -> None:
        """Let others take all but `free_bytes` of the disk. `faults.foreign_bytes = 0` takes that back."""
        self.faults.foreign_bytes = 0
        self.faults.foreign_bytes = max(0, self.free_bytes() - free_bytes)

    # --- Disk -------------------------------------------------------------------------------------------------

    async def open(self, path: StrPath, *, writable: bool = False) -> "SimFile":
        name = await self.begin("open", path)
        return SimFile(self, name, os.fspath(path), self._content(name), writable=writable)

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> "SimFile":
        name = await self.begin("create", path)
        self._check_parent(name)
        content = self._names.files.get(name)
        if name in self._directories or (content is not None and not replace):
            raise _error(errno.EISDIR if replace else errno.EEXIST, name)
        if content is None:
            content = StoredBytes(self.content)
            self._names.link(name, content)
        else:
            content.resize(0)
        return SimFile(self, name, os.fspath(path), content, writable=True)

    async def listdir(self, path: StrPath) -> list[str]:
        name = await self.begin("listdir", path)
        self._check_directory(name)
        everything = [*self._names.files, *self._directories]
        return sorted(
            posixpath.basename(item) for item in everything if item != _ROOT and posixpath.dirname(item) == name
        )

    async def makedirs(self, path: StrPath) -> None:
        name = await self.begin("makedirs", path)
        for directory in ancestors(name):
            if directory in self._names.files:
                raise _error(errno.EEXIST if directory == name else errno.ENOTDIR, directory)
        for directory in ancestors(name):
            self._directories[directory] = None

    async def rename(self, source: StrPath, target: StrPath) -> None:
        old, new = await self.begin("rename", source), normal(target)
        self._content(old)
        self._check_parent(new)
        if new in self._directories:
            raise _error(errno.EISDIR, new)
        self._names.rename(old, new)

    async def unlink(self, path: StrPath) -> None:
        name = await self.begin("unlink", path)
        self._content(name)
        self._names.unlink(name)

    async def exists(self, path: StrPath) -> bool:
        name = await self.begin("exists", path)
        return name in self._names.files or name in self._directories

    async def sync_directory(self, path: StrPath) -> None:
        name = await self.begin("sync_directory", path)
        self._check_directory(name)
        self._names.sync(name)

    async def usage(self, path: StrPath) -> DiskUsage:
        name = await self.begin("usage", path)
        if name not in self._directories:
            self._content(name)
        return DiskUsage(total_bytes=self.faults.capacity_bytes, free_bytes=self.free_bytes())

    async def lock(self, path: StrPath, *, owner: str = "") -> "SimFileLock":
        name = await self.begin("lock", path)
        self._check_parent(name)
        holder = self._locks.get(name)
        if holder is not None:
            raise BlockingIOError(errno.EWOULDBLOCK, f"locked by {holder.owner}", os.fspath(path))
        if name not in self._names.files:
            self._names.link(name, StoredBytes())
        lock = self._locks[name] = SimFileLock(self._locks, name, owner or "a simulated process")
        return lock

    async def aclose(self) -> None:
        self.kill()
        self._off = True

    # --- For its files ----------------------------------------------------------------------------------------

    async def begin(self, operation: Operation, path: StrPath) -> str:
        """The first half of every call: it takes its time, and may fail or find the machine gone. Returns the path."""
        boots = self._boots
        self.check_alive(boots)
        await self.pause(operation)
        self.check_alive(boots)
        name = normal(path)
        self.faults.check(operation, name)
        return name

    async def pause(self, operation: Operation) -> None:
        await asyncio.sleep(self._rng.uniform(self.faults.latency_of(operation)))

    def check_alive(self, boots: int) -> None:
        if self._off or boots != self._boots:
            raise OSError(errno.EIO, "the simulated machine has stopped since")

    def boots(self) -> int:
        return self._boots

    def rng(self) -> SimRng:
        return self._rng

    def free_bytes(self) -> int:
        return max(0, self.faults.capacity_bytes - self._used_bytes())

    def _used_bytes(self) -> int:
        return self.faults.foreign_bytes + sum(len(content.visible) for content in self._names.files.values())

    def _content(self, name: str) -> StoredBytes:
        content = self._names.files.get(name)
        if content is None:
            raise _error(errno.EISDIR if name in self._directories else errno.ENOENT, name)
        return content

    def _check_directory(self, name: str) -> None:
        if name not in self._directories:
            raise _error(errno.ENOTDIR if name in self._names.files else errno.ENOENT, name)

    def _check_parent(self, name: str) -> None:
        self._check_directory(posixpath.dirname(name))


class SimFile:
    """An open file of a simulated disk. Dead after a crash of the machine or of the process that opened it."""

    def __init__(self, disk: SimDisk, name: str, path: str, content: StoredBytes, *, writable: bool) -> None:
        self._disk = disk
        self._name = name
        self._path = path
        self._content = content
        self._writable = writable
        self._boots = disk.boots()
        self._running = 0
        self._idle = asyncio.Event()
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        data = b"".join(buffers)
        async with self._call(writes=True) as early:
            if early:
                self._write(offset, data)
                await self._pause("write")
            else:
                await self._pause("write")
                self._write(offset, data)
        if not sync:
            return 0.0
        began = asyncio.get_running_loop().time()
        await self.fdatasync()
        return asyncio.get_running_loop().time() - began

    async def pread(self, count: int, offset: int) -> bytes:
        async with self._call():
            await self._pause("read")
            data = bytes(self._content.visible[offset : offset + count])
            self._disk.faults.check_read(self._name, offset, offset + len(data))
            return data

    async def fdatasync(self) -> None:
        async with self._call():
            mark = self._content.mark()  # What is written from now on is for the next sync to promise.
            try:
                await self._pause("sync")
            except OSError:
                if self._boots == self._disk.boots():
                    self._content.fail_sync(mark, self._disk.rng())
                raise
            self._content.sync(mark)

    async def fsync(self) -> None:
        await self.fdatasync()

    async def truncate(self, size: int) -> None:
        async with self._call(writes=True):
            await self._pause("truncate")
            self._content.resize(size)

    async def preallocate(self, offset: int, count: int) -> None:
        async with self._call(writes=True):
            await self._pause("preallocate")
            size = len(self._content.visible)
            if offset + count - size > self._disk.free_bytes():
                raise _error(errno.ENOSPC, self._path)
            if offset + count > size:
                self._content.resize(offset + count)

    async def size(self) -> int:
        async with self._call():
            await self._pause("size")
            return len(self._content.visible)

    async def aclose(self) -> None:
        self._closed = True
        while self._running:
            self._idle.clear()
            await self._idle.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _call(self, *, writes: bool = False) -> AsyncIterator[bool]:
        """Around every call: refuse it, or count it. Yields whether its effect should come before its delay."""
        if self._closed:
            raise closed_error(self._path)
        if writes and not self._writable:
            raise OSError(errno.EBADF, "the file is not open for writing", self._path)
        self._disk.check_alive(self._boots)
        self._running += 1
        try:
            yield self._disk.rng().random() < 0.5
        finally:
            self._running -= 1
            self._idle.set()

    async def _pause(self, operation: Operation) -> None:
        await self._disk.pause(operation)
        self._disk.check_alive(self._boots)
        self._disk.faults.check(operation, self._name)

    def _write(self, offset: int, data: bytes) -> None:
        room = len(self._content.visible) + self._disk.free_bytes() - offset
        self._content.write(offset, data[: max(0, room)])
        if room < len(data):  # As much as fits is written, and only then does the disk turn out to be full.
            raise _error(errno.ENOSPC, self._path)


class SimFileLock:
    """A lock in a simulated disk's memory."""

    def __init__(self, locks: "dict[str, SimFileLock]", name: str, owner: str) -> None:
        self.owner = owner
        self._locks = locks
        self._name = name

    async def aclose(self) -> None:
        if self._locks.get(self._name) is self:  # After a crash somebody else may hold it.
            del self._locks[self._name]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
