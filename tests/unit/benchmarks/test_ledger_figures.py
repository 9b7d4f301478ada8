import random
from collections.abc import Sequence

import pytest
from benchmarks.ledger.figures import Case, Ratio, Round, Work, latency_rows, percentile, ratio, throughput_rows
from benchmarks.ledger.measure import LedgerBench
from hypothesis import given
from hypothesis import strategies as st

CASE = Case((3, 3, 2), 1024)


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = [float(number) for number in range(1, 101)]
    random.Random(1).shuffle(hundred)
    assert [percentile(hundred, share) for share in (0.5, 0.99, 0.999, 1.0)] == [50, 99, 100, 100]
    assert percentile([7.0], 0.5) == percentile([7.0], 0.999) == 7
    assert percentile([1.0, 2.0], 0.5) == 1


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_as_many_values_as_named_are_not_above_a_percentile(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_sides_are_compared_round_by_round() -> None:
    """A slow moment of the machine hits both sides of a round, and cancels out.

    Method: the second round is ten times as slow for both. Medians of each side would compare apples with pears.
    """
    assert ratio([30, 3, 20], [10, 1.5, 10]) == Ratio(2, 2, 3)
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])


def turn(entries_per_s: float, waits_ms: Sequence[float], *, read_per_s: float = 100.0) -> Round:
    return Round(
        Work(1000, 1000 / entries_per_s, client_cpu_s=0.005, bookies_cpu_s=0.04),
        Work(1000, 1000 / read_per_s, client_cpu_s=0.001, bookies_cpu_s=0.002),
        [wait_ms / 1000 for wait_ms in waits_ms],
    )


def test_rows_say_what_an_entry_cost_and_who_is_ahead() -> None:
    rounds = {
        "quire": [turn(300, [1]), turn(200, [1]), turn(100, [1])],
        "apache": [turn(100, [1]), turn(100, [1]), turn(100, [1])],
    }
    ours, theirs, our_reads, their_reads = throughput_rows(CASE, rounds)
    assert (ours.operation, ours.side, ours.quorum, ours.entry_bytes) == ("append", "quire", "3/3/2", 1024)
    assert ours.entries_per_s == pytest.approx(200)
    assert [ours.client_cpu_us, ours.bookies_cpu_us] == pytest.approx([5, 40])
    assert list(ours.rounds_entries_per_s) == pytest.approx([300, 200, 100])
    assert ours.ahead is not None
    assert [ours.ahead.median, ours.ahead.low, ours.ahead.high] == pytest.approx([2, 1, 3])
    assert (theirs.side, theirs.ahead) == ("apache", None)
    assert our_reads.operation == their_reads.operation == "read"
    assert [our_reads.client_cpu_us, our_reads.bookies_cpu_us] == pytest.approx([1, 2])


def test_waits_of_all_rounds_count_and_less_is_ahead() -> None:
    rounds = {"quire": [turn(1, [1] * 99 + [50]), turn(1, [2] * 100)], "apache": [turn(1, [4] * 100)] * 2}
    ours, theirs = latency_rows(CASE, rounds, rate=1000)
    assert (ours.entries, ours.p50_ms, ours.p99_ms, ours.max_ms) == (200, 2, 2, 50)
    assert theirs.p50_ms == theirs.max_ms == 4
    assert ours.ahead_p50 == Ratio(3, 2, 4)
    assert theirs.ahead_p50 is None


def test_one_side_alone_is_ahead_of_nobody() -> None:
    rounds = {"quire": [turn(1, [1])]}
    assert [row.ahead for row in throughput_rows(CASE, rounds)] == [None, None]
    assert [row.ahead_p99 for row in latency_rows(CASE, rounds, rate=1)] == [None]


def test_ledgers_and_windows_of_large_entries_are_shorter() -> None:
    large = Case((1, 1, 1), 32_768)
    bench = LedgerBench((CASE, large), entries=50_000, window=5000, rate=1000, rounds=1, warm_up=0)
    assert bench.entries_of(CASE) == 50_000
    assert bench.entries_of(large) * large.entry_bytes == 64 << 20
    assert bench.entries_of(Case((1, 1, 1), 1 << 30)) == bench.paced_entries_of(Case((1, 1, 1), 1 << 30)) == 1
    assert bench.paced_entries_of(CASE) == 5000
    assert bench.paced_entries_of(large) == 2048
    assert (bench.window_of(CASE), bench.window_of(large)) == (5000, 1024)
    assert bench.bookies == 3
