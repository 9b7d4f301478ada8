"""The entries of a stream from a place on, one segment after the other, as they are confirmed.

A segment is over when its ledger is closed and read to its last entry; what the segment's own node says of its end does
not matter, and neither does whether it is completed yet, unless it has no entries at all: such a segment may be begun
anew. Then the next one is read, or waited for: two segments are in progress while a writer rolls, none when it is gone.
A segment that is only in cold storage is read from there; one that moves there while it is read goes on from there.

Invariants:
  InOrder         entries come in the order of the stream, each once.
  NothingMissed   a segment is passed over only if it is truncated or purged, and that is an error unless it was asked
                  for; an entry only if it cannot be read from any replica, and damage is to be skipped.
  ReadOnly        a segment in progress is opened without recovery: readers do not disturb its writer.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from quire.codec.cold import ColdSegment
from quire.codec.entry import Entry
from quire.codec.stream_metadata.segment import Segment
from quire.errors import DamagedColdFile, DamagedEntry, EntriesUnknown, NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.reading.reader import LedgerReader
from quire.stream.cold_segments import open_cold
from quire.stream.context import StreamContext
from quire.stream.damage import place_of, report_skipped, unreadable
from quire.stream.segment_index import SegmentIndex, patiently
from quire.stream.settings import StreamSettings
from quire.stream.start import Places, position_in_future
from quire.stream.truncation import position_truncated
from quire.types import DLSN, EntryId, Lssn, SlotId

RUN_BYTES: Final = 64 << 10  # A run is decoded without a pause: it should not keep the event loop for long.
_PURGE_S: Final = 10.0  # Of a segment that is purged the ledger goes first, and its node not much later.


class Run(NamedTuple):
    """Entries of one segment that follow each other; none where a segment ends."""

    lssn: Lssn
    is_enveloped: bool  # What the entries are in: see `quire.codec.stream.entries`.
    entries: list[Entry]
    size_bytes: int
    after: DLSN  # Where reading goes on behind them.


class EntrySource:
    """All entries from `at` on. `runs` may be called once."""

    def __init__(
        self,
        context: StreamContext,
        stream: str,
        index: SegmentIndex,
        places: Places,
        settings: StreamSettings,
        *,
        at: DLSN,
        skip_truncated: bool,
        skip_at_first: bool,
    ) -> None:
        """With `skip_at_first` nobody asked for just this place: what was purged since it was found is passed over."""
        self._context, self._stream, self._index, self._places = context, stream, index, places
        self._settings, self._at, self._skip_truncated = settings, at, skip_truncated
        self._skip_at_first = skip_at_first
        self._look_again_s = settings.idle_s if settings.idle_s < math.inf else None
        self._ledger: LedgerReader | None = None
        self._next = EntryId(0)  # Of the open ledger.
        self._end = EntryId(0)  # Of the last one that was read to its end: its last entry plus one.
        self._awaits_segment = False
        # Of what may be ready at all, one window may be in our hands, and another one on its way.
        self._window_bytes_max = max(1, settings.read_ahead_bytes_max // 4)
        window_bytes = min(self._window_bytes_max, context.ledgers.settings.read_ahead_bytes)
        self.ready_bytes_max = max(1, settings.read_ahead_bytes_max - 2 * window_bytes)
        self.segments = 0  # That were opened.
        self.damaged_entries = 0  # That were skipped.
        self.on_tail: Callable[[], None] | None = None  # Called whenever a wait begins for what is not confirmed yet.
        self.on_segment: Callable[[bool], None] | None = None
        """Called before anything of a segment is read, with whether it is only in cold storage. May raise."""

    @property
    def is_at_tail(self) -> bool:
        """Whether all that is known to be confirmed was fetched."""
        if self._ledger is None:
            return self._awaits_segment
        return self._awaits_entry() and not self._ledger.is_closed

    @property
    def lag_entries(self) -> int:
        """Entries of the open ledger that are known to be confirmed, and not fetched yet."""
        return 0 if self._ledger is None else max(0, self._ledger.last_add_confirmed + 1 - self._next)

    def _tell_tail(self) -> None:
        if self.on_tail is not None and self.is_at_tail:
            self.on_tail()

    def _awaits_entry(self) -> bool:
        return self._ledger is not None and self._next > self._ledger.last_add_confirmed

    async def runs(self) -> AsyncGenerator[Run]:
        """Ends when the stream is sealed and there is nothing more. Raises `PositionTruncated`, `PositionInFuture`,
        `NoSuchStream`, `DamagedEntry`, and what reading ledgers and metadata raises after trying for long.
        """
        while True:
            entered = await self._enter()
            if entered is None:
                return
            if self.on_segment is not None:
                self.on_segment(isinstance(entered, ColdSegment))
            begin = self._at
            segment = entered.segment if isinstance(entered, ColdSegment) else entered
            try:
                async with aclosing(self._entered_runs(entered, begin.entry_id)) as runs:
                    async for run in runs:
                        self._at, self._skip_at_first = run.after, False
                        yield run
            except (NoSuchLedger, DamagedColdFile) as error:
                await self._on_gone(error, entered, has_begun=self._at != begin or begin[1:] > (0, 0))
                continue
            self._check_reached(segment, begin)
            if not await self._is_over(segment):
                continue
            self._at = begin.next_segment()
            yield Run(segment.lssn, segment.is_enveloped, [], 0, self._at)

    # --- From segment to segment

    async def _enter(self) -> Segment | ColdSegment | None:
        """The segment to go on with, once it is there; None if the stream has ended before it."""
        while True:
            self._awaits_segment = self._at.lssn not in self._index
            self._tell_tail()
            try:
                if not await self._index.wait(self._at.lssn, look_again_s=self._look_again_s):
                    return None
            finally:
                self._awaits_segment = False
            self._index.forget()  # It may have been truncated since somebody looked at it.
            if self._index.is_cold(self._at.lssn):
                await self._index.refresh()  # By Apache's programs, too, which change what is hot and nothing else.
            skip = self._skip_truncated or self._skip_at_first
            self._at = await self._places.admit(self._at, skip_truncated=skip)
            segment = await self._index.located(self._at.lssn) if self._at.lssn in self._index else None
            await self._index.check_same()
            if segment is not None:
                return segment  # Otherwise it is to come, or went while we looked.

    async def _is_over(self, segment: Segment) -> bool:
        """Whether a segment whose ledger is closed, and read, will never be more than that."""
        if segment.completion is not None or self._end > 0:
            return True
        self._awaits_segment = True
        self._tell_tail()
        try:
            return await self._index.wait_decided(segment, look_again_s=self._look_again_s)
        finally:
            self._awaits_segment = False

    async def _on_gone(
        self, error: NoSuchLedger | DamagedColdFile, entered: Segment | ColdSegment, *, has_begun: bool
    ) -> None:
        """Return if reading may go on where it is. The stream may be deleted, or the segment purged, dropped or
        restored; and one in progress without entries may be deleted by a recovery, and begun again with another ledger.
        """
        clock = self._context.runtime.clock
        ends_s = clock.monotonic() + _PURGE_S
        while True:
            await self._index.refresh()
            now = await self._index.located(self._at.lssn)
            if isinstance(now, ColdSegment) != isinstance(entered, ColdSegment) and now is not None:
                return  # It moved. All that it had is where it is now.
            if isinstance(now, Segment) and now.completion is not None and self._is_replaced(entered, now):
                return  # It moved there and back: another ledger has the same entries.
            is_purged = now is None and self._index.last is not None and self._index.last > self._at.lssn
            if is_purged or (not has_begun and self._is_replaced(entered, now)):
                break
            # Ledgers and files go first, then the nodes: the segment's if it is purged, all if the stream is deleted.
            is_damaged = isinstance(error, DamagedColdFile) and not error.facts.get("is_missing")
            if is_damaged or clock.monotonic() > ends_s:
                raise error
            await clock.sleep(_PURGE_S / 100)
        if not has_begun:
            return
        if not self._skip_truncated:
            raise position_truncated(self._stream, self._at, await self._places.earliest()) from error
        self._at = self._at.next_segment()

    @staticmethod
    def _is_replaced(before: Segment | ColdSegment, now: Segment | ColdSegment | None) -> bool:
        if now is None or isinstance(before, ColdSegment) or isinstance(now, ColdSegment):
            return now is None
        return now.ledger_id != before.ledger_id

    def _check_reached(self, segment: Segment, begin: DLSN) -> None:
        """The ledger is closed. Whoever began behind its end was never there."""
        if begin.entry_id > self._end:
            raise position_in_future(
                self._stream, begin, f"segment {segment.lssn} has {self._end} entries, and is closed"
            )

    # --- One segment

    def _entered_runs(self, entered: Segment | ColdSegment, first: EntryId) -> AsyncGenerator[Run]:
        if isinstance(entered, ColdSegment):
            return self._cold_runs(entered, first)
        return self._segment_runs(entered, first)

    async def _cold_runs(self, cold: ColdSegment, first: EntryId) -> AsyncGenerator[Run]:
        """What a file has, as entries without envelopes: see `quire.stream.cold_entries`."""
        clock, timeout_s = self._context.runtime.clock, self._settings.call_timeout_s
        file = await patiently(clock, lambda: open_cold(self._context, self._stream, cold), timeout_s=timeout_s)
        self.segments += 1
        after = DLSN(cold.lssn, first, SlotId(0))
        for group in file.groups_from(first):
            entries = await patiently(clock, partial(file.entries, group, first=first), timeout_s=timeout_s)
            for run in _runs_of(cold.lssn, entries, is_enveloped=False):
                after = run.after
                yield run
        self._end = EntryId(cold.file.entries)
        if after.entry_id < self._end:
            # Behind the last record there were control records. Whoever read those in the ledger is behind them.
            yield Run(cold.lssn, False, [], 0, DLSN(cold.lssn, self._end, SlotId(0)))

    async def _segment_runs(self, segment: Segment, first: EntryId) -> AsyncGenerator[Run]:
        async with self._opened(segment) as ledger:
            self._next, self._ledger = EntryId(max(0, first)), ledger
            self.segments += 1
            while True:
                try:
                    async with aclosing(ledger.follow_windows(self._next)) as windows:
                        while (entries := await self._next_window(windows)) is not None:
                            self._next = EntryId(entries[-1].entry_id + 1)
                            for run in _runs_of(segment.lssn, entries, is_enveloped=segment.is_enveloped):
                                yield run
                    break
                except _IdleError:
                    await self._on_idle()
                except (DamagedEntry, EntriesUnknown, NoSuchEntry) as error:
                    await self._check_not_dropped(segment)
                    self._on_damage(error, segment)
            self._end = EntryId(ledger.last_add_confirmed + 1)

    @asynccontextmanager
    async def _opened(self, segment: Segment) -> AsyncIterator[LedgerReader]:
        settings = self._settings
        async with AsyncExitStack() as stack:
            ledger = await patiently(
                self._context.runtime.clock,
                lambda: stack.enter_async_context(
                    self._context.ledgers.open(
                        segment.ledger_id, password=settings.password, recover=segment.completion is not None
                    )
                ),
                timeout_s=settings.call_timeout_s,
            )
            ledger.part_of = place_of(self._stream, segment.lssn)
            ledger.limit_read_ahead(self._window_bytes_max)
            try:
                yield ledger
            finally:
                self._ledger = None

    async def _next_window(self, windows: AsyncGenerator[list[Entry]]) -> list[Entry] | None:
        """What `windows` yields next, or None at its end. Raises `_IdleError` after a long wait: it has to be opened
        again then.
        """
        self._tell_tail()
        try:
            async with asyncio.timeout(self._look_again_s if self._awaits_entry() else None) as limit:
                return await anext(windows, None)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _IdleError from error

    async def _on_idle(self) -> None:
        """Nothing came for long: make sure that the stream is still there, and that the ledger has not been closed."""
        await self._index.refresh()
        if self._ledger is not None:
            try:
                await self._ledger.refresh()
            except NoSuchLedger:
                self._ledger.tell_news()  # It notices by itself, as soon as it looks.

    async def _check_not_dropped(self, segment: Segment) -> None:
        """Raise `NoSuchLedger` if the segment has this ledger no more: it is only cold by now, or was restored."""
        await self._index.refresh()
        now = await self._index.located(segment.lssn)
        if isinstance(now, ColdSegment) or (now is not None and self._is_replaced(segment, now)):
            raise NoSuchLedger(f"ledger {segment.ledger_id} was dropped", ledger_id=segment.ledger_id)

    def _on_damage(self, error: QuireError, segment: Segment) -> None:
        """No replica gives the next entry. Go on behind it if that was asked for."""
        place = DLSN(segment.lssn, self._next, SlotId(0))
        if not self._settings.skip_damaged:
            raise unreadable(self._stream, place, error) from error
        self.skip(place, error)
        self._next = EntryId(self._next + 1)

    def skip(self, place: DLSN, error: QuireError) -> None:
        """Report an entry that nobody will see."""
        self.damaged_entries += 1
        self._context.metrics.damaged_entries.add()
        report_skipped(self._stream, place, error)


class _IdleError(Exception):
    """Nothing came for long."""


def _runs_of(lssn: Lssn, entries: list[Entry], *, is_enveloped: bool) -> list[Run]:
    """A window in parts of `RUN_BYTES`, or of one entry."""
    runs: list[Run] = []
    part: list[Entry] = []
    size_bytes = 0

    def end() -> None:
        after = DLSN(lssn, EntryId(part[-1].entry_id + 1), SlotId(0))
        runs.append(Run(lssn, is_enveloped, part, size_bytes, after))

    for entry in entries:
        if part and size_bytes + len(entry.payload) > RUN_BYTES:
            end()
            part, size_bytes = [], 0
        part.append(entry)
        size_bytes += len(entry.payload)
    if part:
        end()
    return runs
