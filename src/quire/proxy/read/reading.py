"""One stream as one client reads it: from the request to the last message.

    async with open_reading(service, request) as reading:
        while (message := await reading.next_message()) is not None: ...

The first message says where reading begins. Then come entries or records as they are there; after a while without any,
a message with nothing but the position. The next message is made when it is asked for: a client that does not take its
messages holds nothing here.

Invariants:
  InOrder        what messages carry is the stream from the place where reading began, without gaps or repeats; but for
                 gaps that the client agreed to, and is told of.
  LockIsHeld     an exclusive reader gets nothing after its lock was lost.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    DamagedEntry,
    InvalidArgument,
    LockLost,
    OverCapacity,
    PositionTruncated,
    QuireError,
)
from quire.metadata import HeldLock
from quire.protocol.read_pacing import BytePace
from quire.proxy.read.composing import Composer, EntryComposer, RecordComposer
from quire.proxy.read.cursor import Cursor, StreamEnded
from quire.proxy.read.frames import gap_message, progress_frame
from quire.proxy.read.openings import Found, start_of
from quire.proxy.read.service import ReadService
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.rpc.serving.transport import Take
from quire.stream.lock import hold_stream_lock
from quire.stream.start import Start, Txid
from quire.stream.subscriptions import Subscriptions
from quire.types import DLSN

_SLOW_LAG_BYTES: Final = 64 << 20  # A reader that says nothing else is slow when it is so far behind.


class Reading:
    """Made by `open_reading`."""

    def __init__(
        self,
        service: ReadService,
        request: pb.ReadRequest,
        cursor: Cursor,
        composer: Composer,
        *,
        start: Start,
        has_gap: bool,
        take: Take | None,
    ) -> None:
        """With `has_gap` what was at the start is gone already. `take`: see `Offering`."""
        self.stream, self.cursor = cursor.home.stream, cursor
        self._service, self._request, self._composer = service, request, composer
        self._settings = service.settings
        # Nobody asked for just this place: what was purged since it was found is passed over.
        self._is_adrift = not isinstance(start, DLSN)
        self._gap = gap_message(start, cursor.position) if has_gap and isinstance(start, DLSN) else None
        self._is_opened = self._has_ended = False
        self._incarnation = str(cursor.home.incarnation)
        self._pace = BytePace(request.max_bytes_per_s or math.inf)
        self._is_unlimited = not request.max_bytes_per_s and not service.is_paced
        self._bytes_max = min(request.max_frame_bytes or self._settings.frame_bytes, self._settings.frame_bytes_max)
        self._slow = request.slow
        self._loop = asyncio.get_running_loop()
        self._idle_s = request.idle_ping_ms / 1000 or self._settings.idle_ping_s
        self._visible: Cursor | None = None
        if request.HasField("min_visible"):
            self._visible = cursor.home.cursor(dlsn_of(request.min_visible))
        self._ping_s = self._loop.time() + self._idle_s
        self.messages = 0
        self._told = cursor.position  # The place that the client knows of.
        self._damage: DamagedEntry | None = None  # What comes next.
        self._take = take
        if take is not None and self._is_unlimited and self._slow == pb.KEEP and isinstance(composer, EntryComposer):
            cursor.offer = self._offer

    def close(self) -> None:
        self.cursor.close()
        if self._visible is not None:
            self._visible.close()

    # --- Messages

    async def next_message(self) -> bytes | None:
        """An encoded `ReadEvent`; None after the end of the stream. Raises what ends the reading."""
        if self._has_ended:
            return None
        if not self._is_opened:
            self._is_opened = True
            position = dlsn_message(self.cursor.position)
            opened = pb.ReadOpened(resolved=position, mode=self.cursor.mode, incarnation=self._incarnation)
            return self._sent(pb.ReadEvent(opened=opened, gap=self._gap).SerializeToString(), entries=0)
        if self._damage is not None:
            raise self._damage
        while True:
            try:
                message = await self._visible_first() if self._visible is not None else await self._more()
            except StreamEnded:
                return self._end()
            except PositionTruncated:
                message = await self._pass_over()
            except DamagedEntry as error:
                if self._told == self.cursor.position:
                    raise
                self._damage, message = error, self._ping()  # To pass over it a client has to know where it is.
            if message is not None:
                return message

    async def _visible_first(self) -> bytes | None:
        """Wait until the record is confirmed that the client knows of."""
        assert self._visible is not None
        try:
            if not await self._visible.wait(deadline_s=self._ping_s):
                return self._ping()
        except (PositionTruncated, StreamEnded):
            pass  # It has been, then.
        self._visible.close()
        self._visible = None
        return None

    async def _more(self) -> bytes | None:
        cursor = self.cursor
        if not self._is_unlimited:
            await self._wait_for_turn()
        if self._slow != pb.KEEP and cursor.behind_bytes > (self._request.slow_lag_bytes or _SLOW_LAG_BYTES):
            return await self._on_slow()
        if not await cursor.wait(deadline_s=self._ping_s):
            return self._ping()
        composed = self._composer.compose(cursor, self._bytes_max)
        if composed is None:
            return None
        cursor.advance(composed.after, composed.taken_bytes)
        self._is_adrift = False
        message = composed.message
        if composed.ends:
            self._has_ended = True
            message += pb.ReadEvent(end_of_stream=True).SerializeToString()
        elif composed.is_empty:
            # The next message tells how far we are. There may be none for long, and the client should hear from us.
            return self._ping() if self._loop.time() >= self._ping_s else None
        if not self._is_unlimited:
            self._charge(len(message))
        return self._sent(message, entries=composed.entries)

    def _offer(self) -> bool:
        """Hand out what came while `_more` waits for it: whoever has hundreds of readers cannot wake a task for each.
        Whatever is not quite usual is left to `_more`.
        """
        cursor, take = self.cursor, self._take
        try:
            composed = self._composer.compose(cursor, self._bytes_max)
        except QuireError:
            return False  # It is raised again, where it belongs.
        if composed is None or composed.is_empty or take is None or not take(composed.message):
            return False
        cursor.advance(composed.after, composed.taken_bytes)
        self._is_adrift = False
        self._sent(composed.message, entries=composed.entries)
        cursor.postpone(self._ping_s)
        return cursor.is_along

    def _sent(self, message: bytes, *, entries: int) -> bytes:
        self._ping_s = self._loop.time() + self._idle_s
        self._told = self.cursor.position
        self.messages += 1
        self._service.metrics.on_sent(entries=entries, size_bytes=len(message))
        return message

    def _ping(self) -> bytes:
        return self._sent(progress_frame(self.cursor.position, self.cursor.mode), entries=0)

    def _end(self) -> bytes:
        self._has_ended = True
        progress = progress_frame(self.cursor.position, self.cursor.mode)
        return self._sent(progress + pb.ReadEvent(end_of_stream=True).SerializeToString(), entries=0)

    # --- Places that are gone

    async def _pass_over(self) -> bytes:
        """The reader's place was truncated or purged. Raises that again, unless it may go on behind it."""
        cursor, is_adrift = self.cursor, self._is_adrift
        skips = self._request.truncated == pb.SKIP
        found = await self._find(cursor.position, skip_truncated=skips or is_adrift)
        return self._jump(found, is_told=found.has_gap and not is_adrift)

    async def _on_slow(self) -> bytes:
        cursor = self.cursor
        if self._request.slow == pb.DISCONNECT:
            raise OverCapacity(
                f"the reader of stream {self.stream!r} has fallen {cursor.behind_bytes} bytes behind",
                hint="Read faster, or ask for a policy that keeps slow readers.",
                stream=self.stream,
                position=cursor.position,
            )
        return self._jump(await self._find("latest", skip_truncated=False), is_told=True)

    async def _find(self, start: Start, *, skip_truncated: bool) -> Found:
        find = self._service.openings.find
        return await find(self.stream, start, skip_truncated=skip_truncated, incarnation=self._incarnation)

    def _jump(self, found: Found, *, is_told: bool) -> bytes:
        cursor, begin = self.cursor, self.cursor.position
        to = max(found.at, begin)
        cursor.move(to)
        event = pb.ReadEvent(progress=pb.Progress(position=dlsn_message(to), mode=self.cursor.mode))
        if is_told and to > begin:
            event.gap.CopyFrom(gap_message(begin, to))
        return self._sent(event.SerializeToString(), entries=0)

    # --- Not too fast

    async def _wait_for_turn(self) -> None:
        paces, now_s = (self._pace, self._service.pace_of(self.cursor.mode)), self._loop.time()
        delay_s = max(pace.delay_s(now_s=now_s) for pace in paces)
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def _charge(self, size_bytes: int) -> None:
        now_s = self._loop.time()
        self._pace.take(size_bytes, now_s=now_s)
        self._service.pace_of(self.cursor.mode).take(size_bytes, now_s=now_s)


