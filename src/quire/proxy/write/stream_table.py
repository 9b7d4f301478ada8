"""All streams that this proxy has to do with: which are served, which are about to be, and which it does not take.

Invariants:
  OneLifeAtATime    a stream has one object here, and so one writer. Who asks for it while the old one is being closed
                    late is told to come again.
  LimitsFirst       a batch that is over a limit is refused before it is charged for, or appended.
  NothingUnbounded  streams, waiting acquisitions, bytes under way and holds all have a bound.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    AppendOutcomeUnknown,
    NoSuchStream,
    OverCapacity,
    ProxyDraining,
    QuireError,
    StreamOwned,
    StreamSealed,
    TooManyStreams,
)
from quire.protocol.limit_rules import LimitRules
from quire.protocol.rate_limits import LevelLimiter, MovingRate, charge
from quire.protocol.stream_states import StreamState
from quire.proxy.write.answers import not_ready, unavailable
from quire.proxy.write.operations import Operation
from quire.proxy.write.owned_stream import Household, OwnedStream
from quire.proxy.write.refusals import Refusals
from quire.proxy.write.submissions import Submission
from quire.telemetry.events import logger

_log = logger("proxy.write")
_TICK_S: Final = 1.0


class StreamTable:
    """The streams of one proxy."""

    def __init__(self, household: Household, refusals: Refusals) -> None:
        self._household, self.refusals = household, refusals
        self._settings, self._metrics = household.settings, household.metrics
        context = household.namespace.context
        self._clock, self._rng = context.runtime.clock, context.runtime.rng
        self._cached: dict[str, OwnedStream] = {}
        self._owned: dict[str, OwnedStream] = {}
        self._lives = 0  # Of all streams so far.
        self._lingering: set[OwnedStream] = set()  # Told to be closed, and not yet so.
        self.named: Counter[str] = Counter()  # By how many Write calls.
        self.is_accepting = True
        self.is_draining = False
        self.is_down = False
        self.moved: dict[str, pb.Owner] = {}  # Streams that were given up to somebody, while draining.
        self.on_ownership: Callable[[str], None] = lambda stream: None
        now_s = self._clock.monotonic()
        self.requests, self.bytes = MovingRate(now_s), MovingRate(now_s)
        self._rules = LimitRules()
        self._limiters: list[LevelLimiter] = []
        self.set_limits(self._settings.limit_rules)

    # --- What is known

    def __len__(self) -> int:
        return len(self._cached)

    def __iter__(self) -> Iterator[OwnedStream]:
        return iter(list(self._cached.values()))

    def get(self, stream: str) -> OwnedStream | None:
        return self._cached.get(stream)

    @property
    def owned(self) -> list[OwnedStream]:
        return list(self._owned.values())

    def owns(self, stream: str) -> OwnedStream | None:
        return self._owned.get(stream)

    @property
    def status(self) -> pb.ServerStatus:
        if self.is_down:
            return pb.DOWN
        return pb.WRITE_AND_ACCEPT if self.is_accepting and not self.is_draining else pb.WRITE_ONLY

    @property
    def room(self) -> int:
        """How many further streams are taken, as things are."""
        if self.status != pb.WRITE_AND_ACCEPT or self._is_busy():
            return 0
        settings = self._settings
        room = min(settings.streams_cached_max - len(self._cached), settings.streams_owned_max - len(self._owned))
        return max(0, room)

    @property
    def limits(self) -> LimitRules:
        return self._rules

    def set_limits(self, rules: LimitRules) -> None:
        """Limits that count from now on. Those that are as they were go on from where they are."""
        before, self._rules = self._rules, rules
        if (rules.proxy, rules.namespace) != (before.proxy, before.namespace):
            levels = (("proxy", rules.proxy), ("namespace", rules.namespace))
            self._limiters = [LevelLimiter(level, limits) for level, limits in levels if not limits.is_off]
        for stream in self:
            stream.set_limits(rules.of(stream.name))

    # --- Operations

    def submit(self, operation: Operation) -> None:
        """Have it carried out by its stream, which is acquired if need be; or refuse it."""
        stream = self._stream_for(operation)
        if stream is not None:
            stream.submit(operation)

    def submit_batch(self, submission: Submission) -> None:
        """The same for records: they count, and have limits."""
        now_s, size_bytes = self._clock.monotonic(), submission.size_bytes
        in_flight = self._metrics.in_flight_bytes.value
        if in_flight and in_flight + size_bytes > self._settings.in_flight_bytes_max:
            submission.refuse(OverCapacity("this proxy has too many bytes under way", retry_after_ms=100))
            return
        stream = self._stream_for(submission)
        if stream is None:
            return
        limiters = self._limiters if stream.limiter is None else [*self._limiters, stream.limiter]
        if limiters and (refusal := self._over_limit(limiters, submission, now_s)) is not None:
            submission.refuse(refusal)
            return
        for requests, sizes in ((self.requests, self.bytes), (stream.requests, stream.bytes)):
            requests.add(1, now_s)
            sizes.add(size_bytes, now_s)
        stream.submit(submission)

    def _stream_for(self, operation: Operation) -> OwnedStream | None:
        """The stream that an operation is about; None if it was refused."""
        stream = self._cached.get(operation.stream)
        if stream is not None:
            return stream
        refusal = self._refusal(operation)
        if refusal is not None:
            operation.refuse(refusal)
            return None
        return self._take(operation.stream, create_if_missing=operation.create_if_missing)

    def _over_limit(self, limiters: list[LevelLimiter], submission: Submission, now_s: float) -> OverCapacity | None:
        charged = charge(limiters, requests=1, size_bytes=submission.size_bytes, now_s=now_s)
        for level in charged.soft:
            self._metrics.limited(level, "soft")
        if charged.refusal is None:
            return None
        level, what, retry_after_s = charged.refusal
        self._metrics.limited(level, "hard")
        return OverCapacity(
            f"the {level}'s limit of {what} per second is reached",
            stream=submission.stream,
            level=level,
            retry_after_ms=min(60_000, max(1, round(min(retry_after_s, 60.0) * 1000))),
            code=int(pb.QUOTA_EXCEEDED if level == "namespace" else pb.OVER_CAPACITY),
        )

    # --- Taking streams

    def _refusal(self, operation: Operation) -> QuireError | None:
        """Why a stream that this proxy has nothing to do with is not taken."""
        name, settings = operation.stream, self._settings
        if self.is_draining or self.is_down:
            moved_to = self.moved.get(name)
            if moved_to is not None:
                return self.refusals.not_owner(name, moved_to, operation.tried)
            return ProxyDraining("this proxy is being stopped")
        if not self.refusals.knows_members:
            return not_ready(name, "the proxy does not know the others yet", retry_after_ms=200)
        refusing = self.refusals.held(name)
        if refusing is not None:
            return refusing(operation)
        if not self.is_accepting:
            return TooManyStreams("this proxy takes no further streams: an operator said so")
        if len(self._cached) >= settings.streams_cached_max or len(self._owned) >= settings.streams_owned_max:
            return TooManyStreams(f"this proxy has {len(self._cached)} streams already")
        if self._is_busy():
            return TooManyStreams("this proxy has enough to do with the streams that it has")
        if len(self._cached) - len(self._owned) >= settings.acquires_max + settings.acquires_waiting_max:
            return not_ready(name, "many streams are being opened", retry_after_ms=self.refusals.jittered_ms(2.0))
        return None

    def _is_busy(self) -> bool:
        now_s = self._clock.monotonic()
        limits = ((self._rules.acquire.requests_per_s, self.requests), (self._rules.acquire.bytes_per_s, self.bytes))
        return any(limit is not None and 0 <= limit < rate.per_s(now_s) for limit, rate in limits)

    def _take(self, name: str, *, create_if_missing: bool) -> OwnedStream:
        self._lives += 1
        stream = OwnedStream(
            name,
            self._household,
            on_state=self._on_state,
            on_closed=self._on_closed,
            on_acquired=self._on_acquired,
            number=self._lives,
        )
        stream.create_if_missing = create_if_missing
        stream.set_limits(self._rules.of(name))
        self._cached[name] = stream
        self._metrics.by_state[StreamState.UNINITIALIZED].add(1)
        self._metrics.cached.value = len(self._cached)
        return stream

    def _on_acquired(self, stream: OwnedStream) -> None:
        """The lock is ours. Only now it counts, and others may have come in between."""
        if len(self._owned) >= self._settings.streams_owned_max:
            raise TooManyStreams(f"this proxy owns {len(self._owned)} streams already", stream=stream.name)

    def _on_state(self, stream: OwnedStream, before: StreamState) -> None:
        state = stream.state
        self._metrics.by_state[before].add(-1)
        if state is not StreamState.CLOSED:
            self._metrics.by_state[state].add(1)
        if state is StreamState.INITIALIZED:
            self._owned[stream.name] = stream
        elif before is StreamState.INITIALIZED:
            del self._owned[stream.name]
        else:
            return
        self._metrics.owned.value = len(self._owned)
        self.on_ownership(stream.name)

    # --- Giving streams up

    def _on_closed(self, stream: OwnedStream) -> None:
        """Forget a stream, and tell those who waited for it."""
        name, error = stream.name, stream.error
        if self._cached.get(name) is stream:
            del self._cached[name]
            self._metrics.cached.value = len(self._cached)
        if stream.state is not StreamState.CLOSED:
            self._lingering.add(stream)
            asyncio.create_task(self._wait_lingering(stream), name=f"late close of {name}")  # noqa: RUF006
        waiting = stream.take_all_waiting()
        if error is None:
            self._on_closed_in_order(stream, waiting)
            return
        refusing = self._on_failed(stream, error)
        for operation in waiting:
            if isinstance(error, NoSuchStream) and operation.create_if_missing and not self.is_draining:
                self.submit(operation)  # It came behind one that would not have it created.
            else:
                operation.refuse(refusing(operation))

    def _on_closed_in_order(self, stream: OwnedStream, waiting: list[Operation]) -> None:
        for operation in waiting:
            if stream.refusing is not None:
                operation.refuse(stream.refusing(operation))
            else:
                self.submit(operation)  # It came just when nobody used the stream: it is acquired again.

    def _on_failed(self, stream: OwnedStream, error: QuireError) -> Callable[[Operation], QuireError]:
        name = stream.name
        if stream.serving is None:
            self._metrics.acquire_failed(type(error).__name__)
        if stream.refusing is not None:
            return stream.refusing
        if isinstance(error, NoSuchStream | StreamSealed | TooManyStreams):
            return lambda _: unavailable(name, error)
        if stream.serving is not None and stream.serving.has_stored and not isinstance(error, StreamOwned):
            self.refusals.on_success(name)
        return self.refusals.on_failure(name, error)

    async def _wait_lingering(self, stream: OwnedStream) -> None:
        await stream.wait_closed()
        self._lingering.discard(stream)

    # --- While nothing else happens

    async def tick(self) -> None:
        """Give up streams that nobody uses, or that storage does not answer for; write down what is due."""
        interval_s = min(_TICK_S, (self._settings.service_timeout_s or _TICK_S * 4) / 4)
        while True:
            await self._clock.sleep(interval_s)
            now_s = self._clock.monotonic()
            pending = 0
            for stream in self:
                pending += stream.waiting
                self._look_at(stream, now_s)
            self._metrics.pending.value = pending
            self._metrics.requests_per_s.value = self.requests.per_s(now_s)
            self._metrics.bytes_per_s.value = self.bytes.per_s(now_s)
            self.refusals.forget_over()

    def _look_at(self, stream: OwnedStream, now_s: float) -> None:
        serving, settings = stream.serving, self._settings
        if serving is None or stream.state is not StreamState.INITIALIZED:
            return
        oldest_s = stream.oldest_s
        if settings.service_timeout_s and oldest_s is not None and now_s - oldest_s > settings.service_timeout_s:
            self._on_service_timeout(stream, now_s - oldest_s)
            return
        if serving.writer.problem is not None:
            serving.fail(serving.writer.problem)  # Such as a lock that somebody else took.
            return
        serving.snapshot_if_due()
        is_idle = settings.stream_idle_unload_s > 0 and now_s - stream.used_s > stream.idle_s
        if is_idle and not stream.waiting and not self.named[stream.name] and not self._is_kept_alive(stream):
            self._metrics.unloads.add()
            _log.info("stream.unloaded", stream=stream.name, idle_s=round(now_s - stream.used_s, 1))
            stream.close()

    def _is_kept_alive(self, stream: OwnedStream) -> bool:
        return self._household.namespace.settings_for(stream.name).keepalive_s > 0

    def _on_service_timeout(self, stream: OwnedStream, waited_s: float) -> None:
        self._metrics.service_timeouts.add()
        error = AppendOutcomeUnknown(f"storage did not answer for {waited_s:.1f} s", stream=stream.name)
        _log.warning("stream.service_timeout", stream=stream.name, seconds=round(waited_s, 1))
        self.refusals.on_probation(stream.name, error)
        stream.give_up(error)

    async def close_all(self) -> None:
        """Give up everything, in good order as far as that is possible, and wait until nothing runs any more."""
        self.is_down = True
        streams = list(self)
        for stream in streams:
            stream.close()
        for stream in [*streams, *self._lingering]:
            await stream.wait_closed()
