"""The thin client over real sockets: a program changes its URI, and everything else stays, also for blocking code."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import quire
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream, PositionInFuture, ProxyUnreachable
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.read.proxy import open_read_proxy
from quire.proxy.write.proxy import open_write_proxy
from quire.rpc.serving.grpc_server import bind_grpc
from quire.runtime import real_runtime
from quire.stream.namespace import Namespace
from quire.types import DLSN, EntryId, Lssn, SlotId

HOST = "127.0.0.1"


class Served:
    """A folder that is served by one proxy of each kind, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ready = folder, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxies")
        self.uri = ""

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runtime = real_runtime()
        async with AsyncExitStack() as stack:
            servers = [await bind_grpc(runtime, HOST, 0) for _ in range(2)]
            for server in servers:
                stack.push_async_callback(server.aclose)
            ports = [server.address[1] for server in servers]
            namespace = await stack.enter_async_context(
                quire.connect(f"file:{self._folder}", client_id=f"1;0;{HOST}:{ports[0]}")
            )
            assert isinstance(namespace, Namespace)
            addresses = [pb.Owner(host=HOST, port=port) for port in ports]
            writer = await stack.enter_async_context(open_write_proxy(namespace, address=addresses[0]))
            reader = await stack.enter_async_context(open_read_proxy(namespace, address=addresses[1]))
            await servers[0].start(writer.handlers())
            await servers[1].start(reader.handlers())
            await stack.enter_async_context(writer.join())
            await stack.enter_async_context(reader.join(shard=0))
            self.uri = f"quire://{HOST}:{ports[0]}/{writer.name}"
            self._ready.set()
            await self._stop.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    proxies = Served(tmp_path / "data")
    proxies.start()
    yield proxies
    proxies.stop()


def test_blocking_code_writes_and_reads_through_proxies(served: Served) -> None:
    with quire.sync.connect(served.uri) as client:
        client.create_stream("orders")
        assert client.list_streams() == ["orders"]
        with client.open_writer("orders") as writer:
            first = writer.append(b"paid")
            rest = writer.append_many([b"%d" % number for number in range(1000)])
            assert [first, *rest] == sorted([first, *rest])
            assert writer.statistics().records == 1001
        with client.open_reader("orders", subscription="us") as reader:
            found = [next(reader).payload for _ in range(1001)]
            assert found == [b"paid", *(b"%d" % number for number in range(1000))]
            assert reader.commit() == reader.position
        assert client.subscriptions("orders")["us"] is not None
        client.seal_stream("orders")
        with client.open_reader("orders", start=rest[-2]) as reader:
            assert [record.payload for record in reader] == [b"998", b"999"]
        with pytest.raises(NoSuchStream):
            client.stream_info("nothing")
        assert str(client.uri) == served.uri


def test_blocking_code_reads_to_the_end_as_of_now_through_proxies(served: Served) -> None:
    client = quire.sync.connect(served.uri)
    writer = client.open_writer("orders")
    writer.append_many([b"1", b"2"])
    reader = client.open_reader("orders")
    to_end = reader.read_to_end()
    assert next(to_end).payload == b"1"
    writer.append(b"3")
    assert [record.payload for record in to_end] == [b"2"], "what comes later is not waited for"
    assert [record.payload for record in reader.read_to_end()] == [b"3"]
    assert list(reader.read_to_end()) == []
    client.close()


async def test_async_code_reads_to_the_end_as_of_now_through_proxies(served: Served) -> None:
    client = await quire.connect(served.uri)
    writer = await client.open_writer("orders")
    await writer.append_many([b"1", b"2"])
    reader = await client.open_reader("orders")
    assert [record.payload async for record in reader.read_to_end()] == [b"1", b"2"]
    await writer.append(b"3")
    assert [record.payload async for record in reader.read_to_end()] == [b"3"]
    assert [record async for record in reader.read_to_end()] == []
    await writer.aclose()
    await client.close()


async def test_many_tasks_write_through_proxies_while_others_follow(served: Served) -> None:
    async with quire.connect(served.uri, proxy_settings=ProxyClientSettings(batch_bytes=4096)) as client:
        async with client.open_writer("s") as writer, client.open_writer("s") as other:

            async def write(number: int) -> None:
                for each in range(50):
                    await (writer if each % 2 else other).append(b"%02d %02d" % (number, each))

            async def follow() -> list[bytes]:
                async with client.open_reader("s") as reader:
                    found: list[bytes] = []
                    while len(found) < 1000:
                        found += [record.payload for record in await reader.read_many(1000)]
                    return found

            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                following = [group.create_task(follow()) for _ in range(2)]
                for number in range(20):
                    group.create_task(write(number))
            found, again = (task.result() for task in following)
        assert found == again
        assert len(set(found)) == 1000


@pytest.mark.parametrize("way", ["direct", "proxies"])
async def test_a_stream_that_was_made_again_honours_no_position_of_the_old_one(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = f"file:{tmp_path / 'own'}" if way == "direct" else request.getfixturevalue("served").uri
    async with quire.connect(uri) as client:

        async def fill(*payloads: bytes) -> None:
            async with client.open_writer("s") as writer:
                await writer.append_many(payloads)

        await fill(b"old 1", b"old 2", b"old 3")
        await fill(b"old 4")
        async with client.open_reader("s", subscription="us") as late:
            assert [(await anext(late)).payload for _ in range(3)] == [b"old 1", b"old 2", b"old 3"]
            await late.commit()
            assert (await anext(late)).payload == b"old 4"
            await client.delete_stream("s")
            await fill(b"new 1", b"new 2", b"new 3", b"new 4")
            for may_go_back in (False, True):
                with pytest.raises(NoSuchStream):
                    await late.commit(may_go_back=may_go_back)
            with pytest.raises(NoSuchStream):
                await anext(late.read_to_end(), None)
            with pytest.raises(NoSuchStream):
                async with asyncio.timeout(30):
                    await anext(late)
        assert await client.subscriptions("s") == {}
        async with client.open_reader("s", subscription="us") as reader:
            assert (await anext(reader)).payload == b"new 1", "it has no position in this one"
            await reader.commit()
        # A place that a program stored by itself does not say of which stream: it is refused if nothing can be there.
        with pytest.raises(PositionInFuture):
            await client.open_reader("s", start=DLSN(Lssn(99), EntryId(0), SlotId(0)))


async def test_where_nobody_listens_is_told_soon() -> None:
    with pytest.raises(ProxyUnreachable, match=r"127\.0\.0\.1:1"):
        async with quire.connect("quire://127.0.0.1:1/ns", proxy_settings=ProxyClientSettings(connect_timeout_s=0.5)):
            raise AssertionError
