"""Segments: Apache's bytes of every version, the names of their nodes, and any bytes at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import damaged, decoded_or_damaged, many_examples, some_examples
from tests.unit.codec.stream_metadata.strategies import segments

from quire.codec.stream_metadata.segment import (
    Completion,
    Segment,
    Truncation,
    decode_segment,
    encode_segment,
    lssn_of_name,
    names_for_writer,
    segment_name,
)
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


BEGUN = Segment.begun(Lssn(3), LedgerId(12345), 1001)
DONE = BEGUN.completed(Completion(1002, 1_500_000_000_000, 2, place(3, 1, 0)), start_sequence_id=200)


def of_version(segment: Segment, version: int) -> Segment:
    """`segment` as a writer of that version would have stored it."""
    lssn = segment.lssn if version >= 2 else Lssn(0)
    done = segment.completion
    if done and version < 2:
        done = replace(done, last_dlsn=place(0, -1, -1))
    sequence = segment.start_sequence_id if version >= 5 else -1
    return replace(
        segment,
        version=version,
        lssn=lssn,
        min_active=segment.min_active._replace(lssn=lssn),
        completion=done,
        start_sequence_id=sequence,
    )


# --- Contents


@pytest.mark.parametrize(
    ("version", "begun", "done"),
    [
        (1, b"1;12345;1001", b"8589934593;12345;1001;1002;1500000000000"),
        (2, b"2;12345;1001;3", b"8589934594;12345;1001;1002;1500000000000;3;1;0"),
        (3, b"3;12345;1001;3;0;0", b"8589934595;12345;1001;1002;1500000000000;3;1;0;0;0"),
        (4, b"4;12345;1001;3;0;0", b"8589934596;12345;1001;1002;1500000000000;3;1;0;0;0"),
        (5, b"5;12345;1001;3;0;0;-1", b"8589934597;12345;1001;1002;1500000000000;3;1;0;0;0;200"),
    ],
)
def test_vector_j_every_version_is_apaches(version: int, begun: bytes, done: bytes) -> None:
    for segment, data in ((BEGUN, begun), (DONE, done)):
        assert encode_segment(of_version(segment, version)) == data
        assert decode_segment(data) == of_version(segment, version)


def test_vector_j_truncation_is_apaches_and_keeps_the_min_active_place() -> None:
    partly = DONE.truncated_before(place(3, 0, 1))
    data = b"8589934853;12345;1001;1002;1500000000000;3;1;0;0;1;200"
    assert encode_segment(partly) == data
    assert decode_segment(data) == partly
    assert (partly.is_truncated, partly.is_partially_truncated) == (False, True)

    wholly = partly.truncated()
    data = b"8589935109;12345;1001;1002;1500000000000;3;1;0;0;1;200"
    assert encode_segment(wholly) == data
    assert decode_segment(data) == wholly
    assert (wholly.is_truncated, wholly.is_partially_truncated) == (True, False)


def test_vector_j_a_region_is_apaches() -> None:
    segment = Segment.begun(Lssn(3), LedgerId(12345), 1001, region=14)
    assert encode_segment(segment) == b"3758096389;12345;1001;3;0;0;-1"
    assert decode_segment(b"3758096389;12345;1001;3;0;0;-1") == segment


def test_vector_j_an_unknown_start_is_far_below_zero_and_in_order() -> None:
    assert BEGUN.effective_start_sequence_id == -9223372023969873920
    assert DONE.effective_start_sequence_id == 200
    later = Segment.begun(Lssn(4), LedgerId(1), 1)
    assert BEGUN.effective_start_sequence_id + 2**31 < later.effective_start_sequence_id < 0


def test_vector_m_the_life_of_a_segment_is_apaches() -> None:
    segment = Segment.begun(Lssn(1), LedgerId(12345), 1001)
    assert segment_name(segment) == "inprogress_000000000000000001"
    assert encode_segment(segment) == b"5;12345;1001;1;0;0;-1"
    closed = segment.completed(Completion(1002, 77, 2, place(1, 0, 1)), start_sequence_id=0)
    assert segment_name(closed) == "logrecs_000000000000000001"
    assert encode_segment(closed) == b"8589934597;12345;1001;1002;77;1;0;1;0;0;0"
    recovered = segment.completed(Completion(1002, 77, 2, place(1, 1, 0)), start_sequence_id=0)
    assert encode_segment(recovered) == b"8589934597;12345;1001;1002;77;1;1;0;0;0;0"


def test_entries_wear_envelopes_since_version_4() -> None:
    assert [of_version(BEGUN, version).is_enveloped for version in range(1, 6)] == [False, False, False, True, True]


def test_completing_an_old_segment_leaves_out_what_it_has_no_field_for() -> None:
    assert DONE.completion is not None
    old = of_version(BEGUN, 4).completed(DONE.completion, start_sequence_id=200)
    assert old == of_version(DONE, 4)


def test_bits_without_a_meaning_are_ignored() -> None:
    word = 5 | 0b1111_1100 << 8 | 0xFFF << 16
    assert decode_segment(b"%d;12345;1001;3;0;0;-1" % word) == BEGUN
    assert decode_segment(b"%d;12345;1001" % (1 | 0xFFFFFF << 8)) == of_version(BEGUN, 1)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "field 0 should be a number"),
        (b"0;1;2", "version 0 does not exist"),
        (b"6;1;2;3;0;0;-1", "version 6 does not exist"),
        (b"-1;1;2;3;0;0;-1", "version 255 does not exist"),
        (b"5", "version 5 does not have 1 fields"),
        (b"5;12345;1001;3;0;0", "version 5 does not have 6 fields"),
        (b"4;12345;1001;3;0;0;-1", "version 4 does not have 7 fields"),
        (b"5;12345;1001;3;0;0;-1;", "field 7 should be a number"),
        (b"5;12345;1001;3;0;0;-1;0", "version 5 does not have 8 fields"),
        (b"5;12345;1001;3;0;0;-1\n", "field 6 should be a number"),
        (b"5; 12345;1001;3;0;0;-1", "field 1 should be a number"),
        (b"5;12345;0x3e9;3;0;0;-1", "field 2 should be a number"),
        (b"5;12345;9223372036854775808;3;0;0;-1", "field 2 should be a number"),
        (b"5;-12345;1001;3;0;0;-1", "-12345 cannot be a ledger id"),
        (b"5;12345;1001;-3;0;0;-1", "LSSN -3"),
        (b"5;12345;1001;3;-2;0;-1", "the min-active place"),
        (b"8589934597;12345;1001;1002;1500000000000;3;1;-2;0;0;200", "the last place"),
        (b"-8589934587;12345;1001;1002;1500000000000;3;1;0;0;0;200", "a count of -2 records"),
        (b"5;12345;1001;3;0;0;-\xff", "byte 20 is not UTF-8"),
    ],
)
def test_a_broken_segment_is_refused_saying_where(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"segment: .*{complaint}"):
        decode_segment(data)


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        (0, {}),
        (6, {}),
        (5, {"region": 16}),
        (5, {"region": -1}),
        (5, {"ledger_id": -1}),
        (5, {"first_txid": 2**63}),
        (5, {"start_sequence_id": 2**63}),
        (5, {"lssn": 4}),
        (5, {"lssn": 2**63, "min_active": place(2**63, 0, 0), "completion": None}),
        (5, {"completion": Completion(1, 1, 2**31, place(3, 0, 0))}),
        (5, {"completion": Completion(2**63, 1, 1, place(3, 0, 0))}),
        (5, {"completion": Completion(1, 1, 1, place(4, 0, 0))}),
        (4, {"start_sequence_id": 0}),
        (2, {"min_active": place(3, 0, 1)}),
        (1, {"truncation": Truncation.TRUNCATED}),
        (1, {"region": 1}),
        (1, {"lssn": 3, "min_active": place(3, 0, 0), "completion": None}),
        (1, {"completion": Completion(1, 1, 1, place(0, 1, 0))}),
    ],
)
def test_a_segment_that_its_version_cannot_hold_cannot_be_made(version: int, changes: dict[str, object]) -> None:
    segment = of_version(DONE, version if 0 < version < 6 else 5)
    with pytest.raises(InvalidArgument):
        replace(segment, **{"version": version, **changes})  # type: ignore[arg-type]


@many_examples
@given(segments())
def test_what_was_written_is_read_back(segment: Segment) -> None:
    assert decode_segment(encode_segment(segment)) == segment


@many_examples
@given(st.one_of(st.binary(), damaged(segments().map(encode_segment))))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    segment = decoded_or_damaged(decode_segment, data)
    if segment is not None:
        assert decode_segment(encode_segment(segment)) == segment


# --- Names


@pytest.mark.parametrize(
    ("name", "lssn"),
    [
        ("inprogress_000000000000000003", 3),
        ("logrecs_000000000000000003", 3),
        ("logrecs_9223372036854775807", 2**63 - 1),
        ("logrecs_000000000000001001_000000000000001002_000000000000000003_12345_0", 3),
        ("logrecs_000000000000001001_000000000000001002", None),
        ("inprogress_3e9", None),
        ("inprogress_0000000000000003", None),  # 16 digits: a txid in hexadecimal.
        ("inprogress_00000000000000000a", None),
        ("logrecs_", None),
        ("other_000000000000000003", None),
        ("", None),
    ],
)
def test_the_lssn_is_told_from_the_names_that_have_one(name: str, lssn: int | None) -> None:
    assert lssn_of_name(name) == lssn


@some_examples
@given(segments())
def test_a_name_leads_back_to_its_segment(segment: Segment) -> None:
    name = segment_name(segment)
    assert lssn_of_name(name) == segment.lssn
    assert name.startswith("logrecs_" if segment.completion else "inprogress_")


def test_a_writer_reads_what_is_in_progress_and_the_last_completed() -> None:
    names = [
        "logrecs_000000000000000009",
        "inprogress_000000000000000012",
        "logrecs_000000000000000010",
        "inprogress_000000000000000011",
        "logrecs_1_2_7_12345_0",
        "logrecs_000000000000001001_000000000000001002",
        "inprogress_3e9",
        "somebody_else",
    ]
    assert names_for_writer(names) == [
        "inprogress_000000000000000012",
        "logrecs_000000000000000010",
        "inprogress_000000000000000011",
        "logrecs_000000000000001001_000000000000001002",
        "inprogress_3e9",
    ]
    assert names_for_writer([]) == []
    assert names_for_writer(["logrecs_000000000000000000"]) == ["logrecs_000000000000000000"]
