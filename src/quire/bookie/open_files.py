"""Entry log files that are open for reading: few, the ones used last, and never closed under a reader.

A bookie may have a thousand entry logs and reads from a handful. A file stays open after its last reader until too many
are; then the one that waited longest is closed. When more are in use at once than the bound allows they all stay open:
a reader that waited for another to finish could wait for itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from quire.codec.entry_log import LogId
from quire.errors import StoreClosed
from quire.runtime import Disk, File


class _Slot:
    def __init__(self) -> None:
        self.file: File | None = None
        self.opening = asyncio.Lock()  # However many ask for a file that is not open: one of them opens it.
        self.users = 0


class OpenFiles:
    """Open files by log id. At most `files_open_max` are open, or as many as are in use right now."""

    def __init__(self, disk: Disk, path_of: Callable[[LogId], str], *, files_open_max: int) -> None:
        self._disk = disk
        self._path_of = path_of
        self._files_open_max = files_open_max
        self._slots: OrderedDict[LogId, _Slot] = OrderedDict()  # In the order of their last use.
        self._closed = False

    def __len__(self) -> int:
        return len(self._slots)

    async def pread(self, log_id: LogId, count: int, offset: int) -> bytes:
        """Read from a log's file, opening it if need be. Raises what the disk raises."""
        if self._closed:
            raise StoreClosed("the entry logs are closed")
        slot = self._slots.get(log_id)
        if slot is None:
            slot = self._slots[log_id] = _Slot()
        self._slots.move_to_end(log_id)
        slot.users += 1
        try:
            if slot.file is None:
                async with slot.opening:
                    if slot.file is None:
                        slot.file = await self._disk.open(self._path_of(log_id))
            return await slot.file.pread(count, offset)
        finally:
            await self._leave(log_id, slot)

    def adopt(self, log_id: LogId, file: File) -> None:
        """Read from `file`, which the caller has open, and keep it open until `release`."""
        slot = self._slots[log_id] = _Slot()
        slot.file, slot.users = file, 1

    async def release(self, log_id: LogId) -> None:
        """The caller of `adopt` needs its file no longer."""
        await self._leave(log_id, self._slots[log_id])

    async def forget(self, log_id: LogId) -> None:
        """Close a deleted log's file, after the reads under way."""
        slot = self._slots.pop(log_id, None)
        if slot is not None and slot.users == 0:
            await _close(slot)

    async def aclose(self) -> None:
        """Close every file, after the reads under way. Later reads raise `StoreClosed`."""
        self._closed = True
        while self._slots:
            _, slot = self._slots.popitem()
            await _close(slot)

    async def _leave(self, log_id: LogId, slot: _Slot) -> None:
        slot.users -= 1
        if slot.users == 0 and self._slots.get(log_id) is not slot:
            await _close(slot)  # Forgotten meanwhile, and this was the last reader.
        elif slot.users == 0 and slot.file is None:
            del self._slots[log_id]  # It could not be opened.
        while len(self._slots) > self._files_open_max:
            idle = next((log_id for log_id, slot in self._slots.items() if slot.users == 0), None)
            if idle is None:
                return
            await _close(self._slots.pop(idle))


async def _close(slot: _Slot) -> None:
    if slot.file is not None:
        await slot.file.aclose()
