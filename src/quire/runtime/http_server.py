"""An HTTP server inside our own event loop, for admin APIs and gateways.

    async with HttpServer(lambda: application, "127.0.0.1", 0, name="admin") as server:
        print(server.address)

It works on real sockets only, and leaves the process around it alone: no signal handlers, no settings of `logging`.
What is not meant for it never gets to the application: see `quire.runtime.http_guard`.

It listens from the beginning, and everything else waits for the first client: starlette and uvicorn take a fifth of the
CPU that a bookie needs to start, and nobody asks a bookie for its metrics before it serves. They are loaded in a
thread, so that the others in the process are not made to wait when somebody does.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

from quire.runtime.http_guard import Application, Guarded, Hosts, Refusal

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 64  # So that nobody uses up the process's descriptors through a door for operators.
KEEP_ALIVE_S: Final = 75  # Longer than scrapes are apart, so that they find their connection open.
STOP_TIMEOUT_S: Final = 1  # For requests that are under way when the server is told to stop.


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
        self._connections_max, self._stop_timeout_s = connections_max, stop_timeout_s
        self._host, self._hosts, self._refuse = host, hosts, refuse
        self._server: uvicorn.Server | None = None
        self._stop = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)
        """Where it listens; the port is the real one once the block is entered."""

    async def __aenter__(self) -> Self:
        listener = await _listen(*self.address)
        self.address = listener.getsockname()[:2]
        serving = asyncio.create_task(self._serve(listener), name=self._name)
        self._stop.push_async_callback(self._end, serving, listener)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop.aclose()

    async def _serve(self, listener: socket.socket) -> None:
        await _somebody(listener)
        answers = await asyncio.to_thread(import_module, "quire.runtime.http_answers")
        await asyncio.to_thread(import_module, "uvicorn.protocols.http.h11_impl")
        hosts = Hosts([self._host, self.address[0]], self._hosts)
        application = Guarded(self._application(), hosts, self._refuse or answers.refusal_answer)
        self._server = _embedded(application, self._connections_max, self._stop_timeout_s, self._connection_type)
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


def _embedded(
    application: Application,
    connections_max: int,
    stop_timeout_s: int,
    connection_type: "type[H11Protocol] | None",
) -> "uvicorn.Server":
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(connection_type or H11Protocol):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.access_log = False

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections_max:
                transport.abort()

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
