"""Decide whether a request fits into the limits of requests and bytes per second, at every level at once. Sans-IO.

Each limit is a bucket that fills at its rate, up to one second's worth. What does not fit into a hard limit is refused,
with the time after which it will; a soft limit only counts. Levels are asked from the outside in: the proxy, then the
namespace, then the stream.

Invariants:
  AllOrNone       a request is charged at every level, or at none.
  EveryoneFits    a request that is larger than a second's worth passes when the bucket is full, and leaves a debt.
  OffAndNothing   no limit (None, or below 0) refuses nothing, and a limit of 0 refuses everything.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.errors import InvalidArgument
from quire.values import dataclass

OFF: Final = -1.0  # A number, so that settings by name can change it.
SAMPLES: Final = 60  # Of one second each.


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of one level. None, or anything below 0, is no limit; 0 refuses everything."""

    requests_hard: float | None = OFF
    """Requests a second above which some are refused."""

    requests_soft: float | None = OFF
    """Requests a second above which it is counted: a warning before the hard limit."""

    bytes_hard: float | None = OFF
    """The same for payload bytes a second."""

    bytes_soft: float | None = OFF

    def __post_init__(self) -> None:
        for limit in (self.requests_hard, self.requests_soft, self.bytes_hard, self.bytes_soft):
            if limit is not None and not -math.inf < limit < math.inf:  # Also refuses NaN.
                raise InvalidArgument(f"{limit} is no rate", hint="Leave it out for no limit.")

    @property
    def is_off(self) -> bool:
        return all(map(_is_off, (self.requests_hard, self.requests_soft, self.bytes_hard, self.bytes_soft)))


def _is_off(limit: float | None) -> bool:
    return limit is None or limit < 0


class _Bucket:
    """Tokens for one rate."""

    __slots__ = ("_at_s", "_rate", "_tokens")

    def __init__(self, rate: float) -> None:
        self._rate = self._tokens = rate
        self._at_s = -math.inf

    def wait_s(self, cost: float, now_s: float) -> float:
        """How long until the cost can be paid: 0 if now."""
        if not self._rate:
            return math.inf if cost else 0.0
        if now_s > self._at_s:
            self._tokens = min(self._rate, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        return max(0.0, (min(cost, self._rate) - self._tokens) / self._rate)

    def pay(self, cost: float) -> None:
        self._tokens -= cost


class Refusal(NamedTuple):
    """A hard limit that a request does not fit into."""

    level: str
    what: str
    """`requests` or `bytes`."""
    retry_after_s: float
    """Infinite if it will never fit."""


class Charge(NamedTuple):
    """What became of a request."""

    refusal: Refusal | None
    soft: tuple[str, ...] = ()
    """The levels whose soft limits it exceeded. It was charged all the same."""


CHARGED: Final = Charge(None)


class LevelLimiter:
    """The buckets of one level."""

    __slots__ = ("hard", "level", "soft")

    def __init__(self, level: str, limits: RateLimits) -> None:
        self.level = level
        self.hard = _buckets(limits.requests_hard, limits.bytes_hard)
        self.soft = _buckets(limits.requests_soft, limits.bytes_soft)


def _buckets(requests: float | None, size_bytes: float | None) -> list[tuple[str, _Bucket]]:
    named = (("requests", requests), ("bytes", size_bytes))
    return [(what, _Bucket(limit)) for what, limit in named if limit is not None and not _is_off(limit)]


def charge(levels: Sequence[LevelLimiter], *, requests: int, size_bytes: int, now_s: float) -> Charge:
    """Charge a request at all levels, unless one of them refuses it."""
    costs = {"requests": requests, "bytes": size_bytes}
    for level in levels:
        for what, bucket in level.hard:
            wait_s = bucket.wait_s(costs[what], now_s)
            if wait_s > 0:
                return Charge(Refusal(level.level, what, wait_s))
    exceeded: list[str] = []
    for level in levels:
        for what, bucket in level.hard:
            bucket.pay(costs[what])
        for what, bucket in level.soft:
            if bucket.wait_s(costs[what], now_s) > 0:
                exceeded.append(level.level)
            else:
                bucket.pay(costs[what])
    return Charge(None, tuple(exceeded)) if exceeded else CHARGED


class MovingRate:
    """How much came per second, over the last minute, or since the beginning if that is less."""

    __slots__ = ("_begun", "_counts", "_second", "_total")

    def __init__(self, now_s: float) -> None:
        self._begun = self._second = math.floor(now_s)
        self._counts = [0] * SAMPLES
        self._total = 0

    def add(self, count: int, now_s: float) -> None:
        second = math.floor(now_s)
        if second > self._second:
            self._advance(second)
        self._counts[self._second % SAMPLES] += count
        self._total += count

    def per_s(self, now_s: float) -> float:
        second = math.floor(now_s)
        if second > self._second:
            self._advance(second)
        return self._total / min(SAMPLES, self._second - self._begun + 1)

    def _advance(self, second: int) -> None:
        """Forget what is older than a minute."""
        for old in range(self._second + 1, min(second, self._second + SAMPLES) + 1):
            self._total -= self._counts[old % SAMPLES]
            self._counts[old % SAMPLES] = 0
        self._second = second


REQUEST_COST_BYTES: Final = 4096  # What a request costs beside its bytes, where streams are weighed against each other.


def load(*, bytes_per_s: float, requests_per_s: float) -> float:
    """How much of a proxy something takes, in bytes a second."""
    return bytes_per_s + REQUEST_COST_BYTES * requests_per_s
