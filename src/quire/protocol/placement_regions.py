"""Spread each entry over regions, so that whatever was acknowledged outlives the loss of some. Sans-IO.

With `min_regions_for_durability` = n no n - 1 regions together hold an ack quorum of any entry: when they are lost, at
least one acknowledged copy stands elsewhere. This is always enforced, since an ensemble that breaks it breaks a promise
to the writer. Where only one region is known there is nothing to spread over, and racks alone count.

Invariants, beside those of `placement`:
  SurvivesRegions   the rule holds for every write set of a new ensemble, and for those that a replacement is in.
  RegionsAreEven    each position goes to the region that has the fewest so far, unless the rule forbids it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from quire.errors import InvalidArgument
from quire.protocol.placement import (
    NO_BOOKIES,
    NO_CUSTOM,
    Adherence,
    BookieView,
    Chance,
    Lots,
    check_position,
    region_of,
    trusted_first,
)
from quire.protocol.placement_racks import check_racks_min, ensemble_of, placed, span, stand_in, wish_for_racks
from quire.protocol.placement_windows import RegionsSurvived, Rule, Wish, judge
from quire.types import BookieId, Quorum
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class RegionAwarePlacement:
    """Write sets that outlive the loss of regions; inside them, as far as possible, of racks."""

    regions: tuple[str, ...] = ()
    """Where to write. Empty: in every region that the view knows."""

    min_regions_for_durability: int = 2
    """No fewer regions hold an ack quorum together. 1 only spreads, without a promise."""

    enforce_in_replace: bool = True
    """Rather no replacement than one that breaks the promise."""

    min_racks_per_write_quorum: int = 2
    enforce_racks: bool = False
    weighted: bool = False

    def __post_init__(self) -> None:
        check_racks_min(self.min_racks_per_write_quorum)
        regions_min = self.min_regions_for_durability
        if regions_min < 1 or 0 < len(set(self.regions)) < regions_min:
            raise InvalidArgument(
                f"{len(set(self.regions))} regions to write to cannot make entries outlive all but {regions_min}",
                hint="Name more regions, or ask for fewer.",
            )

    def new_ensemble(
        self,
        view: BookieView,
        quorum: Quorum,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> tuple[BookieId, ...]:
        """Also raises `InvalidArgument` for a quorum that cannot keep the promise, whatever bookies there are."""

        def choose(candidates: frozenset[BookieId]) -> tuple[BookieId, ...]:
            usable = self._usable(view, candidates)
            lots = Lots(view, usable, rng, weighted=self.weighted)
            return ensemble_of(view, usable, quorum, lots, wish, must=must, should=should)

        survive = self._survive(view, quorum)
        self._check(quorum, survive)
        must, should = self._rules(quorum, survive)
        wish = wish_for_regions(view) if self._spreads(view) else wish_for_racks(view, quorum)
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
            usable = self._usable(view, candidates)
            lots = Lots(view, usable, rng, weighted=self.weighted)
            return stand_in(view, usable, quorum, ensemble, index, lots, rank, must=must, should=should)

        def rank(rack: str) -> int:
            if rack == left_rack:
                return 0
            return (1 if region_of(rack) == region_of(left_rack) else 3) + (rack in other_racks)

        left_rack = view.rack_of(ensemble[index])
        other_racks = {view.rack_of(bookie) for position, bookie in enumerate(ensemble) if position != index}
        must, should = self._rules(quorum, self._survive(view, quorum))
        if not self.enforce_in_replace:
            must, should = [rule for rule in must if not isinstance(rule, RegionsSurvived)], [*must, *should]
        return trusted_first(view, exclude.union(ensemble), choose)

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        survive, racks = self._survive(view, quorum), span(quorum, self.min_racks_per_write_quorum)
        if survive is None:
            return judge(view, quorum, ensemble, must=[racks], should=[])
        return judge(view, quorum, ensemble, must=[survive], should=[racks])

    def _usable(self, view: BookieView, candidates: frozenset[BookieId]) -> frozenset[BookieId]:
        if self.enforce_racks:
            candidates = placed(view, candidates)
        if not self.regions:
            return candidates
        return frozenset(bookie for bookie in candidates if region_of(view.rack_of(bookie)) in self.regions)

    def _spreads(self, view: BookieView) -> bool:
        """Whether there is more than one region. One whose bookies are all down is still there."""
        racks = {*view.locations.values(), *(view.rack_of(bookie) for bookie in view.writable)}
        return len(set(self.regions) or {region_of(rack) for rack in racks}) > 1

    def _survive(self, view: BookieView, quorum: Quorum) -> RegionsSurvived | None:
        if self.min_regions_for_durability == 1 or not self._spreads(view):
            return None
        return RegionsSurvived(self.min_regions_for_durability, quorum.ack)

    def _rules(self, quorum: Quorum, survive: RegionsSurvived | None) -> tuple[list[Rule], list[Rule]]:
        racks = span(quorum, self.min_racks_per_write_quorum)
        must: list[Rule] = [survive] if survive else []
        return ([*must, racks], []) if self.enforce_racks else (must, [racks])

    def _check(self, quorum: Quorum, survive: RegionsSurvived | None) -> None:
        """The promise has to be possible also when only the smallest number of regions is left."""
        regions_min = self.min_regions_for_durability
        if survive and not quorum.ack >= max(regions_min, quorum.write - quorum.write // regions_min + 1):
            raise InvalidArgument(
                f"with {quorum.ack} acknowledgements of {quorum.write} copies an entry can be lost with "
                f"{regions_min - 1} of {regions_min} regions",
                hint="Ask for a larger ack quorum, or for fewer regions.",
                quorum=(quorum.ensemble, quorum.write, quorum.ack),
                regions_min=regions_min,
            )


def wish_for_regions(view: BookieView) -> Wish:
    """The regions with the fewest positions first, among them the client's own; in a region, racks not used yet."""

    def wish(before: Sequence[str], racks: Collection[str]) -> Iterator[Collection[str]]:
        begin = [] if before else [rack for rack in racks if rack == view.local]
        yield begin
        counts = Counter(region_of(rack) for rack in before)
        home = None if view.local is None else region_of(view.local)

        def rank(rack: str) -> tuple[int, bool, bool]:
            region = region_of(rack)
            return counts[region], region != home, rack in before

        others = [rack for rack in racks if rack not in begin]
        for best in sorted({rank(rack) for rack in others}):
            yield [rack for rack in others if rank(rack) == best]

    return wish
