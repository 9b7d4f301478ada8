"""Decide how much room ledgers take, how fast that grows, and when a disk will be full. Sans-IO.

Everything follows from facts that are there anyway: how long a ledger is, when it was begun and ended, which bookies
hold it. What was written lately is taken for what will be written; new ledgers go to all writable bookies alike.

What a stream keeps is read off what it has: one that never lost its first segment keeps everything, another keeps what
is as old as its oldest segment is now. So the room that a bookie needs goes up in straight lines, and down where a
segment goes: the day on which its disk is full is found exactly, where a line crosses the limit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

from quire.errors import InvalidArgument
from quire.protocol.space import SpaceLimits
from quire.types import BookieId, LedgerId, Quorum
from quire.values import dataclass

DAY_MS: Final = 86_400_000
FREE_BYTES_MIN: Final = 1 << 30  # Where a bookie stops taking entries, unless it is set otherwise.


@dataclass(frozen=True, slots=True)
class Holding:
    """One ledger: whose it is, when it was written, and what each bookie holds of it."""

    ledger_id: LedgerId
    owner: str
    """The stream, or what else it belongs to."""

    payload_bytes: int
    quorum: Quorum
    by_bookie: Mapping[BookieId, int]
    begun_ms: int | None
    ended_ms: int | None
    """None while it is being written."""

    is_reclaimable: bool = False
    """Readers do not see it any more: it goes when its stream is purged."""

    @property
    def stored_bytes(self) -> int:
        return sum(self.by_bookie.values())


class BookieSpace(NamedTuple):
    """The disk of one bookie."""

    bookie: BookieId
    is_writable: bool
    free_bytes: int
    total_bytes: int
    garbage_bytes: int = 0
    """On its disk, of ledgers that are deleted: comes back by itself."""

    @property
    def room_bytes(self) -> int:
        """What it still takes before it turns read-only."""
        return max(0, self.free_bytes - SpaceLimits.of(self.total_bytes, free_bytes_min=FREE_BYTES_MIN).adds)


@dataclass(frozen=True, slots=True)
class Capacity:
    """All that is known of a cluster's room at one moment."""

    now_ms: int
    bookies: tuple[BookieSpace, ...]
    holdings: tuple[Holding, ...]
    purged: frozenset[str] = frozenset()
    """Owners that have let go of their oldest segments: they keep what is as young as what they have now."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is to be different. The defaults change nothing."""

    quorum: Quorum | None = None  # Of all that is written from now on. What is there stays as it is.
    retention_days: float | None = None
    added_bookies: int = 0  # Empty ones, each as large as the median of those that are there.
    lost: BookieId | None = None  # For good: what it has is copied to the others.


@dataclass(frozen=True, slots=True)
class BookieForecast:
    bookie: BookieId
    is_writable: bool
    total_bytes: int
    free_bytes: int
    stored_bytes: int
    reclaimable_bytes: int
    growth_bytes_per_day: float
    days_to_full: float | None
    """Until it takes no more entries. None if that does not come, as things are."""


@dataclass(frozen=True, slots=True)
class OwnerForecast:
    owner: str
    ledgers: int
    payload_bytes: int
    stored_bytes: int
    reclaimable_bytes: int
    growth_bytes_per_day: float
    """Of what is stored, all copies."""

    kept_days: float | None
    """How long it keeps what is written; None for ever."""


class Forecast(NamedTuple):
    bookies: tuple[BookieForecast, ...]
    owners: tuple[OwnerForecast, ...]
    days_to_first_full: float | None
    notes: tuple[str, ...]
    """What is impossible, or less certain than it looks."""
    is_guess: bool
    """Whether there is too little history to say when a disk is full."""


class Flow(NamedTuple):
    """What an owner will write a day, all copies, and for how many days it keeps it: `inf` for ever."""

    bytes_per_day: float
    kept_days: float


