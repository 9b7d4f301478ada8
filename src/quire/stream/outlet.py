"""Where the records of a stream leave: one queue, one open segment, and what happens when that has to be another one.

What waits is sent as the transmit policy says. When a segment is old or large enough, a ledger is made for the next one
while records still go into it; then nothing is sent until all that was sent before is acknowledged, and the next one
takes over. If a segment breaks off, what was in flight may be in the stream; what was not sent is refused; and the next
record has the segment recovered and another one begun.

Invariants:
  AcknowledgedInOrder   no record is acknowledged before all that were pushed before it, in this or another segment.
  FencedStaysSilent     after another writer took over, nothing is acknowledged any more.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

from quire.codec.stream.records import CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD
from quire.errors import (
    AppendCancelled,
    HandleClosed,
    LedgerFenced,
    Outcome,
    QuireError,
    SessionExpired,
    StreamSealed,
    Unavailable,
    WriterFenced,
)
from quire.ledger.writing.errors import again
from quire.ledger.writing.window import Window
from quire.protocol.segments import RollRule
from quire.stream.append_rules import broken_off, never_sent, partly_sent, transmit_rule
from quire.stream.context import StreamContext
from quire.stream.record_queue import Call, Part, Pushed, RecordQueue
from quire.stream.retention import Retention
from quire.stream.segment_writer import SegmentWriter
from quire.stream.segments import Begun, StreamSegments
from quire.stream.settings import StreamSettings
from quire.stream.timers import Timers
from quire.telemetry.events import logger

_log = logger("stream")
_ENTRIES_A_TURN: Final = 16  # Entries are encoded without a pause: answers and other streams wait meanwhile.
_POSITION_ROLL: Final = 2**30  # Positions in a segment have 31 bits.
_RETRY_S: Final = 1.0


class Outlet:
    """The sending half of a stream's writer."""

    def __init__(self, context: StreamContext, segments: StreamSegments, sample: Callable[[], StreamSettings]) -> None:
        self._clock, self._metrics = context.runtime.clock, context.metrics
        self._segments, self._sample, self._stream = segments, sample, segments.stream
        self._settings = settings = sample()
        self._rule = transmit_rule(settings)
        self._window = Window(entries_max=settings.window_records_max, bytes_max=settings.window_bytes_max)
        self._queue = RecordQueue()
        self.segment: SegmentWriter | None = None
        self._begun_s = self._active_s = self._clock.monotonic()
        self._roll_not_before_s = 0.0
        self._needs_recovery = False
        self._has_left_one = False  # A segment is not completed, and so none behind it may be: recovery does both.
        self._is_held = False  # Nothing is sent: a segment is about to take over from another.
        self._is_forced = False  # What waits is sent whatever the policy says.
        self._is_closing = False
        self._closing: asyncio.Task[None] | None = None
        self._problem: QuireError | None = None  # Why this writer is over.
        self._pump_is_due = False
        self._timers = Timers()
        self._turning: asyncio.Task[None] | None = None  # Begins, changes or ends segments: one at a time.
        self._tasks: set[asyncio.Task[None]] = set()
        self._retention = Retention(context, segments.nodes, password=settings.password)
        self.records = self.bytes = self.rolls = 0  # Records and bytes that were acknowledged.

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    @property
    def problem(self) -> QuireError | None:
        """Why this writer is over."""
        return self._problem

    @property
    def waiting_records(self) -> int:
        return self._queue.records

    # --- Taking records in

    async def push(self, make: Callable[[], Call]) -> Call:
        """Queue the records of the call that `make` makes, when it is its turn. What becomes of them, `done` tells.

        Raises what `make` raises, and why nothing can be pushed any more.
        """
        self.check_open()
        try:
            if await self._window.wait():
                self.check_open()
            call = make()
            self.push_nowait(call)
        finally:
            self._window.pass_on()
        return call

    def push_nowait(self, call: Pushed) -> None:
        """Queue these records, whether or not the window has room. The caller has asked whether this outlet is open."""
        self._window.take(len(call.payloads), call.size_bytes)
        self._queue.push(call)
        self._pump_soon()

    async def flush(self) -> None:
        """Send what waits, and wait until everything that was appended so far is acknowledged, or has failed."""
        self._is_forced = True
        self._pump_soon()
        last = self._queue.last
        if last is not None:
            await last.wait_settled()
        if self.segment is not None and self.segment.in_flight:
            try:
                await self.segment.flush()
            except QuireError:
                pass  # Whoever appended it is told.

    def check_open(self) -> None:
        if self._problem is not None:
            raise again(self._problem)
        if self._is_closing:
            raise HandleClosed(f"the writer of stream {self._stream!r} is closed", stream=self._stream)

    # --- Sending

    def _pump_soon(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Make entries of what waits, as far as the policy and the windows allow."""
        self._pump_is_due = False
        parts: list[Part] = []
        try:
            self._send_due(parts)
        except Exception as bug:
            self._break_off(bug)
            for part in parts:  # Taken from the queue, and in no entry that will tell its caller.
                part.call.fail(partly_sent(self._stream, broken_off(self._stream, bug)))

    def _send_due(self, parts: list[Part]) -> None:
        """`parts` has what was taken from the queue last."""
        queue, segment = self._queue, self.segment
        if self._is_held or self._problem is not None:
            return
        if segment is None:
            if queue.records and self._turning is None:
                self._turn(self._begin())
            return
        sent = 0
        while segment.has_room and self._rule.is_due(
            waiting_bytes=queue.bytes, in_flight_entries=segment.in_flight, is_forced=self._is_forced
        ):
            if sent == _ENTRIES_A_TURN:
                self._pump_soon()
                break
            parts[:], records, size_bytes = queue.take(self._settings.entry_bytes)
            segment.send(parts, records, size_bytes)
            parts.clear()
            sent += 1
        if sent:
            self._active_s = self._clock.monotonic()
        if not queue.records:
            self._is_forced = False
        elif self._settings.transmit == "periodic":
            self._timers.arm("flush", self._settings.flush_interval_s, self._on_flush_time)
        self._roll_if_due(segment)

    def _on_flush_time(self) -> None:
        self._is_forced = True
        self._pump()

    def _on_progress(self, records: int, size_bytes: int) -> None:
        """Entries of the open segment, or of the one before, are acknowledged."""
        self.records += records
        self.bytes += size_bytes
        self._metrics.appended_records.value += records
        self._metrics.appended_bytes.value += size_bytes
        self._window.give_back(records, size_bytes)
        if self._queue.records:
            self._pump()
        if self.segment is not None and self.segment.is_uncommitted and not self._is_held:
            self._timers.arm("commit", self._settings.commit_delay_s, self._on_commit_time)

    def _on_commit_time(self) -> None:
        """Whoever was woken by the acknowledgement may be about to append: its turn comes first."""
        asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        """Tell readers of the last records, unless an entry has done so, or is about to."""
        segment = self.segment
        is_followed = self._queue.records > 0 and self._settings.transmit == "immediate"
        if segment is not None and segment.is_uncommitted and not (self._is_held or self._is_closing or is_followed):
            self._send_control(segment)

    def _send_control(self, segment: SegmentWriter, payload: bytes = CONTROL_PAYLOAD) -> None:
        try:
            segment.send_control(payload)
        except Exception as bug:
            self._break_off(bug)
            return
        self._metrics.control_records.value += 1
        self._active_s = self._clock.monotonic()

    def _on_keepalive_time(self) -> None:
        left_s = self._active_s + self._settings.keepalive_s - self._clock.monotonic()
        segment = self.segment
        if left_s <= 0:
            if segment is not None and not self._is_held:
                self._send_control(segment, KEEPALIVE_PAYLOAD)
            self._active_s, left_s = self._clock.monotonic(), self._settings.keepalive_s
        if self._problem is None:
            self._timers.arm("keepalive", left_s, self._on_keepalive_time)

    # --- One segment after the other

    def _turn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        turning = self._turning = self._spawn(work)
        turning.add_done_callback(self._on_turned)
        return turning

    def _on_turned(self, turning: asyncio.Task[None]) -> None:
        self._turning = None
        if turning.cancelled():  # The program ends, and nobody begins or sends anything any more.
            self._is_held = True
            self._timers.cancel_all()
            self.end(AppendCancelled(f"the writer of stream {self._stream!r} was cancelled", stream=self._stream))
            return
        error = turning.exception()
        if error is not None and not isinstance(error, QuireError):
            self._break_off(error)
        self._pump_soon()

    def _break_off(self, bug: BaseException) -> None:
        """A bug: all callers get an error instead of waiting for ever, and the loop reports it."""
        self.end(broken_off(self._stream, bug))
        if self.segment is not None:
            self.segment.give_up(f"the writer of stream {self._stream!r} broke off: {bug!r}")
        context = {"message": "a stream's writer failed", "exception": bug}
        asyncio.get_running_loop().call_exception_handler(context)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"stream {self._stream}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _begin(self) -> None:
        """The first segment of this writer, or the first one after another broke off."""
        if not self._queue.records:
            return  # They were refused before this began.
        try:
            self._use(await self._new_segment(self._queue.first_txid))
        except QuireError as error:
            self._on_cannot_begin(error)

    async def _new_segment(self, first_txid: int) -> SegmentWriter:
        if self._needs_recovery:
            await self._segments.recover(self._settings.password)
            self._needs_recovery = self._has_left_one = False
        settings = self._sample()
        return self._writer_of(await self._segments.begin(first_txid, settings), settings)

    def _writer_of(self, begun: Begun, settings: StreamSettings) -> SegmentWriter:
        return SegmentWriter(
            self._stream, *begun, settings, on_progress=self._on_progress, on_over=self._on_segment_over
        )

    def _use(self, segment: SegmentWriter) -> None:
        if segment.is_over or self._problem is not None:  # It broke off before it was needed.
            self._needs_recovery = True
            self._spawn(segment.abandon())
            return
        self.segment, self._settings, self._rule = segment, segment.settings, transmit_rule(segment.settings)
        self._begun_s = self._active_s = self._clock.monotonic()
        if self._settings.keepalive_s:
            self._timers.arm("keepalive", self._settings.keepalive_s, self._on_keepalive_time)
        if not self._queue.records:
            self._send_control(segment)  # Bookies should know a ledger that readers wait in.
        self._pump_soon()

    def _on_cannot_begin(self, error: QuireError) -> None:
        if isinstance(error, WriterFenced | StreamSealed):
            self.end(error)
        elif self._segments.is_undecided:
            self.end(never_sent(self._stream, error))
        else:
            self._cancel_waiting(error)

    def _roll_if_due(self, segment: SegmentWriter) -> None:
        if self._turning is not None or self._is_closing:
            return
        settings, now_s = self._settings, self._clock.monotonic()
        rule = RollRule(settings.roll_interval_s, settings.roll_bytes)
        is_due = rule.is_due(now_s=now_s, since_s=self._begun_s, segment_bytes=segment.size_bytes)
        if (is_due or segment.position > _POSITION_ROLL) and now_s >= self._roll_not_before_s:
            self._turn(self._roll(segment))

    async def _roll(self, segment: SegmentWriter) -> None:
        """The next segment takes over. Its ledger is made first, which takes its time; records go into the old one.

        The segment begins when the old one is drained: only then it is known which txids it may have.
        """
        settings = self._sample()
        try:
            prepared = await self._segments.prepare(settings)
        except QuireError as error:
            self._on_cannot_roll(segment, error)
            return
        self._is_held = True
        try:
            if not await self._is_drained(segment):
                await self._segments.discard(prepared)
                return
            begun = await self._segments.begin_with(prepared, segment.last_txid, settings)
        except QuireError as error:
            self._on_cannot_roll(segment, error)
            return
        finally:
            self._is_held = False
        self.rolls += 1
        self.segment = None
        self._use(self._writer_of(begun, settings))
        await self._complete(segment)
        self._spawn(self._purge())

    async def _is_drained(self, segment: SegmentWriter) -> bool:
        """Have all of a segment acknowledged. If it breaks off instead, whoever appended is told, and it is False."""
        try:
            await segment.drain()
        except QuireError:
            return False
        return True

    def _on_cannot_roll(self, segment: SegmentWriter, error: QuireError) -> None:
        """Records go on into the old segment, as long as this writer is not over."""
        if isinstance(error, WriterFenced) or self._segments.is_undecided:
            self._on_cannot_begin(error)
        self._roll_not_before_s = self._clock.monotonic() + _RETRY_S
        _log.warning("stream.roll_failed", stream=self._stream, lssn=segment.lssn, error=str(error))

    async def _complete(self, segment: SegmentWriter, *, patience_s: float = math.inf) -> None:
        """Store where a drained segment ended, if need be by and by. A recovery would do it, too."""
        ends_s = self._clock.monotonic() + patience_s
        try:
            while self._problem is None and not self._has_left_one and not await self._is_completed(segment):
                if self._is_closing or self._needs_recovery or self._clock.monotonic() > ends_s:
                    self._has_left_one = True
                    return
                await self._clock.sleep(_RETRY_S)
        finally:
            await segment.abandon()  # Does nothing if it is sealed.

    async def _is_completed(self, segment: SegmentWriter) -> bool:
        """Try it. False if it is worth trying again."""
        try:
            await segment.seal()
            await self._segments.complete(segment.stored, segment.completion(self._clock.wall_ms()))
        except LedgerFenced as error:
            self.end(WriterFenced(f"another writer has taken over stream {self._stream!r}: {error}"))
        except (Unavailable, SessionExpired) as error:
            _log.warning("stream.completion_failed", stream=self._stream, lssn=segment.lssn, error=str(error))
            if not self._segments.is_undecided:
                return False
            self.end(never_sent(self._stream, error))
        except QuireError as error:
            self.end(error if isinstance(error, WriterFenced) else never_sent(self._stream, error))
        return True

    # --- When something fails

    def _on_segment_over(self, segment: SegmentWriter) -> None:
        """The segment's ledger broke off."""
        error, records, size_bytes = segment.fail_in_flight()
        self._metrics.failed_records.value += records
        self._window.give_back(records, size_bytes)
        self._needs_recovery = True
        if segment is self.segment:
            self.segment = None
            self._cancel_waiting(error)
        if isinstance(error, WriterFenced):
            self.end(error)
        if not self.is_closed:
            self._spawn(segment.abandon())

    def _cancel_waiting(self, cause: QuireError) -> None:
        """Nothing may be acknowledged behind what failed: whatever waits is refused, too."""
        self._window.give_back(self._queue.records, self._queue.bytes)
        self._metrics.failed_records.value += self._queue.records
        for call in self._queue.clear():
            if call.sent:
                call.fail(partly_sent(self._stream, cause))
            elif cause.outcome is Outcome.NOT_APPLIED or isinstance(cause, WriterFenced):
                call.fail(again(cause))
            else:
                call.fail(never_sent(self._stream, cause))

    def end(self, error: QuireError) -> None:
        """This writer is over."""
        if self._problem is None:
            self._problem = error
            self._metrics.fenced_writers.value += isinstance(error, WriterFenced)
            self._cancel_waiting(error)
            self._window.wake_all()

    def give_up(self, why: str) -> None:
        """Wait for nothing any more: what was sent is of unknown outcome, the rest is refused. Close it then."""
        self.end(never_sent(self._stream, AppendCancelled(why)))
        if self._turning is not None:
            self._turning.cancel()
        if self.segment is not None:
            self.segment.give_up(why)

    # --- The end of the stream

    async def seal(self, last_txid: int) -> None:
        """Write the end of the stream. `last_txid` is that of the last record."""
        self.check_open()
        await self.flush()
        while self._turning is not None:
            await asyncio.wait([self._turning])
        self.check_open()
        await self._turn(self._seal(last_txid))

    async def _seal(self, last_txid: int) -> None:
        if self.segment is None:
            self._use(await self._new_segment(last_txid))
        segment = self.segment
        if segment is None:
            raise AppendCancelled(f"stream {self._stream!r} could not be ended: its segment broke off at once")
        self._is_held = True
        try:
            await segment.flush()
            segment.send_end_of_stream()
            await segment.drain()
        except QuireError as error:
            raise segment.error() from error
        finally:
            self._is_held = False
        self.segment = None
        # The end is in the ledger: whoever opens the stream next, if not we ourselves, stores it with the segment.
        await self._complete(segment, patience_s=self._settings.call_timeout_s)
        self.end(StreamSealed(f"stream {self._stream!r} has ended", stream=self._stream))

    async def _purge(self) -> None:
        try:
            await self._retention.purge_expired(self._sample())
        except QuireError as error:
            _log.warning("stream.purge_failed", stream=self._stream, error=str(error))

    # --- Closing

    async def aclose(self, *, drain: bool = True) -> None:
        """Complete the segment and let go of the stream. What waits is sent first, with `drain`; else it is refused.

        Once begun, closing goes on to its end, also if whoever asked for it is cancelled; a second call waits for it.
        What cannot be completed now is completed by the next writer.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(drain), name=f"close the writer of {self._stream}")
        await asyncio.shield(self._closing)

    async def _close(self, drain: bool) -> None:
        self._is_closing = True
        self._window.wake_all()  # Whoever waits for room is refused.
        segment: SegmentWriter | None = None
        try:
            while drain and self._queue.records and self._problem is None:
                await self.flush()
            refusal = HandleClosed(f"the writer of stream {self._stream!r} is closed", stream=self._stream)
            self._cancel_waiting(refusal)
            while self._turning is not None:
                await asyncio.wait([self._turning])
            self._is_held = True  # Nothing is sent, or begun, from here on.
            segment, self.segment = self.segment, None
            if segment is not None:
                if await self._is_drained(segment):
                    await self._complete(segment)
                await segment.abandon()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:  # If we were cancelled, nobody acts on anything any more.
            self._is_held = True
            self._timers.cancel_all()
            left, self.segment = segment or self.segment, None
            if left is not None:
                left.is_over = True
