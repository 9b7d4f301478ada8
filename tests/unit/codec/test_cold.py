"""The node of an archived segment."""

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.cold import ColdFile, ColdSegment, decode_cold, encode_cold, is_object_name
from quire.codec.stream_metadata.segment import Completion, Segment
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

SEGMENT = Segment.begun(Lssn(3), LedgerId(7), 5).completed(
    Completion(9, 1234, 4, DLSN(Lssn(3), EntryId(2), SlotId(0))), start_sequence_id=2
)
FILE = ColdFile("s3://bucket/a", "ns/s/seg-000000000003/x.parquet", 1000, "0" * 64, 200, "a" * 64, 4, 3)
COLD = ColdSegment(SEGMENT, FILE, 1_700_000_000_000)


@given(
    st.builds(
        replace,
        st.just(COLD),
        archived_at_ms=st.integers(0, 2**63 - 1),
        is_hot=st.booleans(),
        ledger_left=st.none() | st.integers(0, 2**63 - 1),
        segment=st.sampled_from([SEGMENT, SEGMENT.truncated()]),
    )
)
def test_what_is_encoded_is_decoded_again(cold: ColdSegment) -> None:
    assert decode_cold(encode_cold(cold)) == cold


def test_it_is_json_that_people_can_read() -> None:
    fields = json.loads(encode_cold(COLD))
    assert fields["version"] == 1
    assert fields["segment"] == "17179869189;7;5;9;1234;3;2;0;0;0;2"
    assert (fields["root"], fields["file"]) == (FILE.root, FILE.name)
    assert (fields["hot"], fields["ledger"]) == (True, None)


def test_it_goes_from_process_to_process() -> None:
    assert pickle.loads(pickle.dumps(COLD)) == COLD
    assert pickle.loads(pickle.dumps(SEGMENT)) == SEGMENT


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version 2"),
        ({"version": True}, "version"),
        ({"version": None}, "version"),
        ({"segment": "1;2"}, "fields"),
        ({"segment": "5;7;5;3;0;0;2"}, "completed"),
        ({"root": ""}, "name"),
        ({"root": 5}, "root"),
        ({"file": "../x"}, "name"),
        ({"file": "/x"}, "name"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": "1000"}, "bytes"),
        ({"footer_bytes": 1001}, "footer"),
        ({"sha256": "ABC"}, "checksum"),
        ({"footer_sha256": "g" * 64}, "checksum"),
        ({"rows": -1}, "records"),
        ({"entries": 1.5}, "entries"),
        ({"archived_at_ms": -1}, "time"),
        ({"hot": 1}, "hot"),
        ({"ledger": "7"}, "ledger"),
        ({"ledger": -7}, "ledger"),
    ],
)
def test_damage_is_named(change: dict[str, Any], problem: str) -> None:
    fields = json.loads(encode_cold(COLD)) | change
    with pytest.raises(DamagedMetadata, match=problem):
        decode_cold(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"\xff", b"{", b'{"version":1}', b"17179869189;7;5"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        decode_cold(data)


def test_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(DamagedMetadata) as error:
        decode_cold(b'{"version": 9}')
    assert "newer Quire" in error.value.hint


def test_only_completed_segments_can_be_archived() -> None:
    with pytest.raises(InvalidArgument):
        ColdSegment(Segment.begun(Lssn(3), LedgerId(7), 5), FILE, 0)


@pytest.mark.parametrize(
    ("name", "fits"), [("a/b", True), ("a", True), ("", False), ("a//b", False), ("a/../b", False), ("a\0", False)]
)
def test_names_of_objects_lead_nowhere_else(name: str, fits: bool) -> None:
    assert is_object_name(name) == fits
