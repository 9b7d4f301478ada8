"""Decide which streams go from write proxies with much to do to those with little, and where new ones begin. Sans-IO.

A stream weighs what is written to it, in bytes a second, and a little for being there at all. The heaviest proxy gives
to the lightest one, again and again, as long as that is worth it.

Invariants:
  EveryMoveHelps    whoever takes a stream then has less than the giver had, by more than the threshold. So no move
                    makes the heaviest proxy heavier, and as long as loads stay the same moves come to an end.
  RestFirst         a stream that has not been where it is for a while is not moved: whatever happens, it moves once in
                    that time, and who has just lost a proxy is not also moved about.
  FewAtATime        a plan has a bound, names a stream once, and gives no proxy more streams than it has room for.
  LateOrdersFail    once a proxy has obeyed a balancer it obeys no earlier one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quire.errors import InvalidArgument
from quire.values import dataclass

STREAM_COST: Final = 1024.0  # What a stream weighs that nobody writes: its ledger is open all the same.
_ROUNDING: Final = 1e-9  # Of a load: sums of the same streams differ by less, depending on their order.
CROWDED: Final = 1.25  # A proxy with so much more than the mean gets no new streams, if there is another.
_NEWEST_SHARE: Final = 0.5  # Of what was just seen in what a stream is taken to weigh.


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """When streams are moved from busy write proxies to others, and how many at once."""

    is_on: bool = True
    """Whether this proxy may be the one that balances. Any other one may move its streams all the same."""

    interval_s: float = 60.0
    """How often the balancer looks. 0: only when an operator asks for it, by `quire proxy balance`."""

    threshold: float = 0.1
    """A stream stays unless the proxy that would take it then had less than the other one has, by more than this part
    of what a proxy has on average."""

    water_mark: float = float(1 << 20)
    """A proxy with less to do than this is not relieved, however little the others have: bytes a second, with 4 KiB for
    each request."""

    rest_s: float = 120.0
    """A stream is not moved before it has been where it is for so long."""

    moves_max: int = 20
    """Streams that are moved after one look."""

    moves_at_once: int = 4
    """Of those, how many are on their way at the same time. Each one has to be recovered by whoever takes it."""

    def __post_init__(self) -> None:
        counted = (self.interval_s, self.threshold, self.water_mark, self.rest_s, float(self.moves_max))
        if not all(0 <= number < float("inf") for number in counted) or self.moves_at_once < 1:
            raise InvalidArgument("balancing is set by numbers from 0 on, and moves at least one stream at once")


class StreamLoad(NamedTuple):
    """A stream that a proxy serves."""

    stream: str
    load: float
    here_s: float
    """For how long it has been there."""


class ProxyLoad(NamedTuple):
    """A proxy that has just answered, and what it serves."""

    proxy: str
    streams: Sequence[StreamLoad]
    room: int
    """How many further streams it would take."""


class Move(NamedTuple):
    """Give a stream up here, and have it taken there."""

    stream: str
    source: str
    target: str
    load: float


class Plan(NamedTuple):
    """What to do, and what that comes to for each proxy."""

    moves: tuple[Move, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]


class SmoothedLoads:
    """What each stream weighs, by all looks so far: a moment's rush does not move anything."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def on_look(self, proxies: Sequence[ProxyLoad]) -> list[ProxyLoad]:
        """The same proxies, with smoothed loads. Streams that are not seen any more are forgotten."""
        known, self._known = self._known, {}
        for proxy in proxies:
            for stream, load, _ in proxy.streams:
                before = known.get(stream, load)
                self._known[stream] = before + _NEWEST_SHARE * (load - before)
        return [
            proxy._replace(streams=[each._replace(load=self._known[each.stream]) for each in proxy.streams])
            for proxy in proxies
        ]


def plan_moves(proxies: Sequence[ProxyLoad], settings: BalanceSettings) -> Plan:
    """Moves after which the proxies have about as much to do as each other, as far as one look goes."""
    served = {each.proxy: {stream.stream: _weight(stream) for stream in each.streams} for each in proxies}
    rested = {stream.stream for each in proxies for stream in each.streams if stream.here_s >= settings.rest_s}
    loads = {proxy: sum(weights.values()) for proxy, weights in served.items()}
    before, room = dict(loads), {each.proxy: each.room for each in proxies}
    slack = settings.threshold * sum(loads.values()) / max(1, len(loads))
    moves: list[Move] = []
    while len(moves) < settings.moves_max and (takers := [proxy for proxy in loads if room[proxy] > 0]):
        target = min(takers, key=lambda proxy: (loads[proxy], proxy))
        found = _most_useful(served, loads, rested, target, slack, settings.water_mark)
        if found is None:
            break
        source, stream = found
        load = served[source].pop(stream)
        rested.discard(stream)
        loads[source] -= load
        loads[target] += load
        served[target][stream] = load
        room[target] -= 1
        moves.append(Move(stream, source, target, load))
    return Plan(tuple(moves), before, loads)


def _most_useful(
    served: Mapping[str, Mapping[str, float]],
    loads: Mapping[str, float],
    rested: set[str],
    target: str,
    slack: float,
    water_mark: float,
) -> tuple[str, str] | None:
    """The stream of the heaviest proxy that has one worth moving: the one that makes both most alike."""
    for source in sorted(loads, key=lambda proxy: (-loads[proxy], proxy)):
        gap = loads[source] - loads[target]
        if gap <= slack or loads[source] <= water_mark:
            return None
        least = slack + _ROUNDING * loads[source]
        worth = [name for name, load in served[source].items() if name in rested and gap - load > least]
        if worth:
            return source, min(worth, key=lambda name: (abs(served[source][name] - gap / 2), name))
    return None


def _weight(stream: StreamLoad) -> float:
    return stream.load + STREAM_COST


def place(candidates: Iterable[str], loads: Mapping[str, float]) -> str | None:
    """Where a new stream should begin: the first of the ring's candidates that has not much more to do than others.

    Nothing is remembered: with the same loads the same stream always gets the same answer.
    """
    first: str | None = None
    limit = CROWDED * sum(loads.values()) / len(loads) if loads else 0.0
    for candidate in candidates:
        if loads.get(candidate, 0.0) <= limit:
            return candidate
        first = candidate if first is None else first
    return first


class Orders:
    """What one proxy obeys. Balancers are numbered in the order in which they were elected."""

    def __init__(self) -> None:
        self._latest_term = 0

    def obeys(self, term: int) -> bool:
        """Whether this balancer is the latest that was heard of. An operator, who has no term, is always obeyed."""
        if term and term < self._latest_term:
            return False
        self._latest_term = max(self._latest_term, term)
        return True
