"""What every placement policy promises, the policy without topology, chances by free space, smaller ensembles."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.placement_samples import cluster, many_examples, quorums, seeds, views

from quire.errors import InvalidArgument, InvariantBroken, NotEnoughBookies
from quire.protocol.placement import (
    Adherence,
    BookieView,
    Placement,
    RandomPlacement,
    check_rack,
    opportunistic_ensemble,
    region_of,
)
from quire.protocol.placement_racks import RackAwarePlacement
from quire.protocol.placement_regions import RegionAwarePlacement
from quire.testing import SimRng
from quire.types import BookieId, Quorum

# Every policy in every mode; those of regions without their rule about ack quorums, which has tests of its own.
POLICIES: list[Placement] = [
    policy
    for weighted in (False, True)
    for policy in (
        RandomPlacement(weighted=weighted),
        RackAwarePlacement(weighted=weighted),
        RackAwarePlacement(3, enforce=True, weighted=weighted),
        RegionAwarePlacement(min_regions_for_durability=1, weighted=weighted),
        RegionAwarePlacement(min_regions_for_durability=1, enforce_racks=True, weighted=weighted),
    )
]
LENIENT = [policy for policy in POLICIES if not getattr(policy, "enforce", getattr(policy, "enforce_racks", False))]
policies, lenient = st.sampled_from(POLICIES), st.sampled_from(LENIENT)
A, B, C, D = (BookieId(name) for name in "abcd")


def some_of(view: BookieView, chance: SimRng) -> frozenset[BookieId]:
    return frozenset(bookie for bookie in sorted(view.writable) if chance.random() < 0.3)


@many_examples
@given(policies, views(), quorums(), seeds)
def test_an_ensemble_is_distinct_writable_and_not_excluded(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng
) -> None:
    exclude = some_of(view, rng)
    try:
        ensemble = policy.new_ensemble(view, quorum, rng, exclude=exclude)
    except NotEnoughBookies as error:
        assert error.facts["needed"] == quorum.ensemble
        assert isinstance(error.facts["found"], int)
        assert error.facts["found"] <= len(view.writable - exclude)
        return
    assert len(ensemble) == len(set(ensemble)) == quorum.ensemble
    assert set(ensemble) <= view.writable - exclude


@many_examples
@given(lenient, views(), quorums(), seeds)
def test_without_enforcement_only_the_number_of_bookies_counts(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng
) -> None:
    if len(view.writable) >= quorum.ensemble:
        assert len(policy.new_ensemble(view, quorum, rng)) == quorum.ensemble
    else:
        with pytest.raises(NotEnoughBookies) as caught:
            policy.new_ensemble(view, quorum, rng)
        assert caught.value.facts == {"needed": quorum.ensemble, "found": len(view.writable)}


@many_examples
@given(policies, views(), quorums(), seeds)
def test_quarantined_bookies_are_used_only_if_the_others_do_not_suffice(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng
) -> None:
    trusted = replace(view, writable=view.writable - view.quarantined)
    try:
        policy.new_ensemble(trusted, quorum, SimRng(0))
    except NotEnoughBookies:
        everybody = replace(view, quarantined=frozenset())
        assert outcome(lambda: policy.new_ensemble(view, quorum, SimRng(1))) == outcome(
            lambda: policy.new_ensemble(everybody, quorum, SimRng(1))
        )
    else:
        assert not view.quarantined & set(policy.new_ensemble(view, quorum, rng))


def outcome(choose: Callable[[], object]) -> object:
    try:
        return choose()
    except NotEnoughBookies as error:
        return str(error)


@many_examples
@given(policies, views(), quorums(), seeds, st.data())
def test_replacements_are_new_writable_and_see_those_made_before(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng, data: st.DataObject
) -> None:
    """Several positions fail at once and are replaced one after the other; nobody comes twice, nobody moves."""
    known = sorted(view.locations)
    if len(known) < quorum.ensemble:
        return
    ensemble = rng.sample(known, quorum.ensemble)  # Some may be down: that is why they are replaced.
    failed = data.draw(st.lists(st.integers(0, quorum.ensemble - 1), min_size=1, unique=True))
    exclude = frozenset(ensemble[index] for index in failed)
    now = list(ensemble)
    for index in failed:
        try:
            chosen = policy.replace(view, quorum, tuple(now), index, rng, exclude=exclude)
        except NotEnoughBookies as error:
            assert error.facts["needed"] == 1
            continue
        assert chosen in view.writable - exclude - set(now)
        others = view.writable - exclude - set(now) - view.quarantined
        if policy in LENIENT:
            assert chosen not in view.quarantined or not others
        now[index] = chosen
    assert len(set(now)) == quorum.ensemble


@many_examples
@given(lenient, views(), quorums(), seeds)
def test_a_replacement_is_found_if_there_is_one_bookie(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng
) -> None:
    known = sorted(view.locations)
    if len(known) < quorum.ensemble:
        return
    ensemble = rng.sample(known, quorum.ensemble)
    left = view.writable - set(ensemble)
    if left:
        assert policy.replace(view, quorum, ensemble, 0, rng) in left
    else:
        with pytest.raises(NotEnoughBookies) as caught:
            policy.replace(view, quorum, ensemble, 0, rng)
        assert caught.value.facts == {"needed": 1, "found": 0}


@many_examples
@given(policies, views(), quorums(), st.integers())
def test_one_seed_gives_one_answer_whatever_order_the_bookies_come_in(
    policy: Placement, view: BookieView, quorum: Quorum, seed: int
) -> None:
    """Method: the same bookies as sets and maps that were filled backwards."""
    backwards = BookieView(
        frozenset(sorted(view.writable, reverse=True)),
        dict(sorted(view.locations.items(), reverse=True)),
        dict(sorted(view.free_bytes.items(), reverse=True)),
        frozenset(sorted(view.quarantined, reverse=True)),
        view.local,
    )
    assert outcome(lambda: policy.new_ensemble(view, quorum, SimRng(seed))) == outcome(
        lambda: policy.new_ensemble(backwards, quorum, SimRng(seed))
    )
    ensemble = sorted(view.locations)[: quorum.ensemble]
    if len(ensemble) == quorum.ensemble:
        assert outcome(lambda: policy.replace(view, quorum, ensemble, 0, SimRng(seed))) == outcome(
            lambda: policy.replace(backwards, quorum, ensemble, 0, SimRng(seed))
        )


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_an_ensemble_of_the_wrong_size_or_with_a_bookie_twice_fails(policy: Placement) -> None:
    view, quorum = cluster({"/r1": 2, "/r2": 2, "/r3": 2}), Quorum(3, 3, 2)
    good = policy.new_ensemble(view, quorum, SimRng(1))
    assert policy.adherence(view, quorum, good) is Adherence.MEETS_STRICT
    assert policy.adherence(view, quorum, good[:2]) is Adherence.FAIL
    assert policy.adherence(view, quorum, (*good[:2], good[0])) is Adherence.FAIL


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize(("size", "index"), [(2, 0), (3, 3), (3, -1)])
def test_a_position_that_does_not_exist_is_a_bug_of_the_caller(policy: Placement, size: int, index: int) -> None:
    view = cluster({"/r1": 4, "/r2": 4, "/r3": 4})
    with pytest.raises(InvariantBroken):
        policy.replace(view, Quorum(3, 2, 2), sorted(view.writable)[:size], index, SimRng(1))


def test_every_bookie_gets_its_turn_at_every_position() -> None:
    view, rng = cluster({"/r": 4}), SimRng(1)
    ensembles = [RandomPlacement().new_ensemble(view, Quorum(2, 2, 2), rng) for _ in range(1200)]
    assert len(set(ensembles)) == 12
    assert min(Counter(ensembles).values()) > 60, "100 are expected of each"


# --- Chances by free space


def shares(policy: Placement, view: BookieView, *, draws: int = 6000) -> dict[BookieId, float]:
    """How often each bookie is the first of an ensemble. The standard deviation of a share is below 0.7 percent."""
    rng = SimRng("shares")
    counts = Counter(policy.new_ensemble(view, Quorum(1, 1, 1), rng)[0] for _ in range(draws))
    return {bookie: counts[bookie] / draws for bookie in sorted(view.writable)}


WEIGHTED = [policy for policy in POLICIES if policy in LENIENT and getattr(policy, "weighted", False)]


@pytest.mark.parametrize("policy", WEIGHTED, ids=repr)
@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        ({A: 10**12, B: 2 * 10**12, C: 2 * 10**12, D: 5 * 10**12}, [0.1, 0.2, 0.2, 0.5]),
        ({A: 100, B: 100, C: 100, D: 10**9}, [1 / 6, 1 / 6, 1 / 6, 1 / 2]),  # At most three medians.
        ({A: 100, B: 200, C: 100}, [0.2, 0.4, 0.2, 0.2]),  # Who told nothing counts as the smallest.
        ({A: 100, B: 200, C: 100, D: 0}, [0.2, 0.4, 0.2, 0.2]),  # So does a full one.
        ({A: 0}, [0.25, 0.25, 0.25, 0.25]),
        ({}, [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_a_weighted_draw_follows_free_space(
    policy: Placement, free_bytes: dict[BookieId, int], expected: list[float]
) -> None:
    locations = {bookie: f"/region/{bookie}" for bookie in (A, B, C, D)}
    found = shares(policy, BookieView(frozenset(locations), locations, free_bytes))
    assert list(found.values()) == pytest.approx(expected, abs=0.03)


def test_without_weights_free_space_does_not_matter() -> None:
    view = BookieView(frozenset({A, B, C, D}), free_bytes={A: 1, B: 10**12})
    assert list(shares(RandomPlacement(), view).values()) == pytest.approx([0.25] * 4, abs=0.03)


@pytest.mark.parametrize("policy", WEIGHTED, ids=repr)
def test_a_weighted_replacement_follows_free_space(policy: Placement) -> None:
    view, rng = BookieView(frozenset({A, B, C}), free_bytes={B: 100, C: 300}), SimRng(1)
    counts = Counter(policy.replace(view, Quorum(1, 1, 1), [A], 0, rng) for _ in range(4000))
    assert counts[C] / 4000 == pytest.approx(0.75, abs=0.03)


class AlmostOne(SimRng):
    def random(self) -> float:
        return 1 - 2**-53


def test_the_last_sliver_of_chance_belongs_to_a_bookie_too() -> None:
    view = BookieView(frozenset({A, B}), free_bytes={A: 2**62 + 1, B: 2**62 + 3})
    assert RandomPlacement(weighted=True).new_ensemble(view, Quorum(1, 1, 1), AlmostOne(0)) == (B,)


# --- Smaller ensembles


@many_examples
@given(policies, views(), quorums(), seeds)
def test_striping_over_fewer_bookies_is_as_wide_as_possible(
    policy: Placement, view: BookieView, quorum: Quorum, rng: SimRng
) -> None:
    def is_possible(size: int) -> bool:
        try:
            return bool(policy.new_ensemble(view, Quorum(size, quorum.write, quorum.ack), SimRng(0)))
        except NotEnoughBookies:
            return False

    widest = max((size for size in range(quorum.write, quorum.ensemble + 1) if is_possible(size)), default=None)
    if widest is None:
        with pytest.raises(NotEnoughBookies) as caught:
            opportunistic_ensemble(policy, view, quorum, rng)
        assert caught.value.facts["needed"] == quorum.write
    else:
        assert len(opportunistic_ensemble(policy, view, quorum, rng)) == widest


# --- Paths


@pytest.mark.parametrize("path", ["/r", "/region/r", "/rack-1.a", "/é/r"])
def test_paths_of_racks_have_one_part_or_two(path: str) -> None:
    assert check_rack(path) == path


@pytest.mark.parametrize("path", ["", "/", "r", "r/s", "//r", "/r/", "/a/b/c", "/a b", "/a\tb", "/a\n"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidArgument):
        check_rack(path)


def test_a_rack_without_a_region_is_in_the_default_one() -> None:
    assert [region_of(path) for path in ("/east/r1", "/r1", "/default-rack")] == [
        "east",
        "default-region",
        "default-region",
    ]


def test_a_view_does_not_change_with_the_maps_it_was_made_from() -> None:
    locations, free_bytes = {A: "/r1"}, {A: 1}
    view = BookieView(frozenset({A}), locations, free_bytes)
    locations[A], free_bytes[A] = "/r2", 2
    assert (view.rack_of(A), view.free_bytes[A], view.rack_of(B)) == ("/r1", 1, "/default-rack")
