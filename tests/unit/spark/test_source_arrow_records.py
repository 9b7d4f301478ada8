"""Arrow batches hold what the codec decodes, whatever an entry looks like."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples

from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import (
    CONTROL,
    END_OF_STREAM,
    RECORD_SET,
    encode_control,
    encode_end_of_stream,
    encode_record,
    encode_records,
)
from quire.errors import DamagedEntry, InvariantBroken
from quire.spark.arrow_records import ArrowRecords, arrow_schema
from quire.spark.schema import ALL, Column
from quire.types import EntryId, Lssn

LSSN = Lssn(3)

# Of one size each, large enough for a block; of any sizes; and everything else that an entry may hold.
equal = st.builds(
    lambda size, count, txid: encode_records(
        [bytes([i % 251]) * size for i in range(count)], [txid] * count, position=1
    ),
    st.sampled_from([0, 1, 7, 100]),
    st.integers(1, 90),
    st.integers(0, TXID_MAX - 1),
)
mixed = st.lists(st.binary(max_size=300), min_size=1, max_size=30).map(
    lambda payloads: encode_records(payloads, [1_700_000_000_000] * len(payloads), position=1)
)
special = st.one_of(
    st.just(encode_control(txid=5, position=1)),
    st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(
        lambda members: encode_record(encode_record_set(members), txid=9, position=1, flags=RECORD_SET)
    ),
    st.just(encode_end_of_stream(position=1)),
)
entries = st.tuples(
    st.lists(st.one_of(equal, mixed, special), min_size=1, max_size=4), st.sampled_from(Compression), st.booleans()
)


def columns(*names: str) -> list[Column]:
    return [Column(name, name) for name in names or ALL]


def encoded(runs: list[bytes], compression: Compression, is_enveloped: bool) -> bytes:
    return encode_entry(runs, compression=compression) if is_enveloped else b"".join(runs)


def as_rows(payload: bytes, entry_id: int, *, is_enveloped: bool = True) -> list[tuple[object, ...]]:
    """What the codec says, in the columns' order without time."""
    return [
        ("orders", ":".join(map(str, record.dlsn)), *record.dlsn, record.txid, record.payload)
        for record in decode_entry(payload, lssn=LSSN, entry_id=EntryId(entry_id), enveloped=is_enveloped)
        if not record.flags & (CONTROL | END_OF_STREAM)
    ]


@many_examples
@given(st.lists(entries, min_size=1, max_size=4))
def test_batches_hold_what_the_codec_decodes(stored: list[tuple[list[bytes], Compression, bool]]) -> None:
    records = ArrowRecords(columns())
    expected = []
    for entry_id, (runs, compression, is_enveloped) in enumerate(stored):
        payload = encoded(runs, compression, is_enveloped)
        expected += as_rows(payload, entry_id, is_enveloped=is_enveloped)
        records.add("orders", LSSN, EntryId(entry_id), payload, is_enveloped=is_enveloped)
    assert records.rows == len(expected)
    if not expected:
        with pytest.raises(InvariantBroken):
            records.take()
        return
    batch = records.take()
    batch.validate(full=True)
    assert batch.schema == arrow_schema(columns())
    found = [tuple(row[name] for name in ALL if name != "time") for row in batch.to_pylist()]
    assert found == expected
    assert records.rows == 0


@many_examples
@given(entries, st.integers(0, 40), st.none() | st.integers(0, 40))
def test_a_part_of_an_entry_is_that_part_of_its_slots(
    stored: tuple[list[bytes], Compression, bool], first: int, end: int | None
) -> None:
    runs, compression, is_enveloped = stored
    payload = encoded(runs, compression, is_enveloped)
    records = ArrowRecords(columns("slot", "payload"))
    records.add("orders", LSSN, EntryId(7), payload, is_enveloped=is_enveloped, first_slot=first, end_slot=end)
    rows = as_rows(payload, 7, is_enveloped=is_enveloped)
    expected = [(row[4], row[6]) for row in rows if first <= row[4] and (end is None or row[4] < end)]  # type: ignore[operator]
    found = [(row["slot"], row["payload"]) for row in records.take().to_pylist()] if records.rows else []
    assert found == expected


@many_examples
@given(st.binary(max_size=3000))
def test_bytes_that_are_no_entry_are_refused_as_the_codec_does(data: bytes) -> None:
    records = ArrowRecords(columns())
    try:
        rows = as_rows(data, 0)
    except DamagedEntry as error:
        with pytest.raises(DamagedEntry) as refused:
            records.add("orders", LSSN, EntryId(0), data)
        assert str(refused.value) == str(error)
        assert records.rows == 0
    else:
        records.add("orders", LSSN, EntryId(0), data)
        assert records.rows == len(rows)


def test_each_column_alone_is_the_same_as_among_all() -> None:
    payload = encode_entry([encode_records([b"a", b"bc"], [1_700_000_000_000, 1_700_000_000_001], position=1)])

    def taken(*names: str) -> pa.RecordBatch:
        records = ArrowRecords(columns(*names))
        records.add("orders", LSSN, EntryId(4), payload)
        return records.take()

    for name in ALL:
        assert taken(name).column(0) == taken().column(name)


def test_a_txid_that_is_no_time_has_none() -> None:
    records = ArrowRecords(columns("txid", "time"))
    payload = encode_entry([encode_records([b""] * 3, [0, 253_402_300_799_999, TXID_MAX - 1], position=1)])
    records.add("orders", LSSN, EntryId(0), payload)
    first, last, none = records.take().column(1).to_pylist()
    assert (first.year, last.year, none) == (1970, 9999, None)


def test_a_batch_is_full_by_rows_or_by_bytes_and_names_each_stream() -> None:
    entry = encode_entry([encode_records([b"x" * 50] * 10, [1] * 10, position=1)])
    records = ArrowRecords(columns("stream", "entry"), rows=20, bytes_max=1 << 20)
    for entry_id, stream in enumerate("aab"):
        assert not records.is_full or entry_id == 2
        records.add(stream, LSSN, EntryId(entry_id), entry)
    assert records.is_full
    assert records.take().column(0).to_pylist() == ["a"] * 20 + ["b"] * 10
    small = ArrowRecords(columns("stream"), rows=1000, bytes_max=500)
    small.add("b", LSSN, EntryId(0), entry)
    assert small.is_full
    assert small.take().column(0).to_pylist() == ["b"] * 10


def test_the_end_of_a_stream_is_told() -> None:
    records = ArrowRecords(columns())
    plain = encode_records([b"x"], [1], position=1)
    assert records.add("orders", LSSN, EntryId(0), encode_entry([plain]))
    assert not records.add("orders", LSSN, EntryId(1), encode_entry([plain, encode_end_of_stream(position=1)]))
    assert records.rows == 2


def test_a_not_null_column_stays_one_and_a_renamed_one_its_name() -> None:
    schema = arrow_schema([Column("txid", "TxId", is_nullable=False), Column("payload", "payload")])
    assert schema.field("TxId") == pa.field("TxId", pa.int64(), nullable=False)
    assert schema.field("payload") == pa.field("payload", pa.binary(), nullable=True)
