"""The chain of segments: what follows, what goes and where readers begin, against a plain list of records."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.stream_metadata.segment import Completion, Segment, Truncation
from quire.errors import DamagedMetadata, InvariantBroken
from quire.protocol.segments import (
    SEGMENT_BYTES_MAX,
    RollRule,
    Truncate,
    chain,
    next_lssn,
    purge_by_age,
    purge_by_size,
    purge_by_txid,
    start_sequence_id,
    truncate,
)
from quire.types import BEFORE_INITIAL_DLSN, DLSN, INITIAL_DLSN, INVALID_DLSN, EntryId, LedgerId, Lssn, SlotId

many_examples = settings(deadline=None, max_examples=200)


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def begun(lssn: int, first_txid: int = 0) -> Segment:
    return Segment.begun(Lssn(lssn), LedgerId(100 + lssn), first_txid)


def done(lssn: int, *, txids: tuple[int, int] = (0, 0), at_ms: int = 0, count: int = 10, start: int = 0) -> Segment:
    """A completed segment with one record in each of its entries."""
    completion = Completion(txids[1], at_ms, count, place(lssn, count - 1, 0 if count else -1))
    return begun(lssn, txids[0]).completed(completion, start_sequence_id=start)


def old(lssn: int, *, version: int) -> Segment:
    segment = done(lssn)
    assert segment.completion is not None
    if version < 2:
        none = place(0, -1, -1)
        completion = replace(segment.completion, last_dlsn=none)
        segment = replace(segment, lssn=Lssn(0), min_active=place(0, 0), completion=completion, start_sequence_id=-1)
    return replace(segment, version=version, start_sequence_id=-1 if version < 5 else 0)


def apply(segments: list[Segment], changes: list[Truncate[Segment]]) -> list[Segment]:
    changed = {change.segment.lssn: change.before for change in changes}
    return [
        segment
        if segment.lssn not in changed
        else segment.truncated()
        if (before := changed[segment.lssn]) is None
        else segment.truncated_before(before)
        for segment in segments
    ]


# --- The chain


def test_segments_are_ordered_by_lssn() -> None:
    one, two, three = done(1), done(2), begun(3)
    assert chain([three, one, two]) == [one, two, three]
    assert chain([]) == []


def test_segments_without_an_lssn_are_ordered_by_their_first_txid() -> None:
    first, second = replace(old(1, version=1), first_txid=5), replace(old(1, version=1), first_txid=8)
    third = done(1, txids=(9, 9))
    assert chain([third, second, first]) == [first, second, third]


@pytest.mark.parametrize("segments", [[done(1), done(3)], [done(1), done(2), begun(2)], [done(7), done(7)]])
def test_a_gap_or_a_duplicate_is_damage(segments: list[Segment]) -> None:
    with pytest.raises(DamagedMetadata, match="follows segment"):
        chain(segments)


def test_the_next_segment_has_the_next_number() -> None:
    assert next_lssn([], max_lssn=Lssn(0)) == 1
    assert next_lssn([], max_lssn=Lssn(0), first_lssn=Lssn(9)) == 9
    assert next_lssn([done(1), begun(2)], max_lssn=Lssn(2)) == 3
    assert next_lssn([done(1, txids=(1, 1)), old(1, version=1)], max_lssn=Lssn(2)) == 3


def test_a_number_is_used_again_after_its_empty_segment_was_deleted() -> None:
    assert next_lssn([done(1)], max_lssn=Lssn(2)) == 2
    assert next_lssn([], max_lssn=Lssn(1)) == 1


@pytest.mark.parametrize(("segments", "max_lssn"), [([done(1)], 0), ([done(1)], 3), ([], 2), ([done(5)], 4)])
def test_a_number_that_does_not_fit_the_highest_is_damage(segments: list[Segment], max_lssn: int) -> None:
    with pytest.raises(DamagedMetadata, match="the next segment would be"):
        next_lssn(segments, max_lssn=Lssn(max_lssn))


def test_sequence_ids_go_on_from_the_segment_before() -> None:
    assert start_sequence_id([], Lssn(1)) == 0
    assert start_sequence_id([begun(1)], Lssn(1)) == 0
    assert start_sequence_id([done(1, count=2), begun(2)], Lssn(2)) == 2  # Vector M.
    assert start_sequence_id([done(7, count=0, start=40), begun(8)], Lssn(8)) == 40
    assert start_sequence_id([done(6), begun(8)], Lssn(8)) == 0
    assert start_sequence_id([old(7, version=4), begun(8)], Lssn(8)) == 0
    assert start_sequence_id([old(7, version=1), begun(1)], Lssn(1)) == 0


def test_sequence_ids_are_not_known_before_the_segment_before_is_complete() -> None:
    with pytest.raises(InvariantBroken):
        start_sequence_id([begun(1), begun(2)], Lssn(2))


def test_a_writer_rolls_by_time_and_only_without_an_interval_by_size() -> None:
    hourly = RollRule(interval_s=3600, bytes_max=10)
    assert not hourly.is_due(now_s=4600, since_s=1000, segment_bytes=10**12)
    assert hourly.is_due(now_s=4600.5, since_s=1000, segment_bytes=0)
    sized = RollRule(interval_s=0, bytes_max=10)
    assert not sized.is_due(now_s=10**9, since_s=0, segment_bytes=10)
    assert sized.is_due(now_s=0, since_s=0, segment_bytes=11)
    default = RollRule(interval_s=-1, bytes_max=0)
    assert not default.is_due(now_s=0, since_s=0, segment_bytes=SEGMENT_BYTES_MAX)
    assert default.is_due(now_s=0, since_s=0, segment_bytes=SEGMENT_BYTES_MAX + 1)
    assert RollRule() == RollRule(interval_s=7200, bytes_max=268435456)


# --- Truncation


def test_truncating_hides_whole_segments_and_the_front_of_one() -> None:
    one, two, three = done(1), done(2), done(3)
    assert truncate([one, two, three], place(2, 5)) == [Truncate(one), Truncate(two, before=place(2, 5))]
    assert truncate([one, two, three], place(2, 0)) == [Truncate(one)]
    assert truncate([one, two, three], place(2, 9)) == [Truncate(one), Truncate(two, before=place(2, 9))]
    assert truncate([one, two, three], place(2, 9, 1)) == [Truncate(one), Truncate(two)]
    assert truncate([one, two, three], place(9, 0)) == [Truncate(one), Truncate(two), Truncate(three)]


def test_segments_in_progress_and_all_behind_them_stay() -> None:
    one = done(1)
    assert truncate([one, begun(2), begun(3)], place(3, 5)) == [Truncate(one)]
    assert truncate([begun(1), done(2)], place(3, 0)) == []


@pytest.mark.parametrize("dlsn", [INVALID_DLSN, INITIAL_DLSN, BEFORE_INITIAL_DLSN])
def test_truncating_before_the_beginning_changes_nothing(dlsn: DLSN) -> None:
    assert truncate([done(1), done(2)], dlsn) == []


def test_truncation_only_grows() -> None:
    partly, wholly = done(1).truncated_before(place(1, 5)), done(1).truncated()
    assert truncate([partly], place(1, 5)) == truncate([partly], place(1, 4)) == []
    assert truncate([partly], place(1, 6)) == [Truncate(partly, before=place(1, 6))]
    assert truncate([partly], place(2, 0)) == [Truncate(partly)]
    assert truncate([wholly], place(1, 6)) == truncate([wholly], place(2, 0)) == []
    unknown = replace(done(1), truncation=Truncation.UNKNOWN)
    assert truncate([unknown], place(1, 6)) == [Truncate(unknown, before=place(1, 6))]


def test_what_an_old_format_has_no_field_for_is_passed_over() -> None:
    first, second = old(1, version=1), old(1, version=2)
    assert truncate([first, second, done(2)], place(2, 0)) == [Truncate(second)]
    assert truncate([first, second], place(1, 5)) == []


# --- Purging

NOW_MS = 1_000_000


def test_segments_go_after_their_retention_from_the_oldest_on() -> None:
    segments = [done(1, at_ms=100), done(2, at_ms=200), done(3, at_ms=300), begun(4)]
    assert purge_by_age(segments, now_ms=NOW_MS, retention_ms=NOW_MS - 200) == segments[:1]
    assert purge_by_age(segments, now_ms=NOW_MS, retention_ms=NOW_MS - 201) == segments[:2]
    assert purge_by_age(segments, now_ms=NOW_MS, retention_ms=0) == []
    late = [done(1, at_ms=300), done(2, at_ms=100), done(3, at_ms=100)]
    assert purge_by_age(late, now_ms=NOW_MS, retention_ms=NOW_MS - 200) == []


def test_the_last_completed_segment_stays_for_the_sake_of_sequence_ids() -> None:
    for tail in ([], [begun(3)], [begun(3), begun(4)], [begun(3), done(4), done(5)]):
        assert purge_by_age([done(1), done(2), *tail], now_ms=NOW_MS, retention_ms=1) == [done(1)]
    assert purge_by_age([done(1)], now_ms=NOW_MS, retention_ms=1) == []
    assert purge_by_age([begun(1)], now_ms=NOW_MS, retention_ms=1) == []


def test_an_application_that_truncates_itself_loses_nothing_else() -> None:
    segments = [done(1).truncated(), done(2).truncated_before(place(2, 5)), done(3).truncated(), done(4)]
    assert purge_by_age(segments, now_ms=NOW_MS, retention_ms=1, truncated_only=True) == segments[:1]
    assert purge_by_age(segments, now_ms=NOW_MS, retention_ms=1) == segments[:3]


def test_segments_with_lower_txids_only_can_be_purged() -> None:
    segments = [done(1, txids=(1, 10)), done(2, txids=(10, 20)), done(3, txids=(20, 30))]
    assert purge_by_txid(segments, min_txid=10) == []
    assert purge_by_txid(segments, min_txid=11) == segments[:1]
    assert purge_by_txid(segments, min_txid=99) == segments[:2]
    assert purge_by_txid(segments, min_txid=99, truncated_only=True) == []
    assert purge_by_txid([done(1, txids=(-5, -4)), done(2)], min_txid=0) == []


def test_segments_go_until_the_rest_fits() -> None:
    segments = [done(1), done(2), done(3), begun(4)]
    sizes = [10, 20, 30, 5]
    assert purge_by_size(segments, lengths=sizes, bytes_max=65) == []
    assert purge_by_size(segments, lengths=sizes, bytes_max=64) == segments[:1]
    assert purge_by_size(segments, lengths=sizes, bytes_max=55) == segments[:1]
    assert purge_by_size(segments, lengths=sizes, bytes_max=54) == segments[:2]
    assert purge_by_size(segments, lengths=sizes, bytes_max=1) == segments[:2]
    assert purge_by_size(segments, lengths=sizes, bytes_max=0) == []
    assert purge_by_size(segments, lengths=sizes, bytes_max=1, truncated_only=True) == []


# --- Against a plain list of records


@dataclass(frozen=True)
class Stream:
    segments: list[Segment]
    records: list[tuple[DLSN, int]]  # With their txids.

    def visible(self, segments: list[Segment]) -> list[DLSN]:
        """What a reader from the beginning sees, by the definition of truncation."""
        of = {segment.lssn: segment for segment in segments}
        return [
            dlsn
            for dlsn, _ in self.records
            if not of[dlsn.lssn].is_truncated
            and (not of[dlsn.lssn].is_partially_truncated or dlsn >= of[dlsn.lssn].min_active)
        ]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A few segments with txids that never fall; those in progress, if any, at the end."""
    first, completed, txid = draw(st.integers(1, 3)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    segments, records = [], []
    for lssn in range(first, first + completed + draw(st.integers(0, 2))):
        first_txid = txid = txid + draw(st.integers(0, 2))
        own: list[DLSN] = []
        for entry_id in range(draw(st.integers(0, 3))):
            for slot_id in range(draw(st.integers(1, 2))):
                own.append(place(lssn, entry_id, slot_id))
                txid += draw(st.integers(0, 2))
                records.append((own[-1], txid))
        segment = begun(lssn, first_txid)
        if lssn < first + completed:
            # After a recovery the last place is that of a control record behind the others.
            recovered = draw(st.booleans())
            last = place(lssn, 3) if recovered else own[-1] if own else place(lssn, -1, -1)
            completion = Completion(txid, draw(st.integers(0, 9)), len(own), last)
            segment = segment.completed(completion, start_sequence_id=0)
        segments.append(segment)
    return Stream(segments, records)


PLACES = st.builds(place, st.integers(0, 9), st.integers(-1, 4), st.integers(-1, 2))


@many_examples
@given(streams(), st.lists(PLACES, max_size=4))
def test_truncation_hides_exactly_what_is_before_its_place(stream: Stream, dlsns: list[DLSN]) -> None:
    segments, expected = stream.segments, [dlsn for dlsn, _ in stream.records]
    in_progress = {segment.lssn for segment in segments if segment.completion is None}
    for dlsn in dlsns:
        segments = apply(segments, truncate(segments, dlsn))
        expected = [each for each in expected if each >= dlsn or each.lssn in in_progress]
        assert stream.visible(segments) == expected
        assert truncate(segments, dlsn) == []


@many_examples
@given(streams(), st.lists(PLACES, max_size=2), st.integers(0, 9), st.integers(0, 12), st.booleans())
def test_what_is_purged_is_the_longest_prefix_that_may_go(
    stream: Stream, dlsns: list[DLSN], bound: int, txid: int, truncated_only: bool
) -> None:
    segments = stream.segments
    for dlsn in dlsns:
        segments = apply(segments, truncate(segments, dlsn))
    completed = [(segment, segment.completion) for segment in segments if segment.completion]
    sizes = [1 + segment.lssn % 3 for segment in segments]

    def longest(may_go: list[bool]) -> list[Segment]:
        allowed = [
            may and (segment.is_truncated or not truncated_only)
            for may, (segment, _) in zip(may_go, completed, strict=True)
        ]
        length = next(n for n in reversed(range(len(allowed) + 1)) if all(allowed[:n]))
        return [segment for segment, _ in completed[: min(length, len(completed) - 1 if completed else 0)]]

    purged = purge_by_age(segments, now_ms=20 + bound, retention_ms=20, truncated_only=truncated_only)
    assert purged == longest([each.completed_at_ms < bound for _, each in completed])

    purged = purge_by_txid(segments, min_txid=txid, truncated_only=truncated_only)
    assert purged == longest([each.last_txid < txid for _, each in completed])

    purged = purge_by_size(segments, lengths=sizes, bytes_max=bound + 1, truncated_only=truncated_only)
    left = [sum(sizes[index:]) for index in range(len(completed))]
    assert purged == longest([each > bound + 1 for each in left])
