"""Ensembles that span racks: whenever possible, or else not at all; replacements that keep it so."""

from collections import Counter
from dataclasses import replace

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
    rooms,
    seeds,
)

from quire.errors import InvalidArgument, NotEnoughBookies
from quire.protocol.placement import DEFAULT_RACK, Adherence
from quire.protocol.placement_racks import RackAwarePlacement
from quire.protocol.placement_windows import RacksSpanned, Rule
from quire.testing import SimRng
from quire.types import BookieId, Quorum

racks_mins = st.integers(1, 4)


def rule(quorum: Quorum, racks_min: int) -> list[Rule]:
    return [RacksSpanned(min(racks_min, quorum.write))]


@many_examples
@given(rooms(), quorums(5), racks_mins, seeds)
def test_every_write_set_spans_the_racks_whenever_that_is_possible(
    rooms: dict[str, int], quorum: Quorum, racks_min: int, rng: SimRng
) -> None:
    view, policy = cluster(rooms), RackAwarePlacement(racks_min)
    if len(view.writable) < quorum.ensemble:
        return
    ensemble = policy.new_ensemble(view, quorum, rng)
    spans = keeps_everywhere(rule(quorum, racks_min), racks_of(view, ensemble), quorum)
    assert spans is can_be_arranged(rooms, quorum, rule(quorum, racks_min))
    assert (policy.adherence(view, quorum, ensemble) is not Adherence.FAIL) is spans


@many_examples
@given(rooms(), quorums(5), racks_mins, seeds)
def test_what_is_enforced_is_kept_or_refused(
    rooms: dict[str, int], quorum: Quorum, racks_min: int, rng: SimRng
) -> None:
    """Bookies in no known rack do not count, however many they are."""
    view, policy = cluster(rooms), RackAwarePlacement(racks_min, enforce=True)
    known = {rack: room for rack, room in rooms.items() if rack != DEFAULT_RACK}
    if can_be_arranged(known, quorum, rule(quorum, racks_min)):
        ensemble = policy.new_ensemble(view, quorum, rng)
        assert DEFAULT_RACK not in racks_of(view, ensemble)
        assert policy.adherence(view, quorum, ensemble) is Adherence.MEETS_STRICT
    else:
        with pytest.raises(NotEnoughBookies) as caught:
            policy.new_ensemble(view, quorum, rng)
        assert caught.value.facts["needed"] == quorum.ensemble
        assert caught.value.facts["found"] == sum(known.values())


@many_examples
@given(rooms(), quorums(5), racks_mins, st.booleans(), seeds)
def test_a_replacement_keeps_the_racks_whenever_that_is_possible(
    rooms: dict[str, int], quorum: Quorum, racks_min: int, enforce: bool, rng: SimRng
) -> None:
    view, policy = cluster(rooms), RackAwarePlacement(racks_min, enforce=enforce)
    if len(view.writable) < quorum.ensemble:
        return
    ensemble = RackAwarePlacement(racks_min).new_ensemble(view, quorum, rng)
    index = rng.randrange(quorum.ensemble)
    candidates = [
        bookie for bookie in view.writable - set(ensemble) if not (enforce and view.rack_of(bookie) == DEFAULT_RACK)
    ]

    def kept(bookie: BookieId) -> int:
        """The write sets of the first entries that span enough racks, those with the new bookie or all."""
        changed = [*ensemble[:index], bookie, *ensemble[index + 1 :]]
        return sum(
            len({view.rack_of(changed[(start + step) % quorum.ensemble]) for step in range(quorum.write)})
            >= min(racks_min, quorum.write)
            for start in range(index - quorum.write + 1, index + 1)
        )

    if enforce:
        candidates = [bookie for bookie in candidates if kept(bookie) == quorum.write]
    if candidates:
        assert kept(policy.replace(view, quorum, ensemble, index, rng)) == max(map(kept, candidates))
    else:
        with pytest.raises(NotEnoughBookies) as caught:
            policy.replace(view, quorum, ensemble, index, rng)
        assert caught.value.facts["needed"] == 1


def test_the_first_bookie_is_from_the_clients_own_rack() -> None:
    view = replace(cluster({"/a": 1, "/b": 9, "/c": 9}), local="/a")
    for seed in range(20):
        assert RackAwarePlacement().new_ensemble(view, Quorum(3, 2, 2), SimRng(seed))[0] == "b0"


def test_an_own_rack_without_bookies_changes_nothing() -> None:
    view = cluster({"/a": 2, "/b": 2})
    for seed in range(20):
        assert RackAwarePlacement().new_ensemble(view, Quorum(2, 2, 2), SimRng(seed)) == (
            RackAwarePlacement().new_ensemble(replace(view, local="/elsewhere"), Quorum(2, 2, 2), SimRng(seed))
        )