@asynccontextmanager
async def open_reading(
    service: ReadService, request: pb.ReadRequest, *, take: Take | None = None
) -> AsyncIterator[Reading]:
    """With `take` messages may also be handed out by that.

    Raises `InvalidName`, `InvalidArgument`, `NoSuchStream`, `PositionTruncated`, `PositionInFuture`, `StreamOwned`,
    `OverCapacity`, and what the metadata store raises.
    """
    if request.format not in (pb.ENTRIES, pb.RECORDS):
        raise InvalidArgument(f"this proxy does not know format {request.format}")
    async with AsyncExitStack() as stack:
        stack.enter_context(service.counted_reader())
        lock: HeldLock | None = None
        if request.exclusive:
            lock = await stack.enter_async_context(_locked(service, request))
        begin, incarnation = start_of(request.start), request.incarnation
        if request.subscription:
            name = service.stream_name(request.stream)
            incarnation = str(await service.openings.incarnation(name, incarnation))  # That the position is of.
            begin = await service.subscriptions_of(name).read(request.subscription) or begin
        found = await service.openings.find(
            request.stream, begin, skip_truncated=request.truncated == pb.SKIP, incarnation=incarnation
        )
        home = service.lanes_of(found)
        cursor = home.cursor(found.at)
        composer: Composer = EntryComposer()
        if request.format == pb.RECORDS:
            txid_min = begin.value if isinstance(begin, Txid) else None
            composer = RecordComposer(home.records, start=found.at, txid_min=txid_min)
        reading = Reading(service, request, cursor, composer, start=begin, has_gap=found.has_gap, take=take)
        stack.callback(reading.close)
        stack.enter_context(service.shown(reading))
        if lock is not None:
            await stack.enter_async_context(_minding(lock, cursor))
        yield reading


