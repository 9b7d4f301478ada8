"""Ways between processes that a test can cut, or let fall silent, and mend.

They outlive a single test and its event loop, as the processes at their ends do: so they have a thread of their own.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from tests.support.servers.link import Link

T = TypeVar("T")
_DEADLINE_S: Final = 20.0


class QuietLink(Link):
    """One that can also fall silent: connections stay open, and nothing passes."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()


class Way:
    """From one process to one port. Every call returns when it is so."""

    def __init__(self, ways: "Ways", link: QuietLink) -> None:
        self._ways, self._link, self.port = ways, link, link.port

    def cut(self) -> None:
        """Connections break, and new ones do."""
        self._ways.do(self._link.cut)

    def silence(self) -> None:
        """Connections stay, and nothing comes through them."""
        self._ways.do(self._link.flowing.clear)

    def mend(self) -> None:
        self._ways.do(self._link.flowing.set)
        self._ways.do(self._link.mend)


class Ways:
    """All of them, while the block runs."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._links: list[QuietLink] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways")
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for link in self._links:
            self._wait(link.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_S)
        self._loop.close()

    def to(self, port: int) -> Way:
        async def opened() -> QuietLink:
            return await QuietLink(port).__aenter__()

        link = self._wait(opened())
        self._links.append(link)
        return Way(self, link)

    def do(self, change: Callable[[], None]) -> None:
        async def done() -> None:
            change()

        self._wait(done())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_DEADLINE_S)
