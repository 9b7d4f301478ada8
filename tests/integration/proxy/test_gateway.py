"""The gateway over real sockets and a log in a folder: curl, slow clients, wrong ones, and stopping."""

import asyncio
import http.client
import json
import socket
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import quire
from quire.client import Client
from quire.proxy.gateway import GatewaySettings, ServedGateway, serve_gateway
from quire.proxy.gateway.limits import RECORD_BYTES_MAX
from quire.types import DLSN
from tests.integration.conftest import Run
from tests.support.waiting import eventually


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[tuple[ServedGateway, Client]]:
    async with (
        quire.connect(f"file:{folder / 'log'}") as client,
        serve_gateway({"default": client}, GatewaySettings(**settings)) as served,
    ):
        yield served, client


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def curl(served: ServedGateway, path: str, *options: str, stdin: bytes = b"") -> Answer:
    """One request by the real curl."""
    program = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}", *options),
        f"{served.url}/v1/default/streams{path}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await program.communicate(stdin)
    body, _, status = output.rpartition(b"\n")
    return Answer(int(status), body)


class CurlTail:
    """A curl that follows a stream."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.last_id = ""

    @classmethod
    async def begin(cls, served: ServedGateway, path: str, *options: str) -> "CurlTail":
        url = f"{served.url}/v1/default/streams{path}"
        return cls(
            await asyncio.create_subprocess_exec(
                "curl", "--silent", "--no-buffer", *options, url, stdout=asyncio.subprocess.PIPE
            )
        )

    async def event(self) -> dict[str, str]:
        """The next one, or nothing at the end."""
        assert self._process.stdout is not None
        fields = dict[str, str]()
        async with asyncio.timeout(20):
            while line := await self._process.stdout.readline():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if line == b"\n" and "data" in fields:
                    self.last_id = fields.get("id", self.last_id)
                    return fields
                if name:
                    fields[name] = value
        return {}

    async def stop(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(20):
            return await self._process.wait()


def test_curl_creates_writes_reads_tails_and_deletes(tmp_path: Path, run: Run) -> None:
    """Goal: everything that a person does with a stream works with curl, on both event loops.

    Method: the name has a slash and a letter outside of ASCII; a tail is killed and resumed by its last event's id.
    """

    async def main() -> None:
        async with serving(tmp_path) as (served, _):
            path = "/eu%2Fst%C3%B6rungen"
            assert (await curl(served, path, "--request", "PUT")).status == 201
            assert (await curl(served, "")).json["streams"] == ["eu/störungen"]
            tail = await CurlTail.begin(served, f"{path}/tail?from=earliest")
            first = await curl(served, f"{path}/records", "--data-binary", "paid")
            assert (first.status, first.json["count"]) == (200, 1)
            event = await tail.event()
            assert (event["id"], event["data"]) == (first.json["dlsn"], "cGFpZA==")
            await tail.stop()

            body = '{"records": [{"text": "shipped"}, {"b64": "AP8="}]}'
            sent = await curl(served, f"{path}/records", "--json", body)
            lines = await curl(
                *(served, f"{path}/records", "--header", "Content-Type: application/x-ndjson", "--data-binary", "@-"),
                stdin=b'{"a": 1}\n{"b": 2}\n',
            )
            assert (sent.json["count"], lines.json["count"]) == (2, 2)

            resumed = await CurlTail.begin(served, f"{path}/tail", "--header", f"Last-Event-ID: {tail.last_id}")
            events = [await resumed.event() for _ in range(4)]
            payloads = [b64decode(event["data"]) for event in events]
            assert payloads == [b"shipped", b"\x00\xff", b'{"a": 1}', b'{"b": 2}']
            assert events[0]["id"] == sent.json["dlsn"]
            assert events[-1]["id"] == lines.json["last_dlsn"]

            read = (await curl(served, f"{path}/records?as=text&limit=2")).json
            assert [record["text"] for record in read["records"]] == ["paid", "shipped"]
            rest = (await curl(served, f"{path}/records?from={read['next']}")).json
            assert len(rest["records"]) == 3

            assert (await curl(served, f"{path}:seal", "--request", "POST")).status == 200
            assert (await resumed.event())["event"] == "end"
            assert await resumed.ended() == 0
            assert (await curl(served, f"{path}/records", "--data-binary", "late")).status == 410
            assert (await curl(served, path, "--request", "DELETE")).status == 204
            assert (await curl(served, path)).json["code"] == "LOG_NOT_FOUND"

    run(main())


async def test_a_page_of_another_site_changes_nothing_and_reads_nothing(tmp_path: Path) -> None:
    """Goal: what a browser sends for a stranger's page is refused, and an error of the described form says why.

    Method: what such a page can send without being asked back ("simple" requests), and with DNS rebinding anything;
    then the same as the gateway's own page, and as curl.
    """
    sent = {"paid": ("--data-binary", "paid"), "form": ("--data", "a=1"), "none": ("--request", "POST")}
    async with serving(tmp_path) as (served, client):
        async with client.open_writer("orders") as writer:
            await writer.append(b"a")
        for strange in (
            "Host: evil.example",
            f"Host: evil.example:{served.address[1]}",
            "Origin: https://evil.example",
        ):
            header = ("--header", strange)
            for path in ("/orders/records", "/orders:release", "/orders:seal", "/orders:truncate"):
                for options in sent.values():
                    answer = await curl(served, path, *header, *options)
                    assert answer.status == 403
                    assert answer.json["applied"] == "NO"
                    assert answer.json["code"] == ("ORIGIN_NOT_ALLOWED" if "Origin" in strange else "HOST_NOT_ALLOWED")
            for method in ("GET", "PUT", "DELETE"):
                assert (await curl(served, "/orders", *header, "--request", method)).status == 403
        assert served.statistics()["answers"] == {"403": 45}
        own = ("--header", f"Origin: {served.url}")
        assert (await curl(served, "/orders/records", *own, "--data-binary", "b")).status == 200
        assert len((await curl(served, "/orders/records")).json["records"]) == 2


async def test_a_stream_that_another_client_writes_is_not_taken_from_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, client):
        async with client.open_writer("orders") as writer:
            await writer.append(b"a")
            answer = await curl(served, "/orders/records", "--data-binary", "b")
            assert (answer.status, answer.json["code"]) == (409, "LOCK_HELD")
            owner = (await curl(served, "/orders/owner")).json["owner"]
            assert answer.json["owner"] == owner
            assert owner
        assert (await curl(served, "/orders/records", "--data-binary", "b")).status == 200


async def test_the_largest_record_passes_and_a_larger_one_does_not(tmp_path: Path) -> None:
    """Also with `Expect: 100-continue`, which curl sends for bodies of this size: a refusal comes before the body."""
    async with serving(tmp_path) as (served, _):
        options = ("--header", "Expect: 100-continue", "--data-binary", "@-")
        assert (await curl(served, "/orders/records", *options, stdin=b"x" * RECORD_BYTES_MAX)).status == 200
        answer = await curl(served, "/orders/records", *options, stdin=b"x" * (RECORD_BYTES_MAX + 1))
        assert (answer.status, answer.json["code"]) == (413, "TOO_LARGE_RECORD")
        chunked = ("--header", "Transfer-Encoding: chunked", *options)
        assert (await curl(served, "/orders/records", *chunked, stdin=b"x" * (RECORD_BYTES_MAX + 1))).status == 413


async def test_positions_that_were_stored_are_there_for_other_clients(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, client):
        for payload in ("a", "b", "c"):
            await curl(served, "/orders/records", "--data-binary", payload)
        read = (await curl(served, "/orders/records?limit=1")).json
        body = json.dumps({"position": read["next"]})
        stored = await curl(served, "/orders/subscriptions/billing", "--request", "PUT", "--data", body)
        assert stored.json["position"] == read["next"]
        assert (await client.subscriptions("orders"))["billing"] == DLSN.parse(read["next"])
        async with client.open_reader("orders", subscription="billing") as reader:
            assert [record.payload async for record in _some(reader, 2)] == [b"b", b"c"]
        future = await curl(
            served, "/orders/subscriptions/billing", "--request", "PUT", "--data", '{"position": "9:0:0"}'
        )
        assert (future.status, future.json["code"]) == (416, "POSITION_IN_FUTURE")


async def _some(reader: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(reader)


def test_a_client_that_takes_nothing_is_cut_off_and_costs_little(tmp_path: Path, run: Run) -> None:
    """Goal: what waits for a slow client is bounded; after a while it is cut; others notice nothing of it.

    Method: two tails of a stream of 16 MiB. One does not read at all. The other has all records meanwhile.
    """

    async def main() -> None:
        async with serving(tmp_path, stall_timeout_s=0.5) as (served, client):
            count, payload = 64, b"x" * (256 << 10)
            async with client.open_writer("orders") as writer:
                for _ in range(count):
                    await writer.append(payload)
            stuck = socket.create_connection(served.address)
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.sendall(b"GET /v1/default/streams/orders/tail?from=earliest HTTP/1.1\r\nhost: localhost\r\n\r\n")
            reader, quick = await asyncio.open_connection(*served.address, limit=1 << 20)
            quick.write(b"GET /v1/default/streams/orders/tail?from=earliest&as=text HTTP/1.0\r\n\r\n")
            for _ in range(count):
                async with asyncio.timeout(20):
                    await reader.readuntil(b"data: ")

            async def cut() -> bool:
                return served.watch.cut == 1 and served.statistics()["under_way"]["tails"] == 1

            await eventually(cut, what="the client that reads nothing is cut off")
            stuck.close()
            quick.close()

    run(main())


@pytest.mark.parametrize(
    "hello",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
        b"GET /\r\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_so_and_counted(tmp_path: Path, hello: bytes) -> None:
    async with serving(tmp_path) as (served, _):
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(hello)
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 4")  # The preface of HTTP/2 looks like a request, and then does not.
        assert b'"INVALID_REQUEST"' in answer
        assert served.statistics()["connections"]["malformed"] == 1
        assert (await curl(served, "")).status == 200


async def test_connections_that_say_nothing_are_cut_and_too_many_are_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, stall_timeout_s=0.3, connections_max=4) as (served, _):
        silent = [await asyncio.open_connection(*served.address) for _ in range(5)]
        silent[1][1].write(b"GET /v1/default/streams HTTP/1.1\r\nhost: localhost\r\n")  # And never the end of it.
        async with asyncio.timeout(20):
            for reader, _ in silent:
                assert await _rest(reader) == b""
        assert served.statistics()["connections"] == {"malformed": 0, "cut": 4, "crowded": 1}
        assert (await curl(served, "")).status == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize(
    "beginning",
    [
        b"POST /v1/default/streams/orders/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n",
        b"POST /v1/default/streams/orders/records HTTP/1.1\r\nhost: loc",
    ],
    ids=["bodies", "heads"],
)
async def test_while_many_connections_send_slowly_another_client_goes_on(tmp_path: Path, beginning: bytes) -> None:
    """Goal: clients that send a byte now and then take neither the connections nor the requests of others.

    Method: more slow connections than there may be, before and between; each sends a byte for each append of another
    client, which uses one connection for half of its appends, and a new one for each of the rest.
    """
    async with serving(tmp_path, connections_max=8, calls_max=4) as (served, client):
        slow = list[asyncio.StreamWriter]()

        async def besiege(count: int) -> None:
            for _ in range(count):
                _, writer = await asyncio.open_connection(*served.address)
                writer.write(beginning)
                slow.append(writer)

        await besiege(20)
        lasting = http.client.HTTPConnection(*served.address, timeout=20)
        for number in range(10):
            assert await asyncio.to_thread(append, lasting, number) == 200
            await besiege(3)
            for writer in slow:
                writer.write(b"x")
            assert (await curl(served, "/orders/records", "--data-binary", str(number))).status == 200
        lasting.close()
        for writer in slow:
            writer.close()
        async with client.open_reader("orders") as reader:
            assert len(await reader.read_many(20, timeout_s=20)) > 0
        assert served.statistics()["answers"]["200"] == 20


def append(connection: http.client.HTTPConnection, number: int) -> int:
    connection.request("POST", "/v1/default/streams/orders/records", str(number).encode())
    answer = connection.getresponse()
    answer.read()
    return answer.status


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_stopping_ends_tails_and_keeps_what_was_accepted(tmp_path: Path, run: Run) -> None:
    """Goal: a stop is seen as a proper end by a tail, is quick, and leaves nothing open in the log."""

    async def main() -> None:
        async with quire.connect(f"file:{tmp_path / 'log'}") as client:
            async with serve_gateway({"default": client}) as served:
                await curl(served, "/orders/records", "--data-binary", "a")
                tail = await CurlTail.begin(served, "/orders/tail?from=earliest")
                assert (await tail.event())["data"] == "YQ=="
                begun_s = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - begun_s < 4
            assert await tail.event() == {}
            assert await tail.ended() == 0
            info = await client.stream_info("orders")
            assert (info.owner, info.record_count) == (None, 1)

    run(main())
