"""Clusters to place ledgers on, drawn by Hypothesis, and a search that tries everything."""

from collections.abc import Mapping, Sequence

from hypothesis import settings
from hypothesis import strategies as st

from quire.protocol.placement import BookieView
from quire.protocol.placement_windows import Rule
from quire.protocol.quorum import write_sets
from quire.testing import SimRng
from quire.types import BookieId, Quorum

# No deadline: the machine that runs the tests may be busy with something else.
many_examples = settings(deadline=None, max_examples=100)

seeds = st.integers(0, 2**32).map(SimRng)


def cluster(rooms: Mapping[str, int]) -> BookieView:
    """So many bookies in each rack, named b0, b1 and so on in this order."""
    racks = [rack for rack, room in rooms.items() for _ in range(room)]
    locations = {BookieId(f"b{number}"): rack for number, rack in enumerate(racks)}
    return BookieView(frozenset(locations), locations)


def racks_of(view: BookieView, ensemble: Sequence[BookieId]) -> list[str]:
    return [view.rack_of(bookie) for bookie in ensemble]


@st.composite
def quorums(draw: st.DrawFn, ensemble_max: int = 6) -> Quorum:
    ensemble = draw(st.integers(1, ensemble_max))
    write = draw(st.integers(1, ensemble))
    return Quorum(ensemble, write, draw(st.integers(1, write)))


@st.composite
def rooms(draw: st.DrawFn, racks_max: int = 4) -> dict[str, int]:
    """Racks without regions, some of them in no map, and how many bookies are in each."""
    names = ["/default-rack", *(f"/r{number}" for number in range(racks_max))]
    return draw(st.dictionaries(st.sampled_from(names), st.integers(1, 4), max_size=racks_max))


@st.composite
def rooms_in_regions(draw: st.DrawFn) -> dict[str, int]:
    names = [f"/{region}/{rack}" for region in ("east", "north", "west") for rack in ("r1", "r2")]
    return draw(st.dictionaries(st.sampled_from(names), st.integers(1, 3), min_size=1, max_size=5))


@st.composite
def views(draw: st.DrawFn) -> BookieView:
    """Clusters with everything that a view can tell: quarantine, free space, an own rack, bookies that are down."""
    all_rooms = draw(st.one_of(rooms(), rooms_in_regions()))
    full = cluster(all_rooms)
    bookies = sorted(full.writable)
    some = st.sets(st.sampled_from(bookies)) if bookies else st.just(set())
    return BookieView(
        writable=full.writable - draw(some),
        locations=full.locations,
        free_bytes={bookie: draw(st.integers(0, 2**45)) for bookie in sorted(draw(some))},
        quarantined=frozenset(draw(some)),
        local=draw(st.sampled_from([None, "/elsewhere", *all_rooms])),
    )


def keeps_everywhere(rules: Sequence[Rule], racks: Sequence[str], quorum: Quorum) -> bool:
    """Whether the write sets of all entries keep the rules, by the definition."""
    return all(
        rule.may_hold([racks[position] for position in positions], undecided=0)
        for rule in rules
        for positions in write_sets(quorum)
    )


def can_be_arranged(rooms: Mapping[str, int], quorum: Quorum, rules: Sequence[Rule]) -> bool:
    """Try every order of racks, without any cleverness."""

    def try_all(before: tuple[str, ...], left: Mapping[str, int]) -> bool:
        if len(before) == quorum.ensemble:
            return keeps_everywhere(rules, before, quorum)
        return any(try_all((*before, rack), {**left, rack: left[rack] - 1}) for rack in left if left[rack])

    return try_all((), rooms)
