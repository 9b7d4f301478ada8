"""What the owner of a stream knows of producers: duplicates, gaps, forgetting, snapshots."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.producers import (
    AGE_MS_MAX,
    PRODUCERS_MAX,
    RUNS_MAX,
    Append,
    Duplicate,
    OutOfOrder,
    ProducerTable,
    SnapshotRule,
)
from quire.types import DLSN, EntryId, Lssn, ProducerRun, SlotId


def run(first_seq: int, records: int, entry: int, slot: int = 0) -> ProducerRun:
    return ProducerRun(first_seq, records, DLSN(Lssn(1), EntryId(entry), SlotId(slot)))


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(table: ProducerTable, producer: bytes, *runs: ProducerRun, now_ms: int = 0) -> None:
    records = sum(each.records for each in runs)
    table.on_appended(producer, runs[0].first_seq, records, now_ms=now_ms)
    table.on_durable(producer, runs)


def test_a_batch_is_appended_once_in_part_or_not_at_all() -> None:
    table, one = ProducerTable(), name(1)
    assert table.judge(one, 1, 10) == Append(0)
    table.on_appended(one, 1, 10, now_ms=0)
    assert table.judge(one, 1, 10) == Duplicate(is_durable=False)
    table.on_durable(one, [run(1, 6, 0, 1), run(7, 4, 1, 1)])
    assert table.judge(one, 1, 10) == Duplicate(is_durable=True)
    assert table.judge(one, 5, 2) == Duplicate(is_durable=True)
    assert table.judge(one, 5, 10) == Append(6)
    assert table.judge(one, 11, 1) == Append(0)
    assert table.judge(one, 12, 1) == OutOfOrder(11)
    assert table.places(one, 5, 4) == [run(5, 2, 0, 5), run(7, 2, 1, 1)]
    assert table.places(one, 5, 7) is None, "the last one is not there"
    assert table.places(name(9), 1, 1) is None


def test_whoever_was_not_seen_for_longest_is_forgotten_first() -> None:
    table = ProducerTable(producers_max=2)
    stored(table, name(1), run(1, 1, 0))
    stored(table, name(2), run(1, 1, 1))
    stored(table, name(1), run(2, 1, 2))
    stored(table, name(3), run(1, 1, 3))
    assert len(table) == 2
    assert table.judge(name(2), 7, 1) == Append(0), "forgotten: it knows best"
    assert table.judge(name(1), 1, 2) == Duplicate(is_durable=True)


def test_whoever_was_not_seen_for_a_day_is_forgotten() -> None:
    table = ProducerTable()
    stored(table, name(1), run(1, 1, 0), now_ms=1000)
    stored(table, name(2), run(1, 1, 1), now_ms=5000)
    table.forget_old(AGE_MS_MAX + 1000)
    assert len(table) == 2
    table.forget_old(AGE_MS_MAX + 1001)
    assert len(table) == 1


def test_places_of_all_producers_have_a_bound_and_the_last_ones_are_kept() -> None:
    table = ProducerTable()
    for seq in range(1, 1001):
        stored(table, name(1), run(seq, 1, seq))
    assert table.places(name(1), 1000 - 255, 256) is not None
    assert table.places(name(1), 1000 - 256, 1) is None
    for number in range(PRODUCERS_MAX):
        stored(table, name(number), *[run(seq, 1, seq) for seq in range(1, 4)]) if number != 1 else None
    assert len(table) == PRODUCERS_MAX
    facts = list(table.facts())
    assert sum(len(each.runs) for each in facts) <= RUNS_MAX + PRODUCERS_MAX


def test_a_snapshot_has_what_is_durable_only() -> None:
    table = ProducerTable()
    stored(table, name(1), run(1, 5, 0), now_ms=7)
    table.on_appended(name(1), 6, 5, now_ms=8)
    table.on_appended(name(2), 1, 1, now_ms=9)
    (fact,) = table.facts()
    assert (fact.producer, fact.last_seq, fact.seen_ms, fact.runs) == (name(1), 5, 8, (run(1, 5, 0),))


batches = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=40)


@given(batches, st.data())
def test_whoever_reads_a_snapshot_and_what_came_behind_it_knows_the_same(
    sent: Sequence[tuple[int, int]], data: st.DataObject
) -> None:
    """The next owner decides as the last one did, wherever the snapshot was; reading a part twice changes nothing."""
    table, following = ProducerTable(), dict[int, int]()
    runs = list[tuple[bytes, ProducerRun]]()
    for entry, (number, records) in enumerate(sent):
        seq = following.get(number, 1)
        following[number] = seq + records
        runs.append((name(number), run(seq, records, entry)))
    cut = data.draw(st.integers(0, len(runs)))
    again_from = data.draw(st.integers(0, cut))
    for producer, each in runs[:cut]:
        stored(table, producer, each)
    snapshot = list(table.facts())
    for producer, each in runs[cut:]:
        stored(table, producer, each)
    heir = ProducerTable()
    heir.restore(snapshot)
    for producer, each in runs[again_from:]:
        heir.replay(producer, each, now_ms=1)
    for number, end_seq in following.items():
        for first in range(1, end_seq + 2):
            for count in (1, 3):
                assert heir.judge(name(number), first, count) == table.judge(name(number), first, count)
        for producer, each in runs:
            assert heir.places(producer, each.first_seq, each.records) == [each]


def test_a_snapshot_is_due_after_entries_bytes_or_time() -> None:
    rule = SnapshotRule(entries=10, seconds=60.0, bytes_min=1000)

    def due(**changes: object) -> bool:
        facts = {"entries": 0, "size_bytes": 0, "age_s": 0.0, "snapshot_bytes": 0, "is_changed": False, **changes}
        return rule.is_due(**facts)  # type: ignore[arg-type]

    assert not due()
    assert due(entries=10)
    assert due(size_bytes=1000)
    assert not due(size_bytes=1000, snapshot_bytes=200), "large ones come less often"
    assert due(size_bytes=1600, snapshot_bytes=200)
    assert not due(age_s=100.0)
    assert due(age_s=60.0, is_changed=True)


def test_those_that_could_not_be_forgotten_go_when_they_are_settled() -> None:
    """More than there may be have records under way at once. Later all of them are settled, and as many go as are too
    many, those first that were not seen for longest."""
    table = ProducerTable(producers_max=2)
    for number in range(10):
        table.on_appended(name(number), 1, 1, now_ms=number)
    assert len(table) == 10
    for number in range(10):
        table.on_durable(name(number), [run(1, 1, number)])
    stored(table, name(10), run(1, 1, 10), now_ms=10)
    assert [facts.producer for facts in table.facts()] == [name(9), name(10)]
