"""Walk through an entry log from its first record to its last, past whatever is broken in between.

Where no record can be read, the search goes on byte by byte for the next one: for a mark whose record has the checksum
of exactly this place. What lies between is a gap, and it matters why it is there:

    damaged   the bytes were durable once: part of what the bookie promised is gone.
    torn      power failed before they were synced: nobody was promised anything.

Records tell them apart, since each says how far its log was durable when it was written (`SyncedToIsTrue`). A gap that
begins before the furthest such point in the log is damage; a finished log, or one that this process is still writing,
has no other kind. One case stays open: damage to the last synced records of a log that a crash ended looks as if they
were never synced. It is called torn here; whoever knows their locations learns the truth from `EntryLogs.read`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from quire.codec.entry_log import HEADER_BYTES, MARK, Location, LogId, decode_record, location_of
from quire.errors import DamagedEntry
from quire.types import EntryId, LedgerId
from quire.values import dataclass

GAPS_MAX: Final = 100
_CHUNK_BYTES: Final = 256 * 1024  # A few milliseconds of work, even if it holds nothing but tiny records.


class StoredEntry(NamedTuple):
    ledger_id: LedgerId
    entry_id: EntryId
    location: Location
    body: bytes


class Gap(NamedTuple):
    """Bytes `offset` to `end` (exclusive) of a log, in which no record could be read, and what is wrong at `offset`."""

    offset: int
    end: int
    problem: str


class Extent(NamedTuple):
    """Where a log's records end, and whether all up to there is known to have been durable, or at least written."""

    end: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan met. Of very many gaps the last one listed stands for all that follow it, up to its end."""

    entries: int
    damaged: tuple[Gap, ...]
    torn: tuple[Gap, ...]


class RecordScanner:
    """Feed it the `count` bytes at `offset` of a log, again and again until `is_done`."""

    def __init__(self, log_id: LogId, extent: Extent, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self.offset = HEADER_BYTES
        self._chunk_bytes = chunk_bytes
        self._wanted_bytes = chunk_bytes  # More than a chunk when a record is longer.
        self._log_id = log_id
        self._end = max(HEADER_BYTES, extent.end)
        self._is_proven = extent.is_proven
        self._synced_to = 0
        self._entries = 0
        self._gap: tuple[int, str] | None = None  # Where the gap that we are in began, and why.
        self._gaps: list[Gap] = []

    @property
    def is_done(self) -> bool:
        return self.offset >= self._end

    @property
    def count(self) -> int:
        """How many bytes to read next."""
        return min(self._wanted_bytes, self._end - self.offset)

    def feed(self, data: bytes) -> list[StoredEntry]:
        """The entries in `data`, which are the `count` bytes at `offset`; fewer only where the file ends."""
        file_ends = len(data) < self.count
        self._wanted_bytes = self._chunk_bytes
        found: list[StoredEntry] = []
        at = 0
        while at < len(data):
            if self._gap is not None:
                mark_at = data.find(MARK, at)
                if mark_at < 0:
                    # The first bytes of a mark may be the last ones here.
                    is_last = file_ends or self.offset + len(data) >= self._end
                    at = len(data) if is_last else max(at, len(data) - len(MARK) + 1)
                    break
                at = mark_at
            try:
                record = decode_record(self._log_id, self.offset + at, data, at)
            except DamagedEntry as error:
                self._enter_gap(self.offset + at, str(error))
                at += 1
                continue
            if isinstance(record, int):
                if file_ends or self.offset + at + record > self._end:
                    self._enter_gap(self.offset + at, "the record is cut short by the end of the log")
                    at += 1
                    continue
                self._wanted_bytes = max(self._chunk_bytes, record)
                break
            self._leave_gap(self.offset + at)
            self._synced_to = max(self._synced_to, record.synced_to)
            location = location_of(self._log_id, self.offset + at)
            found.append(StoredEntry(record.ledger_id, record.entry_id, location, record.body))
            at += record.length
        self._entries += len(found)
        self._advance(at, file_ends=file_ends)
        return found

    def report(self) -> ScanReport:
        """What was met so far; final once `is_done`."""
        damaged = [gap for gap in self._gaps if self._is_proven or gap.offset < self._synced_to]
        torn = [gap for gap in self._gaps if gap not in damaged]
        return ScanReport(self._entries, tuple(damaged), tuple(torn))

    def _advance(self, count: int, *, file_ends: bool) -> None:
        self.offset += count
        if file_ends and not self.is_done:
            self._enter_gap(self.offset, "the file ends before its log should")
            self.offset = self._end
        if self.is_done:
            self._leave_gap(self._end)

    def _enter_gap(self, offset: int, problem: str) -> None:
        if self._gap is None:
            self._gap = (offset, problem)

    def _leave_gap(self, end: int) -> None:
        if self._gap is None:
            return
        gap, self._gap = Gap(self._gap[0], end, self._gap[1]), None
        if len(self._gaps) == GAPS_MAX:
            gap = self._gaps.pop()._replace(end=end)
        self._gaps.append(gap)


class LogScan:
    """The entries of one log, in the order of their places: `async for entry in scan`, then look at `report`."""

    def __init__(
        self, log_id: LogId, extent: Callable[[], Awaitable[Extent]], pread: Callable[[int, int], Awaitable[bytes]]
    ) -> None:
        self.log_id = log_id
        self._extent = extent
        self._pread = pread
        self._scanner: RecordScanner | None = None

    @property
    def report(self) -> ScanReport:
        """What was met so far; final once the iteration has ended by itself."""
        return ScanReport(0, (), ()) if self._scanner is None else self._scanner.report()

    async def __aiter__(self) -> AsyncIterator[StoredEntry]:
        scanner = self._scanner = RecordScanner(self.log_id, await self._extent())
        while not scanner.is_done:
            for entry in scanner.feed(await self._pread(scanner.count, scanner.offset)):
                yield entry
