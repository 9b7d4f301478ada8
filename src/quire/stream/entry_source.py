"""The entries of a stream from a place on, one segment after the other, as they are confirmed.

A segment is over when its ledger is closed and read to its last entry; what the segment's own node says of its end does
not matter, and neither does whether it is completed yet, unless it has no entries at all: such a segment may be begun
anew. Then the next one is read, or waited for: two segments are in progress while a writer rolls, none when it is gone.

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
from typing import Final, NamedTuple

from quire.codec.entry import Entry
from quire.codec.stream_metadata.segment import Segment
from quire.errors import DamagedEntry, EntriesUnknown, NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.reader import LedgerReader
from quire.stream.context import StreamContext
from quire.stream.damage import report_skipped, unreadable
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

    @property
    def is_at_tail(self) -> bool:
        """Whether all that is known to be confirmed was fetched."""
        if self._ledger is None:
            return self._awaits_segment
        return self._awaits_entry() and not self._ledger.is_closed

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
            segment = await self._enter()
            if segment is None:
                return
            begin = self._at
            try:
                async with aclosing(self._segment_runs(segment, begin.entry_id)) as runs:
                    async for run in runs:
                        self._at, self._skip_at_first = run.after, False
                        yield run
            except NoSuchLedger as error:
                await self._on_ledger_gone(error, segment, has_begun=self._at != begin or begin[1:] > (0, 0))
                continue
            self._check_reached(segment, begin)
            if not await self._is_over(segment):
                continue
            self._at = begin.next_segment()
            yield Run(segment.lssn, segment.is_enveloped, [], 0, self._at)

    # --- From segment to segment

    async def _enter(self) -> Segment | None:
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
            skip = self._skip_truncated or self._skip_at_first
            self._at = await self._places.admit(self._at, skip_truncated=skip)
            segment = await self._index.segment(self._at.lssn) if self._at.lssn in self._index else None
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

    async def _on_ledger_gone(self, error: NoSuchLedger, segment: Segment, *, has_begun: bool) -> None:
        """Return if reading may go on where it is. The stream may be deleted, or the segment purged; and one in
        progress without entries may be deleted by a recovery, and begun again with another ledger.
        """
        clock = self._context.runtime.clock
        ends_s = clock.monotonic() + _PURGE_S
        while True:
            await self._index.refresh()
            now = await self._index.segment(segment.lssn)
            is_purged = now is None and self._index.last is not None and self._index.last > segment.lssn
            is_replaced = now is None or now.ledger_id != segment.ledger_id
            if is_purged or (is_replaced and not has_begun):
                break
            # Ledgers go first, then the nodes: that of the segment if it is purged, all if the stream is deleted.
            if clock.monotonic() > ends_s:
                raise error
            await clock.sleep(_PURGE_S / 100)
        if not has_begun:
            return
        if not self._skip_truncated:
            raise position_truncated(self._stream, self._at, await self._places.earliest()) from error
        self._at = self._at.next_segment()

    def _check_reached(self, segment: Segment, begin: DLSN) -> None:
        """The ledger is closed. Whoever began behind its end was never there."""
        if begin.entry_id > self._end:
            raise position_in_future(
                self._stream, begin, f"segment {segment.lssn} has {self._end} entries, and is closed"
            )

    # --- One segment

    async def _segment_runs(self, segment: Segment, first: EntryId) -> AsyncGenerator[Run]:
        async with self._opened(segment) as ledger:
            self._next, self._ledger = EntryId(max(0, first)), ledger
            self.segments += 1
            while True:
                try:
                    async with aclosing(ledger.follow_windows(self._next)) as windows:
                        while (entries := await self._next_window(windows)) is not None:
                            self._next = EntryId(entries[-1].entry_id + 1)
                            for run in _runs_of(segment, entries):
                                yield run
                    break
                except _IdleError:
                    await self._on_idle()
                except (DamagedEntry, EntriesUnknown, NoSuchEntry) as error:
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


def _runs_of(segment: Segment, entries: list[Entry]) -> list[Run]:
    """A window in parts of `RUN_BYTES`, or of one entry."""
    runs: list[Run] = []
    part: list[Entry] = []
    size_bytes = 0

    def end() -> None:
        after = DLSN(segment.lssn, EntryId(part[-1].entry_id + 1), SlotId(0))
        runs.append(Run(segment.lssn, segment.is_enveloped, part, size_bytes, after))

    for entry in entries:
        if part and size_bytes + len(entry.payload) > RUN_BYTES:
            end()
            part, size_bytes = [], 0
        part.append(entry)
        size_bytes += len(entry.payload)
    end()
    return runs
