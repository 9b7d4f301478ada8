"""One life of a stream at this proxy: it is acquired, served, and given up. The states are those of
`quire.protocol.stream_states`.

While it is being acquired operations wait, in order and up to a bound. When it is given up in good order, those that
come meanwhile wait, too: they are refused when the lock is free, so that whoever is sent elsewhere finds it so.

Invariants:
  FirstComeFirst    operations begin in the order in which they came.
  LockFirst         whoever waited is told to go elsewhere after the lock was given back.
  ClosedInTime      when closing takes too long everybody is told, and the stream is forgotten; it goes on by itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from quire.errors import (
    AppendCancelled,
    NoSuchStream,
    OverCapacity,
    QuireError,
    StreamOwned,
    StreamSealed,
    StreamUnavailable,
)
from quire.protocol.rate_limits import LevelLimiter, MovingRate, RateLimits
from quire.protocol.stream_states import StreamLife, StreamState, Treatment
from quire.proxy.write.answers import unavailable
from quire.proxy.write.metrics import WriteProxyMetrics
from quire.proxy.write.operations import Operation
from quire.proxy.write.producer_records import mark, read_producers
from quire.proxy.write.refusals import Refusing
from quire.proxy.write.serving import ServingStream
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.submissions import Submission
from quire.stream.namespace import Namespace
from quire.telemetry.events import logger
from quire.values import dataclass

_log = logger("proxy.write")
_BACK_SOON_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Household:
    """What all streams of one proxy share."""

    namespace: Namespace
    settings: WriteProxySettings
    metrics: WriteProxyMetrics
    acquiring: asyncio.Semaphore


class OwnedStream:
    """A stream that this proxy owns, is about to own, or just owned."""

    def __init__(
        self,
        name: str,
        household: Household,
        *,
        on_state: Callable[["OwnedStream", StreamState], None],
        on_closed: Callable[["OwnedStream"], None],
        on_acquired: Callable[["OwnedStream"], None],
        number: int = 0,
    ) -> None:
        """`on_acquired` may raise: then the stream is given up again. `number` tells this life from others here."""
        self.name, self._household, self._settings = name, household, household.settings
        self._clock, self._metrics = household.namespace.context.runtime.clock, household.metrics
        self._on_state, self._on_closed, self._on_acquired = on_state, on_closed, on_acquired
        self.life, self.number = StreamLife(), number
        self._served_since_s: float | None = None
        self.serving: ServingStream | None = None
        self.error: QuireError | None = None  # Why it is over, if something went wrong.
        self.refusing: Refusing | None = None  # What those are told that waited until it was closed.
        self.create_if_missing = False
        self._waiting: deque[Operation] = deque()
        self._waiting_bytes = 0
        self._is_held = False  # Operations wait although it is served: its metadata is being changed for one of them.
        self._ending = asyncio.Event()
        self._marking: asyncio.Task[None] | None = None
        self._is_told = False  # That it is closed.
        self._closing_late: asyncio.TimerHandle | None = None
        now_s = self._clock.monotonic()
        self.used_s = now_s
        rng = household.namespace.context.runtime.rng
        self.idle_s = self._settings.stream_idle_unload_s * (0.8 + 0.4 * rng.random())
        self.requests, self.bytes = MovingRate(now_s), MovingRate(now_s)
        self._limits = RateLimits()
        self.limiter: LevelLimiter | None = None
        self._life_task = asyncio.create_task(self._live(), name=f"own stream {name}")

    # --- What is known

    @property
    def state(self) -> StreamState:
        return self.life.state

    @property
    def epoch(self) -> int:
        """The LSSN that it writes, while it is served; else 0."""
        return self.serving.writer.epoch if self.serving is not None else 0

    @property
    def served_s(self) -> float:
        """For how long it has been served here; 0 if it is not."""
        since_s = self._served_since_s
        return 0.0 if since_s is None or self.serving is None else self._clock.monotonic() - since_s

    @property
    def waiting(self) -> int:
        """Operations that wait, or are under way."""
        return len(self._waiting) + (len(self.serving.in_flight) if self.serving is not None else 0)

    @property
    def oldest_s(self) -> float | None:
        """Since when the oldest append is with the writer."""
        oldest = next(iter(self.serving.in_flight), None) if self.serving is not None else None
        return None if oldest is None else oldest.handed_over_s

    def set_limits(self, limits: RateLimits) -> None:
        """What counts from now on. The same as before changes nothing: its buckets stay as full as they are."""
        if limits != self._limits:
            self._limits = limits
            self.limiter = None if limits.is_off else LevelLimiter("stream", limits)

    # --- Operations

    def submit(self, operation: Operation) -> None:
        """Begin it, keep it for later, or refuse it."""
        self.used_s = self._clock.monotonic()
        treatment = self.life.treatment
        if treatment is Treatment.CARRY_OUT and not self._is_held:
            assert self.serving is not None
            operation.begin(self.serving)
        elif treatment is Treatment.REFUSE and self.error is not None:
            operation.refuse(self._refusal(operation))
        else:
            self._wait(operation)

    def _wait(self, operation: Operation) -> None:
        is_full = len(self._waiting) >= self._settings.queue_operations_max
        if is_full or (self._waiting and self._waiting_bytes + operation.size_bytes > self._settings.queue_bytes_max):
            operation.refuse(
                OverCapacity(
                    f"too much waits for stream {self.name!r} to be opened or closed", retry_after_ms=_BACK_SOON_MS
                )
            )
            return
        self.create_if_missing = self.create_if_missing or operation.create_if_missing
        self._waiting.append(operation)
        self._waiting_bytes += operation.size_bytes

    def _refusal(self, operation: Operation) -> QuireError:
        if self.refusing is not None:
            return self.refusing(operation)
        cause = self.error or StreamUnavailable(f"stream {self.name!r} was just given up by this proxy")
        return unavailable(self.name, cause, retry_after_ms=_BACK_SOON_MS)

    def _begin_waiting(self) -> None:
        """Carry out what waits, as long as nothing holds it up."""
        while self._waiting and self.life.treatment is Treatment.CARRY_OUT and not self._is_held:
            assert self.serving is not None
            self._take_waiting().begin(self.serving)

    def _take_waiting(self) -> Operation:
        operation = self._waiting.popleft()
        self._waiting_bytes -= operation.size_bytes
        return operation

    def take_all_waiting(self) -> list[Operation]:
        return [self._take_waiting() for _ in range(len(self._waiting))]

    # --- From the first to the last

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as resources:
                async with self._household.acquiring:
                    if self.life.is_over:
                        return
                    self._move(StreamState.INITIALIZING)
                    await self._acquire(resources)
                if self.life.treatment is Treatment.CARRY_OUT:
                    self._begin_waiting()
                    await self._ending.wait()
                if self._marking is not None:
                    await asyncio.wait([self._marking])
                if not self.life.was_serving:
                    self._move_on_from_error()
                    raise _GivenUp  # Nothing more is sent: the writer completes what it has.
        except _GivenUp:
            pass
        except QuireError as error:
            self._fail(error)
        finally:
            self._close_now()
            self._tell_closed()

    def _move_on_from_error(self) -> None:
        if self.state is StreamState.ERROR:
            self._move(StreamState.CLOSING)

    async def _acquire(self, resources: AsyncExitStack) -> None:
        begun_s, settings = self._clock.monotonic(), self._settings
        namespace = self._household.namespace
        writer = await resources.enter_async_context(
            namespace.open_writer(
                self.name,
                lock_timeout_s=0.0,
                write_lock=True,
                create_if_missing=self.create_if_missing,
                call_timeout_s=settings.acquire_timeout_s,
            )
        )
        serving = ServingStream(
            writer,
            self._clock,
            settings,
            self._metrics,
            on_failed=self._fail,
            on_unmarked=self._hold_unmarked,
        )
        scanned = await read_producers(
            namespace.context, self.name, namespace.settings_for(self.name), serving.producers
        )
        if scanned is not None:
            serving.scanned(*scanned)
        if self.life.is_over:
            return
        self._on_acquired(self)
        self.serving = serving
        self._move(StreamState.INITIALIZED)
        self.used_s = self._served_since_s = self._clock.monotonic()
        seconds = self.used_s - begun_s
        self._metrics.acquire_seconds.observe(seconds)
        _log.info(
            "stream.acquired",
            stream=self.name,
            epoch=writer.epoch,
            seconds=round(seconds, 4),
            producers=len(serving.producers),
        )

    # --- A stream that gets its first producer

    def _hold_unmarked(self, submission: Submission) -> None:
        """Everything waits until the stream's metadata says that it has producers."""
        if not self._is_held:
            self._is_held = True
            self._marking = asyncio.create_task(self._mark(), name=f"mark stream {self.name}")
        self._waiting.appendleft(submission)
        self._waiting_bytes += submission.size_bytes

    async def _mark(self) -> None:
        context = self._household.namespace.context
        serving = self.serving
        assert serving is not None
        try:
            await mark(context.store, context.paths(self.name), serving.writer.epoch)
        except QuireError as error:
            if self._waiting:
                self._take_waiting().refuse(unavailable(self.name, error))
        else:
            serving.is_marked = True
            serving.snapshot()  # Whoever looks back need not look behind this.
        finally:
            self._is_held = False
        if self.life.treatment is Treatment.CARRY_OUT:
            self._begin_waiting()

    # --- The end

    def close(self, refusing: Refusing | None = None) -> None:
        """Give it up in good order: what was begun is answered, and what comes is told `refusing` once that is done."""
        if self.life.is_over:
            return
        self.refusing = refusing
        if self.state is not StreamState.INITIALIZED:
            self._fail(AppendCancelled(f"stream {self.name!r} is given up before it was served"))
            return
        if self.serving is not None:
            self.serving.is_closing = True
        self._move(StreamState.CLOSING)
        self._end()

    def give_up(self, error: QuireError) -> None:
        """Give it up at once: the outcome of what is under way is unknown."""
        if self.life.is_over:
            return
        if self.serving is not None:
            self.serving.give_up(str(error))
        self._fail(error)

    def _fail(self, error: QuireError) -> None:
        """Nothing is begun any more, from this moment on."""
        if self.error is None and self.state not in (StreamState.CLOSING, StreamState.CLOSED):
            self.error = error
            is_usual = isinstance(error, StreamOwned | StreamSealed | NoSuchStream)
            tell = _log.info if is_usual else _log.warning
            tell("stream.failed", stream=self.name, state=self.state.name, error=str(error))
            self._move(StreamState.ERROR)
            self._end()

    def _end(self) -> None:
        self._ending.set()
        loop = asyncio.get_running_loop()
        self._closing_late = loop.call_later(self._settings.close_timeout_s, self._on_close_late)
        if self.serving is None and asyncio.current_task() is not self._life_task:
            self._life_task.cancel()  # It is still being acquired, or waits for that.

    def _on_close_late(self) -> None:
        self._closing_late = None
        _log.warning("stream.closing_late", stream=self.name, seconds=self._settings.close_timeout_s)
        if self.serving is not None:
            self.serving.give_up(f"stream {self.name!r} could not be closed in time")
        self._tell_closed()

    def _close_now(self) -> None:
        """The writer is closed, and the lock given back."""
        if self.state not in (StreamState.ERROR, StreamState.CLOSING):
            self._move(StreamState.ERROR)  # The program ends.
        self._move_on_from_error()
        self._move(StreamState.CLOSED)
        if self._closing_late is not None:
            self._closing_late.cancel()

    def _tell_closed(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._on_closed(self)

    async def wait_closed(self) -> None:
        """Return when nothing of it runs any more."""
        await asyncio.wait([self._life_task])

    def _move(self, to: StreamState) -> None:
        before = self.state
        self.life.move(to)
        self._on_state(self, before)


class _GivenUp(Exception):
    """Leave the writer's block without sending anything more."""
