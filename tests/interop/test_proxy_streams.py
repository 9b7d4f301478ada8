"""Streams of a write proxy, with what it keeps about producers in them: Java reads them, and goes on with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

import pytest

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.metadata import StoreSettings
from quire.proxy.write.answers import lock_client_id
from quire.proxy.write.proxy import WriteProxy, open_write_proxy
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving.results import dlsn_of
from quire.rpc.serving.transport import Caller
from quire.stream.namespace import open_namespace as open_ours
from quire.stream.settings import StreamSettings
from quire.types import DLSN
from tests.interop.ensembles import kinds
from tests.interop.stream_facts import JavaRecord
from tests.interop.stream_peer import PROMPT, JavaStream, NamespaceSite, OpenNamespace
from tests.support.waiting import eventually

STREAM = "orders"
OWNER = pb.Owner(host="127.0.0.1", port=4100)
CALLER = Caller("interop")
SETTINGS = StreamSettings(lock_timeout_s=20.0, commit_delay_s=0.0)


@asynccontextmanager
async def write_proxy(site: NamespaceSite, streams: StreamSettings) -> AsyncIterator[WriteProxy]:
    """Ours, with a snapshot of its producers every few entries."""
    settings = WriteProxySettings(snapshot_entries=5)
    async with (
        open_ours(
            site.uri,
            settings=streams,
            store_settings=StoreSettings(session_timeout_s=4.0),
            client_id=lock_client_id(0, OWNER),
        ) as namespace,
        open_write_proxy(namespace, settings, address=OWNER) as proxy,
    ):
        yield proxy


def request(*records: bytes, producer: int = 0, first_seq: int = 0, txid: int | None = None) -> pb.WriteOnceRequest:
    batch = pb.Batch(stream=STREAM, records=records, create_if_missing=True, crc32c=batch_checksum(STREAM, records))
    if producer:
        batch.producer.CopyFrom(pb.Producer(id=producer.to_bytes(16, "big"), first_seq=first_seq))
    if txid is not None:
        batch.txids.extend([txid] * len(records))
    return pb.WriteOnceRequest(batch=batch)


def places(answer: pb.WriteOnceResponse) -> list[DLSN]:
    found: list[DLSN] = []
    for run in answer.placed:
        first = dlsn_of(run.first)
        found += [first._replace(slot_id=first.slot_id + number) for number in range(run.count)]  # type: ignore[arg-type]
    return found


async def read_all(stream: JavaStream, count: int) -> list[JavaRecord]:
    found: list[JavaRecord] = []

    async def has_all() -> bool:
        nonlocal found
        found = await stream.read_all()
        return len(found) >= count

    await eventually(has_all, what=f"Java reads {count} records")
    return found


@kinds("apache", "quire")
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_java_reads_record_by_record_what_a_proxy_wrote_for_producers(
    namespace: NamespaceSite, open_namespace: OpenNamespace, compression: Literal["none", "lz4"]
) -> None:
    """Tags stand in entries with records, and snapshots in entries of their own. Java sees neither, and counts slots,
    positions and sequence ids as we do: in a segment in progress, in completed ones, and from a place in the middle.
    """
    stream = (await open_namespace()).stream(STREAM)
    streams = replace(SETTINGS, compression=compression, entry_bytes=300)
    async with write_proxy(namespace, streams) as proxy:
        written: list[tuple[DLSN, int, bytes]] = []

        async def write(number: int) -> pb.WriteOnceResponse:
            txid = 100 + number
            records = [b"%d/%d" % (number, each) * 8 for each in range(1 + number % 13)]
            sent = request(*records, producer=number % 3, first_seq=sequence[number % 3], txid=txid)
            sequence[number % 3] += len(records)
            answer = await proxy.write_once(sent, CALLER)
            written.extend(zip(places(answer), [txid] * len(records), records, strict=True))
            return answer

        sequence = {0: 1, 1: 1, 2: 1}
        for number in range(40):
            await write(number)
            if number in (10, 25):
                await proxy.release(pb.ReleaseRequest(stream=STREAM), CALLER)
        records = await read_all(stream, len(written))
        assert [(record.dlsn, record.txid, record.payload) for record in records] == written
        assert [record.sequence_id for record in records] == [*range(len(written))]
        middle = written[len(written) // 2][0]
        assert [record.dlsn for record in await stream.read_all(middle)] == [
            dlsn for dlsn, _, _ in written if dlsn >= middle
        ]
        assert [segment.in_progress for segment in await stream.segments()] == [False, False, True]
        assert proxy._metrics.snapshots.value > 3
    assert (await stream.last_txid(), await stream.count()) == (139, len(written))
    assert await stream.last_dlsn() == written[-1][0]
    assert [record.dlsn for record in (await stream.read_sync()).records] == [dlsn for dlsn, _, _ in written]


@kinds("quire")
async def test_java_takes_turns_with_a_proxy_and_duplicates_are_still_known(
    namespace: NamespaceSite, open_namespace: OpenNamespace
) -> None:
    """A Java writer goes on with the stream; then the proxy has it again, and knows what producers stored before.

    In the end Java deletes the stream, with the node that says that it has producers.
    """
    java = await open_namespace(**PROMPT)
    stream = java.stream(STREAM)
    async with write_proxy(namespace, SETTINGS) as proxy:
        sent = request(b"a", b"b", producer=1, first_seq=1, txid=1)
        first = await proxy.write_once(sent, CALLER)
        await proxy.release(pb.ReleaseRequest(stream=STREAM), CALLER)
        async with stream.writer() as writer:
            assert await writer.last_txid() == 1
            await writer.write_records([(2, b"java")])
        again = await proxy.write_once(sent, CALLER)
        assert again.result.code == pb.DUPLICATE
        assert places(again) == places(first)
        await proxy.write_once(request(b"c", producer=1, first_seq=3, txid=3), CALLER)
        records = await read_all(stream, 4)
        assert [record.payload for record in records] == [b"a", b"b", b"java", b"c"]
        await proxy.release(pb.ReleaseRequest(stream=STREAM), CALLER)
        await java.delete(STREAM)
        assert not await java.exists(STREAM)
        anew = await proxy.write_once(sent, CALLER)
        assert anew.result.code == pb.OK
