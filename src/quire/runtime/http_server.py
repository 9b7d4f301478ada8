"""An HTTP server inside our own event loop, for admin APIs and gateways.

    async with HttpServer(lambda: application, "127.0.0.1", 0, name="admin") as server:
        print(server.address)

It works on real sockets only, and leaves the process around it alone: no signal handlers, no settings of `logging`.
What is not meant for it never gets to the application: see `quire.runtime.http_guard`.

It listens from the beginning, and everything else waits for the first client: starlette and uvicorn take a fifth of the
CPU that a bookie needs to start, and nobody asks a bookie for its metrics before it serves. They are loaded in a
thread, so that the others in the process are not made to wait when somebody does.

Invariant: RoomForTheNext, when all connections are in use a new one takes the place of the one whose client keeps the
server waiting most (`_Crowd`). So connections that say little, or nothing, do not shut others out, however many come.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from quire.runtime.descriptors import is_reserved, raise_limit
from quire.runtime.http_guard import Application, Guarded, Hosts, Refusal
from quire.telemetry.events import Seldom, logger

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 64  # So that nobody uses up the process's descriptors through a port for operators.
KEEP_ALIVE_S: Final = 75  # Longer than scrapes are apart, so that they find their connection open.
STOP_TIMEOUT_S: Final = 1  # For requests that are under way when the server is told to stop.

_PATIENCE_S: Final = 1.0
_SLOW_BYTES_PER_S: Final = 64 << 10
_UVICORN: Final = "quire.http.uvicorn"  # Where uvicorn logs. It writes a warning for each request that is no HTTP.
_log = logger("http")


class Pace:
    """Whether a client is slow to send what it owes: it has a second, and time for each byte as on a slow line."""

    __slots__ = ("due_s",)

    def __init__(self, now_s: float) -> None:
        self.due_s = now_s + _PATIENCE_S

    def on_bytes(self, count: int, now_s: float) -> None:
        self.due_s = min(max(self.due_s, now_s) + count / _SLOW_BYTES_PER_S, now_s + _PATIENCE_S)

    def is_slow(self, now_s: float) -> bool:
        return now_s > self.due_s


class HttpServer:
    """Serves an application while its block runs. Raises `OSError` on entry if the address cannot be had."""

    def __init__(
        self,
        application: Callable[[], Application],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        name: str,
        hosts: Iterable[str] = (),
        refuse: Callable[[Refusal], Application] | None = None,
        connections_max: int = CONNECTIONS_MAX,
        stop_timeout_s: int = STOP_TIMEOUT_S,
        connection_type: "type[H11Protocol] | None" = None,
    ) -> None:
        """`application` is called for the first client. `hosts` are other names than `host` by which clients ask for
        this server. `refuse` answers what is not meant for it; unless given, as admin APIs do. `connection_type` is for
        servers that want to know more of their connections than what they ask for."""
        self._application, self._name, self._connection_type = application, name, connection_type
        self._stop_timeout_s = stop_timeout_s
        self._host, self._hosts, self._refuse = host, hosts, refuse
        self._server: uvicorn.Server | None = None
        self._crowd = _Crowd(connections_max, name)
        self._stop = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)
        """Where it listens; the port is the real one once the block is entered."""

    async def __aenter__(self) -> Self:
        raise_limit()
        listener = await _listen(*self.address)
        self.address = listener.getsockname()[:2]
        serving = asyncio.create_task(self._serve(listener), name=self._name)
        self._stop.push_async_callback(self._end, serving, listener)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop.aclose()

    @property
    def crowded_out(self) -> int:
        """Connections that were ended to make room for others."""
        return self._crowd.given_up

    async def _serve(self, listener: socket.socket) -> None:
        await _somebody(listener)
        answers = await asyncio.to_thread(import_module, "quire.runtime.http_answers")
        await asyncio.to_thread(import_module, "uvicorn.protocols.http.h11_impl")
        hosts = Hosts([self._host, self.address[0]], self._hosts)
        application = Guarded(self._application(), hosts, self._refuse or answers.refusal_answer)
        self._server = _embedded(application, self._crowd, self._stop_timeout_s, self._connection_type)
        await self._server.serve(sockets=[listener])

    async def _end(self, serving: asyncio.Task[None], listener: socket.socket) -> None:
        if self._server is not None:
            await _stop(self._server, serving, listener)
            return
        serving.cancel()  # Nobody came, or has been answered.
        await asyncio.wait([serving])
        listener.close()


async def _somebody(listener: socket.socket) -> None:
    """Wait for a client that wants to be accepted."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(listener, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(listener)