class Projection:
    """How the need of each bookie goes on, under one set of assumptions. Days are counted from now."""

    def __init__(self, capacity: Capacity, what_if: WhatIf, *, window_days: float) -> None:
        if window_days <= 0 or (what_if.retention_days is not None and what_if.retention_days <= 0):
            raise InvalidArgument("days to look back, and days to keep, are more than 0")
        self.notes: list[str] = []
        self.now_ms = capacity.now_ms
        self.owners = _by_owner(capacity.holdings)
        self.bookies = self._with_changes(capacity, what_if)
        self.flows = {
            owner: self._flow(owner in capacity.purged, held, what_if, window_days)
            for owner, held in self.owners.items()
        }
        self._writable = [space.bookie for space in self.bookies if space.is_writable]
        growth = sum(flow.bytes_per_day for flow in self.flows.values())
        young = sum(self.flows[owner].bytes_per_day for owner, held in self.owners.items() if self._is_young(held))
        self.is_guess = young > growth / 2
        """Whether most of the growth is that of owners that began within a day: an hour says little of a day."""
        if self.is_guess:
            self.notes.insert(0, "most of the growth began within a day: how fast it goes on is a guess")

    def _is_young(self, held: Sequence[Holding]) -> bool:
        begun = [each.begun_ms for each in held if each.begun_ms is not None]
        return bool(begun) and self.now_ms - min(begun) < DAY_MS

    # --- Assumptions

    def _with_changes(self, capacity: Capacity, what_if: WhatIf) -> tuple[BookieSpace, ...]:
        spaces = list(capacity.bookies)
        if what_if.added_bookies:
            if not spaces:
                raise InvalidArgument("there is no bookie whose size added ones could have")
            size = round(median(space.total_bytes for space in spaces))
            spaces += [
                BookieSpace(BookieId(f"new-{number}"), True, size, size)
                for number in range(1, what_if.added_bookies + 1)
            ]
        if what_if.lost is not None:
            spaces = self._without(spaces, what_if.lost)
        ensembles = [held[-1].quorum.ensemble for held in self.owners.values()]
        wanted = max([what_if.quorum.ensemble] if what_if.quorum else ensembles, default=1)
        writable = sum(space.is_writable for space in spaces)
        if writable < wanted:
            self.notes.append(f"new ledgers need {wanted} bookies, and {writable} would be writable")
        return tuple(spaces)

    def _without(self, spaces: Sequence[BookieSpace], lost: BookieId) -> list[BookieSpace]:
        """Its share of each ledger goes to the others, evenly: autorecovery chooses at random."""
        if lost not in {space.bookie for space in spaces}:
            raise InvalidArgument(f"there is no bookie {lost!r}", hint="`quire bookie status` lists them.")
        takers = sum(space.is_writable for space in spaces if space.bookie != lost)
        stored = sum(held.by_bookie.get(lost, 0) for holdings in self.owners.values() for held in holdings)
        more = stored // takers if takers else 0
        if not takers:
            self.notes.append(f"nobody would be left to take over what {lost} has")
        elif any(space.is_writable and space.room_bytes < more for space in spaces if space.bookie != lost):
            self.notes.append(f"the others have not enough room for the copies that {lost} has")
        return [
            space._replace(free_bytes=max(0, space.free_bytes - more)) if space.is_writable else space
            for space in spaces
            if space.bookie != lost
        ]

    def _flow(self, is_purged: bool, held: Sequence[Holding], what_if: WhatIf, window_days: float) -> Flow:
        kept_days = math.inf
        if what_if.retention_days is not None:
            kept_days = what_if.retention_days
        elif is_purged:
            begun = [each.begun_ms for each in held if each.begun_ms is not None]
            kept_days = max(self.now_ms - min(begun), 1) / DAY_MS if begun else math.inf
        rate = bytes_per_day(held, now_ms=self.now_ms, window_days=window_days)
        if what_if.quorum is not None and held:
            rate *= what_if.quorum.write / held[-1].quorum.write
        return Flow(rate, kept_days)

    # --- What follows

    def used_bytes(self, bookie: BookieId, days: float) -> float:
        """How much more, or less, a bookie holds then than now."""
        grown = sum(flow.bytes_per_day * min(days, flow.kept_days) for flow in self.flows.values())
        share = grown / len(self._writable) if bookie in self._writable else 0.0
        return share - sum(size for at, size in self._drops(bookie) if at <= days)

    def growth_bytes_per_day(self, bookie: BookieId) -> float:
        """What new ledgers bring each day, as long as nothing that is as old as it is kept goes."""
        if bookie not in self._writable:
            return 0.0
        return sum(flow.bytes_per_day for flow in self.flows.values()) / len(self._writable)

    def days_to_full(self, space: BookieSpace) -> float | None:
        """The first day on which the bookie has no room left. Exact: between two events its need is a straight line."""
        if space.bookie not in self._writable:
            return None
        drops, flows, share = self._drops(space.bookie), self.flows.values(), 1 / len(self._writable)
        events = sorted(
            {0.0, *(at for at, _ in drops), *(flow.kept_days for flow in flows if flow.kept_days < math.inf)}
        )
        room, dropped = space.room_bytes + space.garbage_bytes, 0
        waiting = iter(sorted(drops))
        following = next(waiting, None)
        for at, until in zip(events, [*events[1:], math.inf], strict=True):
            while following is not None and following[0] <= at:
                dropped += following[1]
                following = next(waiting, None)
            need = sum(flow.bytes_per_day * min(at, flow.kept_days) for flow in flows) * share - dropped
            slope = sum(flow.bytes_per_day for flow in flows if flow.kept_days > at) * share
            if need >= room:
                return at
            if slope > 0 and (day := at + (room - need) / slope) < until:
                return day
        return None

    def _drops(self, bookie: BookieId) -> list[tuple[float, int]]:
        """When what the bookie holds now goes, and how much that is."""
        return [
            (max(0.0, self.flows[owner].kept_days - (self.now_ms - each.ended_ms) / DAY_MS), each.by_bookie[bookie])
            for owner, held in self.owners.items()
            if self.flows[owner].kept_days < math.inf
            for each in held
            if each.ended_ms is not None and bookie in each.by_bookie
        ]