@asynccontextmanager
async def _locked(service: ReadService, request: pb.ReadRequest) -> AsyncIterator[HeldLock]:
    """Hold the stream's read lock, or that of the subscription."""
    name = service.stream_name(request.stream)
    context, settings = service.context, service.namespace.settings_for(name)
    await service.openings.incarnation(name)  # Its nodes have to be there.
    path, shown = context.paths(name).read_lock, f"reader of stream {name!r}"
    if request.subscription:
        path = await Subscriptions(context.store, context.paths(name)).prepare_lock(request.subscription)
        shown = f"subscription {request.subscription!r} of {name!r}"
    timeout_s = request.lock_timeout_ms / 1000 if request.lock_timeout_ms else settings.lock_timeout_s
    async with hold_stream_lock(context, path, timeout_s=timeout_s, shown=shown) as held:
        with service.commits.guarded(name, request.subscription, held):
            yield held


@asynccontextmanager
async def _minding(lock: HeldLock, cursor: Cursor) -> AsyncIterator[None]:
    """Stop the reader when its lock is lost."""

    async def mind() -> None:
        await lock.wait_lost()
        cursor.fail(
            LockLost(f"the session that held {lock.path!r} has ended: another reader may go on", path=lock.path)
        )

    task = asyncio.create_task(mind(), name=f"lock of a reader of {cursor.home.stream}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
