from collections.abc import Sequence

import pytest
from benchmarks.ledger.figures import Ratio, Work
from benchmarks.stream.figures import (
    Delivery,
    StreamCase,
    StreamRound,
    delivery_rows,
    stream_throughput_rows,
)
from benchmarks.stream.tables import delivery_table, segments_table, stream_ratio_table, stream_throughput_table
from benchmarks.stream.turns import Load, StreamBench

CASE = StreamCase((3, 3, 2), 100, 10)


def factors(ratio: Ratio | None) -> list[float]:
    """Median, lowest and highest; none of a ratio that does not exist."""
    return [] if ratio is None else [ratio.median, ratio.low, ratio.high]


def work(count: int, per_s: float, *, client_us: float = 2.0, bookies_us: float = 4.0) -> Work:
    return Work(count, count / per_s, count * client_us / 1e6, count * bookies_us / 1e6)


def turn(written_per_s: float, waits_ms: Sequence[float], *, client_us: float = 2.0) -> StreamRound:
    delivered = Delivery(work(len(waits_ms), 100, client_us=client_us), [wait / 1000 for wait in waits_ms])
    written = work(1000, written_per_s, client_us=client_us)
    return StreamRound(work(10, 50), written, work(1010, 500), {100: delivered})


def test_a_side_alone_is_compared_with_nobody() -> None:
    rounds = {"quire": [turn(100, [1.0, 3.0]), turn(300, [2.0])]}
    rows = stream_throughput_rows(CASE, rounds, rates=[100])
    assert [(row.operation, row.count) for row in rows] == [("open", 10), ("write", 1000), ("read", 1010), ("100/s", 2)]
    written = rows[1]
    assert (written.quorum, written.record_bytes, written.streams, written.side) == ("3/3/2", 100, 10, "quire")
    assert written.per_s == pytest.approx(200)
    assert list(written.rounds_per_s) == pytest.approx([100, 300])
    assert [written.client_cpu_us, written.bookies_cpu_us] == pytest.approx([2, 4])
    assert [row.ahead for row in rows] == [row.ahead_cpu for row in rows] == [None] * 4
    [waited] = delivery_rows(CASE, rounds, rates=[100])
    assert (waited.records, waited.records_per_s) == (3, 100)
    assert [waited.p50_ms, waited.p99_ms, waited.max_ms] == pytest.approx([2, 3, 3])
    assert waited.ahead_p50 is None
    assert waited.ahead_p99 is None
    assert stream_ratio_table(rows, [waited]) is None


def test_the_first_side_is_compared_round_by_round() -> None:
    """Faster, cheaper and sooner are all above 1; what has its speed given has no ratio of speeds.

    Method: in the second round both sides are ten times as slow.
    """
    rounds = {
        "quire": [turn(300, [1.0]), turn(30, [10.0])],
        "apache": [turn(100, [4.0], client_us=8.0), turn(10, [20.0], client_us=8.0)],
    }
    rows = stream_throughput_rows(CASE, rounds, rates=[100])
    found = {(row.operation, row.side): row for row in rows}
    assert factors(found["write", "quire"].ahead) == pytest.approx([3, 3, 3])
    assert factors(found["write", "quire"].ahead_cpu) == pytest.approx([2, 2, 2])
    assert found["100/s", "quire"].ahead is None
    assert factors(found["100/s", "quire"].ahead_cpu) == pytest.approx([2, 2, 2])
    assert {row.ahead for row in rows if row.side == "apache"} == {None}
    ours, theirs = delivery_rows(CASE, rounds, rates=[100])
    assert factors(ours.ahead_p50) == factors(ours.ahead_p99) == pytest.approx([3, 2, 4])
    assert theirs.ahead_p50 is None
    table = stream_ratio_table(rows, [ours, theirs])
    assert table is not None
    assert table.row_count == 3 + 4 + 2
    assert stream_throughput_table(rows).row_count == 8
    assert delivery_table([ours, theirs]).row_count == 2


def test_a_cost_too_small_to_be_counted_is_not_divided_by() -> None:
    nothing = StreamRound(work(10, 50), work(10, 50), work(10, 50, client_us=0, bookies_us=0), {})
    rows = stream_throughput_rows(CASE, {"quire": [nothing], "apache": [turn(100, [1.0])]}, rates=[])
    assert [row.ahead_cpu for row in rows if row.operation == "read"] == [None, None]


@pytest.mark.parametrize(
    ("record_bytes", "streams", "expected"),
    [
        (100, 1, Load(500_000, 500, 40)),
        (100, 100, Load(5_000, 200, 1)),
        (100, 1000, Load(500, 20, 1)),
        (1024, 1, Load(64_280, 62, 259)),
        (1024, 1000, Load(64, 16, 1)),
        (1 << 20, 100, Load(1, 1, 1)),
    ],
)
def test_a_turn_is_bounded_in_records_and_in_bytes(record_bytes: int, streams: int, expected: Load) -> None:
    case = StreamCase((3, 3, 2), record_bytes, streams)
    bench = StreamBench((case,), 500_000, 500, 20_000, (100,), rounds=1, warm_up=0)
    assert bench.load_of(case) == expected


def test_nobody_opened_is_an_empty_table() -> None:
    assert segments_table([]).row_count == 0