def forecast(capacity: Capacity, what_if: WhatIf = WhatIf(), *, window_days: float = 7.0) -> Forecast:  # noqa: B008
    """What there is, and where it leads. Raises `InvalidArgument` for assumptions that make no sense."""
    projection = Projection(capacity, what_if, window_days=window_days)
    bookies = tuple(_bookie_forecast(projection, space, capacity.holdings) for space in projection.bookies)
    owners = tuple(
        _owner_forecast(owner, held, projection.flows[owner]) for owner, held in sorted(projection.owners.items())
    )
    first = min((each.days_to_full for each in bookies if each.days_to_full is not None), default=None)
    return Forecast(bookies, owners, first, tuple(projection.notes), projection.is_guess)


def bytes_per_day(held: Iterable[Holding], *, now_ms: int, window_days: float) -> float:
    """What was stored a day since `window_days` ago, or since the first of these ledgers if that was later.

    A ledger that was written across the beginning of that time counts in part; one whose end is not known, at its
    beginning.
    """
    timed = [each for each in held if each.begun_ms is not None and each.begun_ms <= now_ms]
    begun = [each.begun_ms for each in timed if each.begun_ms is not None]
    if not begun:
        return 0.0
    since_ms = max(min(begun), now_ms - window_days * DAY_MS)
    stored = sum(each.stored_bytes * _part_since(each, since_ms, now_ms) for each in timed)
    return stored / max(now_ms - since_ms, 1) * DAY_MS


def _part_since(held: Holding, since_ms: float, now_ms: int) -> float:
    begun = held.begun_ms or 0
    ended = min(now_ms if held.ended_ms is None else held.ended_ms, now_ms)
    if ended <= begun:
        return float(begun >= since_ms)
    return max(0.0, ended - max(begun, since_ms)) / (ended - begun)


def _by_owner(holdings: Iterable[Holding]) -> dict[str, list[Holding]]:
    """In the order in which they were begun."""
    found: dict[str, list[Holding]] = {}
    for held in sorted(holdings, key=lambda held: (held.begun_ms or 0, held.ledger_id)):
        found.setdefault(held.owner, []).append(held)
    return found


def _bookie_forecast(projection: Projection, space: BookieSpace, holdings: Iterable[Holding]) -> BookieForecast:
    here = [(held.by_bookie.get(space.bookie, 0), held.is_reclaimable) for held in holdings]
    return BookieForecast(
        space.bookie,
        space.is_writable,
        space.total_bytes,
        space.free_bytes,
        stored_bytes=sum(size for size, _ in here),
        reclaimable_bytes=sum(size for size, is_reclaimable in here if is_reclaimable) + space.garbage_bytes,
        growth_bytes_per_day=projection.growth_bytes_per_day(space.bookie),
        days_to_full=projection.days_to_full(space),
    )


def _owner_forecast(owner: str, held: Sequence[Holding], flow: Flow) -> OwnerForecast:
    return OwnerForecast(
        owner,
        len(held),
        payload_bytes=sum(each.payload_bytes for each in held),
        stored_bytes=sum(each.stored_bytes for each in held),
        reclaimable_bytes=sum(each.stored_bytes for each in held if each.is_reclaimable),
        growth_bytes_per_day=flow.bytes_per_day,
        kept_days=None if flow.kept_days == math.inf else flow.kept_days,
    )


def by_namespace(owners: Sequence[OwnerForecast], namespaces: Mapping[str, str]) -> list[OwnerForecast]:
    """The same, streams of one namespace together. `namespaces` are those of the owners that have one."""
    found: dict[str, OwnerForecast] = {}
    for each in owners:
        name = namespaces.get(each.owner, each.owner)
        before = found.get(name)
        if before is None:
            found[name] = replace(each, owner=name)
            continue
        kept = None if None in (before.kept_days, each.kept_days) else max(before.kept_days or 0, each.kept_days or 0)
        found[name] = OwnerForecast(
            name,
            before.ledgers + each.ledgers,
            before.payload_bytes + each.payload_bytes,
            before.stored_bytes + each.stored_bytes,
            before.reclaimable_bytes + each.reclaimable_bytes,
            before.growth_bytes_per_day + each.growth_bytes_per_day,
            kept,
        )
    return list(found.values())
