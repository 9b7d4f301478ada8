"""The search for an arrangement: compared with one that tries everything."""

from collections import Counter
from collections.abc import Mapping

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
    rooms_in_regions,
    seeds,
)

from quire.protocol import placement_windows
from quire.protocol.placement import Lots
from quire.protocol.placement_racks import wish_for_racks
from quire.protocol.placement_regions import wish_for_regions
from quire.protocol.placement_windows import (
    RacksSpanned,
    RegionsSurvived,
    Rule,
    arrange,
    evenly,
    keeps,
    kept_windows,
    windows,
)
from quire.protocol.quorum import write_sets
from quire.testing import SimRng
from quire.types import BookieId, Quorum


def found(rooms: Mapping[str, int], quorum: Quorum, rules: list[Rule], rng: SimRng) -> list[str] | None:
    view = cluster(rooms)
    wish = wish_for_regions(view) if any("/" in rack[1:] for rack in rooms) else wish_for_racks(view, quorum)
    lots = Lots(view, view.writable, rng, weighted=False)
    ensemble: tuple[BookieId, ...] | None = arrange(view, view.writable, quorum, lots, rules, wish)
    return None if ensemble is None else racks_of(view, ensemble)


@many_examples
@given(rooms(), quorums(5), st.integers(1, 4), seeds)
def test_racks_are_spanned_exactly_if_that_is_possible(
    rooms: dict[str, int], quorum: Quorum, racks_min: int, rng: SimRng
) -> None:
    rules: list[Rule] = [RacksSpanned(min(racks_min, quorum.write))]
    racks = found(rooms, quorum, rules, rng)
    if racks is None:
        assert not can_be_arranged(rooms, quorum, rules)
    else:
        assert keeps_everywhere(rules, racks, quorum)


@many_examples
@given(rooms_in_regions(), quorums(5), st.integers(2, 3), st.integers(1, 3), seeds)
def test_regions_are_survived_exactly_if_that_is_possible(
    rooms: dict[str, int], quorum: Quorum, regions_min: int, racks_min: int, rng: SimRng
) -> None:
    rules: list[Rule] = [RegionsSurvived(regions_min, quorum.ack), RacksSpanned(min(racks_min, quorum.write))]
    racks = found(rooms, quorum, rules, rng)
    if racks is None:
        assert not can_be_arranged(rooms, quorum, rules)
    else:
        assert keeps_everywhere(rules, racks, quorum)


@pytest.mark.parametrize(
    ("rooms", "quorum", "racks_min", "is_possible"),
    [
        ({"/a": 3, "/b": 3}, Quorum(3, 2, 2), 2, False),  # An odd circle: two neighbours are of one rack.
        ({"/a": 3, "/b": 3}, Quorum(4, 2, 2), 2, True),
        ({"/a": 3, "/b": 1}, Quorum(4, 3, 2), 2, False),  # Three of one rack in a row.
        ({"/a": 2, "/b": 2}, Quorum(4, 3, 2), 2, True),
        ({"/a": 6, "/b": 2}, Quorum(6, 3, 2), 2, True),  # Only with the two of /b opposite each other.
        ({"/a": 6, "/b": 2}, Quorum(7, 3, 2), 2, False),
        ({"/a": 2, "/b": 2, "/c": 2}, Quorum(6, 3, 3), 3, True),
        ({"/a": 3, "/b": 2, "/c": 1}, Quorum(6, 3, 3), 3, False),
        ({"/a": 2, "/b": 2, "/c": 2}, Quorum(6, 4, 4), 3, True),  # Racks in use are not alike: it matters where.
        ({"/a": 5}, Quorum(3, 1, 1), 1, True),
    ],
)
def test_examples_that_a_person_can_check(
    rooms: dict[str, int], quorum: Quorum, racks_min: int, is_possible: bool
) -> None:
    assert can_be_arranged(rooms, quorum, [RacksSpanned(racks_min)]) is is_possible
    for seed in range(20):
        assert (found(rooms, quorum, [RacksSpanned(racks_min)], SimRng(seed)) is not None) is is_possible


