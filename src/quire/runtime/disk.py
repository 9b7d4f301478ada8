"""Files as a storage node needs them: positional reads and writes, explicit syncs, explicit durability of names.

What survives a crash of the machine, and what every implementation keeps to:
  SyncedBytes      bytes written before `fdatasync` or `fsync` began are there once it has returned.
  UnsyncedBytes    anything else may be there, gone, or torn: only some of its sectors, not always the first ones.
  SyncedNames      create, rename and unlink in a directory survive once `sync_directory` of it has returned;
                   before that, some of the earlier ones may survive without the later ones.
  FailedSync       after a sync raised, nothing written since the last good one may be trusted, not even if a later
                   sync succeeds: the kernel may have dropped the pages and called them clean. Stop, and recover.

Errors are plain `OSError`s, on purpose: what ENOSPC, EIO or ENOENT means is for the caller to say, and only the caller
knows whether to turn read-only, to stop, or to create the file. A call on a closed file raises EBADF.

Cancelling a wait does not stop the operation: the system call goes on and may take effect. Buffers handed to a write
therefore belong to the disk until the write returns; after a cancelled one they must not be changed at all.
"""

import errno
import os
from collections.abc import Sequence
from typing import Protocol, Self

from quire.values import dataclass

Buffer = bytes | bytearray | memoryview
StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The size of a file system, and how much of it an ordinary process can still fill."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """One open file. Calls may overlap; those that touch the same bytes at the same time are the caller's to order."""

    @property
    def path(self) -> str:
        """The path the file was opened by. A rename does not change it."""
        ...

    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        """Write all of `buffers`, one after the other, from `offset` on. The file grows if need be.

        With `sync`, `fdatasync` follows in the same trip off the loop, and how many seconds it took is returned. If it
        raises, any part may have been written.
        """
        ...

    async def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset` on: fewer, or none, only where the file ends."""
        ...

    async def fdatasync(self) -> None:
        """Make the bytes, and the size, durable."""
        ...

    async def fsync(self) -> None:
        """Make the bytes and every attribute durable. The file's name is its directory's: see `sync_directory`."""
        ...

    async def truncate(self, size: int) -> None:
        """Cut the file at `size`, or lengthen it with zeros that take no space yet."""
        ...

    async def preallocate(self, offset: int, count: int) -> None:
        """Reserve space for a range, so that writing there cannot run out of it. Bytes beyond the end become zeros."""
        ...

    async def size(self) -> int:
        """The present length in bytes."""
        ...

    async def aclose(self) -> None:
        """Close the file after the operations under way. Does not sync. A second call does nothing."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class FileLock(Protocol):
    """An exclusive lock held by this process. It ends with `aclose`, or with the process."""

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class Disk(Protocol):
    """One machine's file system."""

    async def open(self, path: StrPath, *, writable: bool = False) -> File:
        """Open a file that exists; FileNotFoundError otherwise."""
        ...

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> File:
        """Create an empty file, open for reading and writing. FileExistsError unless `replace` empties an old one.

        With `direct`, large writes go past the kernel's memory where they can: for much that is not read soon. A hint.
        """
        ...

    async def listdir(self, path: StrPath) -> list[str]:
        """The names in a directory, sorted."""
        ...

    async def makedirs(self, path: StrPath) -> None:
        """Create a directory and its parents as needed. Durable when it returns, being rare and easily forgotten."""
        ...

    async def rename(self, source: StrPath, target: StrPath) -> None:
        """Give a file another name, replacing what had it: a reader sees the old file or the new one, never none."""
        ...

    async def unlink(self, path: StrPath) -> None:
        """Remove a file's name. Open handles go on working."""
        ...

    async def exists(self, path: StrPath) -> bool:
        """Whether a file or directory has this name."""
        ...

    async def sync_directory(self, path: StrPath) -> None:
        """Make every create, rename and unlink in this directory durable."""
        ...

    async def usage(self, path: StrPath) -> DiskUsage:
        """The file system that holds `path`."""
        ...

    async def lock(self, path: StrPath, *, owner: str = "") -> FileLock:
        """Lock a file for this process, creating it if need be. Advisory: it binds only those who ask.

        BlockingIOError at once, naming the holder, if somebody else (or this process) has it. `owner` is kept in the
        file to tell others who that is; empty means the process id.
        """
        ...

    async def aclose(self) -> None:
        """Let go of threads. Files should be closed before; later calls raise."""
        ...


async def read_file(disk: Disk, path: StrPath) -> bytes:
    """The whole of a small file."""
    async with await disk.open(path) as file:
        return await file.pread(await file.size(), 0)


async def replace_file(disk: Disk, path: StrPath, content: Buffer) -> None:
    """Make `path` hold `content`, durably and in one step: a crash at any moment leaves the old file or the new one.

    One writer per path at a time: the new content waits under the same name with `.new` appended.
    """
    target = os.fspath(path)
    temporary = target + ".new"
    async with await disk.create(temporary, replace=True) as file:
        await file.pwritev([content], 0, sync=True)
    await disk.rename(temporary, target)
    await disk.sync_directory(os.path.dirname(target) or ".")


def closed_error(path: str) -> OSError:
    """What a call on a closed file, or on a closed disk, raises."""
    return OSError(errno.EBADF, "the file is closed", path)
