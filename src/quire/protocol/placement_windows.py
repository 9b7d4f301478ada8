"""Arrange bookies so that every write set keeps a rule about racks. Sans-IO.

Entries go round the ensemble, so each run of `quorum.write` positions, also one across the end, is the write set of
some entry: a window. A rule is about the racks in one window. Bookies of one rack are alike to it, so the search is for
an order of racks; which bookies of them, and which racks first, is left to chance and to the wishes of the policy.

The search goes back where it got stuck, so it finds an arrangement if there is one. Only its length is bounded, against
ensembles so large and racks so uneven that nobody has them: see `STEPS_MAX`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

from quire.protocol.placement import Adherence, BookieView, Lots, is_assumed, is_ensemble, region_of
from quire.protocol.quorum import write_sets
from quire.types import BookieId, Quorum
from quire.values import dataclass

STEPS_MAX: Final = 5_000  # About a tenth of a second: the event loop waits meanwhile.

Wish = Callable[[Sequence[str], Collection[str]], Iterator[Collection[str]]]
"""Given the racks of the positions before, and those that may come next: the latter in groups, the best first."""


class Rule(Protocol):
    """What must be true of the racks of each write set."""

    def may_hold(self, racks: Sequence[str], *, undecided: int) -> bool:
        """Whether a window can still keep the rule that has these racks, and `undecided` positions without any yet."""
        ...

    def is_possible(self, rooms: Mapping[str, int], quorum: Quorum) -> bool:
        """False only if no arrangement of racks that have so many bookies can keep the rule. Saves a vain search."""
        ...


@dataclass(frozen=True, slots=True)
class RacksSpanned:
    """Each window has bookies of at least so many racks."""

    racks_min: int

    def may_hold(self, racks: Sequence[str], *, undecided: int) -> bool:
        return len(set(racks)) + undecided >= self.racks_min

    def is_possible(self, rooms: Mapping[str, int], quorum: Quorum) -> bool:
        """Count the pairs of a window and a rack in it.

        `racks_min` for each window are needed. A rack gives one for each window that one of its bookies is in. That is
        most when bookies are taken from all racks evenly.
        """
        size = quorum.ensemble
        pairs = sum(min(size, count * quorum.write) for count in evenly(rooms, size).values())
        return pairs >= self.racks_min * size


@dataclass(frozen=True, slots=True)
class RegionsSurvived:
    """An entry outlives the loss of `regions_min` - 1 regions: they never hold a whole ack quorum of it."""

    regions_min: int
    ack: int

    def may_hold(self, racks: Sequence[str], *, undecided: int) -> bool:
        counts = Counter(region_of(rack) for rack in racks)
        return sum(count for _, count in counts.most_common(self.regions_min - 1)) < self.ack

    def is_possible(self, rooms: Mapping[str, int], quorum: Quorum) -> bool:
        """Count the places in windows that the largest regions fill: in each at most `ack` - 1.

        Each of their bookies is in as many windows as there are copies. They are fewest when all regions get equally
        many positions.
        """
        regions = Counter[str]()
        for rack, room in rooms.items():
            regions[region_of(rack)] += room
        largest = evenly(regions, quorum.ensemble).most_common(self.regions_min - 1)
        return sum(count for _, count in largest) * quorum.write <= (self.ack - 1) * quorum.ensemble


def evenly(rooms: Mapping[str, int], count: int) -> Counter[str]:
    """`count` positions dealt out one by one, each to the one that has the fewest so far and room for more."""
    taken = Counter[str]()
    for _ in range(min(count, sum(rooms.values()))):
        taken[min((name for name, room in rooms.items() if taken[name] < room), key=taken.__getitem__)] += 1
    return taken


def windows(quorum: Quorum, *, around: int | None = None) -> list[tuple[int, ...]]:
    """The positions of each write set, or of those that `around` is in."""
    different = quorum.ensemble if quorum.ensemble > quorum.write else 1  # Else all of them are the whole ensemble.
    return [window for window in write_sets(quorum)[:different] if around is None or around in window]


def kept_windows(rules: Sequence[Rule], racks: Sequence[str], quorum: Quorum, *, around: int | None = None) -> int:
    """How many windows of a whole ensemble keep the rules."""
    return sum(
        all(rule.may_hold([racks[position] for position in window], undecided=0) for rule in rules)
        for window in windows(quorum, around=around)
    )


def keeps(rules: Sequence[Rule], racks: Sequence[str], quorum: Quorum) -> bool:
    """Whether every window keeps every rule."""
    return kept_windows(rules, racks, quorum) == len(windows(quorum))


def judge(
    view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId], *, must: Sequence[Rule], should: Sequence[Rule]
) -> Adherence:
    """The adherence of `ensemble` to rules that must hold and rules that should."""
    racks = [view.rack_of(bookie) for bookie in ensemble]
    if not is_ensemble(quorum, ensemble) or not keeps(must, racks, quorum):
        return Adherence.FAIL
    strict = keeps(should, racks, quorum) and not any(is_assumed(rack) for rack in racks)
    return Adherence.MEETS_STRICT if strict else Adherence.MEETS_SOFT


def arrange(
    view: BookieView, candidates: Collection[BookieId], quorum: Quorum, lots: Lots, rules: Sequence[Rule], wish: Wish
) -> tuple[BookieId, ...] | None:
    """An ensemble of `candidates` whose windows keep all rules, or None if there is none."""
    search = _Search(view, candidates, quorum, lots, rules, wish)
    if len(candidates) < quorum.ensemble or not all(rule.is_possible(search.rooms, quorum) for rule in rules):
        return None
    return tuple(search.chosen) if search.extend() else None


class _Search:
    def __init__(
        self,
        view: BookieView,
        candidates: Collection[BookieId],
        quorum: Quorum,
        lots: Lots,
        rules: Sequence[Rule],
        wish: Wish,
    ) -> None:
        self._quorum, self._lots, self._rules, self._wish = quorum, lots, rules, wish
        self._left: dict[str, set[BookieId]] = {}
        for bookie in sorted(candidates):
            self._left.setdefault(view.rack_of(bookie), set()).add(bookie)
        self._windows = [windows(quorum, around=position) for position in range(quorum.ensemble)]
        self._racks: list[str] = []
        self._steps = 0
        self.chosen: list[BookieId] = []

    @property
    def rooms(self) -> dict[str, int]:
        return {rack: len(bookies) for rack, bookies in self._left.items()}

    def extend(self) -> bool:
        """Fill the remaining positions. False, and nothing changed, if that cannot be done."""
        if len(self.chosen) == self._quorum.ensemble:
            return True
        fitting = [rack for rack, bookies in self._left.items() if bookies and self._fits(rack)]
        used = set(self._racks)
        stuck = set()  # Unused racks of one region and size are alike: if one leads nowhere, so do the others.
        for group in self._wish(self._racks, fitting):
            racks = set(group)
            while racks and self._steps < STEPS_MAX:
                bookie, rack = self._draw(racks)
                racks.remove(rack)
                kind = rack if rack in used else (region_of(rack), len(self._left[rack]))
                if kind in stuck:
                    continue
                self._steps += 1
                self._push(bookie, rack)
                if self.extend():
                    return True
                self._pop(bookie, rack)
                stuck.add(kind)
        return False

    def _fits(self, rack: str) -> bool:
        racks = [*self._racks, rack]
        for window in self._windows[len(self._racks)]:
            known = [racks[position] for position in window if position < len(racks)]
            undecided = len(window) - len(known)
            if not all(rule.may_hold(known, undecided=undecided) for rule in self._rules):
                return False
        return True

    def _draw(self, racks: Collection[str]) -> tuple[BookieId, str]:
        """A bookie of one of `racks`: one with many bookies is drawn more often, so that all get equally much."""
        rack_of = {bookie: rack for rack in racks for bookie in self._left[rack]}
        bookie = self._lots.draw(rack_of.keys())
        return bookie, rack_of[bookie]

    def _push(self, bookie: BookieId, rack: str) -> None:
        self._left[rack].remove(bookie)
        self._racks.append(rack)
        self.chosen.append(bookie)

    def _pop(self, bookie: BookieId, rack: str) -> None:
        self._left[rack].add(bookie)
        self._racks.pop()
        self.chosen.pop()
