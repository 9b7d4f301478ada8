"""Entries of streams: Apache's envelopes in both codecs, limits, and no damage but the one typed error."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples, some_examples
from tests.unit.codec.stream import vectors
from tests.unit.codec.stream.vectors import dlsn

from quire.codec.digest import Buffer
from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.limits import ENTRY_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_BYTES_MAX, TXID_MAX
from quire.codec.stream.records import (
    CONTROL,
    END_OF_STREAM,
    KEEPALIVE_PAYLOAD,
    RECORD_SET,
    LogRecord,
    encode_control,
    encode_end_of_stream,
    encode_record,
    encode_records,
)
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, Lssn

RECORDS_B = [LogRecord(dlsn(3, 7, 0), 1001, b"hello", 1), LogRecord(dlsn(3, 7, 1), 1002, b"world!", 2)]


def decoded(data: Buffer, *, enveloped: bool = True, expand_sets: bool = True) -> list[LogRecord]:
    return decode_entry(data, lssn=Lssn(3), entry_id=EntryId(7), enveloped=enveloped, expand_sets=expand_sets)


def test_vector_b_as_an_entry_without_envelope() -> None:
    assert decoded(vectors.RECORDS_B, enveloped=False) == RECORDS_B


def test_vector_c() -> None:
    assert encode_entry([vectors.RECORDS_B]) == vectors.ENTRY_C
    assert encode_entry([vectors.RECORD_A, vectors.RECORDS_B[len(vectors.RECORD_A) :]]) == vectors.ENTRY_C
    for kind in (bytes, bytearray, memoryview):
        assert decoded(kind(vectors.ENTRY_C)) == RECORDS_B


def test_vector_d() -> None:
    """Each library's block is read. Which bytes ours makes depends on its version; what they stand for does not."""
    assert decoded(vectors.ENTRY_D_OF_C) == decoded(vectors.ENTRY_D_OF_JAVA) == RECORDS_B
    ours = encode_entry([vectors.RECORDS_B], compression=Compression.LZ4)
    assert ours[:13] == b"\1" + pack(">III", 1, len(vectors.RECORDS_B), len(ours) - 13)
    assert len(ours) < len(vectors.ENTRY_C)
    assert decoded(ours) == RECORDS_B


def test_vector_e() -> None:
    payload = 16 * b"abc"
    records = encode_records([payload, payload], [1001, 1002], position=1)
    expected = [LogRecord(dlsn(3, 7, slot), 1001 + slot, payload, 1 + slot) for slot in (0, 1)]
    assert decoded(vectors.ENTRY_E) == expected
    assert decoded(encode_entry([records], compression=Compression.LZ4)) == expected


def test_vector_f_control() -> None:
    assert encode_entry([encode_control(txid=1002, position=2)]) == vectors.ENTRY_F_CONTROL
    assert decoded(vectors.ENTRY_F_CONTROL) == [LogRecord(dlsn(3, 7, 0), 1002, b"control", 2, CONTROL)]


def test_vector_f_keepalive() -> None:
    keepalive = encode_control(txid=1002, position=2, payload=KEEPALIVE_PAYLOAD)
    assert encode_entry([keepalive]) == vectors.ENTRY_F_KEEPALIVE
    assert decoded(vectors.ENTRY_F_KEEPALIVE) == [LogRecord(dlsn(3, 7, 0), 1002, b"keepalive", 2, CONTROL)]


def test_vector_f_end_of_stream() -> None:
    assert encode_entry([encode_end_of_stream(position=2)]) == vectors.ENTRY_F_END_OF_STREAM
    assert decoded(vectors.ENTRY_F_END_OF_STREAM) == [
        LogRecord(dlsn(3, 7, 0), TXID_MAX, b"endOfStream", 2, END_OF_STREAM)
    ]


def test_vector_f_empty_is_read_and_never_written() -> None:
    assert decoded(vectors.ENTRY_F_EMPTY) == []
    for compression in Compression:
        with pytest.raises(InvalidArgument, match="1 to 1044467 bytes of records, not 0"):
            encode_entry([b""], compression=compression)


def test_vector_h() -> None:
    runs = [
        encode_records([b"a"], [1002], position=2),
        encode_record(vectors.SET_G, txid=2000, position=3, flags=RECORD_SET),
        encode_records([b"b"], [2001], position=5),
    ]
    assert encode_entry(runs) == vectors.ENTRY_H
    assert decoded(vectors.ENTRY_H) == [
        LogRecord(dlsn(3, 7, 0), 1002, b"a", 2),
        LogRecord(dlsn(3, 7, 1), 2000, b"r0", 3),
        LogRecord(dlsn(3, 7, 2), 2000, b"rec1", 4),
        LogRecord(dlsn(3, 7, 3), 2001, b"b", 5),
    ]
    assert decoded(vectors.ENTRY_H, expand_sets=False) == [
        LogRecord(dlsn(3, 7, 0), 1002, b"a", 2),
        LogRecord(dlsn(3, 7, 1), 2000, vectors.SET_G, 3, RECORD_SET),
        LogRecord(dlsn(3, 7, 3), 2001, b"b", 5),
    ]


@some_examples
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=9), st.sampled_from(Compression), st.binary(max_size=9))
def test_entries_are_read_back(payloads: list[bytes], compression: Compression, behind: bytes) -> None:
    """Bytes behind the stored ones mean nothing, as Apache's reader has it."""
    records = encode_records(payloads, range(len(payloads)), position=1)
    found = decoded(encode_entry([records], compression=compression) + behind)
    assert [record.payload for record in found] == payloads
    assert [record.dlsn.slot_id for record in found] == [record.txid for record in found] == [*range(len(payloads))]


