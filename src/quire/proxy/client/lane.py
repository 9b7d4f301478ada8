"""The batches of one stream, of all writers that this client has for it, in the order in which they are to be stored.

A lane sends to one proxy at a time. When a batch fails, the proxy fails all behind it that were sent with the same
attempt number: so the lane waits until everything that it has sent is answered, and then sends again what is left, in
order and as the next attempt, wherever the stream is by then.

Invariants:
  OrderIsKept      batches of one writer are stored in the order of its appends, across redirects and moves.
  OnePlaceAtATime  nothing is sent to one proxy while anything is unanswered at another one.
  AnsweredOnce     every call of `append` ends with its places, or with an error that says whether it may be stored.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from quire.errors import AppendOutcomeUnknown, OverCapacity, QuireError, StreamUnavailable
from quire.protocol.redirects import Route
from quire.proxy.client.appends import Append, Outbox, Parcel


class LaneCall(Protocol):
    """The call to a proxy that batches of a lane go through."""

    lanes: "dict[Lane, None]"

    def want(self, lane: "Lane") -> None:
        """The lane has something to send."""

    def forget(self, lane: "Lane") -> None:
        """The lane goes elsewhere."""


class Lane:
    """One stream that is written."""

    def __init__(self, stream: str, attempts: Iterator[int] | None = None) -> None:
        """`attempts` are the client's: a call outlives its lanes, and knows only of the last attempt for a stream."""
        self.stream = stream
        self._attempts = count(1) if attempts is None else attempts
        self.attempt = next(self._attempts)
        self.call: LaneCall | None = None  # To the proxy where batches go.
        self.route: Route | None = None  # While the way there is being looked for.
        self.is_leaving = False  # The proxy asked to go elsewhere with what follows.
        self.problem: QuireError | None = None  # What happened last.
        self.pause: asyncio.TimerHandle | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.outboxes: set[Outbox] = set()
        self._turns: deque[Outbox] = deque()  # Those that have something to send.
        self._again: deque[Parcel] = deque()
        self._in_flight: deque[Parcel] = deque()
        self._failed: list[Parcel] = []

    # --- What is to be sent

    def on_append(self, outbox: Outbox) -> None:
        if not outbox.is_listed and outbox.can_cut:
            outbox.is_listed = True
            self._turns.append(outbox)

    @property
    def has_more(self) -> bool:
        """Whether there is something to send, once it may be sent."""
        return bool(self._again or self._turns)

    @property
    def can_send(self) -> bool:
        return not self._failed and not self.is_leaving and self.has_more

    @property
    def in_flight(self) -> int:
        """Batches that are not answered yet."""
        return len(self._in_flight)

    @property
    def failed(self) -> list[Parcel]:
        """Batches that failed in this attempt."""
        return self._failed

    def take(self) -> Parcel:
        """The next batch, which counts as sent from now on."""
        if self._again:
            parcel = self._again.popleft()
        else:
            outbox = self._turns.popleft()
            parcel, outbox.is_listed = outbox.cut(), False
            self.on_append(outbox)  # Whoever has more waits for its next turn.
        parcel.number()
        self._in_flight.append(parcel)
        return parcel

    def put_back(self, parcel: Parcel) -> None:
        """The batch that was taken last is not sent now."""
        self._in_flight.pop()
        if parcel.producer is not None:
            parcel.producer.next_seq = parcel.first_seq
        self._again.appendleft(parcel)

    # --- What came of it

    def on_answered(self, parcel: Parcel) -> bool:
        """Whether it is the one whose turn it is: answers for one stream come in order."""
        if not self._in_flight or self._in_flight[0] is not parcel:
            return False
        self._in_flight.popleft()
        return True

    def on_stored(self, parcel: Parcel) -> None:
        """It is stored, and the way is found."""
        self.route = None
        self._let_go(parcel)

    def on_failed(self, parcel: Parcel, error: QuireError, *, may_be_stored: bool) -> None:
        parcel.error = self.problem = error
        if may_be_stored:
            parcel.on_maybe_stored()
        self._failed.append(parcel)

    def on_lost(self, error: QuireError) -> None:
        """The call ended before these were answered."""
        while self._in_flight:
            self.on_failed(self._in_flight.popleft(), error, may_be_stored=True)

    def rewind(self, *, is_final: bool) -> None:
        """Begin the next attempt with what failed, but for what cannot be sent again.

        With `is_final` the first one will not succeed anywhere.
        """
        failed, self._failed = self._failed, []
        self.attempt = next(self._attempts)
        broken: set[Outbox] = set()
        kept: list[Parcel] = []
        for place, parcel in enumerate(failed):
            outbox, error = parcel.outbox, parcel.error
            assert error is not None
            if parcel.is_over:  # Nobody waits for it any more.
                self._give_up(parcel, error)
                broken.add(outbox)
            elif parcel.may_be_stored and (outbox in broken or not outbox.rules.may_repeat):
                self._give_up(parcel, unknown(self.stream, error))
                broken.add(outbox)
            elif place == 0 and is_final:
                self._give_up(parcel, error)
                broken.add(outbox)
            else:
                kept.append(parcel)
        for parcel in kept:
            if parcel.producer is parcel.outbox.producer:
                parcel.outbox.rewind(parcel.first_seq)
        self._again.extendleft(reversed(kept))

    def _give_up(self, parcel: Parcel, error: QuireError) -> None:
        """It is not sent again, and nothing more of its calls is."""
        for part in parcel.parts:
            self._fail(part.append, error, may_be_stored=parcel.may_be_stored)
            parcel.outbox.drop_rest(part.append)
        parcel.outbox.begin_anew()
        self._let_go(parcel)

    def _fail(self, append: Append, error: QuireError, *, may_be_stored: bool) -> None:
        """Tell a call why, and the truth about what became of it: parts of it may be elsewhere."""
        if (may_be_stored or append.may_be_stored) and not isinstance(error, AppendOutcomeUnknown):
            error = unknown(self.stream, error, in_part=not may_be_stored)
        append.fail(error)

    def _let_go(self, parcel: Parcel) -> None:
        parcel.outbox.let_go(parcel)
        self.on_append(parcel.outbox)

    # --- Time

    def expire(self, now_s: float, timeout_s: float) -> float | None:
        """Fail the calls whose time is up. Returns when to look again; None if nobody waits."""
        late = late_error(self.stream, self.problem, timeout_s)
        for parcel in (*self._failed, *self._in_flight):
            self._expire_parts(parcel, now_s, unknown(self.stream, late))
        self._expire_again(now_s, late)
        for outbox in self.outboxes:
            waiting = outbox.waiting
            while waiting and waiting[0].deadline_s <= now_s:
                append = outbox.pop_waiting()
                append.fail(unknown(self.stream, late, in_part=True) if append.cut else late)
            if not waiting and outbox.is_listed:
                outbox.is_listed = False
                self._turns.remove(outbox)
        return min((append.deadline_s for append in self._open_appends()), default=None)

    def _expire_parts(self, parcel: Parcel, now_s: float, error: QuireError) -> None:
        for part in parcel.parts:
            if part.append.deadline_s <= now_s and not part.append.is_over:
                self._fail(part.append, error, may_be_stored=parcel.may_be_stored)
                parcel.outbox.drop_rest(part.append)

    def _expire_again(self, now_s: float, late: QuireError) -> None:
        """Batches that are not on their way, and for which nobody waits any more, are given up."""
        for parcel in self._again:
            # If others of its calls have time left it is sent once more, with the records of those that are late.
            goes_on = any(part.append.deadline_s > now_s and not part.append.is_over for part in parcel.parts)
            self._expire_parts(parcel, now_s, unknown(self.stream, late) if goes_on else late)
        broken: set[Outbox] = set()
        kept: deque[Parcel] = deque()
        for parcel in self._again:
            if parcel.is_over or (parcel.outbox in broken and parcel.may_be_stored):
                self._give_up(parcel, unknown(self.stream, late))
                broken.add(parcel.outbox)
            else:
                kept.append(parcel)
        self._again = kept

    def _open_appends(self) -> list[Append]:
        """Of each writer the oldest that waits, and all that are in batches."""
        parcels = (*self._failed, *self._again, *self._in_flight)
        open_ = [part.append for parcel in parcels for part in parcel.parts if not part.append.is_over]
        return open_ + [outbox.waiting[0] for outbox in self.outboxes if outbox.waiting]

    # --- The end

    def fail_all(self, error: QuireError) -> None:
        """Nothing that is not on its way will be sent."""
        while self._again:
            parcel = self._again.popleft()
            self._give_up(parcel, error)
        for outbox in self.outboxes:
            self.refuse_waiting(outbox, error)

    def end(self, error: QuireError) -> None:
        """Nothing is sent any more, and no answer will come."""
        self.on_lost(error)
        failed, self._failed = self._failed, []
        for parcel in failed:
            self._give_up(parcel, error)
        self.fail_all(error)
        for timer in (self.pause, self.expiry):
            if timer is not None:
                timer.cancel()
        self.pause = self.expiry = None

    def refuse_waiting(self, outbox: Outbox, error: QuireError) -> None:
        """Nothing of a writer that is not in a batch yet will be sent."""
        while outbox.waiting:
            append = outbox.pop_waiting()
            append.fail(unknown(self.stream, error, in_part=True) if append.cut else error)
        if outbox.is_listed:
            outbox.is_listed = False
            self._turns.remove(outbox)

    @property
    def is_idle(self) -> bool:
        return not (self._again or self._in_flight or self._failed or self._turns)


def unknown(stream: str, cause: QuireError, *, in_part: bool = False) -> AppendOutcomeUnknown:
    """For records that were sent, and may be stored; `in_part` if the others of their call are not."""
    what = "and others were not" if in_part else "and may be in it"
    raised = AppendOutcomeUnknown(
        f"{'some ' if in_part else ''}records were sent to stream {stream!r}, {what}: {cause}",
        hint="Read the end of the stream before you append them again.",
        stream=stream,
    )
    raised.__cause__ = cause
    return raised


def late_error(stream: str, cause: QuireError | None, timeout_s: float) -> QuireError:
    """For records that were not stored in time. Nothing of them was sent, or it was refused."""
    if isinstance(cause, OverCapacity):
        return cause
    why = f": {cause}" if cause is not None else ""
    raised = StreamUnavailable(f"stream {stream!r} took no records within {timeout_s:g} s{why}", stream=stream)
    raised.__cause__ = cause
    return raised