async def _stop(server: "uvicorn.Server", serving: asyncio.Task[None], listener: socket.socket) -> None:
    """Close idle connections at once, let the others have their answer, and leave nothing behind, also if cancelled."""
    server.should_exit = True
    try:
        await serving
    finally:
        for accepting in getattr(server, "servers", []):
            accepting.close()
        listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # Its client does not read, or never sent all of a request.
        for task in (tasks := list(server.server_state.tasks)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already: uvicorn would end the whole process if it could not bind one."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


class _Crowd:
    """All connections of a server, and which of them goes when there are too many.

    To look at all of them takes a millisecond or two, and strangers may come faster than that: so who keeps the server
    waiting most is found out for many at once, and counts for as long as nobody who came since can be slow.
    """

    def __init__(self, connections_max: int, name: str) -> None:
        self._connections_max, self._name = connections_max, name
        self.given_up = 0
        self._leaving = 0  # Of these so many are not gone yet.
        self._ranked: list[tuple[_Waiting, _Connection]] = []  # Who goes first is last.
        self._ranked_s = 0.0
        self._tell = Seldom(_log.warning, "http.crowded")
        self.tell_malformed = Seldom(_log.warning, "http.malformed")

    def on_new(self, connections: "Set[_Connection]", now_s: float) -> None:
        """One more has come. Those whose clients are slow go first, and among them those that are idle last."""
        held = len(connections) - self._leaving
        if held <= self._connections_max:
            return
        last = self._next(connections, now_s)
        self.given_up += 1
        self._leaving += 1
        self._tell(now_s, server=self._name, client=last.client, connections=held)
        last.give_up()

    def on_lost(self, connection: "_Connection") -> None:
        self._leaving -= connection.is_given_up

    def _next(self, connections: "Set[_Connection]", now_s: float) -> "_Connection":
        """Who goes. Whoever has said something since is not meant any more, and before a quick client goes all are
        looked at again: one that is not may have come."""
        if now_s > self._ranked_s + _PATIENCE_S:
            self._ranked.clear()
        while self._ranked:
            before, each = self._ranked.pop()
            is_quick = before[:2] == (True, True)
            if not is_quick and each in connections and _same(each.waiting(now_s), before):
                return each
        held = [each for each in connections if not each.is_given_up]
        waiting = [(state, each) for each in held if (state := each.waiting(now_s)) is not None]
        self._ranked, self._ranked_s = sorted(waiting, key=itemgetter(0), reverse=True), now_s
        return self._ranked.pop()[1]  # The new one is among them.


_Waiting = tuple[bool, bool, float]  # Whether it is quick, whether it is idle, and since when it keeps us waiting.


def _same(now: _Waiting | None, before: _Waiting) -> bool:
    """Whether a client has done nothing meanwhile, though it may have become slow by that."""
    return now is not None and now[1:] == before[1:]


class _Connection(Protocol):
    client: tuple[str, int] | None
    is_given_up: bool

    def waiting(self, now_s: float) -> "_Waiting | None":
        """Nothing if it is not the client that we wait for. Otherwise the lower, the sooner it goes."""
        ...

    def give_up(self) -> None: ...


def _embedded(
    application: Application,
    crowd: _Crowd,
    stop_timeout_s: int,
    connection_type: "type[H11Protocol] | None",
) -> "uvicorn.Server":
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    errors_only = logging.getLogger(_UVICORN)
    errors_only.setLevel(logging.ERROR)

    class Connection(connection_type or H11Protocol):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.access_log, self.logger = False, errors_only
            self.is_given_up = False
            self.pace = Pace(self.loop.time())

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            # The first few are let in also when the process has too much open.
            is_many = len(self.connections) > CONNECTIONS_MAX
            if is_many and is_reserved(transport.get_extra_info("socket").fileno()):
                transport.abort()
            else:
                crowd.on_new(self.connections, self.loop.time())

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            crowd.on_lost(self)

        def data_received(self, data: bytes) -> None:
            now_s = self.loop.time()
            if self.is_idle:
                self.pace = Pace(now_s)
            self.pace.on_bytes(len(data), now_s)
            super().data_received(data)

        def pause_writing(self) -> None:
            self.pace = Pace(self.loop.time())
            super().pause_writing()

        def on_response_complete(self) -> None:
            self.pace = Pace(self.loop.time())
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            crowd.tell_malformed(self.loop.time(), client=self.client)
            super().send_400_response(msg)

        @property
        def is_idle(self) -> bool:
            return self.timeout_keep_alive_task is not None

        def waiting(self, now_s: float) -> _Waiting | None:
            cycle = self.cycle
            is_asked = cycle is not None and not cycle.response_complete and (not cycle.more_body or bool(cycle.body))
            if is_asked and not self.flow.write_paused:
                return None
            return not self.pace.is_slow(now_s), self.is_idle, self.pace.due_s

        def give_up(self) -> None:
            self.is_given_up = True
            if self.is_idle:
                self.transport.close()  # Its client finds out before it sends the next request.
            else:
                self.transport.abort()

    class EmbeddedServer(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

    config = uvicorn.Config(
        application,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=stop_timeout_s,
    )
    return EmbeddedServer(config)
