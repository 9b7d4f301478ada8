"""Batches of more tasks than a transaction of the metadata store has room for: in the stream once and as a whole."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from quire.codec.stream_metadata.sinks import SinkBatch
from quire.spark import register
from quire.spark.client_cache import borrowed
from quire.stream.binding import create_namespace
from quire.stream.staging import StagedSegment, some_at_once, stage
from quire.stream.staging_commit import commit_staged
from tests.integration.stream.namespaces import place_for
from tests.support.servers.killable import BookieProcess
from tests.support.spark.logs import FolderLog
from tests.support.waiting import eventually

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

BOOKIES = 3


@pytest.fixture(params=["zk", "etcd"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FolderLog]:
    """A namespace whose metadata is in ZooKeeper or etcd, with bookies that are processes."""
    server = request.getfixturevalue({"zk": "zookeeper", "etcd": "etcd"}[request.param])
    place = place_for(request.param, tmp_path, server)
    asyncio.run(create_namespace(place.uri(), ledgers_root=place.ledgers_root))
    scheme = {"zk": "zk+hierarchical", "etcd": "etcd"}[request.param]
    metadata = f"{scheme}://127.0.0.1:{server.port}{place.ledgers_root}"
    with ExitStack() as stack:
        for number in range(BOOKIES):
            bookie = BookieProcess(f"bookie-{number}", tmp_path, metadata, session_s=10.0)
            stack.callback(bookie.kill)
            bookie.start()
        access = stack.enter_context(borrowed(place.uri()))

        async def all_serve() -> bool:
            return len(access.namespace.context.ledgers.pool.writable) == BOOKIES

        access.run(eventually(all_serve, within_s=60, what="all bookies serve"))
        yield FolderLog(place.uri(), access)


def test_five_hundred_tasks_are_one_batch(spark: Any, log: FolderLog) -> None:
    """A run in which a task fails puts nothing into the stream, the next one all, and one after that nothing more."""
    register(spark)
    frame = spark.range(5_000).repartition(500)

    def write(payload: str) -> None:
        writing = frame.selectExpr(f"{payload} AS payload").write.format("quire").mode("append")
        writing.option("uri", log.uri).option("stream", "wide").option("mode", "staged").option("txnId", "all").save()

    with pytest.raises(Exception, match="the last row"):
        write("IF(id = 4999, raise_error('the last row'), CAST(id AS STRING))")
    assert log.payloads("wide") == []
    write("CAST(id AS STRING)")
    segments = log.info("wide").segments
    assert len(log.stamps("wide")) == 1, "the nodes of all segments were made in one transaction"
    assert len(segments) <= 32 or len(segments) == 500, "few, or as they were where they fit"
    write("CAST(id AS STRING)")
    assert log.info("wide").segments == segments
    assert sorted(log.payloads("wide"), key=int) == [str(number) for number in range(5_000)]
    assert log.nothing_is_left("wide")


def test_five_thousand_ledgers_are_one_batch(log: FolderLog) -> None:
    context, batch = log.access.namespace.context, SinkBatch("sink", 0, "query")
    settings = log.access.namespace.settings_for("wider")

    async def staged(part: int) -> StagedSegment:
        async with stage(context, "wider", settings, batch) as staging:
            await staging.append_many([b"%d" % part], [1])
        assert staging.segment is not None
        return staging.segment

    async def write() -> None:
        await log.access.namespace.create_stream("wider")
        parts = await some_at_once(staged, range(5_000))
        assert (await commit_staged(context, "wider", batch, parts, settings)).is_new

    log.access.run(write())
    assert log.payloads("wider") == [str(number) for number in range(5_000)]
    assert log.nothing_is_left("wider")
