"""Reading a stream: its records in order, each once, and those to come as soon as they are confirmed.

    async with open_stream_reader(context, "orders", settings, start="earliest") as reader:
        async for record in reader: ...                  # one at a time
        async for batch in reader.batches(): ...         # as many as come together: costs little for each
        records = await reader.read_many(100, timeout_s=1.0)
    async for record in reader.read_to_end(): ...    # those that are there now, and no more

Iteration over a reader or its batches ends when the stream is sealed, and never otherwise.

Invariants:
  InOrder           records come in the order of their DLSNs, without gaps or repeats, whatever becomes of the writer.
  PositionIsSafe    a reader that is opened at `position` goes on with the first record that this one has not given.
  ErrorsComeLast    an error is raised after all records before it, and then each time; but a lost lock at once.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final, Protocol, Self, TypeAlias

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.names import stream_name
from quire.errors import DamagedEntry, HandleClosed, InvalidArgument, LockLost, QuireError, ReaderIdle, StreamSealed
from quire.metadata import HeldLock
from quire.runtime.opening import Opened
from quire.stream.context import StreamContext
from quire.stream.damage import unreadable
from quire.stream.decoding import Decoder, place_after
from quire.stream.entry_source import EntrySource
from quire.stream.lock import hold_stream_lock
from quire.stream.metrics import StreamMetrics
from quire.stream.read_ahead import ReadAhead
from quire.stream.reader_statistics import StreamReaderStatistics
from quire.stream.segment_index import SegmentIndex
from quire.stream.settings import StreamSettings
from quire.stream.start import Places, Start, Txid
from quire.stream.subscriptions import Subscriptions
from quire.types import DLSN

LOOK_S: Final = 0.02  # How often a reader that is to stop at an end, and waits, looks whether it is there.


class RunSource(Protocol):
    """Where a reader's entries come from: `EntrySource`, or a read proxy."""

    @property
    def segments(self) -> int:
        """Segments that were opened."""
        ...

    @property
    def damaged_entries(self) -> int:
        """Entries that were skipped."""
        ...

    @property
    def is_at_tail(self) -> bool: ...

    def skip(self, place: DLSN, error: QuireError) -> None: ...


class ReaderLock(Protocol):
    """What an exclusive reader holds: `HeldLock`, or what a read proxy holds for it."""

    @property
    def lost(self) -> bool: ...

    async def wait_lost(self) -> None: ...


FindEnd: TypeAlias = Callable[[], Awaitable[DLSN]]


class Commit(Protocol):
    """Stores the position of a reader under its name, and returns what is stored then."""

    async def __call__(self, position: DLSN, *, may_go_back: bool) -> DLSN: ...


