"""The gateway where it is meant to be: over the client of proxies, with real ones at the other end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import quire
from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.catalog import Catalog
from quire.proxy.client.client import open_proxy_client
from quire.proxy.gateway import ServedGateway, serve_gateway
from quire.proxy.read.proxy import open_read_proxy
from quire.proxy.write.answers import lock_client_id
from quire.proxy.write.proxy import open_write_proxy
from quire.rpc.serving.grpc_server import bind_grpc
from quire.rpc.serving.transport import Caller
from quire.runtime import real_runtime
from quire.stream.namespace import Namespace
from tests.integration.proxy.test_gateway import CurlTail, curl


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[ServedGateway, str]]:
    """A gateway, and the address of the one write proxy. All of it is in this process, over a log in a folder."""
    async with AsyncExitStack() as stack:
        runtime, owners = real_runtime(), list[pb.Owner]()
        servers = [await bind_grpc(runtime, "127.0.0.1", 0) for _ in range(2)]
        for server in servers:
            stack.push_async_callback(server.aclose)
            owners.append(pb.Owner(host=server.address[0], port=server.address[1]))
        log = await stack.enter_async_context(
            quire.connect(f"file:{folder / 'log'}", client_id=lock_client_id(0, owners[0]))
        )
        assert isinstance(log, Namespace)
        writing = await stack.enter_async_context(open_write_proxy(log, address=owners[0]))
        reading = await stack.enter_async_context(open_read_proxy(log, address=owners[1]))

        async def let_go(stream: str) -> None:
            await writing.release(pb.ReleaseRequest(stream=stream), Caller("catalog"))

        catalog = Catalog(log, before_delete=let_go)
        await servers[0].start({**catalog.handlers(), **writing.handlers()})
        await servers[1].start(reading.handlers())
        await stack.enter_async_context(writing.join())
        await stack.enter_async_context(reading.join(shard=0))
        address = f"{owners[0].host}:{owners[0].port}"
        namespace = log.context.path.rpartition("/")[2]
        client = await stack.enter_async_context(open_proxy_client(f"quire://{address}/{namespace}"))
        yield await stack.enter_async_context(serve_gateway({"default": client})), address


async def test_curl_writes_and_reads_through_proxies(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        assert (await curl(served, "/eu%2Forders", "--request", "PUT")).status == 201
        for payload in ("a", "b", "c"):
            assert (await curl(served, "/eu%2Forders/records", "--data-binary", payload)).status == 200
        read = (await curl(served, "/eu%2Forders/records?as=text&limit=2")).json
        assert [record["text"] for record in read["records"]] == ["a", "b"]
        last = f"Last-Event-ID: {read['records'][0]['dlsn']}"
        tail = await CurlTail.begin(served, "/eu%2Forders/tail?as=text", "--header", last)
        assert [(await tail.event())["data"] for _ in range(2)] == ["b", "c"]
        body = f'{{"position": "{read["next"]}"}}'
        stored = await curl(served, "/eu%2Forders/subscriptions/billing", "--request", "PUT", "--data", body)
        assert stored.json["position"] == read["next"]
        assert (await curl(served, "/eu%2Forders/subscriptions/billing")).json["position"] == read["next"]
        assert (await curl(served, "/eu%2Forders:seal", "--request", "POST")).status == 200
        assert (await tail.event())["event"] == "end"
        assert await tail.ended() == 0
        assert (await curl(served, "/eu%2Forders/records", "--data-binary", "late")).status == 410
        assert (await curl(served, "/eu%2Forders", "--request", "DELETE")).status == 204
        assert (await curl(served, "")).json["streams"] == []


async def test_an_idempotency_key_keeps_records_from_being_there_twice(tmp_path: Path) -> None:
    """Also where a part of them is new; and where some are missing, all are refused."""
    async with serving(tmp_path) as (served, _):
        await curl(served, "/orders", "--request", "PUT")

        async def send(key: str, *texts: str) -> tuple[int, dict[str, object]]:
            records = ", ".join(f'{{"text": "{text}"}}' for text in texts)
            options = ("--header", f"Idempotency-Key: {key}", "--json", f'{{"records": [{records}]}}')
            answer = await curl(served, "/orders/records", *options)
            return answer.status, answer.json

        status, first = await send("billing/1", "a", "b")
        assert (status, first["duplicate"]) == (200, False)
        status, again = await send("billing/1", "a", "b")
        assert (status, again["duplicate"], again["count"]) == (200, True, 2)
        assert again["dlsn"] in (first["dlsn"], None)
        status, partly = await send("billing/2", "b", "c")
        assert (status, partly["duplicate"]) == (200, False)
        status, gap = await send("billing/9", "x")
        assert (status, gap["code"], gap["applied"]) == (409, "TRANSACTION_OUT_OF_ORDER", "NO")
        status, _ = await send("shipping/1", "d")
        assert status == 200
        read = (await curl(served, "/orders/records?as=text&wait_ms=0")).json
        assert [record["text"] for record in read["records"]][:3] == ["a", "b", "c"]


async def test_the_owner_of_a_stream_is_the_proxy(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, address):
        await curl(served, "/orders", "--request", "PUT")
        assert (await curl(served, "/orders:heartbeat", "--request", "POST")).json["owner"] == address
        assert (await curl(served, "/orders/owner")).json["owner"] == address
        assert (await curl(served, "/orders:release", "--request", "POST")).status == 200
        assert (await curl(served, "/orders/owner")).json["owner"] is None
        missing = await curl(served, "/missing/records")
        assert (missing.status, missing.json["code"]) == (404, "LOG_NOT_FOUND")
