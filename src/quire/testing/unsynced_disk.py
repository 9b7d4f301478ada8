"""The real file system without waiting for its disk: what a crash of the machine would lose is lost, and nobody minds.

For tests in temporary folders. Files, sizes, locks, errors and a full disk are real; only that bytes and names are safe
from a loss of power is not true. A process that is killed loses nothing, since the kernel has it all.
"""

import os
from collections.abc import Sequence

from quire.runtime import Buffer, DiskUsage, File, FileLock, OsDisk, StrPath
from quire.runtime.os_disk import OsFile


class UnsyncedDisk:
    """A `Disk` whose syncs return at once. No `OsDisk`, since a bookie gives its journals another one of those."""

    def __init__(self) -> None:
        self._disk = _Disk()

    async def open(self, path: StrPath, *, writable: bool = False) -> File:
        return await self._disk.open(path, writable=writable)

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> File:
        return await self._disk.create(path, replace=replace)  # Past the kernel's memory it would wait for the disk.

    async def listdir(self, path: StrPath) -> list[str]:
        return await self._disk.listdir(path)

    async def makedirs(self, path: StrPath) -> None:
        await self._disk.makedirs(path)

    async def rename(self, source: StrPath, target: StrPath) -> None:
        await self._disk.rename(source, target)

    async def unlink(self, path: StrPath) -> None:
        await self._disk.unlink(path)

    async def exists(self, path: StrPath) -> bool:
        return await self._disk.exists(path)

    async def sync_directory(self, path: StrPath) -> None:
        await self._disk.sync_directory(path)

    async def usage(self, path: StrPath) -> DiskUsage:
        return await self._disk.usage(path)

    async def lock(self, path: StrPath, *, owner: str = "") -> FileLock:
        return await self._disk.lock(path, owner=owner)

    async def aclose(self) -> None:
        await self._disk.aclose()


class _Disk(OsDisk):
    async def makedirs(self, path: StrPath) -> None:
        await self._run(os.makedirs, path, exist_ok=True)

    async def sync_directory(self, path: StrPath) -> None:
        await self._run(os.stat, path)  # A folder that is not there is an error all the same.

    async def _open(self, path: StrPath, flags: int) -> OsFile:
        name = os.fspath(path)
        return _File(self, name, await self._acquire(os.open, name, flags | os.O_CLOEXEC, 0o600))


class _File(OsFile):
    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        return await super().pwritev(buffers, offset)

    async def fdatasync(self) -> None:
        await self._run(os.fstat)  # A closed file is an error all the same.

    async def fsync(self) -> None:
        await self._run(os.fstat)
