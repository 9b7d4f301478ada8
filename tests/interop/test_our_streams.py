"""Our streams and Java's are the same streams: written by one, read, tailed, truncated and continued by the other.

On Apache's bookies and on ours, in one namespace on one ZooKeeper.
"""

import asyncio
import functools
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from quire.codec.stream.compression import Compression
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.binding import encode_binding
from quire.errors import NoSuchLedger, PositionTruncated, StreamOwned, StreamSealed, TxidOutOfOrder, WriterFenced
from quire.metadata import StoreSettings
from quire.stream.binding import bind_namespace
from quire.stream.namespace import Namespace
from quire.stream.namespace import open_namespace as open_ours
from quire.stream.nodes import StreamNodes
from quire.stream.segments import StreamSegments
from quire.stream.settings import StreamSettings
from quire.stream.start import Txid
from quire.types import DLSN, INITIAL_DLSN
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaError, JavaPeer
from tests.interop.stream_facts import JavaRecord, as_java
from tests.interop.stream_handles import await_records
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace, bind, binding_bytes, mortal_namespace
from tests.support.programs.failover_client import STREAM as WRITTEN_UNTIL_KILLED
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAYLOADS = Payloads("written by either")
SETTINGS = StreamSettings(lock_timeout_s=20.0)
SESSION_S = 2  # How long a killed writer keeps the lock.
STREAM = "orders"

both_kinds = kinds("apache", "quire")
Ours = Callable[..., AbstractAsyncContextManager[Namespace]]


@pytest.fixture
def ours(unbound: NamespaceSite) -> Ours:
    """Opens the namespace with our client."""

    @asynccontextmanager
    async def opened(settings: StreamSettings = SETTINGS, **options: Any) -> AsyncIterator[Namespace]:
        async with open_ours(
            unbound.uri, settings=settings, store_settings=StoreSettings(session_timeout_s=4.0), **options
        ) as namespace:
            yield namespace

    return opened


def facts(records: list[JavaRecord] | list[LogRecord]) -> list[tuple[DLSN, int, bytes, int]]:
    return [(record.dlsn, record.txid, record.payload, record.position) for record in records]


def numbered(first: int, end: int) -> list[tuple[int, bytes]]:
    return [(txid, PAYLOADS[txid]) for txid in range(first, end)]


async def read(namespace: Namespace, count: int, start: Any = "earliest") -> list[LogRecord]:
    """The next `count` records of the stream."""
    found: list[LogRecord] = []
    async with asyncio.timeout(30), namespace.open_reader(STREAM, start=start) as reader:
        while len(found) < count:
            found += await reader.read_many(count - len(found))
    return found


# --- One writes, the other reads


@both_kinds
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_what_we_wrote_java_reads_record_by_record(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours, compression: Literal["none", "lz4"]
) -> None:
    """Single records, runs, sets and control records, in completed segments and in one in progress."""
    stream = (await open_namespace()).stream(STREAM)
    async with ours(replace(SETTINGS, compression=compression, commit_delay_s=0.0)) as client:
        written: list[tuple[DLSN, int, bytes]] = []

        async def write(writer: Any, first: int) -> None:
            written.append((await writer.append(PAYLOADS[first], txid=first), first, PAYLOADS[first]))
            txids = [first + 1, first + 1, first + 3]
            run = [PAYLOADS[first + each] for each in (1, 2, 3)]
            written.extend(zip(await writer.append_many(run, txids=txids), txids, run, strict=True))
            members = [PAYLOADS[first + 4], b"", PAYLOADS[first + 5]]
            places = await writer.append_set(members, txid=first + 4, compression=compression)
            written.extend(zip(places, itertools.repeat(first + 4), members, strict=False))

        for first in (1, 101):
            async with client.open_writer(STREAM) as writer:
                await write(writer, first)
        async with client.open_writer(STREAM) as writer:
            await write(writer, 201)
            await eventually(lambda: _has_read(stream, len(written)), what="the control record makes all visible")
            records = await stream.read_all()
            assert [(record.dlsn, record.txid, record.payload) for record in records] == written
            assert facts(records) == facts(await read(client, len(written)))
            assert [record.sequence_id for record in records] == [*range(len(written))]
            assert await stream.read_all(written[9][0]) == records[9:]
            assert await stream.read_all(103) == records[10:]
            assert [segment.in_progress for segment in await stream.segments()] == [False, False, True]
        nodes = StreamNodes(client.context.store, client.context.paths(STREAM))
        assert await stream.segments() == [as_java(stored.segment) for stored in await nodes.all_segments()]
    assert (await stream.last_txid(), await stream.count()) == (205, len(written))


