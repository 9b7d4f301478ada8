"""Decide which proxy should have which stream, and which streams to move so that all have about as much to do. Sans-IO.

Two ways to look at it: `place` weighs streams by their load, for streams that nobody has yet and for those on proxies
that went; `plan_moves` counts streams, as Apache's balancer does, and levels the fullest proxies down.

Invariants:
  StaysUnlessWorth   a stream is moved only if the proxy that gets it then has less than the other had, by more than the
                     threshold.
  LargestFirst       streams are placed from the heaviest to the lightest: the light ones fill what is uneven.
  Remembered         a stream that was placed once is placed the same again, until the next whole placement.
  NeverWorse         no move makes a proxy fuller than the one that it relieves was.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quire.errors import InvalidArgument

MOVE_THRESHOLD: Final = 0.1  # Of the mean load of a proxy.
_ROUNDS_MAX: Final = 20  # Each one leaves less to gain; what is left after so many is little.


class Placements:
    """Where streams belong, by load."""

    def __init__(self, hosts: Iterable[str], *, move_threshold: float = MOVE_THRESHOLD) -> None:
        self._loads = dict.fromkeys(sorted(hosts), 0.0)
        self._threshold = move_threshold
        self._placed: dict[str, str] = {}

    @property
    def loads(self) -> Mapping[str, float]:
        """What each proxy has to do, as placed."""
        return self._loads

    def place_all(self, streams: Mapping[str, float], owners: Mapping[str, str]) -> Mapping[str, str]:
        """A proxy for each stream of these loads. `owners` says where they are now, as far as they are anywhere."""
        self._loads = dict.fromkeys(self._loads, 0.0)
        self._placed = {}
        heaviest_first = sorted(streams, key=lambda name: (-streams[name], name))
        for stream in heaviest_first:
            if owners.get(stream) in self._loads:
                self._put(stream, streams[stream], owners[stream])
        for stream in heaviest_first:
            if stream not in self._placed and self._loads:
                self._put(stream, streams[stream], self._lightest())
        slack = self._threshold * sum(streams.values()) / max(1, len(self._loads))
        for _ in range(_ROUNDS_MAX):
            if not [stream for stream in heaviest_first if self._is_moved(stream, streams[stream], slack)]:
                break
        return dict(self._placed)

    def place(self, stream: str, load: float) -> str | None:
        """Where a single stream belongs that came since; None if there is no proxy."""
        if stream not in self._placed and self._loads:
            self._put(stream, load, self._lightest())
        return self._placed.get(stream)

    def _lightest(self) -> str:
        return min(self._loads, key=lambda host: (self._loads[host], host))

    def _put(self, stream: str, load: float, host: str) -> None:
        self._placed[stream] = host
        self._loads[host] += load

    def _is_moved(self, stream: str, load: float, slack: float) -> bool:
        """Move a stream if its proxy had more to do than the lightest one then has, by more than the threshold."""
        if not self._loads:
            return False
        here, there = self._placed[stream], self._lightest()
        if self._loads[here] - (self._loads[there] + load) <= slack or not load:
            return False
        self._loads[here] -= load
        self._put(stream, load, there)
        return True


class Move(NamedTuple):
    """Give a stream up here, and have it taken there."""

    stream: str
    source: str
    target: str


def plan_moves(
    hosts: Mapping[str, Sequence[str]],
    *,
    tolerance: float = MOVE_THRESHOLD,
    water_mark: int = 0,
    source: str | None = None,
    shuffled: Callable[[list[str]], list[str]] = list,
) -> list[Move]:
    """Moves after which no proxy has more than its share, by number of streams.

    Proxies with more than the average, and than `water_mark`, give to those with less than the average and a tolerance.
    With a `source` that proxy gives everything. `shuffled` puts a proxy's streams into the order in which they go.
    """
    if source is not None:
        return _emptied(hosts, source, shuffled)
    if len(hosts) < 2:
        return []
    total = sum(map(len, hosts.values()))
    average = total / len(hosts)
    high = max(math.ceil(average), water_mark)
    low = max(math.ceil(average), math.floor(average * (1 + tolerance)))  # Apache's ends below the average.
    counts = {host: len(streams) for host, streams in hosts.items()}
    fullest = sorted(hosts, key=lambda host: (-counts[host], host))
    moves: list[Move] = []
    giver, taker = 0, len(fullest) - 1
    streams = shuffled(list(hosts[fullest[0]]))
    while giver < taker:
        here, there = fullest[giver], fullest[taker]
        if counts[here] <= high:
            giver += 1
            streams = shuffled(list(hosts[fullest[giver]]))
        elif counts[there] >= low or counts[there] + 1 >= counts[here]:
            taker -= 1
        else:
            moves.append(Move(streams.pop(), here, there))
            counts[here] -= 1
            counts[there] += 1
    return moves


def _emptied(hosts: Mapping[str, Sequence[str]], source: str, shuffled: Callable[[list[str]], list[str]]) -> list[Move]:
    """Everything of one proxy, to whoever has least at that moment."""
    if source not in hosts:
        raise InvalidArgument(f"{source!r} is none of the proxies", hint=f"They are {', '.join(sorted(hosts))}.")
    counts = {host: len(streams) for host, streams in hosts.items() if host != source}
    if not counts and hosts[source]:
        raise InvalidArgument(f"there is no other proxy than {source!r}", hint="Start one first.")
    moves: list[Move] = []
    for stream in shuffled(list(hosts[source])):
        target = min(counts, key=lambda host: (counts[host], host))
        counts[target] += 1
        moves.append(Move(stream, source, target))
    return moves
