"""Apache's DistributedLog alone, on bookies of either kind: what the other tests of streams rely on, seen to work.

If one of these fails, the tests that compare our streams with Java's have nothing to compare with.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.codec.stream.compression import Compression
from quire.types import INITIAL_DLSN
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaError, JavaPeer
from tests.interop.raw_stream import place
from tests.interop.stream_facts import JavaRecord
from tests.interop.stream_handles import await_records
from tests.interop.stream_peer import (
    PROMPT,
    NamespaceSite,
    OpenNamespace,
    binding_bytes,
    mortal_namespace,
    unbind,
)

PAYLOADS = Payloads("written by Java")
SESSION_S = 2  # How long a killed writer keeps the lock.

both_kinds = kinds("apache", "quire")


def check_payloads(records: list[JavaRecord], *txids: int) -> None:
    assert [(record.txid, record.payload) for record in records] == [(txid, PAYLOADS[txid]) for txid in txids]


@both_kinds
@pytest.mark.parametrize("compression", list(Compression), ids=lambda compression: compression.name)
async def test_what_was_written_is_read(
    namespace: NamespaceSite, open_namespace: OpenNamespace, compression: Compression
) -> None:
    """Alone, in bulk and as sets, from the beginning and from the middle, by both kinds of readers."""
    stream = (await open_namespace(**PROMPT, compressionType=compression.name.lower())).stream("orders")
    async with stream.writer() as writer:
        places = await writer.write(PAYLOADS, 5, first_txid=1)
        places += await writer.write(PAYLOADS, 5, first_txid=6, bulk=True)
        control = await writer.write_control(10)
        members = [PAYLOADS[11], b"", PAYLOADS[12]]
        places += await writer.write_set(members, txid=11, compression=compression)
        assert await writer.last_txid() == 11
    expected = [(txid, PAYLOADS[txid]) for txid in range(1, 11)] + [(11, member) for member in members]
    records = await stream.read_all()
    assert [(record.txid, record.payload) for record in records] == expected
    assert [record.dlsn for record in records] == places
    assert control not in places
    assert [record.position for record in records] == [record.sequence_id + 1 for record in records] == [*range(1, 14)]
    assert (await stream.read_sync()).records == records
    assert await stream.read_all(places[7]) == records[7:]
    assert await stream.read_all(7) == (await stream.read_sync(7)).records == records[6:]
    assert (await stream.read(INITIAL_DLSN, count_max=3)).records == records[:3]
    assert await stream.read_all(12) == []
    assert (await stream.first_dlsn(), await stream.last_dlsn()) == (places[0], places[-1])
    assert (await stream.first_txid(), await stream.last_txid()) == (1, 11)
    assert (await stream.count(), await stream.find(6)) == (13, places[5])
    assert not await stream.has_end()


@both_kinds
async def test_a_reader_follows_a_writer_into_a_new_segment(
    namespace: NamespaceSite, open_namespace: OpenNamespace
) -> None:
    stream = await (await open_namespace(**PROMPT)).create("orders")
    async with stream.tail() as tail, stream.writer() as writer:
        await writer.write(PAYLOADS, 10, first_txid=1)
        check_payloads(await tail.wait_records(10), *range(1, 11))
        await writer.roll(10)
        first, second = await stream.segments()
        assert (first.in_progress, first.record_count, first.last_txid) == (False, 10, 10)
        assert (second.in_progress, second.start_sequence_id) == (True, 10)
        await writer.write(PAYLOADS, 10, first_txid=11)
        check_payloads(await tail.wait_records(20), *range(1, 21))
        assert {record.dlsn.lssn for record in tail.records} == {1, 2}
        assert await writer.end_stream() > 20
        assert await tail.wait_error() == "EndOfStreamException"
    assert [segment.record_count for segment in await stream.segments()] == [10, 10]
    assert await stream.has_end()
    found = await stream.read()
    assert (len(found.records), found.ended) == (20, True)
    with pytest.raises(JavaError, match="EndOfStreamException"):
        async with stream.writer() as writer:
            await writer.write(PAYLOADS, 1, first_txid=21)


@both_kinds
async def test_truncation_hides_and_purging_deletes(namespace: NamespaceSite, open_namespace: OpenNamespace) -> None:
    stream = (await open_namespace(**PROMPT)).stream("orders")
    async with stream.writer() as writer:
        for first_txid in (1, 11, 21):
            places = await writer.write(PAYLOADS, 10, first_txid=first_txid)
            await writer.roll(first_txid + 9)
            if first_txid == 11:
                middle = places[4]
        assert await writer.truncate(middle)
    assert [(segment.lssn, segment.truncation) for segment in await stream.segments()] == [
        (1, "TRUNCATED"),
        (2, "PARTIALLY_TRUNCATED"),
        (3, "ACTIVE"),
        (4, "ACTIVE"),
    ]
    assert (await stream.segments())[1].min_active == middle
    check_payloads(await stream.read_all(), *range(15, 31))
    await stream.purge(11)
    assert [segment.lssn for segment in await stream.segments()] == [2, 3, 4]
    check_payloads(await stream.read_all(), *range(15, 31))


@both_kinds
async def test_a_writer_that_aborts_leaves_its_segment_to_the_next_one(
    namespace: NamespaceSite, open_namespace: OpenNamespace
) -> None:
    """And while a writer is there, nobody else becomes one."""
    stream = (await open_namespace(**PROMPT, lockTimeoutSeconds=0, client_id="first")).stream("orders")
    rival = (await open_namespace(**PROMPT, lockTimeoutSeconds=0, client_id="second")).stream("orders")
    writer = await stream.open_writer()
    await writer.write(PAYLOADS, 10, first_txid=1)
    with pytest.raises(JavaError, match=r"OwnershipAcquireFailedException.*first"):
        await rival.open_writer()
    await writer.abort()
    assert [segment.in_progress for segment in await stream.segments()] == [True]
    async with rival.writer() as writer:
        assert await writer.last_txid() == 10
        assert (await writer.write(PAYLOADS, 1, first_txid=11))[0].lssn == 2
    assert [segment.record_count for segment in await stream.segments()] == [10, 1]
    check_payloads(await stream.read_all(), *range(1, 12))


@both_kinds
async def test_the_records_of_a_killed_process_are_recovered(
    namespace: NamespaceSite, open_namespace: OpenNamespace, tmp_path: Path
) -> None:
    """Kill -9 in full flight: all that was acknowledged is there, and behind it at most what was under way."""
    settings: dict[str, Any] = {
        "periodicFlushFrequencyMilliSeconds": 20,
        "logSegmentRollingMinutes": 0,
        "maxLogSegmentBytes": 100_000,
    }
    peer = JavaPeer(tmp_path / "stderr.log")
    try:
        async with asyncio.timeout(60):
            mortal = await mortal_namespace(peer, namespace, zkSessionTimeoutSeconds=SESSION_S, **settings)
            writer = await mortal.stream("orders").open_writer()
            await writer.start_writing(PAYLOADS, first_txid=1, inflight_max=100)
            await await_records(writer, 2_000)
            acknowledged = (await writer.progress()).acknowledged
    finally:
        peer.kill()
    stream = (await open_namespace(**PROMPT)).stream("orders")
    await stream.recover()
    segments = await stream.segments()
    assert len(segments) > 1
    assert not any(segment.in_progress for segment in segments)
    records = await stream.read_all()
    assert len(records) >= acknowledged
    check_payloads(records, *range(1, len(records) + 1))
    assert [record.sequence_id for record in records] == [*range(len(records))]
    async with stream.writer() as writer:
        assert await writer.last_txid() == len(records)


@both_kinds
async def test_a_synchronous_writer_buffers_until_it_is_told(
    namespace: NamespaceSite, open_namespace: OpenNamespace
) -> None:
    stream = (await open_namespace(bkcEnsembleSize=1, bkcWriteQuorumSize=1, bkcAckQuorumSize=1)).stream("orders")
    writer = await stream.open_sync_writer()
    await writer.write_records([(1, PAYLOADS[1]), (2, PAYLOADS[2])])
    assert await stream.read_all() == []
    assert await writer.flush() == 2
    assert await stream.read_all() == []
    assert await writer.commit() == 2
    check_payloads(await stream.read_all(), 1, 2)
    await writer.write_records([(3, PAYLOADS[3])], roll=True)
    await writer.end_stream()
    assert [(segment.first_txid, segment.record_count) for segment in await stream.segments()] == [(1, 2), (3, 1)]
    assert [record.dlsn for record in await stream.read_all()] == [INITIAL_DLSN, place(1, 0, 1), place(2, 0, 0)]


@both_kinds
async def test_streams_are_created_found_renamed_and_deleted(
    java: JavaPeer, namespace: NamespaceSite, open_namespace: OpenNamespace
) -> None:
    opened = await open_namespace(**PROMPT)
    assert await opened.list() == []
    stream = await opened.create("orders")
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 3, first_txid=1)
    await opened.rename("orders", to="old")
    assert (await opened.list(), await opened.exists("orders"), await opened.exists("old")) == (["old"], False, True)
    check_payloads(await opened.stream("old").read_all(), 1, 2, 3)
    await opened.delete("old")
    assert await opened.list() == []
    with pytest.raises(JavaError, match="LogNotFoundException"):
        await stream.segments()
    await unbind(java, namespace)
    assert await binding_bytes(java, namespace) == b""
    with pytest.raises(JavaError):
        await open_namespace()


@kinds("quire")
async def test_subscribers_go_on_where_they_were(namespace: NamespaceSite, open_namespace: OpenNamespace) -> None:
    stream = (await open_namespace(**PROMPT)).stream("orders")
    rival = (await open_namespace(**PROMPT, lockTimeoutSeconds=0, client_id="rival")).stream("orders")
    async with stream.writer() as writer:
        places = await writer.write(PAYLOADS, 5, first_txid=1)
    await stream.subscribe("billing", places[2])
    assert await stream.subscriptions() == {"billing": places[2]}
    async with stream.tail(None, locked=True, subscriber="billing") as tail:
        check_payloads(await tail.wait_records(3), 3, 4, 5)
        with pytest.raises(JavaError, match="OwnershipAcquireFailedException"):
            async with rival.tail(None, locked=True, subscriber="billing"):
                pytest.fail("two readers have one lock")
