"""Limits of requests and bytes: buckets, levels, moving averages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.rate_limits import SAMPLES, LevelLimiter, MovingRate, RateLimits, charge, load


def test_a_second_of_requests_passes_at_once_and_the_rest_has_to_wait() -> None:
    level = LevelLimiter("stream", RateLimits(requests_hard=10))
    assert [charge([level], requests=1, size_bytes=0, now_s=5.0).refusal for _ in range(10)] == [None] * 10
    refusal = charge([level], requests=1, size_bytes=0, now_s=5.0).refusal
    assert refusal is not None
    assert (refusal.level, refusal.what) == ("stream", "requests")
    assert refusal.retry_after_s == pytest.approx(0.1)
    assert charge([level], requests=1, size_bytes=0, now_s=5.0 + refusal.retry_after_s + 1e-9).refusal is None


def test_all_levels_are_charged_or_none() -> None:
    proxy = LevelLimiter("proxy", RateLimits(bytes_hard=1000))
    stream = LevelLimiter("stream", RateLimits(bytes_hard=100))
    levels = [proxy, stream]
    assert charge(levels, requests=1, size_bytes=100, now_s=0).refusal is None
    for _ in range(50):
        refusal = charge(levels, requests=1, size_bytes=100, now_s=0).refusal
        assert refusal is not None
        assert refusal.level == "stream"
    assert charge([proxy], requests=1, size_bytes=900, now_s=0).refusal is None, "the refused ones cost nothing"
    assert charge([proxy], requests=1, size_bytes=1, now_s=0).refusal is not None


def test_what_is_larger_than_a_second_passes_when_the_bucket_is_full_and_leaves_a_debt() -> None:
    level = LevelLimiter("proxy", RateLimits(bytes_hard=100))
    assert charge([level], requests=1, size_bytes=500, now_s=0).refusal is None
    refusal = charge([level], requests=1, size_bytes=500, now_s=0).refusal
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(5.0)
    assert charge([level], requests=1, size_bytes=500, now_s=5.0).refusal is None


@pytest.mark.parametrize("off", [None, -1, -0.5])
def test_no_limit_refuses_nothing_and_zero_everything(off: float | None) -> None:
    assert RateLimits(requests_hard=off, bytes_soft=off).is_off
    free = LevelLimiter("proxy", RateLimits(bytes_hard=off))
    assert charge([free], requests=1, size_bytes=10**12, now_s=0).refusal is None
    closed = LevelLimiter("proxy", RateLimits(requests_hard=0))
    refusal = charge([closed], requests=1, size_bytes=0, now_s=100).refusal
    assert refusal is not None
    assert refusal.retry_after_s == math.inf
    with pytest.raises(InvalidArgument):
        RateLimits(bytes_hard=math.nan)


def test_a_soft_limit_only_counts() -> None:
    level = LevelLimiter("namespace", RateLimits(requests_soft=2, requests_hard=4))
    charges = [charge([level], requests=1, size_bytes=0, now_s=0) for _ in range(5)]
    assert [charged.soft for charged in charges] == [(), (), ("namespace",), ("namespace",), ()]
    assert [charged.refusal is None for charged in charges] == [True] * 4 + [False]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 300)), max_size=60), st.integers(1, 200))
def test_over_any_time_no_more_passes_than_the_rate_allows(steps: list[tuple[float, int]], rate: int) -> None:
    level, now_s, passed = LevelLimiter("x", RateLimits(bytes_hard=rate)), 0.0, 0
    largest = max((size for _, size in steps), default=0)
    for wait_s, size in steps:
        now_s += wait_s
        refusal = charge([level], requests=1, size_bytes=size, now_s=now_s).refusal
        if refusal is None:
            passed += size
        else:
            assert 0 < refusal.retry_after_s < math.inf
    assert passed <= rate * (now_s + 1) + largest + 1e-6


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 100)), max_size=100))
def test_a_moving_rate_is_that_of_the_last_minute(steps: list[tuple[float, int]]) -> None:
    rate, now_s, added = MovingRate(0.0), 0.0, list[tuple[int, int]]()
    for wait_s, count in steps:
        now_s += wait_s
        rate.add(count, now_s)
        added.append((math.floor(now_s), count))
    second = math.floor(now_s)
    expected = sum(count for at, count in added if at > second - SAMPLES) / min(SAMPLES, second + 1)
    assert rate.per_s(now_s) == pytest.approx(expected)
    assert rate.per_s(now_s + SAMPLES + 1) == 0


def test_requests_weigh_as_much_as_some_bytes() -> None:
    assert load(bytes_per_s=1000, requests_per_s=2) == 1000 + 2 * 4096
