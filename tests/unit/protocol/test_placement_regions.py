"""Ensembles that outlive the loss of regions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.placement_samples import (
    can_be_arranged,
    cluster,
    keeps_everywhere,
    many_examples,
    quorums,
    racks_of,
    rooms_in_regions,
    seeds,
)

from quire.errors import InvalidArgument, NotEnoughBookies
from quire.protocol.placement import Adherence, BookieView, region_of
from quire.protocol.placement_racks import RackAwarePlacement
from quire.protocol.placement_regions import RegionAwarePlacement
from quire.protocol.placement_windows import RacksSpanned, RegionsSurvived
from quire.testing import SimRng
from quire.types import BookieId, Quorum


@st.composite
def survivable(draw: st.DrawFn, regions_min: int) -> Quorum:
    """Quorums that can outlive the loss of all but one of `regions_min` regions."""
    write = draw(st.integers(regions_min, 5))
    ack = draw(st.integers(max(regions_min, write - write // regions_min + 1), write))
    return Quorum(draw(st.integers(write, 5)), write, ack)


def regions_of(view: BookieView, ensemble: Sequence[BookieId]) -> list[str]:
    return [region_of(view.rack_of(bookie)) for bookie in ensemble]


def outlives(regions: Sequence[str], quorum: Quorum, regions_min: int) -> bool:
    """By the definition: lose any `regions_min` - 1 regions, and too few copies are lost to make an ack quorum."""
    return all(
        sum(regions[(entry + step) % quorum.ensemble] in lost for step in range(quorum.write)) < quorum.ack
        for entry in range(quorum.ensemble)
        for lost in combinations(sorted({*regions, "-", "--"}), regions_min - 1)
    )


@many_examples
@given(rooms_in_regions(), st.integers(2, 3), seeds, st.data())
def test_acknowledged_entries_outlive_regions_or_there_is_no_ensemble(
    rooms: dict[str, int], regions_min: int, rng: SimRng, data: st.DataObject
) -> None:
    quorum = data.draw(survivable(regions_min))
    view, policy = cluster(rooms), RegionAwarePlacement(min_regions_for_durability=regions_min)
    if len(set(regions_of(view, sorted(view.writable)))) == 1:
        return
    rules = [RegionsSurvived(regions_min, quorum.ack)]
    try:
        ensemble = policy.new_ensemble(view, quorum, rng)
    except NotEnoughBookies:
        assert not can_be_arranged(rooms, quorum, rules)
        return
    assert outlives(regions_of(view, ensemble), quorum, regions_min)
    spans = keeps_everywhere([RacksSpanned(2)], racks_of(view, ensemble), quorum)
    assert spans, "two regions are two racks"
    assert policy.adherence(view, quorum, ensemble) is Adherence.MEETS_STRICT


@many_examples
@given(rooms_in_regions(), seeds, st.data())
def test_racks_are_spanned_too_if_that_is_possible(rooms: dict[str, int], rng: SimRng, data: st.DataObject) -> None:
    quorum = data.draw(survivable(2))
    view, policy = cluster(rooms), RegionAwarePlacement(min_racks_per_write_quorum=3)
    survive, racks = RegionsSurvived(2, quorum.ack), RacksSpanned(min(3, quorum.write))
    if len(set(regions_of(view, sorted(view.writable)))) == 1 or not can_be_arranged(rooms, quorum, [survive]):
        return
    ensemble = policy.new_ensemble(view, quorum, rng)
    spans = keeps_everywhere([racks], racks_of(view, ensemble), quorum)
    assert spans is can_be_arranged(rooms, quorum, [survive, racks])
    assert policy.adherence(view, quorum, ensemble) is (Adherence.MEETS_STRICT if spans else Adherence.MEETS_SOFT)


@many_examples
@given(rooms_in_regions(), seeds, st.data())
def test_a_replacement_keeps_the_promise_or_is_refused(rooms: dict[str, int], rng: SimRng, data: st.DataObject) -> None:
    quorum = data.draw(survivable(2))
    view = cluster(rooms)
    try:
        ensemble = RegionAwarePlacement().new_ensemble(view, quorum, rng)
    except NotEnoughBookies:
        return
    if len(set(regions_of(view, sorted(view.writable)))) == 1:
        return
    index = rng.randrange(quorum.ensemble)

    def keeps(bookie: BookieId) -> bool:
        return outlives(regions_of(view, [*ensemble[:index], bookie, *ensemble[index + 1 :]]), quorum, 2)

    left = view.writable - set(ensemble)
    lenient = RegionAwarePlacement(enforce_in_replace=False)
    if any(map(keeps, left)):
        assert keeps(RegionAwarePlacement().replace(view, quorum, ensemble, index, rng))
        assert keeps(lenient.replace(view, quorum, ensemble, index, rng))
    else:
        with pytest.raises(NotEnoughBookies):
            RegionAwarePlacement().replace(view, quorum, ensemble, index, rng)
        if left:
            assert lenient.replace(view, quorum, ensemble, index, rng) in left


@many_examples
@given(quorums(), seeds)
def test_one_region_is_treated_as_racks_alone(quorum: Quorum, rng: SimRng) -> None:
    view, seed = cluster({"/east/r1": 3, "/east/r2": 3}), rng.randrange(2**32)
    for enforce in (False, True):
        regions, racks = RegionAwarePlacement(enforce_racks=enforce), RackAwarePlacement(enforce=enforce)
        try:
            ensemble = racks.new_ensemble(view, quorum, SimRng(seed))
        except NotEnoughBookies:
            with pytest.raises(NotEnoughBookies):
                regions.new_ensemble(view, quorum, SimRng(seed))
            continue
        assert regions.new_ensemble(view, quorum, SimRng(seed)) == ensemble
        assert regions.adherence(view, quorum, ensemble) is racks.adherence(view, quorum, ensemble)


def test_a_region_that_is_down_does_not_take_the_promise_with_it() -> None:
    """Its bookies are still in the map, or the region is configured: then one region left is one too few."""
    full = cluster({"/east/r1": 3, "/west/r1": 3})
    down = replace(full, writable=frozenset(BookieId(f"b{number}") for number in range(3)))
    unmapped = replace(down, locations={bookie: full.locations[bookie] for bookie in down.writable})
    quorum = Quorum(2, 2, 2)
    with pytest.raises(NotEnoughBookies):
        RegionAwarePlacement().new_ensemble(down, quorum, SimRng(1))
    with pytest.raises(NotEnoughBookies):
        RegionAwarePlacement(("east", "west")).new_ensemble(unmapped, quorum, SimRng(1))
    assert len(RegionAwarePlacement().new_ensemble(unmapped, quorum, SimRng(1))) == 2, "nothing else is known of"


def test_regions_get_equally_many_positions_and_the_own_one_the_first() -> None:
    rooms = {f"/{region}/r{number}": 4 for region in ("east", "north", "west") for number in (1, 2)}
    view = replace(cluster(rooms), local="/north/r2")
    for seed in range(20):
        ensemble = RegionAwarePlacement().new_ensemble(view, Quorum(7, 4, 3), SimRng(seed))
        assert view.rack_of(ensemble[0]) == "/north/r2"
        assert sorted(Counter(regions_of(view, ensemble)).values()) == [2, 2, 3]
        assert Counter(regions_of(view, ensemble))["north"] == 3
        assert len(set(racks_of(view, ensemble))) == 6, "in a region, racks not used yet come first"


def test_a_region_with_more_racks_gets_no_more_positions() -> None:
    view = cluster({"/east/r1": 4, "/east/r2": 4, "/east/r3": 4, "/west/r1": 4})
    for seed in range(20):
        ensemble = RegionAwarePlacement(min_regions_for_durability=1).new_ensemble(view, Quorum(6, 3, 2), SimRng(seed))
        assert Counter(regions_of(view, ensemble)) == {"east": 3, "west": 3}


def test_only_the_regions_to_write_to_are_used() -> None:
    view = cluster({"/east/r": 3, "/north/r": 3, "/west/r": 3})
    policy = RegionAwarePlacement(("east", "west"))
    for seed in range(20):
        ensemble = policy.new_ensemble(view, Quorum(4, 2, 2), SimRng(seed))
        assert set(regions_of(view, ensemble)) == {"east", "west"}
        chosen = policy.replace(view, Quorum(4, 2, 2), ensemble, 0, SimRng(seed))
        assert region_of(view.rack_of(chosen)) in ("east", "west")
    with pytest.raises(NotEnoughBookies) as caught:
        policy.new_ensemble(view, Quorum(7, 2, 2), SimRng(1))
    assert caught.value.facts == {"needed": 7, "found": 6}


def test_a_replacement_is_from_the_same_rack_then_from_the_same_region_then_from_another() -> None:
    full = cluster({"/east/r1": 2, "/east/r2": 1, "/west/r1": 2, "/north/r1": 1})
    e0, e1, e2, w0, _, n0 = (BookieId(f"b{number}") for number in range(6))
    rng = SimRng(1)

    def chosen(*gone: BookieId) -> BookieId:
        view = replace(full, writable=full.writable - set(gone))
        return RegionAwarePlacement().replace(view, Quorum(2, 2, 2), (e0, w0), 0, rng)

    for _ in range(20):
        assert chosen() == e1
        assert chosen(e1) == e2
        assert chosen(e1, e2) == n0
        with pytest.raises(NotEnoughBookies):
            chosen(e1, e2, n0)  # The one that is left is in the west: all copies would be in one region.


@pytest.mark.parametrize(
    ("write", "ack", "regions_min", "is_possible"),
    [
        (2, 2, 2, True),
        (3, 2, 2, False),
        (3, 3, 2, True),
        (4, 3, 2, True),
        (4, 2, 2, False),
        (3, 3, 3, True),
        (6, 4, 3, False),
        (6, 5, 3, True),
        (2, 2, 3, False),
        (3, 1, 1, True),
    ],
)
def test_a_quorum_that_cannot_keep_the_promise_is_the_callers_mistake(
    write: int, ack: int, regions_min: int, is_possible: bool
) -> None:
    view = cluster({f"/{region}/r": 6 for region in ("east", "north", "west")})
    policy, quorum = RegionAwarePlacement(min_regions_for_durability=regions_min), Quorum(6, write, ack)
    if is_possible:
        assert len(policy.new_ensemble(view, quorum, SimRng(1))) == 6
    else:
        with pytest.raises(InvalidArgument, match=f"{ack} acknowledgements of {write} copies"):
            policy.new_ensemble(view, quorum, SimRng(1))


@pytest.mark.parametrize(("regions", "regions_min"), [(("east",), 2), (("east", "east"), 2), ((), 0), (("a", "b"), 3)])
def test_settings_that_cannot_be_kept_are_refused(regions: tuple[str, ...], regions_min: int) -> None:
    with pytest.raises(InvalidArgument):
        RegionAwarePlacement(regions, regions_min)
    with pytest.raises(InvalidArgument):
        RegionAwarePlacement(min_racks_per_write_quorum=0)


def test_adherence_fails_where_a_region_holds_an_ack_quorum() -> None:
    view, policy = cluster({"/east/r1": 2, "/east/r2": 2, "/west/r1": 2}), RegionAwarePlacement()
    e0, _, e2, _, w0, w1 = (BookieId(f"b{number}") for number in range(6))
    assert policy.adherence(view, Quorum(3, 3, 3), (e0, w0, w1)) is Adherence.MEETS_STRICT
    assert policy.adherence(view, Quorum(3, 3, 2), (e0, w0, w1)) is Adherence.FAIL
    assert policy.adherence(view, Quorum(2, 2, 2), (e0, e2)) is Adherence.FAIL
