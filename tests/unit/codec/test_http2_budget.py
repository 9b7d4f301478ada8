"""Frames that carry no message take from what our data has earned, or from a token bucket."""

from hypothesis import given
from hypothesis import strategies as st

from quire.codec.http2 import ENHANCE_YOUR_CALM, Http2Violation
from quire.codec.http2_budget import BURST, PER_EXCHANGE, PER_S, FrameBudget


def spent(budget: FrameBudget, now_s: float, **options: int) -> int:
    """How many frames are paid before one is not."""
    options.setdefault("exchanges", 0)
    for count in range(2 * PER_EXCHANGE * BURST):
        try:
            budget.spend(now_s, **options)
        except Http2Violation as violation:
            assert violation.code == ENHANCE_YOUR_CALM
            return count
    raise AssertionError("it never ends")


def test_a_flood_ends_after_its_first_burst_and_time_gives_a_little_back() -> None:
    budget = FrameBudget()
    assert spent(budget, 1_000.0) == BURST
    assert spent(budget, 1_002.0) == 2 * PER_S
    assert spent(budget, 9_999.0) == BURST


def test_calls_and_frames_of_data_pay_for_as_many_answers_whenever_those_come() -> None:
    """A client that reads a million small messages and then makes room for each of them is an honest one."""
    assert spent(FrameBudget(), 0.0, exchanges=BURST) == BURST + BURST * PER_EXCHANGE


def test_frames_that_make_us_look_at_all_calls_cost_more_with_more_of_them() -> None:
    frames = spent(FrameBudget(), 0.0, calls=2_000)
    assert frames * 2_000 < 10 * BURST


@given(st.lists(st.tuples(st.floats(0, 3_600), st.integers(0, 3), st.integers(0, 2_000)), max_size=200))
def test_work_beyond_the_burst_is_bounded_by_time_and_by_exchanges(steps: list[tuple[float, int, int]]) -> None:
    """WorkIsBounded."""
    budget, now_s, exchanges, work = FrameBudget(), 0.0, 0, 0
    for after_s, more, calls in steps:
        now_s, exchanges = now_s + after_s, exchanges + more
        try:
            budget.spend(now_s, exchanges=exchanges, calls=calls)
        except Http2Violation:
            continue
        work += 1 + calls // 8
    assert work <= BURST + PER_S * now_s + PER_EXCHANGE * exchanges
