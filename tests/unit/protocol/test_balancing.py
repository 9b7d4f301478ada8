"""Balancing streams over write proxies by load."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.balancing import (
    CROWDED,
    STREAM_COST,
    BalanceSettings,
    Orders,
    Plan,
    ProxyLoad,
    SmoothedLoads,
    StreamLoad,
    place,
    plan_moves,
)

EAGER = BalanceSettings(water_mark=0.0, rest_s=10.0)
MANY = BalanceSettings(water_mark=0.0, rest_s=0.0, moves_max=1000)
ROUNDS_MAX = 400


def proxy(name: str, *loads: float, here_s: float = 100.0, room: int = 1000) -> ProxyLoad:
    return ProxyLoad(name, [StreamLoad(f"{name}/{number}", load, here_s) for number, load in enumerate(loads)], room)


def made(proxies: Sequence[ProxyLoad], plan: Plan) -> list[ProxyLoad]:
    """The proxies after the moves of a plan."""
    streams = {each.proxy: {stream.stream: stream for stream in each.streams} for each in proxies}
    room = {each.proxy: each.room for each in proxies}
    for move in plan.moves:
        streams[move.target][move.stream] = streams[move.source].pop(move.stream)
        room[move.target] -= 1
        room[move.source] += 1
    return [ProxyLoad(name, list(streams[name].values()), room[name]) for name in streams]


def test_the_heaviest_gives_to_the_lightest_what_makes_both_alike() -> None:
    busy, idle = proxy("a", 1e6, 2e6, 7e6), proxy("b")
    plan = plan_moves([busy, idle, proxy("c", 4e6)], EAGER)
    assert [(move.stream, move.source, move.target) for move in plan.moves][:1] == [("a/2", "a", "b")]
    assert sum(plan.after.values()) == sum(plan.before.values()) == 14e6 + 4 * STREAM_COST


def test_one_stream_that_is_too_much_for_anybody_stays_where_it_is() -> None:
    assert plan_moves([proxy("a", 9e6), proxy("b")], EAGER).moves == ()


def test_a_stream_that_came_a_moment_ago_is_left_alone() -> None:
    assert plan_moves([proxy("a", 4e6, 4e6, here_s=9.9), proxy("b")], EAGER).moves == ()
    assert len(plan_moves([proxy("a", 4e6, 4e6, here_s=10.0), proxy("b")], EAGER).moves) == 1


def test_below_the_water_mark_nothing_moves() -> None:
    settings = BalanceSettings(water_mark=1e6, rest_s=0.0)
    assert plan_moves([proxy("a", 3e5, 3e5), proxy("b")], settings).moves == ()
    assert len(plan_moves([proxy("a", 8e5, 8e5), proxy("b")], settings).moves) == 1


def test_within_the_threshold_nothing_moves() -> None:
    loads = [proxy("a", *[10_000.0] * 21), proxy("b", *[10_000.0] * 20)]
    assert plan_moves(loads, EAGER).moves == ()


def test_streams_that_nobody_writes_count_a_little() -> None:
    """Else all of them could stay at one proxy, which has a ledger open for each."""
    plan = plan_moves([proxy("a", *[0.0] * 10), proxy("b")], MANY)
    assert len(plan.moves) == 5


def test_who_has_no_room_gets_nothing() -> None:
    assert plan_moves([proxy("a", 1e6, 1e6), proxy("b", room=0)], EAGER).moves == ()
    plan = plan_moves([proxy("a", *[1e6] * 9), proxy("b", room=2), proxy("c", room=0)], MANY)
    assert [move.target for move in plan.moves] == ["b", "b"]


@st.composite
def clusters(draw: st.DrawFn) -> list[ProxyLoad]:
    """Loads are whole numbers: sums of them are exact, so that a threshold of nothing means what it says."""
    loads = st.lists(st.integers(0, 10_000_000).map(float), max_size=12)
    return [
        proxy(f"p{number}", *draw(loads), here_s=draw(st.sampled_from([0.0, 50.0])), room=draw(st.integers(0, 30)))
        for number in range(draw(st.integers(1, 6)))
    ]


rules = st.builds(
    BalanceSettings,
    threshold=st.floats(0, 1),
    water_mark=st.floats(0, 1e7),
    rest_s=st.sampled_from([0.0, 20.0]),
    moves_max=st.integers(0, 30),
)


@given(clusters(), rules)
def test_every_move_helps_and_few_are_made(proxies: list[ProxyLoad], settings: BalanceSettings) -> None:
    plan = plan_moves(proxies, settings)
    streams = {stream.stream: stream for each in proxies for stream in each.streams}
    assert len({move.stream for move in plan.moves}) == len(plan.moves) <= settings.moves_max
    slack = settings.threshold * sum(plan.before.values()) / len(proxies)
    loads, room = dict(plan.before), {each.proxy: each.room for each in proxies}
    for stream, source, target, load in plan.moves:
        assert streams[stream].here_s >= settings.rest_s
        assert loads[source] > settings.water_mark
        assert loads[source] - (loads[target] + load) > slack - 1e-3
        loads[source] -= load
        loads[target] += load
        room[target] -= 1
        assert room[target] >= 0
    assert max(plan.after.values()) <= max(plan.before.values()) + 1e-3
    assert sum(plan.after.values()) == pytest.approx(sum(plan.before.values()))
    assert {name: pytest.approx(load) for name, load in loads.items()} == plan.after


@given(clusters(), rules)
def test_with_the_same_loads_moves_come_to_an_end(proxies: list[ProxyLoad], settings: BalanceSettings) -> None:
    """No ping-pong: after so many rounds nothing moves any more, and each round left less uneven than it found."""
    for _ in range(ROUNDS_MAX):
        plan = plan_moves(proxies, settings)
        if not plan.moves:
            return
        assert _unevenness(plan.after.values()) < _unevenness(plan.before.values())
        proxies = made(proxies, plan)
    raise AssertionError(f"streams still move: {plan.moves}")


@given(clusters())
def test_what_is_left_is_not_worth_a_move(proxies: list[ProxyLoad]) -> None:
    while (plan := plan_moves(proxies, MANY)).moves:
        proxies = made(proxies, plan)
    takers = [each.proxy for each in proxies if each.room]
    slack = MANY.threshold * sum(plan.before.values()) / len(proxies)
    for target in takers:
        for source in proxies:
            gap = plan.before[source.proxy] - plan.before[target]
            lightest = min((each.load + STREAM_COST for each in source.streams), default=gap)
            assert gap - lightest <= slack + 1e-3


def _unevenness(loads: Iterable[float]) -> int:
    return sum(int(load) ** 2 for load in loads)


def test_sums_that_are_rounded_move_nothing_back_and_forth() -> None:
    """With either of two streams away both proxies have the same to do, but for the last bit of the sum."""
    loads = 8379146.939695189, 8396021.73694979, 8396021.73694979
    proxies: list[ProxyLoad] = [proxy("a", room=2), proxy("b", *loads, room=0)]
    settings = BalanceSettings(threshold=0.0, water_mark=0.0, rest_s=0.0, moves_max=1)
    plan = plan_moves(proxies, settings)
    assert len(plan.moves) == 1
    assert plan_moves(made(proxies, plan), settings).moves == ()


def test_a_moments_rush_counts_half() -> None:
    loads = SmoothedLoads()
    assert loads.on_look([proxy("a", 100.0)])[0].streams[0].load == 100.0
    assert loads.on_look([proxy("a", 900.0)])[0].streams[0].load == 500.0
    assert loads.on_look([proxy("a", 500.0)])[0].streams[0].load == 500.0
    assert loads.on_look([]) == []
    assert loads.on_look([proxy("a", 10.0)])[0].streams[0].load == 10.0, "what was not seen is forgotten"


def test_new_streams_pass_over_a_crowded_proxy() -> None:
    loads = {"a": 300.0, "b": 100.0, "c": 100.0}
    assert place(["a", "b", "c"], loads) == "b"
    assert place(["a"], loads) == "a", "rather there than nowhere"
    assert place(["new", "a"], loads) == "new", "whoever has just come has little to do"
    assert place(["a", "b"], {}) == "a"
    assert place([], loads) is None


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e9)), st.permutations("abcdef"))
def test_some_proxy_always_takes_a_new_stream(loads: dict[str, float], ring: list[str]) -> None:
    chosen = place(ring, loads)
    assert chosen is not None
    mean = sum(loads.values()) / max(1, len(loads))
    assert loads.get(chosen, 0.0) <= CROWDED * mean or all(loads[each] > CROWDED * mean for each in ring)


def test_a_balancer_that_was_followed_by_another_is_not_obeyed_any_more() -> None:
    orders = Orders()
    assert orders.obeys(3)
    assert orders.obeys(5)
    assert not orders.obeys(3)
    assert orders.obeys(5)
    assert orders.obeys(0), "an operator is no balancer"
    assert not orders.obeys(4)


@pytest.mark.parametrize("wrong", [{"interval_s": -1.0}, {"threshold": float("nan")}, {"moves_at_once": 0}])
def test_settings_have_to_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        BalanceSettings(**wrong)  # type: ignore[arg-type]
