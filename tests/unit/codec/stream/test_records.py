"""Records in runs: Apache's bytes, positions and limits."""

import pickle
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, many_examples, some_examples
from tests.unit.codec.stream import vectors
from tests.unit.codec.stream.vectors import dlsn

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, POSITION_MAX, RECORD_BYTES_MAX, TXID_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import (
    CONTROL,
    END_OF_STREAM,
    KEEPALIVE_PAYLOAD,
    RECORD_SET,
    LogRecord,
    decode_records,
    encode_control,
    encode_end_of_stream,
    encode_record,
    encode_records,
)
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, Lssn


def decoded(data: bytes, *, expand_sets: bool = True) -> list[LogRecord]:
    return decode_records(data, 0, len(data), lssn=Lssn(3), entry_id=EntryId(7), expand_sets=expand_sets)


def test_vector_a() -> None:
    assert encode_records([b"hello"], [1001], position=1) == vectors.RECORD_A
    assert encode_record(b"hello", txid=1001, position=1) == vectors.RECORD_A
    assert decoded(vectors.RECORD_A) == [LogRecord(dlsn(3, 7, 0), 1001, b"hello", 1)]


def test_vector_b() -> None:
    assert encode_records([b"hello", b"world!"], [1001, 1002], position=1) == vectors.RECORDS_B
    assert decoded(vectors.RECORDS_B) == [
        LogRecord(dlsn(3, 7, 0), 1001, b"hello", 1),
        LogRecord(dlsn(3, 7, 1), 1002, b"world!", 2),
    ]


@many_examples
@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(0, TXID_MAX - 1)), max_size=8),
    st.integers(0, POSITION_MAX - 8),
)
def test_a_run_is_read_back(pairs: list[tuple[bytes, int]], position: int) -> None:
    payloads, txids = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    data = encode_records(payloads, txids, position=position)
    assert decoded(data) == [
        LogRecord(dlsn(3, 7, slot), txid, payload, position + slot) for slot, (payload, txid) in enumerate(pairs)
    ]
    one_by_one = [encode_record(p, txid=t, position=position + slot) for slot, (p, t) in enumerate(pairs)]
    assert b"".join(one_by_one) == data


@many_examples
@given(
    st.integers(0, 40),
    st.integers(30, 300),
    st.sampled_from((0, 1, 200, 0xFF80, 0xFFFF80, POSITION_MAX - 300)),
    st.sampled_from(("nothing", "txid", "size")),
    st.integers(0, 29),
)
def test_records_of_one_size_and_txid_are_encoded_as_one_by_one(
    size: int, count: int, position: int, other: str, where: int
) -> None:
    """Such records are encoded together, and one among them with another txid or size must be found out.

    Positions cross the border of each of their bytes.
    """
    payloads = [bytes([slot % 251]) * size for slot in range(count)]
    txids = [7_000_000_000] * count
    if other == "size":
        payloads[where] += b"more"
    elif other == "txid":
        txids[where] += 1
    one_by_one = [
        encode_record(payload, txid=txid, position=position + slot)
        for slot, (payload, txid) in enumerate(zip(payloads, txids, strict=True))
    ]
    assert encode_records(payloads, txids, position=position) == b"".join(one_by_one)


SLOTS = st.integers(0, 5) | st.integers(60, 99)
KINDS = st.dictionaries(SLOTS, st.sampled_from((CONTROL, 0x8)), max_size=1)
OTHERS = st.dictionaries(SLOTS, st.binary(max_size=40) | st.builds(bytes, st.sampled_from((20, 40, 60))), max_size=1)


@many_examples
@given(st.integers(0, 40), st.integers(1, 6) | st.integers(60, 100), KINDS, OTHERS, st.sampled_from((0, 1, 2**40)))
def test_records_of_one_size_are_read_back_whatever_is_among_them(
    size: int, count: int, kinds: dict[int, int], others: dict[int, bytes], txid_step: int
) -> None:
    """Records of one size are decoded together. One among them of another kind or size must be found out.

    Method: one may have flags, and one another payload, which may be as long as headers, and look like some.
    """
    parts = [
        (others.get(slot, bytes(size)), 1000 + slot * txid_step, 250 + slot, kinds.get(slot, 0))
        for slot in range(count)
    ]
    data = b"".join(encode_record(p, txid=txid, position=at, flags=kind) for p, txid, at, kind in parts)
    assert decoded(data) == [LogRecord(dlsn(3, 7, slot), t, p, at, kind) for slot, (p, t, at, kind) in enumerate(parts)]


@some_examples
@given(st.binary(max_size=40), INT64, st.integers(0, POSITION_MAX), st.integers(0, 0xFFFF))
def test_one_of_any_kind_is_read_back(payload: bytes, txid: int, position: int, flags: int) -> None:
    flags &= ~RECORD_SET
    data = encode_record(payload, txid=txid, position=position, flags=flags)
    assert decoded(data) == [LogRecord(dlsn(3, 7, 0), txid, payload, position, flags)]


def test_records_tell_their_kind() -> None:
    plain, control, keepalive, end, whole = decoded(
        vectors.RECORD_A
        + encode_control(txid=1001, position=1)
        + encode_control(txid=1001, position=1, payload=KEEPALIVE_PAYLOAD)
        + encode_end_of_stream(position=1)
        + encode_record(vectors.SET_G, txid=1, position=1, flags=RECORD_SET),
        expand_sets=False,
    )
    kinds = [(r.is_control, r.is_end_of_stream, r.is_record_set) for r in (plain, control, keepalive, end, whole)]
    no, yes = False, True
    assert kinds == [(no, no, no), (yes, no, no), (yes, no, no), (no, yes, no), (no, no, yes)]
    assert (end.txid, end.flags, end.payload, end.dlsn.slot_id) == (TXID_MAX, END_OF_STREAM, b"endOfStream", 3)


