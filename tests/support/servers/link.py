"""A TCP link on loopback that a test can cut and mend, between a client and a real server."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, Self


class Link:
    """Forwards connections to one port. While cut, open connections are dropped and new ones are refused."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Accepted by hand: asyncio's own server fails an assertion when it is closed while it accepts.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut = False

    async def __aenter__(self) -> Self:
        self._start(self._accept())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def cut(self) -> None:
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._cut = False

    def inject(self, data: bytes) -> None:
        """Send bytes to the newest client as if its server had."""
        self._client.write(data)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            near, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._start(self._connect(near))

    async def _connect(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=near)
        self._writers.add(writer)
        self._client = writer
        try:
            if self._cut:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(far_writer)
            try:
                if not self._cut:
                    await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except OSError:
            pass  # The server is down: the client finds its connection dropped.
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
