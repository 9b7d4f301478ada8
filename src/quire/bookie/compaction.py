"""Compaction: copy what is alive out of an entry log, then delete the log.

Alive is what the index points to, at this very place; anything else in a log was deleted or written anew elsewhere. A
log is read in batches, and each goes through the same steps, so that memory stays flat and a crash at any moment leaves
every entry where the index says:

    copy the batch to the log that grows -> sync that log -> move the index over, entry by entry if still there
    ... and after the last batch: a checkpoint, which makes the index durable and stores its position -> delete the log

Invariants:
  CopyThenPoint         the index points to a copy only once it is durable, and only if it still pointed to the
                        original.
  PointThenDelete       a log is deleted only when nothing points into it, durably. What cannot be read but is pointed
                        to keeps its log: damage is not made final by tidying up.
  FullDiskLosesNothing  a copy is begun only if it fits above the floor; what is entirely dead needs no space and goes
                        first.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final, TypeVar

from quire.bookie.entry_log_scan import LogScan, ScanReport, StoredEntry
from quire.bookie.index import LocationMove
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.log_survey import LogLoad
from quire.codec.entry_log import HEADER_BYTES, RECORD_HEADER_BYTES, LogId, split_location
from quire.errors import DamagedEntry, InvalidArgument
from quire.protocol.space import shown_bytes
from quire.runtime import Clock
from quire.types import EntryId, LedgerId
from quire.values import dataclass

T = TypeVar("T")
FreeBytes = Callable[[], Awaitable[int]]
MakeRoom = Callable[[], AbstractAsyncContextManager[object]]

_BATCH_ENTRIES_MAX: Final = 4096
_PAGE_ENTRIES: Final = 4096
_LEDGERS_AT_A_TIME: Final = 256
_FIRST: Final = EntryId(0)


@dataclass(slots=True)
class GarbageCounters:
    """What was done since the start. Whoever measures reads them."""

    passes: int = 0
    passes_failed: int = 0
    deleted_ledgers: int = 0
    deleted_logs: int = 0  # Those without anything alive.
    compacted_logs: int = 0
    compacted_entries: int = 0  # Copied, whether or not their log could be deleted then.
    compacted_bytes: int = 0
    reclaimed_bytes: int = 0  # By both; of compacted logs, less what was copied.
    reclaimed_by_deletion_bytes: int = 0
    log_deletions_failed: int = 0
    minor_compactions: int = 0
    major_compactions: int = 0
    last_minor_ms: int = 0
    last_major_ms: int = 0


class Pacer:
    """Lets `per_s` pass in a second: whoever comes after others took more than that waits until it is made up for."""

    def __init__(self, clock: Clock, *, per_s: float) -> None:
        if per_s <= 0:
            raise InvalidArgument(f"at {per_s} a second nothing would ever happen")
        self._clock, self._per_s = clock, per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        now_s = self._clock.monotonic()
        free_at_s = max(now_s, self._free_at_s)
        self._free_at_s = free_at_s + count / self._per_s
        if free_at_s > now_s:
            await self._clock.sleep(free_at_s - now_s)


class Undisturbed:
    """Work that goes on to its end even if whoever waits for it is cancelled. A thread cannot be called back, so what
    must not happen before it is done has to wait: `settle`.
    """

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for what cancelled callers left behind."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # If nobody waits for it any more: what failed here fails the next time, too.


class _LogStays(Exception):
    """The log cannot be deleted now, and why."""


class Compactor:
    """Deletes and compacts logs that a `LogSurveyor` found, one at a time."""

    def __init__(
        self,
        storage: LedgerStorage,
        clock: Clock,
        counters: GarbageCounters,
        undisturbed: Undisturbed,
        *,
        bytes_per_s: float,
        free_bytes: FreeBytes | None = None,
        free_bytes_min: int = 0,
        make_room: MakeRoom | None = None,
        batch_bytes: int = 4 << 20,
    ) -> None:
        self._storage, self._counters, self._undisturbed = storage, counters, undisturbed
        self._pacer, self._batch_bytes = Pacer(clock, per_s=bytes_per_s), batch_bytes
        self._free_bytes, self._free_bytes_min, self._make_room = free_bytes, free_bytes_min, make_room
        self._room: AsyncExitStack | None = None  # While room may be made and was not yet.
        self.damaged: dict[LogId, str] = {}  # Logs that were read whole and still have to stay.

    async def delete_dead(self, loads: Iterable[LogLoad], outcomes: dict[LogId, str | None]) -> None:
        """Delete logs without anything alive. `outcomes` learns why one had to stay, or None for those that are gone.

        A log without a footer is asked about in the index first: it may have held more than can be read of it.
        """
        dead = [load for load in loads if load.live_bytes == 0]
        doubtful = {load.log_id for load in dead if not load.has_footer and load.log_bytes > HEADER_BYTES}
        pointers = await self._pointers(doubtful) if doubtful else Counter()
        for load in dead:
            try:
                if count := pointers[load.log_id]:
                    raise _LogStays(_damaged(None, count))
                await self._delete(load)
                outcomes[load.log_id] = None
                self._counters.deleted_logs += 1
                self._counters.reclaimed_bytes += load.log_bytes
                self._counters.reclaimed_by_deletion_bytes += load.log_bytes
            except _LogStays as why:
                outcomes[load.log_id] = str(why)

    async def compact(
        self, loads: Sequence[LogLoad], outcomes: dict[LogId, str | None], *, may_go_on: Callable[[], bool]
    ) -> None:
        """Compact these logs, in this order. Raises the `OSError` of a write: then the storage has failed."""
        async with AsyncExitStack() as self._room:
            for load in loads:
                try:
                    await self._compact(load, may_go_on)
                    outcomes[load.log_id] = None
                except _LogStays as why:
                    outcomes[load.log_id] = str(why)

    async def _compact(self, load: LogLoad, may_go_on: Callable[[], bool]) -> None:
        if not load.is_readable:
            raise _LogStays(load.problem)
        waiting_bytes = self._storage.write_cache.total_bytes  # The checkpoint will write them.
        alive_bytes = load.log_bytes if load.live_bytes is None else load.live_bytes
        await self._need(alive_bytes + waiting_bytes)
        copied_bytes, scan = 0, self._storage.logs.scan(load.log_id)
        async with aclosing(_batches(scan, self._batch_bytes)) as batches:
            async for batch in batches:
                if not may_go_on():
                    raise _LogStays("compaction suspended")
                copied_bytes += await self._move(batch)
        await self._check_nothing_is_left(load, scan.report)
        await self._make_durable()
        await self._delete(load)
        self._counters.compacted_logs += 1
        self._counters.reclaimed_bytes += max(0, load.log_bytes - copied_bytes)

    async def _move(self, batch: list[StoredEntry]) -> int:
        """Copy what is alive of a batch and let the index point there. Returns how many bytes that were."""
        alive = await asyncio.to_thread(self._alive, batch)
        copied_bytes = _record_bytes(alive)
        await self._pacer.take(_record_bytes(batch) + copied_bytes)
        if not alive:
            return 0
        await self._need(copied_bytes)
        places = await self._storage.logs.append([(each.ledger_id, each.entry_id, each.body) for each in alive])
        await self._sync_copies()
        moves = [
            LocationMove(each.ledger_id, each.entry_id, each.location, place)
            for each, place in zip(alive, places, strict=True)
        ]
        await self._undisturbed.complete(self._point_to(moves))
        self._counters.compacted_entries += len(alive)
        self._counters.compacted_bytes += copied_bytes
        return copied_bytes

    def _alive(self, batch: list[StoredEntry]) -> list[StoredEntry]:
        """On a thread."""
        location = self._storage.index.location
        return [each for each in batch if location(each.ledger_id, each.entry_id) == each.location]

    async def _sync_copies(self) -> None:
        await self._storage.logs.sync()

    async def _point_to(self, moves: list[LocationMove]) -> None:
        """Not durable yet: a crash leaves the originals in use, and their log is there until a checkpoint."""
        async with self._storage.checkpointing:
            await asyncio.to_thread(partial(self._storage.index.replace_locations, moves, sync=False))

    async def _make_durable(self) -> None:
        """Have the index synced, and its position stored: one that lost the moves must not pass for a whole one."""
        await self._storage.checkpoint()

    async def _delete(self, load: LogLoad) -> None:
        try:
            await self._storage.logs.delete(load.log_id)
            self.damaged.pop(load.log_id, None)
        except (DamagedEntry, InvalidArgument, OSError) as error:
            self._counters.log_deletions_failed += 1
            await self._storage.logs.sync()  # Raises if that was the end of all writing.
            raise _LogStays(f"cannot be deleted: {error}") from error

    # --- What must not be deleted

    async def _check_nothing_is_left(self, load: LogLoad, report: ScanReport) -> None:
        """Raise if the index still points into a log all of whose readable entries were moved.

        A log that was read without a gap, and holds as many entries as its footer says, cannot have anything left. For
        the others the index is asked about every entry it has.
        """
        is_whole = load.has_footer and not report.damaged and not report.torn and report.entries == load.entries
        if not is_whole and (count := (await self._pointers({load.log_id}))[load.log_id]):
            self.damaged[load.log_id] = _damaged(report, count)
            raise _LogStays(self.damaged[load.log_id])

    async def _pointers(self, log_ids: Collection[LogId]) -> Counter[LogId]:
        """How many entries the index has in each of these logs."""
        found: Counter[LogId] = Counter()
        ledger_ids = await self._storage.ledger_ids()
        for start in range(0, len(ledger_ids), _LEDGERS_AT_A_TIME):
            found += await asyncio.to_thread(self._pointers_of, ledger_ids[start : start + _LEDGERS_AT_A_TIME], log_ids)
        return found

    def _pointers_of(self, ledger_ids: Iterable[LedgerId], log_ids: Collection[LogId]) -> Counter[LogId]:
        """On a thread."""
        found: Counter[LogId] = Counter()
        for ledger_id in ledger_ids:
            first: EntryId | None = _FIRST
            while first is not None:
                page = self._storage.index.locations(ledger_id, first, limit=_PAGE_ENTRIES)
                found.update(log_id for _, place in page if (log_id := split_location(place)[0]) in log_ids)
                first = EntryId(page[-1][0] + 1) if len(page) == _PAGE_ENTRIES else None
        return found

    # --- Space

    async def _need(self, count: int) -> None:
        """Raise unless `count` bytes fit above the floor. Room is made once, until the last log is done."""
        if self._free_bytes is None:
            return
        free = await self._free_bytes()
        if free < count + self._free_bytes_min and self._room is not None and self._make_room is not None:
            room, self._room = self._room, None
            await room.enter_async_context(self._make_room())
            free = await self._free_bytes()
        if free < count + self._free_bytes_min:
            needed = shown_bytes(count + self._free_bytes_min)
            raise _LogStays(f"not enough free space: needs {needed}, has {shown_bytes(free)}")


async def _batches(scan: LogScan, batch_bytes: int) -> AsyncGenerator[list[StoredEntry], None]:
    """The entries of a log, some at a time. Errors of the disk mean that the log stays; writes go through elsewhere."""
    batch: list[StoredEntry] = []
    size = 0
    try:
        async for entry in scan:
            batch.append(entry)
            size += len(entry.body)
            if size >= batch_bytes or len(batch) >= _BATCH_ENTRIES_MAX:
                yield batch
                batch, size = [], 0
    except (DamagedEntry, OSError) as error:
        raise _LogStays(f"cannot be read: {error}") from error
    if batch:
        yield batch


def _record_bytes(entries: Iterable[StoredEntry]) -> int:
    return sum(RECORD_HEADER_BYTES + len(each.body) for each in entries)


def _damaged(report: ScanReport | None, count: int) -> str:
    gaps = () if report is None else (*report.damaged, *report.torn)
    where = f"damaged at {gaps[0].offset} ({gaps[0].problem})" if gaps else "damaged"
    return f"{where}: {count} entries of live ledgers should be there and cannot be read"
