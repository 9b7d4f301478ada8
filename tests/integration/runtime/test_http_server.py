"""An HTTP server that nobody asks anything costs its process next to nothing."""

import asyncio
import subprocess
import sys

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


async def answered(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
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


async def test_a_server_may_end_while_its_first_client_waits() -> None:
    async with HttpServer(Starlette, name="test") as server:
        _, writer = await asyncio.open_connection(*server.address)
    writer.close()


def test_a_server_that_nobody_asks_loads_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
