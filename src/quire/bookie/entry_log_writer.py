"""The one entry log that grows: append, sync, finish it when it is full, begin the next.

A log gets its name only once its header is durable, so a file with a log's name and a broken header is damaged, never
just unlucky. It gets its footer only once its records are durable (`FooterIsLast`). Then it is never written again.

Invariants:
  SyncedIsDurable   what was appended before `sync` was called is on the disk when it returns, in a file whose name is.
  FirstErrorIsLast  after a write or a sync failed nothing is written any more. The kernel reports lost pages once; a
                    second sync that succeeds would prove nothing.
  OneSyncAtATime    else one that succeeds could have overtaken the one that was told of the lost pages.
  WritesGoOn        a cancelled call stops waiting, not writing: its bytes must not meet those of the next call.
"""

import asyncio
import errno
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from quire.bookie.open_files import OpenFiles
from quire.codec.entry_log import (
    HEADER_BYTES,
    Entry,
    LedgerUsage,
    Location,
    LogContent,
    LogId,
    check_entries,
    encode_header,
    location_of,
    log_name,
    split_location,
)
from quire.errors import StoreClosed
from quire.runtime import Disk, File
from quire.types import LedgerId

T = TypeVar("T")


class LogWriter:
    """Appends to logs of its own, numbered from `next_log_id` on, and enters their sizes into `sizes`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        files: OpenFiles,
        sizes: dict[LogId, int],
        next_log_id: LogId,
        log_bytes_max: int,
        direct: bool,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._files = files
        self._sizes = sizes
        self._next_log_id = next_log_id
        self._log_bytes_max, self._is_direct = log_bytes_max, direct
        self._content: LogContent | None = None  # Of the log that grows; there is none before the first append.
        self._file: File
        self._synced = Location(0)  # The end of what is durable.
        self._appending = asyncio.Lock()  # Taken before the other one by whoever needs both.
        self._syncing = asyncio.Lock()
        self._failure: BaseException | None = None
        self._closed = False
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def log_id(self) -> LogId | None:
        """The log that grows."""
        return None if self._content is None else self._content.log_id

    def ledgers(self) -> dict[LedgerId, LedgerUsage]:
        """What each ledger takes up in the log that grows."""
        return {} if self._content is None else self._content.ledgers()

    async def append(self, entries: Sequence[Entry]) -> list[Location]:
        self._check()
        check_entries(entries)
        return await self.complete(self._append(entries))

    async def sync(self) -> None:
        self._check()
        await self.complete(self._sync(self._written()))

    async def sync_folder(self) -> None:
        """Make creations and deletions durable."""
        async with self._syncing:
            with self._fatal():
                await self._disk.sync_directory(self._folder)

    async def aclose(self) -> None:
        """Finish the log that grows, unless an earlier failure forbids it. Waits for what cancelled calls began."""
        self._closed = True
        async with self._appending:
            if self._failure is None:
                await self._finish()

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, which goes on to its end even if the caller is cancelled (`WritesGoOn`)."""
        task = asyncio.create_task(work, name=f"entry logs in {self._folder}")
        self._under_way.add(task)  # The loop itself does not keep a task alive.
        task.add_done_callback(self._on_done)
        await asyncio.wait([task])
        return task.result()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # If nobody waits for it any more, `_failure` remembers what matters.

    # --- Under `_appending` ---------------------------------------------------------------------------------------

    async def _append(self, entries: Sequence[Entry]) -> list[Location]:
        locations: list[Location] = []
        async with self._appending:
            while len(locations) < len(entries):
                self._check_failure()
                content = self._content
                if content is None:
                    content = await self._begin()
                run = content.take(entries, len(locations), synced_to=split_location(self._synced)[1])
                if not run.locations:
                    await self._finish()
                    continue
                with self._fatal():
                    await self._file.pwritev(run.buffers, run.offset)
                self._sizes[content.log_id] = content.end
                locations += run.locations
        return locations

    async def _begin(self) -> LogContent:
        """Create the next log. Whatever has its temporary name was left by a crash and holds no record."""
        log_id = self._next_log_id
        path = f"{self._folder}/{log_name(log_id)}"
        with self._fatal():
            file = await self._disk.create(path + ".new", replace=True, direct=self._is_direct)
            try:
                await file.pwritev([encode_header(log_id)], 0, sync=True)
                await self._disk.rename(path + ".new", path)
                await self.sync_folder()
                self._check_failure()  # If a deletion's sync failed just before, this one proves nothing.
            except BaseException:
                await file.aclose()
                raise
        self._next_log_id = LogId(log_id + 1)
        self._file = file
        self._files.adopt(log_id, file)
        self._sizes[log_id] = HEADER_BYTES
        self._synced = location_of(log_id, HEADER_BYTES)
        self._content = LogContent(log_id, log_bytes_max=self._log_bytes_max)
        return self._content

    async def _finish(self) -> None:
        """Give the log that grows its footer. Everything in it is durable afterwards."""
        content = self._content
        if content is None:
            return
        async with self._syncing:
            self._check_failure()  # A sync may have failed while this one waited for its turn.
            with self._fatal():
                await self._file.fdatasync()
                footer = content.footer()
                await self._file.pwritev([footer], content.end, sync=True)
            self._synced = location_of(content.log_id, content.end)
            self._content = None
        self._sizes[content.log_id] = content.end + len(footer)
        await self._files.release(content.log_id)

    # --- Under `_syncing` -----------------------------------------------------------------------------------------

    async def _sync(self, target: Location) -> None:
        async with self._syncing:
            self._check_failure()
            if self._synced >= target:
                return  # The sync of somebody else, or the end of the log, came first.
            written = self._written()
            with self._fatal():
                await self._file.fdatasync()
            self._synced = written

    def _written(self) -> Location:
        """The end of what has been written."""
        if self._content is None:
            return self._synced
        return location_of(self._content.log_id, self._sizes[self._content.log_id])

    # --- Failures -------------------------------------------------------------------------------------------------

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Whatever goes wrong inside ends all writing. Cancellation too: it comes here only when the loop is ending."""
        try:
            yield
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("the entry logs are closed")
        self._check_failure()

    def _check_failure(self) -> None:
        if self._failure is not None:
            code = self._failure.errno if isinstance(self._failure, OSError) else None
            raise OSError(
                code or errno.EIO, f"nothing is written after a failure: {self._failure!r}", self._folder
            ) from self._failure