def test_a_record_is_copied_and_changed_as_a_tuple_with_names() -> None:
    (record,) = decoded(vectors.RECORD_A)
    assert pickle.loads(pickle.dumps(record)) == copy(record) == record
    assert type(copy(record)) is type(record._replace(position=9)) is LogRecord
    assert record._replace(position=9) == LogRecord(record.dlsn, 1001, b"hello", 9)
    assert record.dlsn == (record.lssn, record.entry_id, record.slot_id) == dlsn(3, 7, 0)


def test_slots_count_members_whether_or_not_a_set_is_taken_apart() -> None:
    data = encode_record(encode_record_set([b"x", b"y", b"z"]), txid=5, position=1, flags=RECORD_SET)
    data += encode_records([b"after"], [6], position=4)
    apart, whole = decoded(data), decoded(data, expand_sets=False)
    assert [(r.dlsn.slot_id, r.position, r.payload, r.flags) for r in apart] == [
        (0, 1, b"x", 0),
        (1, 2, b"y", 0),
        (2, 3, b"z", 0),
        (3, 4, b"after", 0),
    ]
    assert [(r.dlsn.slot_id, r.position, r.flags) for r in whole] == [(0, 1, RECORD_SET), (3, 4, 0)]


def test_sets_of_one_size_are_taken_apart() -> None:
    data = b"".join(
        encode_record(encode_record_set([b"x", b"y"]), txid=5, position=first, flags=RECORD_SET) for first in (1, 3)
    )
    assert [(r.slot_id, r.position, r.payload) for r in decoded(data)] == [
        (0, 1, b"x"),
        (1, 2, b"y"),
        (2, 3, b"x"),
        (3, 4, b"y"),
    ]
    assert [(r.slot_id, r.flags) for r in decoded(data, expand_sets=False)] == [(0, RECORD_SET), (2, RECORD_SET)]


def test_the_unused_bits_mean_nothing() -> None:
    assert decoded(b"\xff\xff" + vectors.RECORD_A[2:]) == decoded(vectors.RECORD_A)


def test_only_the_bytes_asked_for_are_read() -> None:
    """An envelope says where records end, and more bytes may follow: a record must not reach into them."""
    data, size = vectors.RECORDS_B, len(vectors.RECORDS_B)
    tail = decode_records(data, len(vectors.RECORD_A), size, lssn=Lssn(3), entry_id=EntryId(7))
    assert [record.payload for record in tail] == [b"world!"]
    for end in range(1, size):
        if end != len(vectors.RECORD_A):
            with pytest.raises(DamagedEntry, match="cut short"):
                decode_records(data, 0, end, lssn=Lssn(3), entry_id=EntryId(7))


def test_a_record_that_is_cut_short_is_damage_and_not_the_end() -> None:
    for size in range(len(vectors.RECORD_A) + 1, len(vectors.RECORDS_B)):
        with pytest.raises(DamagedEntry, match="the record at slot 1 is cut short") as caught:
            decoded(vectors.RECORDS_B[:size])
        assert caught.value.facts == {"slot_id": 1}


def test_a_negative_length_is_damage_and_not_the_end() -> None:
    with pytest.raises(DamagedEntry, match="the record at slot 0 is cut short"):
        decoded(vectors.RECORD_A[:16] + b"\xff\xff\xff\xff" + vectors.RECORD_A[20:])


def test_a_damaged_set_says_where_it_is() -> None:
    data = vectors.RECORDS_B + encode_record(b"no set", txid=1002, position=3, flags=RECORD_SET)
    for expand_sets in (True, False):
        with pytest.raises(DamagedEntry, match="a record set has 6 bytes") as caught:
            decoded(data, expand_sets=expand_sets)
        assert caught.value.facts == {"slot_id": 2}


def test_a_record_has_its_largest_size() -> None:
    largest = bytes(PAYLOAD_BYTES_MAX)
    assert len(encode_records([largest], [1], position=1)) == RECORD_BYTES_MAX == 1_040_384
    assert len(encode_record(largest, txid=1, position=1)) == RECORD_BYTES_MAX
    with pytest.raises(InvalidArgument, match="a payload of 1040365 bytes is too large") as caught:
        encode_records([b"", largest + b"x"], [1, 1], position=1)
    assert caught.value.facts == {"bytes": 1_040_365, "bytes_max": 1_040_364}
    with pytest.raises(InvalidArgument, match="a payload of 1040365 bytes is too large"):
        encode_record(largest + b"x", txid=1, position=1)


@pytest.mark.parametrize("txid", [-1, TXID_MAX, 2**63, -999])
def test_an_application_has_no_special_txids(txid: int) -> None:
    with pytest.raises(InvalidArgument, match="txids run from 0"):
        encode_records([b"a", b"b"], [txid, 5], position=1)


@pytest.mark.parametrize("position", [-1, POSITION_MAX])
def test_positions_stay_within_31_bits(position: int) -> None:
    with pytest.raises(InvalidArgument, match="positions run from 0"):
        encode_records([b"a", b"b"], [1, 2], position=position)


@pytest.mark.parametrize("txids", [[], [1], [1, 2, 3]])
def test_each_record_needs_its_txid(txids: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=f"2 payloads have {len(txids)} txids"):
        encode_records([b"a", b"b"], txids, position=1)


@pytest.mark.parametrize(("txid", "flags"), [(2**63, 0), (-(2**63) - 1, 0), (1, 0x10000), (1, -1)])
def test_what_does_not_fit_into_its_bits_cannot_be_written(txid: int, flags: int) -> None:
    with pytest.raises(InvalidArgument, match="do not fit into their bits"):
        encode_record(b"", txid=txid, position=0, flags=flags)
