"""Decide which bookies hold a ledger: a new ensemble, and the stand-in for a bookie that failed. Sans-IO.

A policy looks at a `BookieView`, the bookies as the client sees them at this moment, and draws from the chance that it
is handed. It remembers nothing, so one view and one seed always give one answer. Policies that know about racks and
regions are in `placement_racks` and `placement_regions`; here are the contract, what they share, and the policy that
knows no topology.

Invariants, of every policy:
  Distinct         no bookie is twice in an ensemble.
  OnlyWritable     whoever is chosen takes new entries, and was not excluded.
  QuarantineLast   a quarantined bookie is chosen only when the others alone are not enough.
  FailedStaysOut   a replacement was not in the ensemble before; the failed bookie least of all.
  EnforcedOrError  a rule that is enforced holds for the answer, or there is no answer: `NotEnoughBookies`.
"""

import enum
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from quire.errors import InvalidArgument, NotEnoughBookies, invariant
from quire.types import BookieId, Quorum
from quire.values import dataclass

T = TypeVar("T")

DEFAULT_RACK: Final = "/default-rack"
DEFAULT_REGION: Final = "default-region"
NO_BOOKIES: Final[frozenset[BookieId]] = frozenset()
NO_CUSTOM: Final[Mapping[str, bytes]] = MappingProxyType({})
_WEIGHT_MEDIANS_MAX: Final = 3  # Else one empty disk among full ones would get all the traffic.