def test_beginning_in_the_own_rack_does_not_break_the_rule() -> None:
    """A circle of five with pairs: the three racks have to alternate, wherever they begin."""
    view = replace(cluster({"/a": 1, "/b": 2, "/c": 2}), local="/a")
    for seed in range(20):
        ensemble = RackAwarePlacement(enforce=True).new_ensemble(view, Quorum(5, 2, 2), SimRng(seed))
        assert ensemble[0] == "b0"
        assert RackAwarePlacement().adherence(view, Quorum(5, 2, 2), ensemble) is Adherence.MEETS_STRICT


def test_racks_that_were_not_used_come_first() -> None:
    view = cluster({f"/r{number}": 3 for number in range(5)})
    for seed in range(20):
        ensemble = RackAwarePlacement().new_ensemble(view, Quorum(5, 3, 2), SimRng(seed))
        assert len(set(racks_of(view, ensemble))) == 5


def test_all_bookies_get_equally_much_whatever_the_size_of_their_rack() -> None:
    """As far as the first position goes; where racks are few, the small ones have to bear more."""
    view, rng = cluster({"/a": 1, "/b": 3}), SimRng(1)
    counts = Counter(RackAwarePlacement().new_ensemble(view, Quorum(1, 1, 1), rng)[0] for _ in range(4000))
    assert [counts[BookieId(f"b{number}")] / 4000 for number in range(4)] == pytest.approx([0.25] * 4, abs=0.03)


def test_a_replacement_is_from_the_same_rack_then_from_a_new_one_then_from_any() -> None:
    policy, quorum = RackAwarePlacement(), Quorum(3, 3, 2)
    full = cluster({"/a": 2, "/b": 2, "/c": 2, "/d": 1})
    a0, a1, b0, b1, c0, c1, d0 = (BookieId(f"b{number}") for number in range(7))
    rng = SimRng(1)

    def chosen(*gone: BookieId) -> BookieId:
        view = replace(full, writable=full.writable - set(gone))
        return policy.replace(view, quorum, (a0, b0, c0), 0, rng, exclude=frozenset({a0}))

    for _ in range(20):
        assert chosen() == a1
        assert chosen(a1) == d0
        assert chosen(a1, d0) in (b1, c1)


def test_the_failed_bookie_may_be_unknown_to_the_view() -> None:
    """It is down and in no map: it counts as in the default rack, and any other may stand in."""
    view = cluster({"/a": 2, "/b": 1})
    ensemble = (BookieId("b0"), BookieId("unknown"))
    assert RackAwarePlacement().replace(view, Quorum(2, 2, 2), ensemble, 1, SimRng(1)) == "b2"


def test_adherence_tells_what_is_only_assumed() -> None:
    view, policy = cluster({"/a": 2, "/b": 2, DEFAULT_RACK: 2}), RackAwarePlacement()
    a0, a1, b0, b1, unknown, _ = (BookieId(f"b{number}") for number in range(6))
    assert policy.adherence(view, Quorum(2, 2, 2), (a0, b0)) is Adherence.MEETS_STRICT
    assert policy.adherence(view, Quorum(2, 2, 2), (a0, unknown)) is Adherence.MEETS_SOFT
    assert policy.adherence(view, Quorum(2, 2, 2), (a0, a1)) is Adherence.FAIL
    assert policy.adherence(view, Quorum(4, 2, 2), (a0, b0, a1, b1)) is Adherence.MEETS_STRICT
    assert policy.adherence(view, Quorum(4, 2, 2), (a0, b0, b1, a1)) is Adherence.FAIL, "also across the end"


def test_racks_of_one_name_in_two_regions_are_two_racks() -> None:
    view = cluster({"/east/r1": 1, "/west/r1": 1})
    ensemble = RackAwarePlacement(enforce=True).new_ensemble(view, Quorum(2, 2, 2), SimRng(1))
    assert set(ensemble) == view.writable


def test_a_refusal_says_which_racks_there_are() -> None:
    view = cluster({"/a": 5, DEFAULT_RACK: 5})
    with pytest.raises(NotEnoughBookies, match="3 of 5 bookies in 1 racks cannot be spread") as caught:
        RackAwarePlacement(enforce=True).new_ensemble(view, Quorum(3, 2, 2), SimRng(1))
    assert caught.value.facts == {"needed": 3, "found": 5, "racks": ["/a"]}


def test_no_racks_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(InvalidArgument):
        RackAwarePlacement(0)
