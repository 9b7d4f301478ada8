"""Spread each entry over several racks, so that it outlives the loss of one. Sans-IO.

Invariants, beside those of `placement`:
  SpanIfPossible   if the writable bookies can be arranged so that every write set spans the racks, they are.
  SpanIfEnforced   with `enforce` a write set never spans fewer; bookies whose rack nobody told do not count.
  SpanIsKept       a replacement leaves as many write sets with enough racks as any candidate could.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from quire.errors import InvalidArgument, NotEnoughBookies
from quire.protocol.placement import (
    NO_BOOKIES,
    NO_CUSTOM,
    Adherence,
    BookieView,
    Chance,
    Lots,
    check_position,
    is_assumed,
    require,
    trusted_first,
)
from quire.protocol.placement_windows import RacksSpanned, Rule, Wish, arrange, judge, kept_windows, windows
from quire.types import BookieId, Quorum
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class RackAwarePlacement:
    """Write sets that span racks; if that cannot be had, any, unless it is enforced."""

    min_racks_per_write_quorum: int = 2
    """How many racks a write set spans. Never more than the write quorum."""

    enforce: bool = False
    """Rather no ensemble than one that breaks the rule."""

    weighted: bool = False
    """Draw bookies with more free space more often, as far as the racks leave a choice."""

    def __post_init__(self) -> None:
        check_racks_min(self.min_racks_per_write_quorum)

    def new_ensemble(
        self,
        view: BookieView,
        quorum: Quorum,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> tuple[BookieId, ...]:
        def choose(candidates: frozenset[BookieId]) -> tuple[BookieId, ...]:
            usable = placed(view, candidates) if self.enforce else candidates
            lots = Lots(view, usable, rng, weighted=self.weighted)
            return ensemble_of(view, usable, quorum, lots, wish_for_racks(view, quorum), must=must, should=[rule])

        rule = span(quorum, self.min_racks_per_write_quorum)
        must = [rule] if self.enforce else []
        return trusted_first(view, exclude, choose)

    def replace(
        self,
        view: BookieView,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        index: int,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> BookieId:
        check_position(quorum, ensemble, index)

        def choose(candidates: frozenset[BookieId]) -> BookieId:
            usable = placed(view, candidates) if self.enforce else candidates
            lots = Lots(view, usable, rng, weighted=self.weighted)
            return stand_in(view, usable, quorum, ensemble, index, lots, rank, must=must, should=[rule])

        def rank(rack: str) -> int:
            return 0 if rack == left_rack else 1 if rack not in other_racks else 2

        left_rack = view.rack_of(ensemble[index])
        other_racks = {view.rack_of(bookie) for position, bookie in enumerate(ensemble) if position != index}
        rule = span(quorum, self.min_racks_per_write_quorum)
        must = [rule] if self.enforce else []
        return trusted_first(view, exclude.union(ensemble), choose)

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        return judge(view, quorum, ensemble, must=[span(quorum, self.min_racks_per_write_quorum)], should=[])


def check_racks_min(count: int) -> None:
    if count < 1:
        raise InvalidArgument(f"a write set cannot span {count} racks", hint="1 turns the rule off, 2 is usual.")


def span(quorum: Quorum, racks_min: int) -> RacksSpanned:
    return RacksSpanned(min(racks_min, quorum.write))


def placed(view: BookieView, candidates: Collection[BookieId]) -> frozenset[BookieId]:
    """Those whose rack is known. What stands nobody knows where must not be counted on to fail alone."""
    return frozenset(bookie for bookie in candidates if not is_assumed(view.rack_of(bookie)))


def wish_for_racks(view: BookieView, quorum: Quorum) -> Wish:
    """Begin in the client's own rack; then racks not used yet, then those not in the same window, then any."""

    def wish(before: Sequence[str], racks: Collection[str]) -> Iterator[Collection[str]]:
        left = set(racks)
        nearby = before[max(0, len(before) - quorum.write + 1) :]
        for group in ({view.local} if not before else set(), left.difference(before), left.difference(nearby), left):
            found = left & group
            left -= found
            yield found

    return wish


def ensemble_of(
    view: BookieView,
    candidates: Collection[BookieId],
    quorum: Quorum,
    lots: Lots,
    wish: Wish,
    *,
    must: Sequence[Rule],
    should: Sequence[Rule],
) -> tuple[BookieId, ...]:
    """An ensemble that keeps all rules, or if there is none, those that it must. Raises `NotEnoughBookies`."""
    require(candidates, quorum.ensemble)
    found = arrange(view, candidates, quorum, lots, [*must, *should], wish)
    if found is None:
        found = arrange(view, candidates, quorum, lots, must, wish)
    if found is None:
        raise _not_spread(view, candidates, quorum.ensemble)
    return found


def stand_in(
    view: BookieView,
    candidates: Collection[BookieId],
    quorum: Quorum,
    ensemble: Sequence[BookieId],
    index: int,
    lots: Lots,
    rank: Callable[[str], int],
    *,
    must: Sequence[Rule],
    should: Sequence[Rule],
) -> BookieId:
    """The candidate for position `index` with which most windows keep the rules; `rank` (low is good) breaks ties.

    Only windows with that position are looked at: the others stay what they are. Raises `NotEnoughBookies`.
    """
    require(candidates, 1)
    racks = [view.rack_of(bookie) for bookie in ensemble]
    all_windows = len(windows(quorum, around=index))

    def score(rack: str) -> tuple[int, int] | None:
        changed = [*racks[:index], rack, *racks[index + 1 :]]
        if kept_windows(must, changed, quorum, around=index) < all_windows:
            return None
        return kept_windows([*must, *should], changed, quorum, around=index), -rank(rack)

    scores = {rack: score(rack) for rack in {view.rack_of(bookie) for bookie in candidates}}
    best = max((found for found in scores.values() if found is not None), default=None)
    if best is None:
        raise _not_spread(view, candidates, 1)
    return lots.draw([bookie for bookie in candidates if scores[view.rack_of(bookie)] == best])


def _not_spread(view: BookieView, candidates: Collection[BookieId], needed: int) -> NotEnoughBookies:
    racks = sorted({view.rack_of(bookie) for bookie in candidates})
    return NotEnoughBookies(
        f"{needed} of {len(candidates)} bookies in {len(racks)} racks cannot be spread as the policy demands",
        hint="Start bookies in other racks, tell the racks of those that have none, or do not enforce the rule.",
        needed=needed,
        found=len(candidates),
        racks=racks,
    )
