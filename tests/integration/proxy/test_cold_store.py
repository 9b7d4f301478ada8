"""Row 20 of the failure table: cold storage is down. On real processes, with a server that speaks S3 at the other end.

With QUIRE_TEST_LONG it is down for longer.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot
from tests.integration.proxy.authors import Author, following
from tests.support.servers.s3 import S3Server
from tests.support.servers.served_cluster import Asking, Served, ServedCluster
from tests.support.streams.served_history import History
from tests.support.waiting import at_a_random_moment, eventually

IS_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
OLD, NEW = "archived", "written-now"

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("served"), pytest.mark.timeout(900 if IS_LONG else 300)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    server = S3Server(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_without_cold_storage_the_old_waits_and_the_new_is_read(cluster: ServedCluster, s3: S3Server) -> None:
    """Row 20. Who reads what is only in cold storage is told that it is down, and may come again; a reader that waits
    has everything when it is back. Who reads what bookies have, through the same read proxy, notices nothing."""
    served = await asyncio.to_thread(Served.start, cluster, "cold", writers=1, readers=0)
    (proxy,) = cluster.launch_proxies("read", 1, "stream.call_timeout_s=1", namespace="cold")
    await asyncio.to_thread(proxy.wait_ready)
    history, way = History(), cluster.way_to(s3.port)
    old, new = Author(history, OLD), Author(history, NEW)
    async with served.connect() as client, Asking() as asking:
        async with served.connect(producer_ids=False) as plain, plain.open_writer(OLD) as writer:
            for _ in range(3):
                await old.append(writer, 50)
                await asking.release(served.writers[0], OLD)  # A segment ends.
        await archive(served, s3.root("archive", "quire").replace(f":{s3.port}", f":{way.port}"))
        await client.create_stream(NEW)
        way.cut()

        async def is_told() -> bool:
            try:
                answer = await asking.fetch(proxy, OLD, wait_s=10.0, edge=pb.EARLIEST)
            except QuireError as error:
                return asking.said(error).code == pb.COLD_UNAVAILABLE and error.retryable
            assert not answer.event.records, "it was read, from a storage that is down"
            return False

        async with following(history, client, OLD), following(history, client, NEW), client.open_writer(NEW) as writer:
            async with new.writing(writer):
                await eventually(is_told, within_s=60, what="it is said that cold storage is down")
                if IS_LONG:
                    await at_a_random_moment(10.0, 1.0)
            await has_read(history, new)
            assert not records_of(history, OLD)
            way.mend()
            await client.seal_stream(OLD)
            await client.seal_stream(NEW)
        assert len(records_of(history, OLD)) == len(old.dlsns) == 150
    for each in (OLD, NEW):
        async with served.direct() as direct, direct.open_reader(each) as reader:
            history.prove(each, [record async for record in reader])


async def archive(served: Served, root: str) -> None:
    """All of the old stream goes there, and all but its last segment is not at the bookies any more. It has no
    producers: what is known of those stays at the bookies."""
    async with served.direct() as direct:
        archived = await archive_stream(direct.context, OLD, root)
        assert sum(cold.file.rows for cold in archived) == 150
        assert await drop_hot(direct.context, OLD, DropPolicy()) == [1, 2]


def records_of(history: History, stream: str) -> list[object]:
    return [record for followed in history.followed if followed.stream == stream for record in followed.records]


async def has_read(history: History, author: Author) -> None:
    """Its reader was given all that was acknowledged."""

    async def is_so() -> bool:
        return len(records_of(history, author.written.stream)) >= len(author.dlsns)

    await eventually(is_so, within_s=30, what="the reader of the new stream has it all")
