"""A stream in a folder, archived to a folder and to S3, and read by direct and by thin clients as if nothing was."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

import quire
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.records import LogRecord
from quire.proxy.read.proxy import open_read_proxy
from quire.proxy.write.proxy import open_write_proxy
from quire.rpc.serving.grpc_server import bind_grpc
from quire.runtime import real_runtime
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.namespace import Namespace
from quire.stream.start import Time, Txid
from quire.types import Lssn
from tests.support.servers.s3 import S3Server

HOST, STREAM = "127.0.0.1", "orders"
SEGMENTS, RECORDS = 5, 300


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file:{tmp_path / 'archive'}"
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    server: S3Server = request.getfixturevalue("s3_server")
    return server.root("archive", "quire")


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[tuple[Namespace, quire.Client]]:
    """The folder as the process that holds it sees it, and the same through proxies."""
    runtime = real_runtime()
    async with AsyncExitStack() as stack:
        servers = [await bind_grpc(runtime, HOST, 0) for _ in range(2)]
        for server in servers:
            stack.push_async_callback(server.aclose)
        ports = [server.address[1] for server in servers]
        direct = await stack.enter_async_context(quire.connect(f"file:{folder}", client_id=f"1;0;{HOST}:{ports[0]}"))
        assert isinstance(direct, Namespace)
        addresses = [pb.Owner(host=HOST, port=port) for port in ports]
        writer = await stack.enter_async_context(open_write_proxy(direct, address=addresses[0]))
        reader = await stack.enter_async_context(open_read_proxy(direct, address=addresses[1]))
        await servers[0].start(writer.handlers())
        await servers[1].start(reader.handlers())
        await stack.enter_async_context(writer.join())
        await stack.enter_async_context(reader.join(shard=0))
        thin = await stack.enter_async_context(quire.connect(f"quire://{HOST}:{ports[0]}/{writer.name}"))
        yield direct, thin


async def fill(client: Namespace) -> None:
    """A segment for each writer: records, record sets, and entries of several sizes."""
    for segment in range(SEGMENTS):
        async with client.open_writer(STREAM, compression="lz4" if segment % 2 else "none") as writer:
            for first in range(0, RECORDS, 100):
                await writer.append_many([b"%d/%d" % (segment, n) * 20 for n in range(first, first + 80)])
                await writer.append_set([b"%d/set/%d" % (segment, n) for n in range(20)])


async def read(client: quire.Client, count: int, **options: Any) -> list[LogRecord]:
    found: list[LogRecord] = []
    async with client.open_reader(STREAM, **options) as reader:
        while len(found) < count:
            records = await reader.read_many(count - len(found), timeout_s=60)
            assert records, f"{count - len(found)} records do not come"
            found += records
    return found


async def restore(client: Namespace, first: Lssn) -> list[Lssn]:
    return await restore_segments(client.context, STREAM, first=first, settings=client.settings_for(STREAM))


async def test_clients_read_across_hot_and_cold(tmp_path: Path, root: str) -> None:
    async with clients(tmp_path / "log") as (direct, thin):
        await fill(direct)
        total = SEGMENTS * RECORDS
        wanted = await read(direct, total)
        assert await read(thin, total) == wanted
        async with direct.open_reader(STREAM) as in_the_middle:
            got = await in_the_middle.read_many(7)
            archived = await archive_stream(direct.context, STREAM, root)
            assert [cold.file.rows for cold in archived] == [RECORDS] * SEGMENTS
            assert await drop_hot(direct.context, STREAM, DropPolicy()) == [1, 2, 3, 4]
            while len(got) < total:
                got += await in_the_middle.read_many(1000, timeout_s=60)
            assert got == wanted
        info = await direct.stream_info(STREAM)
        assert [segment.is_hot for segment in info.segments] == [False] * 4 + [True]
        at = [0, 1, 79, 85, RECORDS - 1, RECORDS, 2 * RECORDS + 150, total - 1]
        starts = [(wanted[place].dlsn, wanted[place:]) for place in at]
        for client in (direct, thin):
            assert await read(client, total) == wanted
            for start, expected in starts:
                assert await read(client, len(expected), start=start) == expected
            for place in at:
                found = await read(client, 1, start=Txid(wanted[place].txid))
                assert found == [next(record for record in wanted if record.txid >= wanted[place].txid)]
            found = await read(client, 1, start=Time(datetime.fromtimestamp(wanted[0].txid / 1000, UTC)))
            assert found == wanted[:1]
        assert await restore(direct, archived[2].lssn) == [4, 3]
        assert await read(direct, total) == wanted
        assert await read(thin, total) == wanted
    async with quire.connect(f"file:{tmp_path / 'log'}") as again:
        assert await read(again, total) == wanted
        await again.delete_stream(STREAM)


async def test_any_program_reads_the_files(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    async with quire.connect(f"file:{tmp_path / 'log'}") as client:
        assert isinstance(client, Namespace)
        await fill(client)
        wanted = await read(client, SEGMENTS * RECORDS)
        await archive_stream(client.context, STREAM, f"file:{archive}")
    with duckdb.connect() as database:
        rows = database.sql(
            f"select segment, entry, slot, txid, payload from '{archive}/**/*.parquet' order by 1, 2, 3"
        ).fetchall()
    assert rows == [(*record.dlsn, record.txid, record.payload) for record in wanted]
