"""Where streams belong while nobody owns them: a ring of hashes that all clients and proxies work out alike. Sans-IO.

Each host has `POINTS` places on the ring. A stream belongs to the host whose place is the first at or behind the hash
of its own name, and, if that one cannot serve it, to the next other host along the ring.

Invariants:
  SameEverywhere   only the advertised `host:port` and the key decide; neither the order of hosts nor this process does.
  OnlyItsOwn       when a host goes, its streams move and no others do; when it returns, they return.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_CIRCUMFERENCE: Final = 1 << 64
POINTS: Final = 1000  # For each host: with fewer the shares differ more, with more they hardly differ less.


def ring_hash(text: str) -> int:
    """The place of a text: 64 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=256)  # Rings are made anew whenever a host comes or goes, mostly of the same hosts.
def _places_of(host: str) -> tuple[tuple[int, str], ...]:
    return tuple((ring_hash(f"{host}|{point}"), host) for point in range(POINTS))


class HashRing:
    """Hosts on a ring. Immutable: another set of hosts is another ring."""

    __slots__ = ("_owners", "_places", "hosts")

    def __init__(self, hosts: Iterable[str]) -> None:
        """Hosts as they advertise themselves: `host:port`."""
        self.hosts: Final = frozenset(hosts)
        # Two hosts at one place are as good as impossible; the name decides then, as it does everywhere.
        placed = sorted(place for host in self.hosts for place in _places_of(host))
        self._places = [place for place, _ in placed]
        self._owners = [host for _, host in placed]

    def candidates(self, key: str) -> Iterator[str]:
        """Every host once, in the order in which they should be asked for `key`: `<namespace>/<stream>`."""
        owners, count = self._owners, len(self._owners)
        begin, seen = bisect_left(self._places, ring_hash(key)), set[str]()
        for step in range(count):
            host = owners[(begin + step) % count]
            if host not in seen:
                seen.add(host)
                yield host
                if len(seen) == len(self.hosts):
                    return

    def owner(self, key: str) -> str | None:
        """The first candidate; None if there are no hosts."""
        return next(self.candidates(key), None)

    def shares(self) -> dict[str, float]:
        """Which part of all keys belongs to each host: together 1, if there are hosts."""
        shares = dict.fromkeys(sorted(self.hosts), 0.0)
        before = self._places[-1] - _CIRCUMFERENCE if self._places else 0
        for place, owner in zip(self._places, self._owners, strict=True):
            shares[owner] += (place - before) / _CIRCUMFERENCE
            before = place
        return shares

    def __repr__(self) -> str:
        return f"HashRing({sorted(self.hosts)})"


@lru_cache(maxsize=16)  # A program with many clients learns the same news many times over.
def ring_of(hosts: frozenset[str]) -> HashRing:
    """The ring of these hosts, made once for all who ask."""
    return HashRing(hosts)
