"""Ledger entries that Apache's DistributedLog wrote, read by our codecs, and made again byte for byte."""

import pytest

from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RECORDS_BYTES_MAX, TXID_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD, LogRecord, encode_record
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaError
from tests.interop.raw_stream import PASSWORD, RawStreams, check_segments
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace
from tests.support.waiting import eventually

PAYLOADS = Payloads("written by Java")

one_kind = kinds("quire")


def _again(entry: list[LogRecord]) -> bytes:
    """What we would have written for the same records."""
    return encode_entry([encode_record(r.payload, txid=r.txid, position=r.position, flags=r.flags) for r in entry])


@kinds("apache", "quire")
@pytest.mark.parametrize("compression", list(Compression), ids=lambda compression: compression.name)
async def test_entries_hold_the_records_that_were_written(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, compression: Compression
) -> None:
    """Records, bulks, sets, control records and the end of a stream; without compression also the same bytes again."""
    java = (await open_namespace(**PROMPT, compressionType=compression.name.lower())).stream("orders")
    async with java.writer() as writer:
        places = await writer.write(PAYLOADS, 3, first_txid=1)
        places += await writer.write(PAYLOADS, 20, first_txid=4, bulk=True)
        await writer.write_control(23)
        sets = [[b"r0", b"rec1"], [b"abc" * 100] * 50]
        for txid, members in enumerate(sets, start=24):
            places += await writer.write_set(members, txid=txid, compression=compression)
        await writer.end_stream()
    ours = raw.stream("orders")
    (segment,) = await check_segments(ours, await java.segments())
    records = await ours.records(segment)
    applications = [record for record in records if not record.is_control and not record.is_end_of_stream]
    assert [(record.dlsn, record.txid, record.payload) for record in applications] == [
        (dlsn, txid, payload)
        for dlsn, (txid, payload) in zip(
            places,
            [(txid, PAYLOADS[txid]) for txid in range(1, 24)]
            + [(txid, member) for txid, members in enumerate(sets, start=24) for member in members],
            strict=True,
        )
    ]
    assert [record.position for record in applications] == [*range(1, len(places) + 1)]
    assert {record.payload for record in records if record.is_control} == {CONTROL_PAYLOAD}
    assert [(record.txid, record.position) for record in records if record.is_end_of_stream] == [
        (TXID_MAX, len(places))
    ]
    assert segment.completion is not None
    assert (segment.completion.last_txid, segment.completion.record_count) == (TXID_MAX, len(places))
    if compression is Compression.NONE:
        whole = await ours.records(segment, expand_sets=False)
        assert [r.payload for r in whole if r.is_record_set] == [encode_record_set(members) for members in sets]
        for number, entry in enumerate(await ours.entries(segment.ledger_id)):
            assert entry == _again([record for record in whole if record.dlsn.entry_id == number])


@one_kind
async def test_a_writer_with_nothing_to_say_keeps_its_stream_alive(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    java, ours = (
        (await open_namespace(**PROMPT, periodicKeepAliveMilliSeconds=50)).stream("orders"),
        raw.stream("orders"),
    )
    async with java.writer() as writer:
        await writer.write(PAYLOADS, 1, first_txid=1)
        (begun,) = (await ours.segments()).values()

        async def has_spoken() -> bool:
            async with raw.ledgers.open(begun.ledger_id, password=PASSWORD, recover=False) as reader:
                return reader.last_add_confirmed >= 2

        await eventually(has_spoken, what="a keepalive record is in the ledger")
    (segment,) = (await ours.segments()).values()
    kept = [record for record in await ours.records(segment) if record.payload == KEEPALIVE_PAYLOAD]
    assert {(record.is_control, record.txid, record.position) for record in kept} == {(True, 1, 1)}


@one_kind
async def test_limits_are_where_we_think_they_are(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    """Of a record, which is refused beyond it, and of an entry, which is split."""
    java, ours = (await open_namespace(**PROMPT)).stream("orders"), raw.stream("orders")
    half = RECORDS_BYTES_MAX // 2
    first, rest = bytes(half - RECORD_HEADER_BYTES), bytes(RECORDS_BYTES_MAX - half - RECORD_HEADER_BYTES)
    async with java.writer() as writer:
        places = await writer.write_records([(1, bytes(PAYLOAD_BYTES_MAX))])
        with pytest.raises(JavaError, match="LogRecordTooLongException"):
            await writer.write_records([(2, bytes(PAYLOAD_BYTES_MAX + 1))])
        places += await writer.write_records([(2, first), (3, rest)], bulk=True)
        places += await writer.write_records([(4, first), (5, rest + b"!")], bulk=True)
    assert places[1].entry_id == places[2].entry_id
    assert places[3].entry_id < places[4].entry_id
    (segment,) = (await ours.segments()).values()
    records = [record for record in await ours.records(segment) if not record.is_control]
    assert [(record.dlsn, record.txid) for record in records] == list(zip(places, range(1, 6), strict=True))
