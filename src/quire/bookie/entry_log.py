"""Entry logs: where the entries that a bookie has flushed live for good, and come back byte for byte, or not at all.

Entries of many ledgers share files that only ever grow at their end. `append` tells where each entry went; to remember
that is an index's job. Logs of an earlier run are read and one day deleted, never written. What a log holds is in its
footer; a log that a crash ended has none, and is scanned.

    async with EntryLogs(disk, folder) as logs:
        [location] = await logs.append([(ledger_id, entry_id, body)])
        await logs.sync()                                          # Only now may an index point there.
        body = await logs.read(location, ledger_id, entry_id)

Invariants:
  WrongBytesNever   `read` returns the bytes that were appended under these ids at this place, or raises.
  DamageIsNoAnswer  bytes that are not what they should be raise `DamagedEntry`. They never look like an entry that was
                    not there: a reader who believed that would cut the ledger short.
  DoubtKeepsFiles   a file whose header is not that of its log is reported and never deleted. What a known location in
                    it points to is read all the same: a record proves by itself that it is what it should be, and a
                    damaged header must not cost a whole log. What else there may be in it nobody says.
  IdsAreNew         a log id is used once: the newest log is never deleted, so its name remembers which ids are taken.
"""

import asyncio
import errno
from collections.abc import Sequence
from os import fspath
from typing import Final, Self

from quire.bookie.entry_log_scan import Extent, LogScan
from quire.bookie.entry_log_writer import LogWriter
from quire.bookie.open_files import OpenFiles
from quire.codec.entry_log import (
    HEADER_BYTES,
    LOG_BYTES_MAX,
    LOG_ID_MAX,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    Entry,
    LedgerUsage,
    Location,
    LogId,
    Record,
    check_header,
    decode_footer,
    decode_record,
    decode_run,
    footer_begin,
    log_name,
    parse_log_name,
    split_location,
)
from quire.errors import DamagedEntry, InvalidArgument, InvariantBroken, invariant
from quire.runtime import Disk, StrPath
from quire.types import EntryId, LedgerId
from quire.values import dataclass

_READ_BYTES: Final = 4096  # What a single read asks for first; a longer entry takes a second one.


@dataclass(frozen=True, slots=True)
class LogUsage:
    """One log: its size as a file, and whether it is the one that still grows."""

    log_id: LogId
    log_bytes: int
    is_growing: bool


@dataclass(frozen=True, slots=True)
class RefusedLog:
    """A file with a log's name that is not to be trusted, and why."""

    log_id: LogId
    path: str
    problem: str
    file_bytes: int