async def _has_read(stream: Any, count: int) -> bool:
    return len(await stream.read_all()) == count


@both_kinds
@pytest.mark.parametrize("compression", list(Compression), ids=lambda compression: compression.name)
async def test_what_java_wrote_we_read_record_by_record(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours, compression: Compression
) -> None:
    stream = (await open_namespace(**PROMPT, compressionType=compression.name.lower())).stream(STREAM)
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 5, first_txid=1)
        await writer.write(PAYLOADS, 5, first_txid=6, bulk=True)
        await writer.write_set([PAYLOADS[11], b"", PAYLOADS[12]], txid=11, compression=compression)
        await writer.roll(12)
        await writer.write(PAYLOADS, 5, first_txid=13)
        records = await stream.read_all()
        assert len(records) == 18
        async with ours() as client:
            assert facts(await read(client, 18)) == facts(records)
            for start in (0, 7, 11, 12, 13, 17):
                assert facts(await read(client, 18 - start, records[start].dlsn)) == facts(records[start:])
            for txid in (1, 8, 11, 13, 17):
                behind = [record for record in records if record.txid >= txid]
                assert facts(await read(client, len(behind), Txid(txid))) == facts(behind)


# --- Live


@both_kinds
async def test_java_tails_our_writer_across_rolls_to_the_end_of_the_stream(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = await (await open_namespace()).create(STREAM)
    async with ours(replace(SETTINGS, roll_interval_s=0, roll_bytes=3_000)) as client, stream.tail() as tail:
        written: list[tuple[DLSN, int, bytes]] = []
        async with client.open_writer(STREAM) as writer:
            for txid in range(1, 61):
                written.append((await writer.append(PAYLOADS[txid], txid=txid), txid, PAYLOADS[txid]))
                if txid % 20 == 0:
                    await tail.wait_records(txid)
            await writer.seal()
            with pytest.raises(StreamSealed):
                await writer.append(b"more")
        assert await tail.wait_error() == "EndOfStreamException"
        assert [(record.dlsn, record.txid, record.payload) for record in tail.records] == written
        assert written[-1][0].lssn > 2
    assert await stream.has_end()
    with pytest.raises(JavaError, match="EndOfStreamException"):
        async with stream.writer() as java_writer:
            await java_writer.write(PAYLOADS, 1, first_txid=100)


@both_kinds
async def test_we_tail_javas_writer_across_rolls_to_the_end_of_the_stream(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = await (await open_namespace(**PROMPT)).create(STREAM)
    async with ours() as client:
        seen: list[LogRecord] = []

        async def follow() -> None:
            async with client.open_reader(STREAM) as reader:
                async for batch in reader.batches():
                    seen.extend(batch)

        following = asyncio.create_task(follow())
        async with stream.writer() as writer:
            for first in (1, 21, 41):
                await writer.write(PAYLOADS, 20, first_txid=first)
                await eventually(functools.partial(_reached, seen, first + 19), what="the tail has come along")
                await writer.roll(first + 19)
            await writer.end_stream()
        async with asyncio.timeout(20):
            await following
        assert facts(seen) == facts(await stream.read_all())
        assert [record.txid for record in seen] == [*range(1, 61)]
        with pytest.raises(StreamSealed):
            async with client.open_writer(STREAM):
                pass


async def _reached(seen: list[LogRecord], count: int) -> bool:
    return len(seen) >= count


# --- One goes on where the other stopped


@both_kinds
async def test_writers_of_both_kinds_take_turns(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    """Each finds the other's txids, and the chain stays one: consecutive segments, continuous sequence ids."""
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with ours() as client:
        for first in range(1, 60, 20):
            async with client.open_writer(STREAM) as writer:
                assert writer.last_txid == first - 1
                with pytest.raises(TxidOutOfOrder):
                    await writer.append(b"", txid=first - 2)
                await writer.append_many([PAYLOADS[first + each] for each in range(10)], txids=range(first, first + 10))
            async with stream.writer() as java_writer:
                assert await java_writer.last_txid() == first + 9
                await java_writer.write(PAYLOADS, 10, first_txid=first + 10)
        records = await stream.read_all()
        assert [(record.txid, record.payload) for record in records] == [
            (txid, PAYLOADS[txid]) for txid in range(1, 61)
        ]
        assert [record.sequence_id for record in records] == [*range(60)]
        assert facts(await read(client, 60)) == facts(records)
        assert {record.dlsn.lssn for record in records} == {1, 2, 3, 4, 5, 6}


@both_kinds
async def test_a_java_writer_recovers_what_our_killed_writer_left(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours, tmp_path: Path
) -> None:
    """Kill -9 in full flight. The allocation names no ledger of a segment, so that Java deletes nothing of ours."""
    async with ours() as client:
        await client.create_stream(WRITTEN_UNTIL_KILLED)
        diary = tmp_path / "diary"
        command = [sys.executable, "-m", "tests.support.programs.failover_client"]
        words = ["--uri", namespace.uri, "--author", "w1", "--diary", str(diary)]
        process = subprocess.Popen([*command, *words], cwd=ROOT)  # noqa: ASYNC220 - it returns at once
        try:
            await eventually(lambda: _lines(diary, "acknowledged", 200), within_s=60, what="it writes")
        finally:
            process.kill()
            process.wait(10)
        acknowledged = [line for line in _diary(diary) if line["event"] == "acknowledged"]
        paths = client.context.paths(WRITTEN_UNTIL_KILLED)
        allocated = (await client.context.store.get(paths.allocation)).data  # Not empty if it was about to roll.
        stream = (await open_namespace(**PROMPT)).stream(WRITTEN_UNTIL_KILLED)
        async with stream.writer() as writer:
            last = await writer.last_txid()
            await writer.write(PAYLOADS, 3, first_txid=last)
        assert allocated.decode() not in {str(segment.ledger_id) for segment in await stream.segments()}
        at = {record.dlsn: record.payload for record in await stream.read_all()}
        for line in acknowledged:
            for number, place in zip(range(line["first"], line["end"]), line["dlsns"], strict=True):
                assert at[DLSN(*place)].startswith(b"w1/%d:" % number)
        assert not any(segment.in_progress for segment in await stream.segments())


def _diary(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


async def _lines(path: Path, event: str, count: int) -> bool:
    return len([line for line in _diary(path) if line["event"] == event]) >= count


@both_kinds
async def test_our_writer_recovers_what_a_killed_java_writer_left(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"periodicFlushFrequencyMilliSeconds": 20, "maxLogSegmentBytes": 100_000}
    peer = JavaPeer(tmp_path / "stderr.log")
    try:
        async with asyncio.timeout(60):
            mortal = await mortal_namespace(
                peer, namespace, zkSessionTimeoutSeconds=SESSION_S, logSegmentRollingMinutes=0, **settings
            )
            java_writer = await mortal.stream(STREAM).open_writer()
            await java_writer.start_writing(PAYLOADS, first_txid=1, inflight_max=100)
            await await_records(java_writer, 2_000)
            acknowledged = (await java_writer.progress()).acknowledged
    finally:
        peer.kill()
    async with ours() as client, client.open_writer(STREAM) as writer:
        last = writer.last_txid
        assert last >= acknowledged
        await writer.append(PAYLOADS[last + 1], txid=last + 1)
        await writer.flush()
        records = await read(client, last + 1)
        assert [(record.txid, record.payload) for record in records] == numbered(1, last + 2)
    stream = (await open_namespace()).stream(STREAM)
    assert facts(await stream.read_all()) == facts(records)


# --- Owning


@both_kinds
async def test_writers_of_both_kinds_wait_in_one_queue(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = (await open_namespace(**PROMPT, lockTimeoutSeconds=0, client_id="java")).stream(STREAM)
    async with ours(replace(SETTINGS, lock_timeout_s=0), client_id="python") as client:
        async with client.open_writer(STREAM) as writer:
            await writer.append(b"a", txid=1)
            with pytest.raises(JavaError, match=r"OwnershipAcquireFailedException.*python"):
                await stream.open_writer()
        async with stream.writer() as java_writer:
            await java_writer.write(PAYLOADS, 1, first_txid=2)
            with pytest.raises(StreamOwned, match="java") as refused:
                async with client.open_writer(STREAM):
                    pass
            assert "java" in str(refused.value.facts["owner"])
        async with client.open_writer(STREAM) as writer:
            await writer.append(b"b", txid=3)


@both_kinds
async def test_whoever_opens_last_fences_the_other_without_any_lock(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = (await open_namespace(**PROMPT, writeLockEnabled=False)).stream(STREAM)
    async with ours(replace(SETTINGS, write_lock=False)) as client:
        async with client.open_writer(STREAM) as writer:
            await writer.append(b"ours", txid=1)
            java_writer = await stream.open_writer()
            await java_writer.write_records([(2, b"java's")])
            with pytest.raises(WriterFenced):
                await writer.append(b"late", txid=3)
        async with client.open_writer(STREAM) as writer:
            await writer.append(b"ours again", txid=3)
            with pytest.raises(JavaError):
                await java_writer.write_records([(4, b"late")])
            await java_writer.abort()
    assert [record.payload for record in await stream.read_all()] == [b"ours", b"java's", b"ours again"]


@both_kinds
async def test_a_ledger_that_was_left_in_the_allocation_is_deleted_by_the_next_writer_and_no_other(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    """The trap of the format: Java deletes whatever ledger the allocation names."""
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with ours() as client:
        async with client.open_writer(STREAM) as writer:
            await writer.append(PAYLOADS[1], txid=1)
        nodes = StreamNodes(client.context.store, client.context.paths(STREAM))
        segments = StreamSegments(client.context, await nodes.guarded(client.context.runtime.clock, timeout_s=10.0))
        await segments.recover(b"")
        prepared = await segments.prepare(SETTINGS)
        await prepared.resources.aclose()
        assert (await client.context.store.get(nodes.paths.allocation)).data == b"%d" % prepared.ledger.id
        async with stream.writer() as java_writer:
            await java_writer.write(PAYLOADS, 1, first_txid=2)
        with pytest.raises(NoSuchLedger):
            await client.context.ledgers.recover(prepared.ledger.id)
        assert [record.payload for record in await stream.read_all()] == [PAYLOADS[1], PAYLOADS[2]]


# --- Truncation, names, positions


@both_kinds
async def test_what_one_truncates_is_hidden_from_the_other(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with ours() as client:
        places: list[DLSN] = []
        for first in (1, 11, 21, 31):
            async with client.open_writer(STREAM) as writer:
                # An entry for each: Java begins with the whole entry that the first visible record is in.
                places += [await writer.append(PAYLOADS[txid], txid=txid) for txid in range(first, first + 10)]
        async with client.open_writer(STREAM) as writer:
            assert await writer.truncate(places[14]) == 2
        assert [record.txid for record in await stream.read_all()] == [*range(15, 41)]
        states = ["TRUNCATED", "PARTIALLY_TRUNCATED", "ACTIVE", "ACTIVE"]
        assert [segment.truncation for segment in await stream.segments()] == states
        async with stream.writer() as java_writer:
            assert await java_writer.truncate(places[25])
        assert [record.txid for record in await read(client, 15)] == [*range(26, 41)]
        with pytest.raises(PositionTruncated):
            await read(client, 1, places[20])
        await stream.purge(21)
        assert [record.txid for record in await read(client, 15)] == [*range(26, 41)]


@kinds("quire")
async def test_a_namespace_that_we_bound_is_javas_too(
    java: JavaPeer, unbound: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    await bind_namespace(unbound.uri, ledgers=unbound.ledgers)
    ours_bytes = await binding_bytes(java, unbound)
    assert ours_bytes == encode_binding(unbound.binding)
    other = replace(unbound, path=f"{unbound.path}-java")
    assert await bind(java, other) == ours_bytes
    opened = await open_namespace(**PROMPT)
    async with ours() as client:
        await client.create_stream("by/us")
        await opened.create("by-java")
        assert sorted(await client.list_streams()) == ["by-java", "by/us"]
        assert await opened.list() == ["by", "by-java"]
        async with client.open_writer("by-java") as writer:
            await writer.append(b"a", txid=1)
        await opened.rename("by-java", to="renamed")
        assert sorted(await client.list_streams()) == ["by/us", "renamed"]
        await client.rename_stream("renamed", "again")
        assert [record.payload for record in await opened.stream("again").read_all()] == [b"a"]
        await client.delete_stream("again")
        assert await opened.list() == ["by"]
        await opened.delete("by/us")
        assert await client.list_streams() == []


@kinds("quire")
async def test_subscribers_go_on_with_the_other_client(
    namespace: NamespaceSite, open_namespace: OpenNamespace, ours: Ours
) -> None:
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with ours() as client:
        async with client.open_writer(STREAM) as writer:
            places = await writer.append_many([PAYLOADS[each] for each in range(6)], txids=range(6))
        async with client.open_reader(STREAM, subscription="billing", exclusive=True) as reader:
            assert [record.txid for record in await reader.read_many(2)] == [0, 1]
            await reader.commit()
        assert await stream.subscriptions() == {"billing": places[1].next_slot()}
        async with stream.tail(None, locked=True, subscriber="billing") as tail:
            assert [record.txid for record in await tail.wait_records(4)] == [2, 3, 4, 5]
        await stream.subscribe("billing", places[4])
        async with client.open_reader(STREAM, subscription="billing") as reader:
            assert [record.txid for record in await reader.read_many(2)] == [4, 5]
    assert (await stream.read_all(INITIAL_DLSN))[0].txid == 0
