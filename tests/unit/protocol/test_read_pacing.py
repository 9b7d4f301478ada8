"""How often readers are told, and how fast they may go."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.protocol.read_pacing import FEW_READERS, BytePace, fan_out_interval_s


def test_a_few_readers_are_told_at_once_and_many_at_intervals() -> None:
    def interval_s(readers: int) -> float:
        return fan_out_interval_s(readers, per_reader_s=60e-6, interval_s_max=0.03)

    assert interval_s(0) == interval_s(1) == interval_s(FEW_READERS) == 0.0
    assert 0 < interval_s(100) < interval_s(300) < 0.03
    assert interval_s(10_000) == 0.03


@settings(deadline=None)
@given(
    st.floats(10.0, 1e6),
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.0, 0.5)), min_size=1, max_size=50),
)
def test_whoever_waits_as_told_stays_within_the_rate(bytes_per_s: float, steps: list[tuple[int, float]]) -> None:
    """Over any time, what went is at most the rate times that time, the burst, and the last piece."""
    pace, now_s, taken = BytePace(bytes_per_s, burst_s=0.1), 100.0, 0
    for size_bytes, more_s in steps:
        now_s += pace.delay_s(now_s=now_s)
        allowed = bytes_per_s * (now_s - 100.0 + 0.1) * 1.0001 + 1
        assert taken <= allowed
        pace.take(size_bytes, now_s=now_s)
        taken += size_bytes
        now_s += more_s


def test_without_a_limit_nobody_waits() -> None:
    pace = BytePace(math.inf)
    pace.take(1 << 40, now_s=0.0)
    assert pace.delay_s(now_s=0.0) == 0.0


def test_a_debt_is_paid_with_time() -> None:
    pace = BytePace(100.0, burst_s=0.0)
    assert pace.delay_s(now_s=5.0) == 0.0
    pace.take(200, now_s=5.0)
    assert pace.delay_s(now_s=5.0) == 2.0
    assert pace.delay_s(now_s=6.5) == 0.5
    assert pace.delay_s(now_s=7.5) == 0.0
