"""What is stored about producers: byte for byte, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX
from quire.codec.stream.producers import (
    TAG_BYTES,
    ProducerSnapshot,
    ProducerTag,
    decode_producers,
    encode_snapshot,
    encode_tag,
)
from quire.codec.stream.records import CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD
from quire.errors import DamagedEntry
from quire.protocol.producers import PRODUCERS_MAX, RUNS_MAX
from quire.types import DLSN, EntryId, Lssn, ProducerFacts, ProducerRun, SlotId

ID = bytes(range(16))
number = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**32 - 1)
place = st.builds(DLSN, number.map(Lssn), number.map(EntryId), small.map(SlotId))
run = st.builds(ProducerRun, number, small, place)
facts = st.builds(
    ProducerFacts, st.binary(min_size=16, max_size=16), number, number, st.lists(run, max_size=4).map(tuple)
)


def test_a_tag_and_a_snapshot_byte_for_byte() -> None:
    tag = encode_tag(ProducerTag(ID, 7, 3))
    assert tag.hex() == "5150523154" + ID.hex() + "0000000000000007" + "00000003"
    assert len(tag) == TAG_BYTES == 33
    runs = (ProducerRun(5, 2, DLSN(Lssn(1), EntryId(4), SlotId(9))),)
    snapshot = encode_snapshot((Lssn(1), EntryId(2)), [ProducerFacts(ID, 6, 1000, runs)])
    assert snapshot.hex() == (
        "5150523153"
        + "0000000000000001"
        + "0000000000000002"
        + "00000001"
        + ID.hex()
        + "0000000000000006"
        + "00000000000003e8"
        + "0001"
        + "0000000000000005"
        + "00000002"
        + "0000000000000001"
        + "0000000000000004"
        + "00000009"
    )


@given(st.binary(min_size=16, max_size=16), number, small)
def test_tags_come_back(producer: bytes, first_seq: int, records: int) -> None:
    tag = ProducerTag(producer, first_seq, records)
    assert decode_producers(encode_tag(tag)) == tag


@given(number, number, st.lists(facts, max_size=5))
def test_snapshots_come_back(lssn: int, entry: int, producers: list[ProducerFacts]) -> None:
    since = (Lssn(lssn), EntryId(entry))
    assert decode_producers(encode_snapshot(since, producers)) == ProducerSnapshot(since, tuple(producers))


@pytest.mark.parametrize("payload", [b"", CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD, b"heartbeat", b"QPR1", b"QPR2T"])
def test_other_control_records_say_nothing_about_producers(payload: bytes) -> None:
    assert decode_producers(payload) is None


def test_what_is_cut_short_is_damaged() -> None:
    snapshot = encode_snapshot((Lssn(1), EntryId(2)), [ProducerFacts(ID, 6, 1000, ())])
    for whole in (encode_tag(ProducerTag(ID, 7, 3)), snapshot):
        with pytest.raises(DamagedEntry):
            decode_producers(whole[:-1])


def test_the_largest_table_fits_into_one_record() -> None:
    runs = (ProducerRun(1, 1, DLSN(Lssn(1), EntryId(4), SlotId(9))),)
    rest = RUNS_MAX // PRODUCERS_MAX
    assert rest == 1
    snapshot = encode_snapshot((Lssn(1), EntryId(2)), [ProducerFacts(ID, 6, 1000, runs)] * PRODUCERS_MAX)
    assert len(snapshot) + (RUNS_MAX - PRODUCERS_MAX) * 32 <= PAYLOAD_BYTES_MAX
