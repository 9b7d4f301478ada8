"""What one client knows of each bookie's health: whom to read from first, whom to avoid, whom to leave alone. Sans-IO.

Whoever talks to bookies reports what came of it; time is an argument, in seconds that never go back. Three conclusions
are drawn. A bookie that failed or was slow lately is read from after the others. A bookie with too many errors within a
window is in quarantine for a while: the choice of bookies leaves it out, unless there are too few others. A bookie that
could not be connected is not tried again for a while, which grows with each failure.

An answer that says no for a good reason (no such entry, fenced, read-only) is not a failure of the bookie. Nor does a
bookie come into quarantine that cannot be reached, or whose connection broke: its registration says soon enough whether
it lives. One that lets requests time out does.

Invariants:
  OrderIsComplete    `read_order` returns each candidate exactly once: a bookie in disgrace is still the last resort.
  QuarantineEnds     a quarantine is over after `quarantine_s`, unless as many errors came after it began.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from quire.errors import (
    BookieOutcomeUnknown,
    BookieReadOnly,
    BookieUnavailable,
    CallerMistake,
    InvalidArgument,
    LedgerExists,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
)
from quire.runtime import Rng
from quire.types import BookieId
from quire.values import dataclass

# What a healthy bookie answers as well.
_NO_FAILURE: Final = (CallerMistake, NoSuchEntry, NoSuchLedger, LedgerExists, LedgerFenced, BookieReadOnly)

# A connection that is lost sooner may be one of many: Apache's bookies close them as they come while they start.
_SETTLED_S: Final = 1.0

_HEALTHY, _FAILED, _READONLY, _SLOW, _UNAVAILABLE = range(5)


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When a bookie is avoided, and for how long. The numbers are those of Apache's clients."""

    errors_max: int = 100
    """This many errors within one window bring a bookie into quarantine. 0 for never."""

    window_s: float = 60.0
    """How long errors are added up before counting begins anew."""

    quarantine_s: float = 1800.0
    """How long a bookie in quarantine gets no new ledgers."""

    unreachable_counts: bool = False
    """Whether it counts that a bookie could not be connected, or a connection broke. A bookie that restarts would be
    avoided for long."""

    recent_s: float = 60.0
    """How long a failure, or being slow, puts a bookie behind the others in the order of reads."""

    def __post_init__(self) -> None:
        if self.errors_max < 0 or not all(
            0 < seconds < math.inf for seconds in (self.window_s, self.quarantine_s, self.recent_s)
        ):
            raise InvalidArgument("windows and quarantines last longer than 0 s, and errors are counted from 0 on")


@dataclass(slots=True)
class _Record:
    """All that was held against one bookie."""

    failures: int = 0  # Since the beginning.
    failed_s: float = -math.inf  # The last failure that no success came after.
    slow_s: float = -math.inf
    window_began_s: float = -math.inf
    window_errors: int = 0
    quarantined_until_s: float = -math.inf