class Chance(Protocol):
    """As much of `quire.runtime.Rng` as a policy needs."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`, which are not empty."""
        ...

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` of `items` at different positions, in random order."""
        ...


class Adherence(enum.Enum):
    """How well an ensemble keeps to a policy."""

    FAIL = enum.auto()  # Some write set breaks the policy's rule.
    MEETS_SOFT = enum.auto()  # The rule holds, but a wish does not, or a bookie's rack is only assumed.
    MEETS_STRICT = enum.auto()


@dataclass(frozen=True, slots=True)
class BookieView:
    """The bookies of a cluster at one moment, as one client sees them."""

    writable: frozenset[BookieId]
    locations: Mapping[BookieId, str] = field(default_factory=dict, hash=False)
    """Where bookies stand, living or not: `/rack` or `/region/rack`, all of the same depth."""

    free_bytes: Mapping[BookieId, int] = field(default_factory=dict, hash=False)
    """How much room they have. Only weighted policies look at it, and it need not be complete."""

    quarantined: frozenset[BookieId] = NO_BOOKIES
    local: str | None = None  # The rack that the client itself stands in.

    def __post_init__(self) -> None:
        object.__setattr__(self, "locations", MappingProxyType(dict(self.locations)))
        object.__setattr__(self, "free_bytes", MappingProxyType(dict(self.free_bytes)))

    def rack_of(self, bookie: BookieId) -> str:
        """The whole path: racks of one name in two regions are two racks."""
        return self.locations.get(bookie, DEFAULT_RACK)


class Placement(Protocol):
    """A placement policy."""

    def new_ensemble(
        self,
        view: BookieView,
        quorum: Quorum,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> tuple[BookieId, ...]:
        """`quorum.ensemble` bookies in the order of their positions. Raises `NotEnoughBookies`.

        `custom` is the ledger's own metadata, for policies that want to know what it is for.
        """
        ...

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
        """The bookie to take position `index` of `ensemble`. Raises `NotEnoughBookies`.

        Where several fail at once, call this for one after the other, with the replacements made so far in `ensemble`
        and every failed bookie in `exclude`.
        """
        ...

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        """How well the policy would be kept by `ensemble`, whoever chose it."""
        ...


@dataclass(frozen=True, slots=True)
class RandomPlacement:
    """Any bookies, in any order."""

    weighted: bool = False
    """Draw bookies with more free space more often."""

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
            require(candidates, quorum.ensemble)
            lots = Lots(view, candidates, rng, weighted=self.weighted)
            return tuple(lots.draw_several(candidates, quorum.ensemble))

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
            require(candidates, 1)
            return Lots(view, candidates, rng, weighted=self.weighted).draw(candidates)

        return trusted_first(view, exclude.union(ensemble), choose)

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        return Adherence.MEETS_STRICT if is_ensemble(quorum, ensemble) else Adherence.FAIL


def opportunistic_ensemble(
    placement: Placement,
    view: BookieView,
    quorum: Quorum,
    rng: Chance,
    *,
    exclude: frozenset[BookieId] = NO_BOOKIES,
    custom: Mapping[str, bytes] = NO_CUSTOM,
) -> tuple[BookieId, ...]:
    """The largest ensemble that can be had, from `quorum.ensemble` down to the write quorum.

    Its length is the ensemble size to store. Raises `NotEnoughBookies` if even the write quorum cannot be placed.
    """
    for size in range(quorum.ensemble, quorum.write, -1):
        try:
            smaller = Quorum(size, quorum.write, quorum.ack)
            return placement.new_ensemble(view, smaller, rng, exclude=exclude, custom=custom)
        except NotEnoughBookies:
            continue
    smallest = Quorum(quorum.write, quorum.write, quorum.ack)
    return placement.new_ensemble(view, smallest, rng, exclude=exclude, custom=custom)


# --- What policies share ----------------------------------------------------------------------------------------


class Lots:
    """Draws bookies: each with the same chance, or by free space.

    By free space the chance is proportional to the free bytes, but to no more than three times their median. A bookie
    that told nothing, or that is full, counts as the one with the least: it must not be forgotten for ever.
    """

    def __init__(self, view: BookieView, candidates: Iterable[BookieId], rng: Chance, *, weighted: bool) -> None:
        self._rng = rng
        self._weights: dict[BookieId, float] | None = None
        if weighted:
            from statistics import median  # Brings fractions and decimals along, which few programs need.

            bookies = list(candidates)
            known = [free for bookie in bookies if (free := view.free_bytes.get(bookie, 0)) > 0]
            least, most = (min(known), _WEIGHT_MEDIANS_MAX * median(known)) if known else (1, 1)
            self._weights = {
                bookie: min(most, free) if (free := view.free_bytes.get(bookie, 0)) > 0 else least for bookie in bookies
            }

    def draw(self, bookies: Collection[BookieId]) -> BookieId:
        """One of `bookies`, which are not empty."""
        ordered = sorted(bookies)  # Sets have another order in each process; a seed has to repeat the draw.
        if self._weights is None:
            return self._rng.choice(ordered)
        sums = list(accumulate(self._weights[bookie] for bookie in ordered))
        # Rounding may lift the product to the very end, where no bookie is.
        return ordered[min(bisect_right(sums, self._rng.random() * sums[-1]), len(ordered) - 1)]

    def draw_several(self, bookies: Collection[BookieId], count: int) -> list[BookieId]:
        """`count` of `bookies`, one after the other."""
        if self._weights is None:
            return self._rng.sample(sorted(bookies), count)
        left, drawn = set(bookies), []
        for _ in range(count):
            drawn.append(self.draw(left))
            left.remove(drawn[-1])
        return drawn


def trusted_first(view: BookieView, exclude: frozenset[BookieId], choose: Callable[[frozenset[BookieId]], T]) -> T:
    """What `choose` makes of the bookies that may be used; of the quarantined ones too if the others do not suffice."""
    allowed = view.writable - exclude
    try:
        return choose(allowed - view.quarantined)
    except NotEnoughBookies:
        if not allowed & view.quarantined:
            raise
    return choose(allowed)


def require(candidates: Collection[BookieId], needed: int) -> None:
    """Raise `NotEnoughBookies` unless there are as many candidates as needed."""
    if len(candidates) < needed:
        raise NotEnoughBookies(
            f"{needed} {'bookie is' if needed == 1 else 'bookies are'} needed, and {len(candidates)} can be used",
            needed=needed,
            found=len(candidates),
        )


def check_position(quorum: Quorum, ensemble: Sequence[BookieId], index: int) -> None:
    """The caller holds a ledger's metadata: an ensemble of another size, or no such position, is its bug."""
    invariant(
        len(ensemble) == quorum.ensemble and 0 <= index < len(ensemble),
        "no such position in the ensemble",
        quorum=quorum,
        ensemble=tuple(ensemble),
        index=index,
    )


def is_ensemble(quorum: Quorum, ensemble: Sequence[BookieId]) -> bool:
    """Whether the bookies are as many as they should be, and distinct."""
    return len(ensemble) == quorum.ensemble == len(set(ensemble))


def region_of(rack: str) -> str:
    """The region in a rack's path. A path that names only a rack is in the default region."""
    region, slash, _ = rack.removeprefix("/").partition("/")
    return region if slash else DEFAULT_REGION


def is_assumed(rack: str) -> bool:
    """Whether the path is the one of bookies that nobody placed."""
    return rack in (DEFAULT_RACK, f"/{DEFAULT_REGION}{DEFAULT_RACK}")


def check_rack(path: str) -> str:
    """Return `path` if it is `/rack` or `/region/rack`, or raise `InvalidArgument`."""
    parts = path.split("/")
    if (
        parts[0]
        or not 2 <= len(parts) <= 3
        or not all(part and part.isprintable() for part in parts[1:])
        or " " in path
    ):
        raise InvalidArgument(
            f"{path!r} is not the path of a rack", hint="Write /rack, or /region/rack, without spaces.", path=path
        )
    return path
