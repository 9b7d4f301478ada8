"""How pieces of streams become partitions, and which pieces the filters of a query leave."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from tests.support.strategies import many_examples

from quire.spark.filters import Bounds, Range
from quire.spark.planning import PARTITION_BYTES, Partitioning, Piece, partitioned
from quire.types import DLSN, EntryId, Lssn, SlotId

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_767_225_600_000


def place(lssn: int, entry: int, slot: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry), SlotId(slot))


def piece(lssn: int, first: int, end: int, size_bytes: int, *, first_slot: int = 0, end_slot: int = 0) -> Piece:
    return Piece("orders", Lssn(lssn), place(lssn, first, first_slot), place(lssn, end, end_slot), size_bytes)


pieces = st.builds(
    lambda lssn, first, count, size, first_slot, end_slot: piece(
        lssn, first, first + count, size, first_slot=first_slot, end_slot=end_slot
    ),
    st.integers(1, 5),
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(0, 10_000),
    st.integers(0, 3),
    st.integers(0, 3),
)


@many_examples
@given(st.lists(pieces, max_size=8), st.integers(1, 5000), st.integers(1, 9))
def test_partitions_hold_every_piece_once_and_in_order(
    wanted: list[Piece], target_bytes: int, partitions_min: int
) -> None:
    groups = partitioned(wanted, Partitioning(target_bytes, partitions_min))
    assert all(groups)
    joined = [part for group in groups for part in group]
    for whole in wanted:
        begin = whole.begin
        while begin != whole.end:
            part = joined.pop(0)
            assert (part.stream, part.lssn, part.begin) == (whole.stream, whole.lssn, begin)
            assert part.entries > 0
            begin = part.end
    assert joined == []


def test_large_segments_are_cut_and_small_ones_share() -> None:
    groups = partitioned([piece(1, 0, 100, 1000), *(piece(lssn, 0, 5, 60) for lssn in range(2, 8))], Partitioning(250))
    assert [[(part.lssn, part.first_entry, part.last_entry) for part in group] for group in groups] == [
        [(1, 0, 24)],
        [(1, 25, 49)],
        [(1, 50, 74)],
        [(1, 75, 99)],
        [(lssn, 0, 4) for lssn in range(2, 6)],
        [(6, 0, 4), (7, 0, 4)],
    ]


def test_a_piece_ends_inside_an_entry_if_its_end_does() -> None:
    whole = piece(3, 5, 9, 100, first_slot=2, end_slot=4)
    assert (whole.first_entry, whole.last_entry, whole.entries) == (5, 9, 5)
    first, last = whole.cut(2)
    assert (first.begin, first.end, last.begin, last.end) == (place(3, 5, 2), place(3, 7), place(3, 7), place(3, 9, 4))


def test_a_minimum_of_partitions_is_kept_as_far_as_there_are_entries() -> None:
    assert len(partitioned([piece(1, 0, 100, 1000)], Partitioning(10_000, 4))) == 4
    assert len(partitioned([piece(1, 0, 2, 1000)], Partitioning(10_000, 4))) == 2


def test_without_a_minimum_each_core_gets_something_if_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    sizes = [Partitioning().target_bytes(total << 20) >> 20 for total in (1, 100, 10_000)]
    assert sizes == [16, 25, PARTITION_BYTES >> 20]


# --- Filters


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThanOrEqual(("txid",), 5), LessThan(("txid",), 9)], Bounds(txid=Range(5, 8))),
        ([GreaterThan(("txid",), 5), LessThanOrEqual(("txid",), 9)], Bounds(txid=Range(6, 9))),
        ([In(("txid",), (7, 3, 5))], Bounds(txid=Range(3, 7))),
        ([EqualTo(("segment",), 4), GreaterThan(("entry",), 2)], Bounds(segment=Range(4, 4), entry=Range(low=3))),
        ([GreaterThanOrEqual(("time",), MOMENT)], Bounds(txid=Range(low=MS))),
        ([GreaterThan(("time",), MOMENT + timedelta(microseconds=1))], Bounds(txid=Range(low=MS + 1))),
        ([LessThan(("time",), MOMENT)], Bounds(txid=Range(high=MS - 1))),
        ([LessThanOrEqual(("time",), MOMENT + timedelta(microseconds=1))], Bounds(txid=Range(high=MS))),
        ([EqualTo(("time",), MOMENT.astimezone(timezone(timedelta(hours=2))))], Bounds(txid=Range(MS, MS))),
        ([EqualTo(("time",), MOMENT + timedelta(microseconds=1))], Bounds(txid=Range(0, -1))),
        ([EqualNullSafe(("time",), MOMENT)], Bounds(txid=Range(MS, MS))),
        ([EqualNullSafe(("time",), None)], Bounds()),
        ([EqualTo(("stream",), "a")], Bounds(streams=frozenset("a"))),
        ([In(("stream",), ("a", "b")), EqualTo(("stream",), "b")], Bounds(streams=frozenset("b"))),
        ([StringStartsWith(("stream",), "or")], Bounds(prefixes=("or",))),
        ([EqualTo(("dlsn",), "3:17:0")], Bounds(places=(place(3, 17),))),
        # What says nothing of places leaves everything.
        ([IsNotNull(("txid",)), Not(EqualTo(("txid",), 5)), EqualTo(("payload",), b"x")], Bounds()),
        ([EqualTo(("payload", "txid"), 5), GreaterThan(("dlsn",), "3"), EqualTo(("slot",), 1)], Bounds()),
    ],
)
def test_filters_bound_what_is_read(filters: list[Filter], expected: Bounds) -> None:
    assert Bounds.of(filters) == expected


def test_streams_are_left_out_by_name_and_by_prefix() -> None:
    bounds = Bounds.of([StringStartsWith(("stream",), "or"), In(("stream",), ("orders", "paid"))])
    assert [name for name in ("orders", "orange", "paid") if bounds.has_stream(name)] == ["orders"]


def test_entries_are_left_out_of_every_piece() -> None:
    bounds = Bounds(entry=Range(3, 6))
    kept = bounds.pieces([piece(1, 0, 10, 100, first_slot=4), piece(2, 8, 10, 20), piece(3, 4, 6, 20, end_slot=2)])
    assert [(each.begin, each.end, each.size_bytes) for each in kept] == [
        (place(1, 3), place(1, 7), 40),
        (place(3, 4), place(3, 6, 2), 20),
    ]