def test_an_entry_has_its_largest_size() -> None:
    """It counts before compression: 4 KiB less than a megabyte, the envelope included."""
    rest = bytes(RECORDS_BYTES_MAX - RECORD_BYTES_MAX)
    record = encode_record(bytes(RECORD_BYTES_MAX - 20), txid=1, position=1)
    assert len(encode_entry([record, rest])) == ENTRY_BYTES_MAX == 1_044_480
    assert len(decoded(encode_entry([record], compression=Compression.LZ4))) == 1
    for compression in Compression:
        with pytest.raises(InvalidArgument, match="not 1044468") as caught:
            encode_entry([record, rest, b"x"], compression=compression)
        assert caught.value.facts == {"bytes": 1_044_468, "bytes_max": 1_044_467}


@pytest.mark.parametrize("size", range(13))
def test_an_entry_without_an_envelope_is_damaged_where_there_should_be_one(size: int) -> None:
    """Nothing at all, too: a writer of Apache's with a compression that does not exist stores such entries."""
    with pytest.raises(DamagedEntry, match=f"entry 7 of segment 3: it has {size} bytes, 13 is the least") as caught:
        decoded(vectors.ENTRY_C[:size])
    assert caught.value.facts == {"lssn": 3, "entry_id": 7}


@pytest.mark.parametrize("entry", [vectors.ENTRY_C, vectors.ENTRY_D_OF_C, vectors.ENTRY_D_OF_JAVA])
def test_an_entry_that_is_cut_short_is_damaged(entry: bytes) -> None:
    for size in range(13, len(entry)):
        with pytest.raises(DamagedEntry, match=f"should follow its header, but {size - 13} do"):
            decoded(entry[:size])


def test_damage_in_a_record_says_where() -> None:
    with pytest.raises(DamagedEntry, match="entry 7 of segment 3: the record at slot 1 is cut short") as caught:
        decoded(vectors.RECORDS_B[:-1], enveloped=False)
    assert caught.value.facts == {"lssn": 3, "entry_id": 7, "slot_id": 1}


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions_are_damage(version: int) -> None:
    with pytest.raises(DamagedEntry, match=f"its envelope has version {version}"):
        decoded(bytes([version]) + vectors.ENTRY_C[1:])


@pytest.mark.parametrize("codec", [2, 3])
def test_codecs_that_do_not_exist_are_damage(codec: int) -> None:
    with pytest.raises(DamagedEntry, match=f"codec {codec} does not exist"):
        decoded(b"\1" + pack(">I", codec) + vectors.ENTRY_C[5:])


def test_lengths_agree_where_nothing_is_compressed() -> None:
    with pytest.raises(DamagedEntry, match="51 bytes are stored without compression for 52"):
        decoded(b"\1" + pack(">III", 0, 52, 51) + vectors.RECORDS_B)


@pytest.mark.parametrize("length", [0, 1, 50, 52, 255 * 46, 255 * 46 + 1, 2**32 - 1])
def test_lz4_makes_exactly_the_length_it_should(length: int) -> None:
    block = vectors.ENTRY_D_OF_C[13:]
    with pytest.raises(DamagedEntry, match=f"46 bytes of LZ4 are not those of {length}"):
        decoded(b"\1" + pack(">III", 1, length, len(block)) + block)


def test_a_length_beyond_31_bits_is_damage_however_long_the_block() -> None:
    block = bytes(2**31 // 255 + 1)
    with pytest.raises(DamagedEntry, match="bytes of LZ4 are not those of 2147483648"):
        decoded(b"\1" + pack(">III", 1, 2**31, len(block)) + block)


@many_examples
@given(st.data())
def test_flipped_bits_are_read_or_damaged(data: st.DataObject) -> None:
    """The digest of the ledger finds them; here it is only to be seen that nothing else is ever raised."""
    entry = data.draw(
        st.sampled_from(
            [vectors.ENTRY_C, vectors.ENTRY_D_OF_C, vectors.ENTRY_D_OF_JAVA, vectors.ENTRY_E, vectors.ENTRY_H]
        )
    )
    damaged = bytearray(entry)
    for bit in data.draw(st.lists(st.integers(0, 8 * len(entry) - 1), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    read_or_damaged(bytes(damaged), enveloped=True)


@many_examples
@given(st.binary(max_size=80), st.sampled_from([0, 1]), st.integers(0, 200))
def test_any_bytes_are_read_or_damaged(data: bytes, codec: int, length: int) -> None:
    read_or_damaged(data, enveloped=True)
    read_or_damaged(data, enveloped=False)
    read_or_damaged(b"\1" + pack(">III", codec, length, len(data)) + data, enveloped=True)
    read_or_damaged(b"\1" + pack(">III", 0, len(data), len(data)) + data, enveloped=True)


def read_or_damaged(data: bytes, *, enveloped: bool) -> None:
    for expand_sets in (True, False):
        try:
            records = decoded(data, enveloped=enveloped, expand_sets=expand_sets)
        except DamagedEntry as error:
            assert (error.facts["lssn"], error.facts["entry_id"]) == (3, 7)
        else:
            slots = [record.dlsn.slot_id for record in records]
            assert slots == sorted(slots)
