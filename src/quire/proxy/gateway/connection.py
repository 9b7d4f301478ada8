"""The gateway's connections, and which of them are cut: of clients that take nothing, or never say what they want.

What waits for a client is bounded: when that much waits, nothing more is written until some of it was taken. A look now
and then finds those that took nothing between two looks, also where an answer is complete and only has to leave. It is
one timer for all connections, and none for a request.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, Final, Self

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from quire.proxy.gateway.limits import SEND_BUFFER_BYTES_MAX
from quire.proxy.gateway.problems import Rejected, problem_of
from quire.telemetry.events import Seldom, logger

_HEADERS: Final = [(b"content-type", b"application/json"), (b"connection", b"close")]
_log = logger("proxy.gateway")


class Watch:
    """Looks after connections while its block runs."""

    def __init__(self, *, stall_timeout_s: float, send_buffer_bytes_max: int = SEND_BUFFER_BYTES_MAX) -> None:
        self._stall_timeout_s, self.send_buffer_bytes_max = stall_timeout_s, send_buffer_bytes_max
        self._connections: set[WatchedConnection] = set()
        self._stack = AsyncExitStack()
        self._tell_cut = Seldom(_log.info, "gateway.connection_cut")
        self.malformed = 0
        """Requests that were no HTTP."""
        self.cut = 0
        """Connections that were ended because their clients did nothing."""

    def connection_type(self) -> type[H11Protocol]:
        watch = self

        class Connection(WatchedConnection):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.watch = watch

        return Connection

    async def __aenter__(self) -> Self:
        looking = asyncio.create_task(self._look(), name="slow clients of the gateway")
        self._stack.push_async_callback(_ended, looking)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def add(self, connection: "WatchedConnection") -> None:
        self._connections.add(connection)

    def discard(self, connection: "WatchedConnection") -> None:
        self._connections.discard(connection)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._stall_timeout_s)
            for connection in [each for each in self._connections if each.did_nothing()]:
                self.cut += 1
                now_s = asyncio.get_running_loop().time()
                self._tell_cut(now_s, client=connection.client, waiting=connection.waiting_bytes)
                connection.transport.abort()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class WatchedConnection(H11Protocol):
    """uvicorn's connection, with a bound on what waits in it. What is no HTTP is told so in our own form."""

    watch: Watch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._seen: tuple[str, int] | None = None
        transport.set_write_buffer_limits(high=self.watch.send_buffer_bytes_max)
        self.watch.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.discard(self)
        super().connection_lost(exc)

    @property
    def waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def did_nothing(self) -> bool:
        """Whether, at the look before, the client owed us the same: to take what waits, or to say what it wants."""
        before, self._seen = self._seen, self._owes()
        if before is None or self._seen is None or before[0] != self._seen[0]:
            return False
        return self._seen[1] >= before[1]

    def _owes(self) -> tuple[str, int] | None:
        """What we wait for, and how much of it is left, where nothing but the client can change that."""
        waiting = self.waiting_bytes
        if waiting and (self.flow.write_paused or self.transport.is_closing()):
            return "take", waiting
        is_between = self.cycle is None or self.cycle.response_complete
        if is_between and self.timeout_keep_alive_task is None:
            return "ask", 0
        return None

    def send_400_response(self, msg: str) -> None:
        self.watch.malformed += 1
        problem = problem_of(Rejected(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request"))
        try:
            for event in (
                h11.Response(status_code=problem.status, headers=_HEADERS, reason=b"Bad Request"),
                h11.Data(data=json.dumps(problem.body).encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:
            self.transport.abort()  # An answer to the request before it was under way.
        else:
            self.transport.close()