class StreamReader(Opened):
    """One stream, read from one place on. Made by `open_stream_reader`. One task at a time should read."""

    def __init__(
        self,
        stream: str,
        source: RunSource,
        ahead: ReadAhead,
        settings: StreamSettings,
        metrics: StreamMetrics,
        *,
        start: DLSN,
        txid_min: int | None,
        commit: Commit | None,
        lock: ReaderLock | None,
        find_end: FindEnd,
    ) -> None:
        self.stream = stream
        self.find_end = find_end
        """Where the stream ends now."""
        self._source, self._ahead, self._settings = source, ahead, settings
        self._metrics, self._commit, self._lock = metrics, commit, lock
        self._decoder = Decoder(
            start=start, txid_min=txid_min, expand_sets=settings.expand_sets, on_damage=self._on_damage
        )
        self._at = start
        self._given: LogRecord | None = None  # The last one, if `_at` is not behind it yet.
        self._batch: list[LogRecord] = []
        self._next = 0  # Of the batch.
        self._problem: DamagedEntry | None = None  # Comes after what was decoded before it.
        self._records = self._entries = self._entry_bytes = 0
        self._is_open = True

    # --- Reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        """The next record. Raises `StopAsyncIteration` at the end of a sealed stream, `ReaderIdle`, and what reading
        raises: `PositionTruncated`, `NoSuchStream`, `DamagedEntry`, `LockLost`.
        """
        if self._next >= len(self._batch):
            await self._fill(math.inf)
        record = self._given = self._batch[self._next]
        self._next += 1
        self._records += 1
        return record

    async def batches(self) -> AsyncGenerator[list[LogRecord]]:
        """All records, in lists as they come, none of them empty. Raises what `__anext__` raises."""
        while True:
            try:
                await self._fill(math.inf)
            except StopAsyncIteration:
                return
            yield self._take(len(self._batch))

    async def read_to_end(self) -> AsyncGenerator[LogRecord]:
        """The records up to what is the end of the stream when the first one is asked for. So this ends, also while
        others go on writing. The next record of the reader is the one behind that end. Raises what `__anext__` raises.

        A writer that was killed may not have shown its last records to readers: they are there once another one opened
        the stream.
        """
        end = await self.find_end()
        while True:
            while self._next < len(self._batch):
                if self._batch[self._next].dlsn >= end:
                    return
                yield await anext(self)
            self._check_open()
            if self.has_reached(end):
                return
            try:
                await self._fill(LOOK_S)
            except StopAsyncIteration:
                return

    def has_reached(self, end: DLSN) -> bool:
        """Whether nothing that is to come is before `end`, of a reader that has given all it has.

        Control records may be between the last record and the end: a reader passes them without a word. In the segment
        that is being written it has all that was confirmed when it says that it waits for more.
        """
        at = self.position
        return at >= end or (at.lssn == end.lssn and self.statistics().at_tail)

    async def read_many(self, max_records: int, *, timeout_s: float = math.inf) -> list[LogRecord]:
        """Between one and `max_records`, as soon as there is any; none if `timeout_s` passes before.

        Raises `StreamSealed` at the end of a sealed stream; else what `__anext__` raises.
        """
        if max_records < 1 or not timeout_s >= 0:
            raise InvalidArgument(f"{max_records} records within {timeout_s} s cannot be read")
        try:
            await self._fill(timeout_s)
        except StopAsyncIteration as error:
            raise StreamSealed(f"stream {self.stream!r} has ended", stream=self.stream) from error
        return self._take(max_records)

    def _take(self, count: int) -> list[LogRecord]:
        begin, self._next = self._next, min(len(self._batch), self._next + count)
        whole = begin == 0 and self._next == len(self._batch)
        taken = self._batch if whole else self._batch[begin : self._next]
        if taken:
            self._given = taken[-1]
            self._records += len(taken)
        if whole:
            self._batch, self._next = [], 0  # It is the caller's now.
        return taken

    # --- What is known

    @property
    def lock(self) -> ReaderLock | None:
        """What an exclusive reader holds."""
        return self._lock

    @property
    def position(self) -> DLSN:
        """Where to resume: behind the last record that was given. Store it with what became of that record."""
        return self._at if self._given is None else place_after(self._given)

    def statistics(self) -> StreamReaderStatistics:
        has_more = self._next < len(self._batch)
        if self._ahead.entries and not has_more:
            # There may be nothing in them that anybody would be given.
            with suppress(QuireError, StopAsyncIteration):
                has_more = self._decode_next()
        return StreamReaderStatistics(
            records=self._records,
            entries=self._entries,
            entry_bytes=self._entry_bytes,
            segments=self._source.segments,
            damaged_entries=self._source.damaged_entries,
            position=self.position,
            buffered_entries=self._ahead.entries,
            buffered_bytes=self._ahead.bytes,
            at_tail=not has_more and not self._ahead.entries and self._source.is_at_tail,
        )

    async def commit(self, position: DLSN | None = None, *, may_go_back: bool = False) -> DLSN:
        """Store the position under the name that the reader was opened with; return what is stored then.

        A later one that is stored already stays, unless `may_go_back`. Raises `LockLost` if the reader is exclusive,
        and has lost its lock; `DamagedMetadata`, `NoSuchStream`, and what the metadata store raises.
        """
        self._check_open()
        if self._commit is None:
            raise InvalidArgument(
                f"the reader of stream {self.stream!r} has no name to commit under",
                hint="Open it with `subscription`, or store its position yourself.",
            )
        return await self._commit(self.position if position is None else position, may_go_back=may_go_back)

    # --- Getting more

    async def _fill(self, timeout_s: float) -> None:
        """Return once there are records in the batch, or when time is up. Raises what ends the stream."""
        self._check_open()
        if self._next < len(self._batch):
            return
        if self._ahead.entries:
            await asyncio.sleep(0)  # Whoever waits for nothing else must not keep what is under way waiting.
        loop, idle_s = asyncio.get_running_loop(), self._settings.idle_error_s
        ends_s = loop.time() + min(timeout_s, idle_s)
        while self._next >= len(self._batch) and not self._decode_next():
            try:
                async with asyncio.timeout_at(ends_s if ends_s < math.inf else None):
                    await self._ahead.wait()
            except TimeoutError as error:
                if timeout_s <= idle_s:
                    return
                raise self._idle_error() from error

    def _decode_next(self) -> bool:
        """Decode what is ready until there are records. Whether there are."""
        while self._problem is None:
            run = self._ahead.take()
            if run is None:
                return False
            self._batch, self._next = self._decoder.records(run), 0
            self._entries += len(run.entries)
            self._entry_bytes += run.size_bytes
            self._metrics.read_records.value += len(self._batch)
            self._metrics.read_bytes.value += run.size_bytes
            end = self._decoder.end_of_stream
            if end is not None:
                self._ahead.end(StopAsyncIteration())
            if self._batch:
                return True
            if self._problem is None:  # Nothing to give: but the position moves on.
                self._at, self._given = max(self.position, end or run.after), None
        raise self._problem.with_traceback(None)

    def _on_damage(self, place: DLSN, error: DamagedEntry) -> bool:
        if self._settings.skip_damaged:
            self._source.skip(place, error)
            return True
        self._problem = unreadable(self.stream, place, error)
        return False

    def _idle_error(self) -> ReaderIdle:
        return ReaderIdle(
            f"no record of stream {self.stream!r} came for {self._settings.idle_error_s:g} s",
            stream=self.stream,
            position=self.position,
        )

    # --- The end of a reader

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._closed_error()

    def _closed_error(self) -> HandleClosed:
        return HandleClosed(f"the reader of stream {self.stream!r} was closed", stream=self.stream)

    async def close(self) -> None:
        """Give nothing any more, and let go of the stream. Fine if it is closed."""
        self.stop()
        await self._close_held()

    def stop(self) -> None:
        """Give nothing any more. `open_stream_reader` does it when its block ends."""
        if self._is_open:
            self._drop()
            self._ahead.end(self._closed_error())
        self._is_open = False

    def on_lock_lost(self, error: LockLost) -> None:
        """Somebody else may read by now: nothing that is ready may be given."""
        self._drop()
        self._problem = None
        self._ahead.end(error)

    def _drop(self) -> None:
        self._at, self._given = self.position, None
        self._batch, self._next = [], 0


@asynccontextmanager
async def open_stream_reader(
    context: StreamContext,
    stream: str,
    settings: StreamSettings,
    *,
    start: Start = "earliest",
    subscription: str | None = None,
    exclusive: bool = False,
    skip_truncated: bool = False,
) -> AsyncIterator[StreamReader]:
    """A reader of a stream, from `start` on; with a `subscription` from the position that was committed last, if any.

    With `exclusive` it waits until no other reader holds the stream's read lock, or that of the subscription. With
    `skip_truncated` what was truncated or purged is passed over, now and later. Raises `InvalidName`, `NoSuchStream`,
    `PositionTruncated`, `PositionInFuture`, `StreamOwned`, `DamagedMetadata`, and what the metadata store raises.
    """
    name, clock = stream_name(stream), context.runtime.clock
    paths = context.paths(name)
    index = SegmentIndex(context.store, paths, clock, timeout_s=settings.call_timeout_s)
    places = Places(context, name, index, settings)
    subscriptions = Subscriptions(context.store, paths, index.same)
    async with AsyncExitStack() as stack:
        await index.refresh()
        lock: HeldLock | None = None
        if exclusive:
            path = paths.read_lock if subscription is None else await subscriptions.prepare_lock(subscription)
            shown = (
                f"reader of stream {name!r}" if subscription is None else f"subscription {subscription!r} of {name!r}"
            )
            holding = hold_stream_lock(context, path, timeout_s=settings.lock_timeout_s, shown=shown)
            lock = await stack.enter_async_context(holding)
            await index.refresh()  # That may have taken its time.
        committed = None if subscription is None else await subscriptions.read(subscription)
        begin = start if committed is None else committed
        at = await places.find(begin, skip_truncated=skip_truncated)
        source = EntrySource(
            context,
            name,
            index,
            places,
            settings,
            at=at,
            skip_truncated=skip_truncated,
            skip_at_first=not isinstance(begin, DLSN),
        )
        ahead = await stack.enter_async_context(ReadAhead(source.runs(), bytes_max=source.ready_bytes_max))

        async def find_end() -> DLSN:
            async with open_stream_reader(context, stream, settings, start="latest") as other:
                await index.check_same()  # The end of another stream of this name says nothing.
                return other.position

        reader = StreamReader(
            name,
            source,
            ahead,
            settings,
            context.metrics,
            start=at,
            txid_min=begin.value if isinstance(begin, Txid) else None,
            commit=None if subscription is None else partial(subscriptions.commit, subscription, lock=lock),
            lock=lock,
            find_end=find_end,
        )
        stack.callback(reader.stop)
        stack.enter_context(context.metrics.open(context.metrics.readers))
        if lock is not None:
            lost = LockLost(f"the session that held {lock.path!r} has ended: another reader may go on", path=lock.path)
            await stack.enter_async_context(minding(lock, reader, lost))
        yield reader


@asynccontextmanager
async def minding(lock: ReaderLock, reader: StreamReader, lost: LockLost) -> AsyncIterator[None]:
    """Stop the reader when its lock is lost: `lost` is what it raises then."""

    async def mind() -> None:
        await lock.wait_lost()
        reader.on_lock_lost(lost)

    task = asyncio.create_task(mind(), name=f"lock of a reader of {reader.stream}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
