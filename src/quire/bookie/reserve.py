"""The reserve: space that is taken while there is plenty, and given back to what frees space on a full disk.

Compaction copies what is alive before it deletes the rest, and a start has to flush what was replayed. Both need room
just when there is none. So the data folder keeps a file of nothing, which is deleted for their sake, and made again
when there is room.

    async with reserve.given_back():
        ...                          # compact, or flush

The file is made under another name, allocated, synced, and renamed: under its own name it always takes up the space it
should. It holds nothing, so a crash at any moment loses nothing but the space, until the next `make`.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.bookie.identity import RESERVE
from quire.errors import InvalidArgument
from quire.protocol.space import shown_bytes
from quire.runtime import Disk


def is_full(error: BaseException | None) -> bool:
    """Whether a write failed only because the disk, or the user's share of it, has no room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class SpaceReserve:
    """The reserve of one data folder. Of `bytes_max`, it takes at most a hundredth of the disk."""

    def __init__(self, disk: Disk, folder: str, *, bytes_max: int) -> None:
        if bytes_max < 0:
            raise InvalidArgument(f"a reserve of {bytes_max} bytes is not possible", hint="0 means none.")
        self._disk, self._folder, self._bytes_max = disk, folder, bytes_max
        self._path, self._unfinished = f"{folder}/{RESERVE}", f"{folder}/{RESERVE}.new"
        self._changing = asyncio.Lock()
        self._borrowers = 0
        self.lent_bytes = 0  # What the free space will be less by when the reserve is made again.
        self.problem: str | None = None

    async def make(self) -> None:
        """Have the reserve, if there is room for it twice; otherwise `problem` says why not.

        A full disk is no error here: that is what the reserve is for. Other errors are raised.
        """
        async with self._changing:
            if not self._borrowers:  # The last of them makes it.
                try:
                    self.problem = await self._make()
                finally:
                    self.lent_bytes = 0

    async def _make(self) -> str | None:
        await self._drop(self._unfinished)
        usage = await self._disk.usage(self._folder)
        size = min(self._bytes_max, usage.total_bytes // 100)
        present = await self._size() or 0
        if 0 < size <= 2 * present <= 4 * size:
            return None  # Near enough: some file systems find themselves a little larger or smaller every day.
        await self._drop(self._path)
        if not size:
            return None
        free_bytes = (await self._disk.usage(self._folder)).free_bytes
        if free_bytes < 2 * size:
            needed, free = shown_bytes(2 * size), shown_bytes(free_bytes)
            return f"there is no reserve in {self._folder}: making it needs {needed}, and {free} are free"
        try:
            async with await self._disk.create(self._unfinished) as file:
                await file.preallocate(0, size)
                await file.fsync()
            await self._disk.rename(self._unfinished, self._path)
            await self._disk.sync_directory(self._folder)
        except OSError as error:
            if not is_full(error):
                raise
            await self._drop(self._unfinished)
            return f"there is no reserve in {self._folder}: {shown_bytes(size)} cannot be had: {error.strerror}"
        return None

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[int]:
        """Let the block have the space of the reserve, if there is one: yields how much. The last block makes it anew.

        While it is lent, `lent_bytes` is what a look at the free space should leave out.
        """
        self._borrowers += 1
        try:
            async with self._changing:
                self.lent_bytes += await self._size() or 0
                await self._drop(self._path)
            yield self.lent_bytes
        finally:
            self._borrowers -= 1
            await self.make()

    async def can_be_had(self, size: int) -> bool:
        """Whether the reserve is so much, or the disk has room for it."""
        async with self._changing:
            if (await self._size() or 0) >= size:
                return True
            await self._drop(self._unfinished)
            try:
                async with await self._disk.create(self._unfinished) as file:
                    await file.preallocate(0, size)
                    await file.fsync()
            except OSError as error:
                if not is_full(error):
                    raise
                return False
            finally:
                await self._drop(self._unfinished)
        return True

    async def _size(self) -> int | None:
        try:
            async with await self._disk.open(self._path) as file:
                return await file.size()
        except FileNotFoundError:
            return None

    async def _drop(self, path: str) -> None:
        if await self._disk.exists(path):
            await self._disk.unlink(path)
            await self._disk.sync_directory(self._folder)  # Some file systems give the space back only now.