class BookieHealth:
    """The memory of one client. `now` never goes back between calls."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._records: dict[BookieId, _Record] = {}  # Of bookies that ever failed or were slow.
        self._writable: frozenset[BookieId] | None = None  # None before the first listing: then all pass for writable.
        self._readonly: frozenset[BookieId] = frozenset()

    # --- What happened

    def on_listing(self, writable: frozenset[BookieId], readonly: frozenset[BookieId]) -> None:
        """These bookies live; no others do."""
        self._writable, self._readonly = writable, readonly

    def on_success(self, bookie: BookieId) -> None:
        """The bookie did what it was asked. Errors of the window stay: a sick disk fails only now and then."""
        record = self._records.get(bookie)
        if record is not None:
            record.failed_s = -math.inf

    def on_error(self, bookie: BookieId, error: QuireError, now: float) -> None:
        """A request to the bookie ended with `error`. Errors that a healthy bookie answers change nothing."""
        if isinstance(error, _NO_FAILURE):
            return
        record = self._records.setdefault(bookie, _Record())
        record.failures += 1
        record.failed_s = now
        if is_unreachable(error) and not self._settings.unreachable_counts:
            return
        if now - record.window_began_s >= self._settings.window_s:
            record.window_began_s, record.window_errors = now, 0
        record.window_errors += 1
        if record.window_errors == self._settings.errors_max:
            record.quarantined_until_s = now + self._settings.quarantine_s
            record.window_began_s = -math.inf

    def on_slow(self, bookie: BookieId, now: float) -> None:
        """The bookie let a request wait so long that another one was asked. Its late answer does not undo that."""
        self._records.setdefault(bookie, _Record()).slow_s = now

    # --- What follows from it

    def quarantined(self, now: float) -> frozenset[BookieId]:
        """Whom to give no new ledgers while there are others."""
        return frozenset(bookie for bookie, record in self._records.items() if now < record.quarantined_until_s)

    def read_order(self, candidates: Sequence[BookieId], now: float) -> list[BookieId]:
        """Whom to ask first: healthy ones as given, then failed ones (the oldest failure first), read-only, slow, and
        last those that are not listed at all.
        """
        if not self._records and (self._writable is None or self._writable.issuperset(candidates)):
            return list(candidates)  # The way of almost every read.
        return sorted(candidates, key=lambda bookie: self._rank(bookie, now))

    def _rank(self, bookie: BookieId, now: float) -> tuple[int, float]:
        record = self._records.get(bookie)
        recent_s = now - self._settings.recent_s
        failed_s = record.failed_s if record is not None and record.failed_s > recent_s else -math.inf
        if self._writable is not None and bookie not in self._writable:
            return _READONLY if bookie in self._readonly else _UNAVAILABLE, failed_s
        if failed_s > -math.inf:
            return _FAILED, failed_s
        return _SLOW if record is not None and record.slow_s > recent_s else _HEALTHY, failed_s

    def failures(self) -> Mapping[BookieId, int]:
        """How often each bookie failed since the beginning."""
        return MappingProxyType({bookie: each.failures for bookie, each in self._records.items() if each.failures})


def is_unreachable(error: QuireError) -> bool:
    """Whether there was no connection, or it broke. A deadline that passed is something else."""
    return isinstance(error, BookieUnavailable | BookieOutcomeUnknown) and not error.facts.get("timed_out")


@dataclass(frozen=True, slots=True)
class _Failure:
    problem: str
    hint: str
    count: int  # In a row.
    at_s: float
    retry_at_s: float


class Retries:
    """Which bookies could not be connected, and when each may be tried again."""

    def __init__(self, rng: Rng, *, s_min: float, s_max: float) -> None:
        self._rng, self._s_min, self._s_max = rng, s_min, s_max
        self._failures: dict[BookieId, _Failure] = {}

    def delay_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row, somewhat at random: clients should not come all at once."""
        longest_s = min(self._s_max, self._s_min * 2.0 ** min(failures, 64))
        return max(self._s_min, longest_s * (1 + self._rng.random()) / 2)

    def check(self, bookie: BookieId, now: float) -> None:
        """Raise `BookieUnavailable` while the bookie must not be tried."""
        failure = self._failures.get(bookie)
        if failure is not None and now < failure.retry_at_s:
            raise _leave_alone(bookie, failure, now)

    def on_failure(
        self, bookie: BookieId, error: BookieUnavailable, now: float, *, began_s: float
    ) -> BookieUnavailable:
        """A try that began then has failed. Returns what to tell those who waited for it."""
        failure = self._failures.get(bookie)
        if failure is None or failure.at_s <= began_s:  # Two tries at the same time are one failure.
            failure = self._fail(bookie, str(error), error.hint, now, wait=True)
        return _leave_alone(bookie, failure, now)

    def on_lost(self, bookie: BookieId, now: float, *, made_s: float) -> None:
        """A connection made then is lost. One is no reason to wait; one after the other as soon as made, is."""
        failure = self._failures.get(bookie)
        if failure is not None and failure.at_s > made_s:
            return  # Counted already, by whoever noticed first.
        if now - made_s >= _SETTLED_S:
            self.forget(bookie)
        else:
            problem = f"bookie {bookie} closes connections as soon as they are made"
            self._fail(bookie, problem, BookieUnavailable.hint, now, wait=failure is not None)

    def forget(self, bookie: BookieId) -> None:
        """The bookie may be tried at once."""
        self._failures.pop(bookie, None)

    def _fail(self, bookie: BookieId, problem: str, hint: str, now: float, *, wait: bool) -> _Failure:
        count = self._failures[bookie].count + 1 if bookie in self._failures else 1
        failure = _Failure(problem, hint, count, now, now + self.delay_s(count) if wait else now)
        self._failures[bookie] = failure
        return failure


def _leave_alone(bookie: BookieId, failure: _Failure, now: float) -> BookieUnavailable:
    wait_s = max(0.0, failure.retry_at_s - now)
    return BookieUnavailable(
        f"{failure.problem}; the next try is in {wait_s:.2f} s",
        hint=failure.hint,
        bookie=bookie,
        retry_in_s=wait_s,
        connecting=True,
    )