@pytest.mark.parametrize(
    "rooms",
    [
        {"/east/r1": 1, "/north/r1": 1, "/north/r2": 1, "/west/r1": 1},
        {"/east/r1": 1, "/east/r2": 1, "/north/r1": 1, "/west/r1": 1},
    ],
)
def test_racks_that_lead_nowhere_do_not_speak_for_other_regions(rooms: dict[str, int]) -> None:
    """Two bookies of one region have to be opposite each other: after one of them, all others have to be tried."""
    for seed in range(20):
        assert found(rooms, Quorum(4, 2, 2), [RegionsSurvived(2, 2)], SimRng(seed)) is not None


@many_examples
@given(rooms(), quorums(5), st.integers(1, 4))
def test_what_is_called_impossible_is(rooms: dict[str, int], quorum: Quorum, racks_min: int) -> None:
    """The count that saves a vain search, with the search that knows nothing of it."""
    rule = RacksSpanned(min(racks_min, quorum.write))
    if not rule.is_possible(rooms, quorum):
        assert not can_be_arranged(rooms, quorum, [rule])


@many_examples
@given(rooms_in_regions(), quorums(5), st.integers(2, 3))
def test_what_is_called_impossible_for_regions_is(rooms: dict[str, int], quorum: Quorum, regions_min: int) -> None:
    rule = RegionsSurvived(regions_min, quorum.ack)
    if not rule.is_possible(rooms, quorum):
        assert not can_be_arranged(rooms, quorum, [rule])


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far apart, few racks are enough; the search begins with all of them close together and has to go back far."""
    rooms, quorum = {"/a": 40, "/b": 1, "/c": 1, "/d": 1}, Quorum(40, 14, 2)
    assert RacksSpanned(2).is_possible(rooms, quorum)
    steps = Counter[str]()

    class Counting(RacksSpanned):
        def may_hold(self, racks: object, *, undecided: int) -> bool:
            steps["asked"] += 1
            return super().may_hold(racks, undecided=undecided)  # type: ignore[arg-type]

    monkeypatch.setattr(placement_windows, "STEPS_MAX", 100)
    assert found(rooms, quorum, [Counting(2)], SimRng(1)) is None
    assert steps["asked"] < 100 * 4 * 14 + 40 * 4 * 14


@many_examples
@given(quorums())
def test_windows_are_the_write_sets(quorum: Quorum) -> None:
    assert {frozenset(window) for window in windows(quorum)} == {frozenset(window) for window in write_sets(quorum)}
    for position in range(quorum.ensemble):
        around = windows(quorum, around=position)
        assert around == [window for window in windows(quorum) if position in window]
        assert len(around) == (quorum.write if quorum.write < quorum.ensemble else 1)


@many_examples
@given(quorums(), st.lists(st.sampled_from(["/a", "/b", "/c"]), min_size=6, max_size=6))
def test_windows_are_counted_one_by_one(quorum: Quorum, racks: list[str]) -> None:
    racks = racks[: quorum.ensemble]
    rules = [RacksSpanned(min(2, quorum.write))]
    broken = [
        window for window in windows(quorum) if len({racks[position] for position in window}) < rules[0].racks_min
    ]
    assert kept_windows(rules, racks, quorum) == len(windows(quorum)) - len(broken)
    assert keeps(rules, racks, quorum) is (not broken)


@many_examples
@given(st.dictionaries(st.text(max_size=2), st.integers(0, 5)), st.integers(0, 12))
def test_positions_are_dealt_out_evenly(rooms: dict[str, int], count: int) -> None:
    dealt = evenly(rooms, count)
    assert sum(dealt.values()) == min(count, sum(rooms.values()))
    assert all(dealt[name] <= room for name, room in rooms.items())
    most = max(dealt.values(), default=0)
    assert all(dealt[name] >= most - 1 for name, room in rooms.items() if dealt[name] < room)
