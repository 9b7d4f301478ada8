"""An HTTP server that nobody asks anything costs its process next to nothing, and takes no requests of strangers."""

import asyncio
import json
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from quire.runtime.http_server import HttpServer

ALONE = """
import asyncio, sys
from quire.runtime.http_server import HttpServer
async def main():
    async with HttpServer(lambda: None, name="alone") as server:
        assert server.address[1]
    print([name for name in ("uvicorn", "starlette", "prometheus_client") if name in sys.modules])
asyncio.run(main())
"""


async def answered(address: tuple[str, int], *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    head = [f"{method} / HTTP/1.1", *(headers or ["host: localhost"]), "connection: close"]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_first_clients_are_answered_however_many_come_at_once() -> None:
    made = []

    def application() -> Starlette:
        made.append(1)
        return Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])

    async with HttpServer(application, name="test") as server:
        answers = await asyncio.gather(*(answered(server.address) for _ in range(5)))
    assert all(answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"hello") for answer in answers)
    assert len(made) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (["host: evil.example"], 403, "HOST_NOT_ALLOWED"),
        (["host: localhost", "origin: https://evil.example"], 403, "ORIGIN_NOT_ALLOWED"),
        (["host: localhost", "content-length: 4", "transfer-encoding: chunked"], 400, "AMBIGUOUS_LENGTH"),
    ],
)
async def test_what_is_not_meant_for_a_server_never_gets_to_its_application(
    method: str, headers: list[str], status: int, code: str
) -> None:
    async with HttpServer(lambda: reached, name="test") as server:
        answer = await answered(server.address, *headers, method=method, body=b"0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert b"connection: close" in head.lower()
    said = json.loads(body)
    assert said["code"] == code
    assert said["error"]
    assert said["hint"]


async def test_refused_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with HttpServer(lambda: reached, name="test") as server:
        for number in range(10):
            await answered(server.address, f"host: evil{number}.example")
    (told,) = [record.getMessage() for record in caplog.records if record.name.startswith("quire")]
    assert told.startswith("http.refused times=1 code=HOST_NOT_ALLOWED")
    assert "evil0.example" in told


async def reached(scope: object, receive: object, send: object) -> None:
    raise AssertionError("a request of a stranger came through")


async def test_a_server_takes_the_names_that_it_was_told_of() -> None:
    def application() -> Starlette:
        return Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])

    async with HttpServer(application, "localhost", name="test", hosts=["metrics.example"]) as server:
        for host in ("metrics.example:80", "localhost", "127.0.0.1:1"):
            assert (await answered(server.address, f"host: {host}")).endswith(b"hello")


async def test_a_server_may_end_while_its_first_client_waits() -> None:
    async with HttpServer(Starlette, name="test") as server:
        _, writer = await asyncio.open_connection(*server.address)
    writer.close()


def test_a_server_that_nobody_asks_loads_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
