"""Placing streams by load, and moving them by number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.placing_streams import Placements, plan_moves

loads = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0, 1000), max_size=30)


def test_the_heaviest_stream_is_placed_first() -> None:
    placed = Placements(["h1", "h2"]).place_all({"a": 1, "b": 1, "c": 2}, {})
    assert placed["c"] != placed["a"] == placed["b"]


def test_a_stream_stays_unless_moving_it_is_worth_it() -> None:
    even = {f"s{number}": 10.0 for number in range(10)}
    where = {stream: ("h1" if number < 5 else "h2") for number, stream in enumerate(even)}
    assert Placements(["h1", "h2"]).place_all(even, where) == where
    everything_here = dict.fromkeys(even, "h1")
    placed = Placements(["h1", "h2"]).place_all(even, everything_here)
    assert sorted(placed.values()).count("h2") >= 4


def test_a_stream_that_came_since_is_placed_once() -> None:
    placements = Placements(["h1", "h2"])
    placements.place_all({"a": 10}, {"a": "h1"})
    assert placements.place("new", 1) == "h2"
    assert placements.place("other", 20) == "h2"
    assert placements.place("new", 1) == "h2", "though it is not the lightest any more"
    assert Placements([]).place("new", 1) is None


@given(loads, st.integers(1, 5), st.data())
def test_no_proxy_has_more_than_its_share_and_the_largest_stream(
    streams: dict[str, float], hosts: int, data: st.DataObject
) -> None:
    names = [f"h{number}" for number in range(hosts)]
    owners = {stream: data.draw(st.sampled_from([*names, "gone"])) for stream in streams}
    placements = Placements(names)
    placed = placements.place_all(streams, owners)
    assert set(placed) == set(streams)
    mean = sum(streams.values()) / hosts
    for host in names:
        assert placements.loads[host] == pytest.approx(sum(streams[s] for s in placed if placed[s] == host))
        assert placements.loads[host] <= 1.1 * mean + max(streams.values(), default=0) + 1e-6


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0, 1))
def test_moves_level_the_fullest_down_and_nobody_is_worse_off(counts: list[int], tolerance: float) -> None:
    hosts = {f"h{host}": [f"{host}/{number}" for number in range(count)] for host, count in enumerate(counts)}
    moves = plan_moves(hosts, tolerance=tolerance)
    after = {host: set(streams) for host, streams in hosts.items()}
    for stream, source, target in moves:
        after[source].remove(stream)
        after[target].add(stream)
    assert len({move.stream for move in moves}) == len(moves)
    assert max(map(len, after.values())) <= max(counts)
    average = sum(counts) / len(counts)
    if len(counts) > 1:
        assert max(map(len, after.values())) <= max(math.ceil(average), math.floor(average * (1 + tolerance)))
    assert len(moves) <= sum(max(0, count - math.ceil(average)) for count in counts)


def test_below_the_water_mark_nothing_moves() -> None:
    hosts = {"a": ["1", "2", "3", "4"], "b": []}
    assert plan_moves(hosts, water_mark=4) == []
    assert {move.source for move in plan_moves(hosts)} == {"a"}
    assert len(plan_moves(hosts)) == 2
    assert plan_moves({"a": ["1", "2"]}) == []


def test_a_proxy_is_emptied_evenly() -> None:
    hosts = {"a": [str(number) for number in range(6)], "b": ["x", "y"], "c": []}
    moves = plan_moves(hosts, source="a")
    assert sorted(move.stream for move in moves) == hosts["a"]
    assert [move.target for move in moves].count("c") == 4
    with pytest.raises(InvalidArgument):
        plan_moves(hosts, source="unknown")
    with pytest.raises(InvalidArgument):
        plan_moves({"a": ["1"]}, source="a")