class EntryLogs:
    """All entry logs in one folder, of which this object must be the only writer."""

    def __init__(
        self,
        disk: Disk,
        folder: StrPath,
        *,
        log_bytes_max: int = 1 << 30,
        files_open_max: int = 128,
        direct: bool = True,
    ) -> None:
        if not HEADER_BYTES < log_bytes_max <= LOG_BYTES_MAX or files_open_max < 1:
            raise InvalidArgument(
                f"entry logs of {log_bytes_max} bytes, {files_open_max} of them open, are not possible",
                hint=f"A log has more than {HEADER_BYTES} and at most {LOG_BYTES_MAX} bytes.",
            )
        self._disk = disk
        self._folder = fspath(folder)
        self._log_bytes_max, self._is_direct = log_bytes_max, direct
        self._sizes: dict[LogId, int] = {}  # Of the growing log: up to the end of what has been written.
        self._refused: dict[LogId, RefusedLog] = {}
        self._files = OpenFiles(disk, self._path, files_open_max=files_open_max)
        self._writer: LogWriter | None = None
        self._deleting = asyncio.Lock()  # Whoever deletes a log second must not be told so before it is gone for good.

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def open(self) -> list[RefusedLog]:
        """Look at every file in the folder, which is created if need be. Returns those that are not to be trusted."""
        invariant(self._writer is None, "entry logs are opened once", folder=self._folder)
        await self._disk.makedirs(self._folder)
        for name in await self._disk.listdir(self._folder):
            log_id = parse_log_name(name)
            if log_id is not None:
                await self._look_at(log_id)
        self._writer = LogWriter(
            self._disk,
            self._folder,
            files=self._files,
            sizes=self._sizes,
            next_log_id=LogId(self._newest() + 1),
            log_bytes_max=self._log_bytes_max,
            direct=self._is_direct,
        )
        return self.refused()

    async def aclose(self) -> None:
        """Finish the growing log and close every file. A second call does nothing."""
        if self._writer is not None:
            await self._writer.complete(self._close(self._writer))

    async def _close(self, writer: LogWriter) -> None:
        try:
            await writer.aclose()
        finally:
            await self._files.aclose()

    # --- Writing --------------------------------------------------------------------------------------------------

    async def append(self, entries: Sequence[Entry]) -> list[Location]:
        """Write entries and return the location of each. They are durable, and may be pointed to, after `sync`.

        After an `OSError` from here or from `sync` nothing can be written any more: recover with a new object. A
        cancelled call goes on by itself; its bodies must not be changed before `aclose` has returned.
        """
        return await self._open_writer().append(entries)

    async def sync(self) -> None:
        """Make everything durable whose `append` has returned. Errors are as for `append`."""
        await self._open_writer().sync()

    async def delete(self, log_id: LogId) -> None:
        """Delete a log, durably. Nothing may point into it any more.

        Raises `InvalidArgument` for the newest log and for files that were refused, and `DamagedEntry` if the file has
        turned out not to be this log after all.
        """
        writer = self._open_writer()
        await writer.complete(self._delete(writer, log_id))

    async def _delete(self, writer: LogWriter, log_id: LogId) -> None:
        async with self._deleting:
            if log_id in self._refused:
                problem = f"{self._refused[log_id].path} is not to be trusted"
            elif log_id not in self._sizes:
                problem = "there is none"
            else:
                problem = "it is the newest one" if log_id == self._newest() else ""
            if problem:
                raise InvalidArgument(f"entry log {log_id} cannot be deleted: {problem}", log_id=log_id)
            await self._check_header(log_id)
            await self._disk.unlink(self._path(log_id))
            del self._sizes[log_id]
            await self._files.forget(log_id)
            await writer.sync_folder()

    # --- Reading --------------------------------------------------------------------------------------------------

    async def read(self, location: Location, ledger_id: LedgerId, entry_id: EntryId) -> bytes:
        """The body of the entry at `location`, checked. Raises `DamagedEntry`, or what the disk raises.

        If its log may have been deleted since the location was looked up, look it up again before believing the error.
        """
        _, record = await self._read(location, ledger_id, entry_id, _READ_BYTES)
        return record.body

    async def read_ahead(
        self, location: Location, ledger_id: LedgerId, entry_id: EntryId, *, entries_max: int, bytes_max: int
    ) -> list[tuple[EntryId, Location, bytes]]:
        """The entry at `location` as `read` gives it, and those of the same ledger that follow it in the log.

        One read of about `bytes_max` for all of them. Ends early at another ledger, and before anything damaged.
        """
        data, first = await self._read(location, ledger_id, entry_id, bytes_max)
        log_id, offset = split_location(location)
        run = decode_run(
            log_id, offset + first.length, data, first.length, ledger_id=ledger_id, entries_max=entries_max - 1
        )
        return [(entry_id, location, first.body), *run]

    async def _read(
        self, location: Location, ledger_id: LedgerId, entry_id: EntryId, count: int
    ) -> tuple[bytes, Record]:
        """Up to `count` bytes from `location` on, or more if the record there is longer, and that record."""
        log_id, offset = split_location(location)
        refused = self._refused.get(log_id)
        size = self._sizes.get(log_id, 0) if refused is None else refused.file_bytes
        try:
            data = await self._pread_record(log_id, max(0, min(max(count, RECORD_HEADER_BYTES), size - offset)), offset)
            record = decode_record(log_id, offset, data)
            while isinstance(record, int):
                if offset + record > size:
                    raise DamagedEntry(f"the log ends at {size}, before the record does")
                data = await self._pread_record(log_id, record, offset)
                if len(data) < record:
                    raise DamagedEntry(f"the file ends at {offset + len(data)}, before the record does")
                record = decode_record(log_id, offset, data)
            if record.ledger_id != ledger_id or record.entry_id != entry_id:
                raise DamagedEntry(f"entry {record.ledger_id}:{record.entry_id} is there instead")
        except DamagedEntry as error:
            doubt = "" if refused is None else f"; the file is not to be trusted: {refused.problem}"
            path = self._path(log_id) if 0 < log_id <= LOG_ID_MAX else f"a log {log_id} of {self._folder}"
            raise DamagedEntry(
                f"entry {ledger_id}:{entry_id} cannot be read from {path} at {offset}: {error}{doubt}",
                ledger_id=ledger_id,
                entry_id=entry_id,
                log_id=log_id,
                offset=offset,
            ) from error
        return data, record

    def scan(self, log_id: LogId) -> LogScan:
        """Every entry in a log that can be read: `async for entry in scan`; then `scan.report` tells what could not.

        What a crash left in an unfinished log may be readable and still not be durable: copy it before relying on it.
        Appends that come after the first entry was asked for may be missed.
        """
        return LogScan(log_id, lambda: self._extent(log_id), lambda count, offset: self._pread(log_id, count, offset))

    async def ledgers_in(self, log_id: LogId) -> dict[LedgerId, LedgerUsage]:
        """What each ledger takes up in a log. From its footer; without one, by reading all of it: keep the answer.

        Raises `DamagedEntry` if part of the log is damaged: whoever deletes what nobody needs must not take the short
        answer for the whole one.
        """
        if log_id == self._open_writer().log_id:
            return self._open_writer().ledgers()
        footer = await self._footer(log_id)
        if footer is not None:
            return footer[1]
        totals: dict[LedgerId, LedgerUsage] = {}
        scan = self.scan(log_id)
        async for entry in scan:
            before = totals.get(entry.ledger_id, LedgerUsage(0, 0))
            totals[entry.ledger_id] = LedgerUsage(
                before.entries + 1, before.bytes + RECORD_HEADER_BYTES + len(entry.body)
            )
        if scan.report.damaged:
            gap = scan.report.damaged[0]
            raise DamagedEntry(
                f"what {self._path(log_id)} holds cannot be told: it is damaged at {gap.offset}: {gap.problem}",
                log_id=log_id,
                offset=gap.offset,
            )
        return totals

    async def has_footer(self, log_id: LogId) -> bool:
        """Whether what a log holds is written in it. Of one that a crash ended, only what can be read is known."""
        return await self._footer(log_id) is not None

    def usage(self) -> list[LogUsage]:
        """Every log that can be read, oldest first."""
        growing = None if self._writer is None else self._writer.log_id
        return [LogUsage(log_id, size, log_id == growing) for log_id, size in sorted(self._sizes.items())]

    def refused(self) -> list[RefusedLog]:
        """The files that were not to be trusted when the folder was opened."""
        return list(self._refused.values())

    # --- Files ----------------------------------------------------------------------------------------------------

    async def _look_at(self, log_id: LogId) -> None:
        path, size = self._path(log_id), 0
        try:
            async with await self._disk.open(path) as file:
                size = await file.size()
                check_header(await file.pread(HEADER_BYTES, 0), log_id)
            self._sizes[log_id] = size
        except DamagedEntry as error:
            self._refused[log_id] = RefusedLog(log_id, path, str(error), size)
        except OSError as error:
            if error.errno != errno.EIO:  # Others, such as too many open files, say nothing about this one.
                raise
            self._refused[log_id] = RefusedLog(log_id, path, f"its header cannot be read: {error}", size)

    async def _check_header(self, log_id: LogId) -> None:
        try:
            check_header(await self._pread(log_id, HEADER_BYTES, 0), log_id)
        except DamagedEntry as error:
            raise DamagedEntry(f"{self._path(log_id)} is not to be trusted: {error}", log_id=log_id) from error

    async def _footer(self, log_id: LogId) -> tuple[int, dict[LedgerId, LedgerUsage]] | None:
        """Where a log's footer begins and what it says; None if there is none that is intact."""
        size = self._sizes.get(log_id, 0)
        try:
            trailer = await self._pread(log_id, TRAILER_BYTES, max(0, size - TRAILER_BYTES))
            begin = footer_begin(trailer, log_id, log_bytes=size)
            return begin, decode_footer(await self._pread(log_id, size - begin, begin), log_id, begin=begin)
        except DamagedEntry:
            return None

    async def _extent(self, log_id: LogId) -> Extent:
        if log_id == self._open_writer().log_id:
            return Extent(self._sizes[log_id], is_proven=True)
        footer = await self._footer(log_id)
        if footer is not None:
            return Extent(footer[0], is_proven=True)
        await self._check_header(log_id)
        return Extent(self._sizes.get(log_id, 0), is_proven=False)

    async def _pread(self, log_id: LogId, count: int, offset: int) -> bytes:
        if log_id in self._refused:
            raise DamagedEntry(f"the file is not to be trusted: {self._refused[log_id].problem}")
        return await self._pread_record(log_id, count, offset)

    async def _pread_record(self, log_id: LogId, count: int, offset: int) -> bytes:
        """The same also of a file that is not to be trusted: of bytes that prove by themselves what they are."""
        if log_id not in self._sizes and log_id not in self._refused:
            raise DamagedEntry("there is no such log")
        try:
            return await self._files.pread(log_id, count, offset)
        except FileNotFoundError as error:
            raise DamagedEntry("the file is gone") from error

    def _newest(self) -> LogId:
        return max([*self._sizes, *self._refused], default=LogId(0))

    def _path(self, log_id: LogId) -> str:
        return f"{self._folder}/{log_name(log_id)}"

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            raise InvariantBroken(f"the entry logs in {self._folder} are used before they are opened")
        return self._writer
