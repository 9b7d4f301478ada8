"""What sinks wrote is an ordinary stream to Java: staged segments and small batches, record by record, place by place.

Once by a real Spark; and many forms as Spark's tasks write them: encoded from Arrow's columns, published or appended by
a commit, between records of others.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.sinks import SinkBatch
from quire.metadata import StoreSettings
from quire.spark import register
from quire.spark.sink_encoding import Rows, encoded_runs
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.nodes import StreamNodes
from quire.stream.settings import StreamSettings
from quire.stream.staging import StagedSegment, stage
from quire.stream.staging_commit import commit_staged
from quire.stream.staging_inline import open_inline_sink
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.stream_facts import as_java
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace

PAYLOADS = Payloads("written by a sink")
STREAM = "orders"
SETTINGS = StreamSettings(lock_timeout_s=20.0, entry_bytes=300)


@asynccontextmanager
async def opened(site: NamespaceSite, settings: StreamSettings) -> AsyncIterator[Namespace]:
    timeouts = StoreSettings(session_timeout_s=4.0)
    async with open_namespace(site.uri, settings=settings, store_settings=timeouts) as namespace:
        yield namespace


async def staged(namespace: Namespace, batch: SinkBatch, txids: range) -> StagedSegment:
    """As a task of Spark does it."""
    rows = Rows(pa.array([PAYLOADS[txid] for txid in txids], pa.binary()), np.array(txids, dtype=np.int64))
    async with stage(namespace.context, STREAM, namespace.settings_for(STREAM), batch) as staging:
        for run in encoded_runs(rows, position=1, entry_bytes=staging.entry_bytes):
            await staging.append_run(run.data, run.records, first_txid=run.first_txid, last_txid=run.last_txid)
    assert staging.segment is not None
    return staging.segment


async def read(namespace: Namespace, count: int) -> list[LogRecord]:
    found: list[LogRecord] = []
    async with asyncio.timeout(30), namespace.open_reader(STREAM) as reader:
        while len(found) < count:
            found += await reader.read_many(count - len(found))
    return found


@kinds("apache", "quire")
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_java_reads_what_sinks_wrote_record_by_record(
    namespace: NamespaceSite, open_namespace: OpenNamespace, compression: Literal["none", "lz4"]
) -> None:
    """Java, a batch of three segments, small batches, Java again, and another batch: one chain for both."""
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 5, first_txid=1)
    async with opened(namespace, replace(SETTINGS, compression=compression)) as client:
        context, settings = client.context, client.settings_for(STREAM)
        first = SinkBatch("etl", 0, "query")
        parts = [await staged(client, first, txids) for txids in (range(6, 20), range(20, 21), range(21, 40))]
        done = await commit_staged(context, STREAM, first, parts, settings)
        assert (done.is_new, done.first, done.last) == (True, (2, 0, 0), done.last)
        async with open_inline_sink(context, STREAM, settings) as sink:
            for number, txids in ((1, range(40, 45)), (2, range(45, 45)), (3, range(45, 60))):
                batch = SinkBatch("etl", number, "query")
                await sink.commit(batch, [PAYLOADS[txid] for txid in txids], list(txids))
        async with stream.writer() as writer:
            assert await writer.last_txid() == 59
            await writer.write(PAYLOADS, 5, first_txid=60)
        again = SinkBatch("etl", 3, "query")
        assert not (await commit_staged(context, STREAM, again, [], settings)).is_new
        last = SinkBatch("etl", 4, "query")
        await commit_staged(context, STREAM, last, [await staged(client, last, range(65, 70))], settings)

        records = await stream.read_all()
        assert [(record.txid, record.payload) for record in records] == [
            (txid, PAYLOADS[txid]) for txid in range(1, 70)
        ]
        assert [record.sequence_id for record in records] == [*range(69)]
        ours = await read(client, 69)
        assert [(record.dlsn, record.txid, record.payload, record.position) for record in ours] == [
            (record.dlsn, record.txid, record.payload, record.position) for record in records
        ]
        for start in (4, 19, 20, 38, 39, 44, 58, 64):
            assert await stream.read_all(records[start].dlsn) == records[start:]
            assert await stream.read_all(start + 1) == records[start:]
        nodes = StreamNodes(context.store, context.paths(STREAM))
        assert await stream.segments() == [as_java(stored.segment) for stored in await nodes.all_segments()]
        assert await stream.last_txid() == 69
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 1, first_txid=70)
    assert len(await stream.read_all()) == 70


@pytest.mark.xdist_group("spark")
@kinds("apache", "quire")
async def test_java_reads_what_spark_wrote_and_spark_what_java_wrote(
    namespace: NamespaceSite, open_namespace: OpenNamespace, spark: Any
) -> None:
    """Spark in two tasks, a small batch, Java, and Spark again; then both read all of it."""
    register(spark)
    jvm = spark.sparkContext._jvm

    def write(first: int, count: int, tasks: int, mode: str) -> None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)  # Each thread has its own, and looks there for formats.
        rows = spark.range(first, first + count, 1, tasks).selectExpr("CAST(id AS STRING) AS payload", "id AS txid")
        sink = rows.write.format("quire").option("uri", namespace.uri).option("stream", STREAM)
        sink.options(mode=mode, orderBy="txid").mode("append").save()

    def read_all() -> list[tuple[str, int, bytes]]:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
        frame = spark.read.format("quire").option("uri", namespace.uri).option("stream", STREAM).load()
        return [(row.dlsn, row.txid, bytes(row.payload)) for row in frame.select("dlsn", "txid", "payload").collect()]

    await asyncio.to_thread(write, 0, 3_000, 2, "staged")
    await asyncio.to_thread(write, 3_000, 10, 1, "inline")
    stream = (await open_namespace(**PROMPT)).stream(STREAM)
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 5, first_txid=3_010)
    await asyncio.to_thread(write, 3_015, 2_000, 2, "staged")
    records = await stream.read_all()
    by_java = range(3_010, 3_015)
    assert [(record.txid, record.payload) for record in records] == [
        (txid, PAYLOADS[txid] if txid in by_java else b"%d" % txid) for txid in range(5_015)
    ]
    seen = await asyncio.to_thread(read_all)
    assert seen == [(":".join(map(str, record.dlsn)), record.txid, record.payload) for record in records]
