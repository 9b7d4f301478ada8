"""Where one request goes next, when, and whether it may be sent again at all. Sans-IO.

A request goes to the owner of its stream, as far as one is known, else to the first proxy of the ring; redirects and
failures lead it on from there. Proxies that were tried are not tried again in the same round; when none is left the
next round begins after a pause, twice as long each time and cut short by chance: clients do not all come back at once.

Invariants:
  EndsByDeadline     nothing is sent at or behind the deadline, no wait ends behind it, and between two waits each proxy
                     is asked once, but for a few repetitions: so every request ends.
  NeverTwiceUnasked  what may have happened is sent again only if that does no harm, or was allowed.
  NobodyIsHammered   a proxy that asks for patience, or one that points to an owner who cannot be reached, is asked
                     again after a pause.
"""

import enum
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from quire.errors import invariant
from quire.values import dataclass

_PAUSE_S_MIN: Final = 0.005  # Chance may say 0; time has to pass all the same.
_PATIENCE_JITTER: Final = 0.25  # What is added at most to a pause that a proxy asked for.


class Advice(enum.Enum):
    """What a failed attempt says about the next one."""

    FINAL = enum.auto()  # It would end the same way everywhere.
    OWNER = enum.auto()  # Another proxy owns the stream.
    HERE = enum.auto()  # The same proxy, in a while.
    AGAIN = enum.auto()  # The same at once, but only once.
    ELSEWHERE = enum.auto()  # Another proxy: this one is not the owner any more.
    OTHER_PROXY = enum.auto()  # Another proxy, this time: who owns the stream has not changed.
    HOST_GONE = enum.auto()  # Another proxy, for all streams.


DROPS_OWNER: Final = frozenset({Advice.ELSEWHERE, Advice.HOST_GONE})


@dataclass(frozen=True, slots=True)
class Failure:
    """How one attempt failed."""

    advice: Advice
    may_have_happened: bool = False
    answered: bool = True
    """Whether a proxy said so; otherwise it could not be reached, or fell silent."""
    owner: str | None = None
    """With `OWNER`: who it is, if that is known, and not older than what is known here."""
    owner_live: bool = True
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How patiently requests are tried again."""

    backoff_s: float = 0.025
    """Longest pause before the second round: about a round trip to everybody. Doubles with each round."""
    backoff_s_max: float = 1.0
    """Longest pause before any round: a stream that is free again should not wait much longer for its clients."""
    owner_wait_s_max: float = 0.25
    """Longest pause while the owner is known and cannot be reached. It is a fraction of a session: proxies that die are
    followed by others when their session ends, and clients should be there at once."""
    hops_max: int = 3
    """Redirects that are followed one after the other; then somebody is wrong, and a pause is due."""
    rounds_max: int = 60
    """Rounds in which nobody answers at all, before a request is given up although there is time. They are half a
    minute: the only proxy of a machine may be starting again."""


class Send(NamedTuple):
    """Send the request there, and tell what became of it."""

    host: str


class Wait(NamedTuple):
    """Ask again at that time, or before if something is known that was not."""

    until_s: float


class GiveUp(NamedTuple):
    """There is no time, or nobody, left."""

    is_late: bool


Step: TypeAlias = Send | Wait | GiveUp


class Route:
    """The way of one request, or of a stream's batches that are sent again together."""

    def __init__(self, rules: RetryRules, *, deadline_s: float, may_repeat: bool) -> None:
        """With `may_repeat` sending again does no harm: the request is idempotent, or its sender allowed it."""
        self._rules, self.deadline_s, self._may_repeat = rules, deadline_s, may_repeat
        self._tried: set[str] = set()  # In this round.
        self._rounds = self._hops = self._repetitions = self._patience = 0
        self._wait_until_s = 0.0
        self._someone_answered = False
        self.may_have_happened = False
        self.unreachable: set[str] = set()
        """Proxies that could not be reached for this request."""
        self.attempts = 0

    def next(self, now_s: float, *, owner: str | None, candidates: Iterable[str], draw: float) -> Step:
        """What to do now. `owner` is who is believed to have the stream, `candidates` are proxies in the order of the
        ring, `draw` is a random number in [0, 1)."""
        if now_s >= self.deadline_s:
            return GiveUp(is_late=True)
        if now_s < self._wait_until_s:
            return self._wait()
        for host in chain((owner,) if owner is not None else (), candidates):
            if host not in self._tried:
                self.attempts += 1
                return Send(host)
        if self._rounds >= self._rules.rounds_max and not self._someone_answered:
            return GiveUp(is_late=False)
        self._begin_round(now_s, self._backoff_s(draw))
        return self._wait()

    def on_failure(self, host: str, failure: Failure, now_s: float, *, draw: float) -> bool:
        """Whether to go on with `next`; if not, the failure is the caller's."""
        self._someone_answered |= failure.answered
        if failure.may_have_happened:
            self.may_have_happened = True
            if not self._may_repeat:
                return False
        match failure.advice:
            case Advice.FINAL:
                return False
            case Advice.OWNER:
                self._on_owner(host, failure, now_s, draw)
            case Advice.HERE:
                self._patience += 1
                backoff_s = self._doubled(self._patience - 1, self._rules.backoff_s_max) * draw
                self._pause(now_s, self._asked_for(failure, draw) or backoff_s)
            case Advice.AGAIN:
                self._repetitions += 1
                return self._repetitions == 1
            case _:
                self._tried.add(host)
                if not failure.answered:
                    self.unreachable.add(host)
        return True

    def on_news(self) -> None:
        """Something is known that was not: an owner, or another set of proxies. Whoever waits need not."""
        self._wait_until_s = 0.0
        self._tried.clear()

    def _on_owner(self, host: str, failure: Failure, now_s: float, draw: float) -> None:
        self._tried.add(host)
        self._hops += 1
        is_lost = failure.owner is not None and (not failure.owner_live or failure.owner in self.unreachable)
        if is_lost:
            self._patience += 1
            backoff_s = self._doubled(self._patience - 1, self._rules.owner_wait_s_max) * draw
            self._begin_round(now_s, self._asked_for(failure, draw) or backoff_s)
        elif self._hops >= self._rules.hops_max:
            self._begin_round(now_s, self._backoff_s(draw))

    # --- Pauses

    def _wait(self) -> Wait:
        return Wait(min(self._wait_until_s, self.deadline_s))

    def _begin_round(self, now_s: float, pause_s: float) -> None:
        self._tried.clear()
        self._hops = 0
        self._pause(now_s, pause_s)

    def _pause(self, now_s: float, pause_s: float) -> None:
        self._wait_until_s = now_s + max(pause_s, _PAUSE_S_MIN)

    def _backoff_s(self, draw: float) -> float:
        invariant(0 <= draw < 1, "chance is between 0 and 1", draw=draw)
        self._rounds += 1
        return self._doubled(self._rounds - 1, self._rules.backoff_s_max) * draw

    def _doubled(self, times: int, most_s: float) -> float:
        return min(most_s, self._rules.backoff_s * float(1 << min(times, 30)))

    @staticmethod
    def _asked_for(failure: Failure, draw: float) -> float:
        return failure.retry_after_s * (1 + _PATIENCE_JITTER * draw)
