"""An event stream: the records of a stream to one client, for as long as it stays.

Reading is driven by sending: the next records are taken when the connection has room again, so a slow client has a
position, and at most `SEND_BUFFER_BYTES_MAX` that wait for it. If it takes nothing at all for a while, the connection
is cut (`quire.proxy.gateway.connection`); it comes back with the id of the last event, and misses nothing.

Errors before the first event are answers like others; later ones are an event `failure`, and the end. So ends one whose
token does not count any more: that is asked after each read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Final

from starlette.types import Receive, Scope, Send

from quire.errors import PositionTruncated, QuireError, StreamSealed
from quire.proxy.gateway.clients import Reader, StreamClient
from quire.proxy.gateway.events import (
    OPENING,
    PING,
    end_event,
    failure_event,
    gap_event,
    record_events,
)
from quire.proxy.gateway.problems import earliest_left, problem_of
from quire.proxy.gateway.queries import TailOf
from quire.proxy.gateway.settings import GatewaySettings
from quire.stream.start import Start
from quire.types import DLSN

_SKIPS_MAX: Final = 10
_RECORDS_MAX: Final = 256  # That are made into events at once.
_CHUNK_BYTES: Final = 64 << 10
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # Some servers between us would wait for more otherwise.
]


class Tail:
    """One event stream: `open` it, then it is the answer of a request, and closes itself. `check` raises once its
    client may not read on."""

    def __init__(
        self,
        client: StreamClient,
        stream: str,
        wanted: TailOf,
        settings: GatewaySettings,
        *,
        check: Callable[[], None],
        stopping: asyncio.Event,
        on_closed: Callable[[], None],
    ) -> None:
        self._client, self._stream, self._wanted, self._settings = client, stream, wanted, settings
        self._check, self._stopping = check, stopping
        self._stack = AsyncExitStack()
        self._stack.callback(on_closed)
        self._reading = AsyncExitStack()  # The reader; another one behind each gap.
        self._stack.push_async_exit(self._reading)
        self._reader: Reader | None = None
        self._opening = OPENING
        self._has_begun = False

    async def open(self) -> None:
        """Open a reader. Raises what that raises, and is closed then."""
        try:
            self._opening += await self._begin(self._wanted.start)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._stack.aclose()

    # --- Readers

    async def _begin(self, start: Start) -> bytes:
        """Open a reader there, or behind what is truncated. Returns what a client should know of that."""
        try:
            await self._open_reader(start)
        except PositionTruncated as error:
            return await self._skip(error, start if isinstance(start, DLSN) else None)
        return b""

    async def _skip(self, error: PositionTruncated, begin: DLSN | None) -> bytes:
        """Go on behind a gap, if that is what the client wants."""
        for _ in range(_SKIPS_MAX):
            if not self._wanted.skip_truncated:
                break
            end = earliest_left(error)
            try:
                reader = await self._open_reader("earliest" if end is None else end)
            except PositionTruncated as again:
                error = again  # More was truncated while we looked.
            else:
                return gap_event(begin, reader.position)
        raise error

    async def _open_reader(self, start: Start) -> Reader:
        await self._reading.aclose()
        self._reader = await self._reading.enter_async_context(
            self._client.open_reader(
                self._stream, start=start, read_ahead_bytes_max=self._settings.read_ahead_bytes_max
            )
        )
        return self._reader

    async def _events(self) -> AsyncIterator[bytes]:
        """All that there is to send, until the stream ends. Raises what reading raises."""
        while True:
            reader = self._reader
            assert reader is not None
            try:
                records = await reader.read_many(_RECORDS_MAX, timeout_s=self._settings.ping_s)
            except StreamSealed:
                yield end_event(reader.position)
                return
            except PositionTruncated as error:
                yield await self._skip(error, reader.position)
                continue
            self._check()  # While there was nothing to read, the token may have been taken back.
            chunk = bytearray()
            for event in record_events(records, as_text=self._wanted.as_text):
                chunk += event
                if len(chunk) >= _CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
            yield bytes(chunk) if records else PING

    # --- As an answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send), name=f"tail of {self._stream}")
        gone = asyncio.create_task(until_gone(receive), name="client of a tail")
        stopping = asyncio.create_task(self._stopping.wait(), name="end of a tail")
        tasks = (pump, gone, stopping)
        try:
            await asyncio.wait(tasks, timeout=self._settings.tail_age_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.aclose()
        if not pump.cancelled():
            pump.result()
        elif gone.cancelled():
            await self._end(send)  # The gateway stops, or time is up: a proper end, so that the client knows.

    async def _pump(self, send: Send) -> None:
        await self._send(send, self._opening)
        try:
            async for events in self._events():
                await self._send(send, events)
        except QuireError as error:
            await self._send(send, failure_event(problem_of(error).body))
        await self._end(send)

    async def _send(self, send: Send, events: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if events:
            await send({"type": "http.response.body", "body": events, "more_body": True})

    async def _end(self, send: Send) -> None:
        await self._send(send, b"")
        await send({"type": "http.response.body"})


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left, or all of its answer was sent."""
    while (await receive())["type"] != "http.disconnect":
        pass
