"""Clients of a real etcd, and what tests wait for and do to them."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, cast

from quire.metadata import SessionEvent, StoreSettings, parse_uri
from quire.metadata.driver import Driver
from quire.metadata.drivers.etcd import EtcdDriver, open_driver
from quire.runtime import real_runtime
from tests.support.waiting import eventually

PATIENT = StoreSettings(operation_timeout_s=20, session_timeout_s=20)
HASTY = StoreSettings(operation_timeout_s=1, session_timeout_s=2)


@asynccontextmanager
async def client(*addresses: str, settings: StoreSettings = PATIENT) -> AsyncIterator[EtcdDriver]:
    driver = await open_driver(parse_uri(f"etcd://{';'.join(addresses)}/ledgers"), settings, real_runtime())
    try:
        yield cast(EtcdDriver, driver)
    finally:
        await driver.aclose()


class Wakes:
    """Counts what a watch or a session tells, and waits for it."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.count = 0

    def notify(self) -> None:
        self.count += 1

    async def more_than(self, count: int) -> None:
        async def woken() -> bool:
            return self.count > count

        await eventually(woken, what=f"woken more than {count} times")

    async def heard(self, *events: SessionEvent) -> None:
        async def complete() -> bool:
            return self.events[-len(events) :] == list(events)

        await eventually(complete, what=f"{self.events} end with {events}")


async def within(seconds: float, call: Awaitable[object]) -> float:
    """Await `call`, which must end in time, and return how long it took; errors pass."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        await call
    return time.monotonic() - begun


async def calls_under_way(driver: Driver, count: int) -> None:
    """Wait until this many requests have been sent and none of them answered."""

    async def sent() -> bool:
        return cast(EtcdDriver, driver)._client._calls == count

    await eventually(sent, what=f"{count} calls are under way")


class StallingLink:
    """A link to one port that can fall silent: connections stay open, and nothing passes while `flowing` is clear."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._start(self._accept())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            near, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self.connections += 1
            self._start(self._forward(near))

    async def _forward(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=near)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            far_writer.transport.abort()
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
