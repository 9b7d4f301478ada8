"""The shape of a check that the suite runs on every network, and protocols that remember what happened to them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from quire.runtime import Network

Check = Callable[[Network], Coroutine[Any, Any, None]]
OnNetwork = Callable[[Check], None]

NETWORKS = ["asyncio", "local", *(f"sim-{seed}" for seed in range(1, 6))]
LOOPBACK = "127.0.0.1"
DEADLINE_S = 20.0


class _Events:
    """What a protocol has seen, in order, and a way to wait for more."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.events: list[str] = []
        self.received = bytearray()
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds. It is asked after every event."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_seen(self, event: str) -> None:
        await self.until(lambda: event in self.events)

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._note("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._note("lost")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")


class Recorder(_Events, asyncio.Protocol):
    """Remembers everything; answers as told by `echo` and `keep_open`."""

    def __init__(self, *, echo: bool = False, keep_open: bool = False) -> None:
        super().__init__()
        self._echo = echo
        self._keep_open = keep_open

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self._echo:
            self.transport.write(data)
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return self._keep_open


class BufferedRecorder(_Events, asyncio.BufferedProtocol):
    """The same with a buffer of its own, much smaller than what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(100)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return False


class Accepting:
    """A protocol factory for a server that keeps the protocols it made."""

    def __init__(self, make: Callable[[], Any] = Recorder) -> None:
        self.made: list[Any] = []
        self._make = make
        self._changed = asyncio.Event()

    def __call__(self) -> asyncio.BaseProtocol:
        self.made.append(self._make())
        self._changed.set()
        return cast(asyncio.BaseProtocol, self.made[-1])

    async def first(self) -> Any:
        """The first connection's protocol, once it is connected."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.made:
                self._changed.clear()
                await self._changed.wait()
            await self.made[0].until_seen("made")
        return self.made[0]
