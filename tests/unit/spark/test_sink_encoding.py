"""Records from Arrow's columns are those that the codec makes, cut into entries that are as full as they may be."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, TXID_MAX
from quire.codec.stream.records import encode_records
from quire.codec.stream.restamping import restamped
from quire.errors import DamagedEntry, InvalidArgument, RecordTooLarge, TxidOutOfOrder
from quire.spark.sink_encoding import (
    Rows,
    encoded_runs,
    payload_array,
    rows_digest,
    rows_sum,
    txid_array,
)


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=60),
    st.integers(1, 1 << 20),
    st.integers(1, 300),
    st.integers(0, 3),
)
def test_runs_are_what_the_codec_makes(payloads: list[bytes], position: int, entry_bytes: int, skipped: int) -> None:
    txids = list(range(7, 7 + len(payloads)))
    column = pa.array([b"skipped"] * skipped + payloads, pa.binary()).slice(skipped)
    rows = Rows(column, np.array(txids, dtype=np.int64))
    runs = list(encoded_runs(rows, position=position, entry_bytes=entry_bytes))
    assert b"".join(run.data for run in runs) == encode_records(payloads, txids, position=position)
    assert sum(run.records for run in runs) == len(payloads)
    assert rows.record_bytes == sum(len(run.data) for run in runs)
    at = 0
    for run in runs:
        assert (run.first_txid, run.last_txid) == (txids[at], txids[at + run.records - 1])
        assert len(run.data) <= entry_bytes or run.records == 1
        at += run.records
        if at < len(payloads):
            assert len(run.data) + RECORD_HEADER_BYTES + len(payloads[at]) > entry_bytes, "the next one would fit"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_kind_of_text_and_bytes_becomes_payloads(kind: Any) -> None:
    words = ["a", "ø"]
    values = words if kind in (pa.string(), pa.large_string()) else [word.encode() for word in words]
    chunked = pa.chunked_array([pa.array([value], kind) for value in values])
    assert payload_array(chunked, "p").to_pylist() == [b"a", "ø".encode()]


def test_what_is_no_payload_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'p' is NULL in 1 rows"):
        payload_array(pa.array([b"a", None], pa.binary()), "p")
    with pytest.raises(RecordTooLarge):
        payload_array(pa.array([bytes(PAYLOAD_BYTES_MAX + 1)], pa.binary()), "p")
    assert payload_array(pa.array([], pa.binary()), "p").to_pylist() == []


@pytest.mark.parametrize(
    ("txids", "last", "problem"),
    [([3, 2], 0, "txid 2 follows 3"), ([3, 4], 5, "txid 3 follows 5"), ([TXID_MAX], 0, "txids run from 0")],
)
def test_txids_that_cannot_follow_are_refused(txids: list[int], last: int, problem: str) -> None:
    with pytest.raises(TxidOutOfOrder, match=problem):
        txid_array(pa.array(txids, pa.int64()), "t", last=last)


def test_txids_are_all_there() -> None:
    assert txid_array(pa.array([3, 3, 9], pa.int64()), "t", last=3).tolist() == [3, 3, 9]
    with pytest.raises(InvalidArgument, match="NULL in 1 rows"):
        txid_array(pa.array([1, None], pa.int64()), "t")
    with pytest.raises(TxidOutOfOrder, match="from 0"):
        txid_array(pa.array([-1], pa.int64()), "t", last=-5)


def test_restamped_records_differ_in_their_places_and_txids_only() -> None:
    payloads = [b"", b"a", b"bb"]
    entry = encode_entry([encode_records(payloads, [1, 2, 3], position=9)])
    assert restamped(entry, position=9, txid=7) == (encode_records(payloads, [7, 7, 7], position=9), 3, 7, 7)
    assert restamped(entry, position=70_000) == (encode_records(payloads, [1, 2, 3], position=70_000), 3, 1, 3)
    cut = encode_entry([encode_records(payloads, [1, 2, 3], position=9)[:-1]])
    with pytest.raises(DamagedEntry):
        restamped(cut, position=9, txid=7)


def test_rows_are_the_same_in_whatever_order_and_however_they_are_split() -> None:
    def digest(*parts: list[bytes], txids: list[int] | None = None) -> str:
        columns = [pa.array(part, pa.binary()) for part in parts]
        return rows_digest(rows_sum(each, None if txids is None else pa.array(txids, pa.int64())) for each in columns)

    rows = [b"%d" % number for number in range(100)]
    assert digest(rows) == digest(rows[::-1]) == digest(rows[70:], [], rows[:70])
    others = [digest(), digest(rows[:-1]), digest([*rows, b""]), digest([*rows[:-1], rows[0]]), digest([*rows, *rows])]
    with_txids = [digest(rows, txids=[*range(100)]), digest(rows, txids=[*range(1, 101)])]
    assert len({digest(rows), *others, *with_txids}) == 8
    assert digest(rows, txids=[*range(100)]) == digest(rows[::-1], txids=[*range(100)][::-1])
