"""A disk that counts what is asked of it, and that can be careless about syncs."""

import enum
from collections.abc import Sequence
from typing import Self

from quire.runtime import Buffer, Disk, DiskUsage, File, FileLock, StrPath


class Carelessness(enum.Enum):
    NONE = "does what it is told"
    NO_DIRECTORY_SYNC = "never makes names durable"
    NO_SYNC = "never makes bytes durable"
    SYNC_AGAIN = "believes a sync that succeeds after one that failed"


class WatchedDisk:
    """Another disk, watched. `open_files` are the files that were opened and not closed."""

    def __init__(self, disk: Disk, carelessness: Carelessness = Carelessness.NONE) -> None:
        self.carelessness = carelessness
        self.reads = 0
        self.writes = 0
        self.opens = 0
        self.open_files: list[str] = []
        self._disk = disk

    async def open(self, path: StrPath, *, writable: bool = False) -> "WatchedFile":
        return WatchedFile(self, await self._disk.open(path, writable=writable))

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> "WatchedFile":
        return WatchedFile(self, await self._disk.create(path, replace=replace, direct=direct))

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
        if self.carelessness is not Carelessness.NO_DIRECTORY_SYNC:
            await self._disk.sync_directory(path)

    async def usage(self, path: StrPath) -> DiskUsage:
        return await self._disk.usage(path)

    async def lock(self, path: StrPath, *, owner: str = "") -> FileLock:
        return await self._disk.lock(path, owner=owner)

    async def aclose(self) -> None:
        await self._disk.aclose()


class WatchedFile:
    def __init__(self, disk: WatchedDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self._is_closed = False
        disk.opens += 1
        disk.open_files.append(file.path)

    @property
    def path(self) -> str:
        return self._file.path

    async def pwritev(self, buffers: Sequence[Buffer], offset: int, *, sync: bool = False) -> float:
        self._disk.writes += 1
        await self._file.pwritev(buffers, offset)
        if sync:
            await self.fdatasync()
        return 0.0

    async def pread(self, count: int, offset: int) -> bytes:
        self._disk.reads += 1
        return await self._file.pread(count, offset)

    async def fdatasync(self) -> None:
        if self._disk.carelessness is Carelessness.NO_SYNC:
            return
        try:
            await self._file.fdatasync()
        except OSError:
            if self._disk.carelessness is not Carelessness.SYNC_AGAIN:
                raise
            await self._file.fdatasync()

    async def fsync(self) -> None:
        await self.fdatasync()

    async def truncate(self, size: int) -> None:
        await self._file.truncate(size)

    async def preallocate(self, offset: int, count: int) -> None:
        await self._file.preallocate(offset, count)

    async def size(self) -> int:
        return await self._file.size()

    async def aclose(self) -> None:
        await self._file.aclose()
        if not self._is_closed:
            self._is_closed = True
            self._disk.open_files.remove(self.path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
