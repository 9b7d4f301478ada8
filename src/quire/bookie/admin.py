"""The admin API of one bookie: its health, status and metrics over HTTP, and the few switches that operators need.

    async with AdminServer(bookie, port=8080) as admin:
        print(admin.address)

It runs in the bookie's own event loop, on real sockets only. Whoever reaches the port may use it, so it listens on
loopback unless told otherwise. starlette and uvicorn are imported when a server starts, not with this module. Which
paths there are and what they answer is in `_admin_paths`.
"""

import asyncio
import socket
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NotRequired, Protocol, Self, TypedDict

from quire.telemetry.events import logger
from quire.telemetry.metrics import Registry

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

CONNECTIONS_MAX: Final = 64  # So that nobody uses up the bookie's descriptors through this door.
KEEP_ALIVE_S: Final = 75  # Longer than scrapes are apart, so that they find their connection open.
STOP_TIMEOUT_S: Final = 1  # For requests that are under way when the server is told to stop.

_log = logger("bookie.admin")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the bookie does its work, and if not, why."""

    ok: bool
    state: str  # In one word: "writable", "readonly", "starting", "stopping", "failed".
    reasons: list[str] = field(default_factory=list)


class GcStatus(TypedDict):
    """What garbage collection and compaction do, and did since the start. Times are wall milliseconds, 0 for never."""

    forced: bool  # A run that somebody asked for is under way.
    major_running: bool
    minor_running: bool
    major_suspended: bool
    minor_suspended: bool
    last_major_ms: int
    last_minor_ms: int
    major_count: int
    minor_count: int


class JournalStatus(TypedDict):
    """How far a journal is not needed any more: everything before is in the ledger storage."""

    file: str  # With its folder: each journal has one.
    file_id: int
    offset: int


class BookieStatus(TypedDict):
    """What the paths of Apache tell about a bookie, and `details` of any kind that JSON can hold."""

    bookie_id: str
    running: bool  # Started whole, and not stopping.
    readonly: bool
    stopping: bool
    high_priority_writes: bool  # Whether recovery may still write here.
    free_bytes: int
    total_bytes: int
    journals: list[JournalStatus]
    gc: GcStatus
    details: NotRequired[dict[str, Any]]


class AdminSource(Protocol):
    """The bookie, as far as the admin API knows it. A `Refused` becomes 409, any other error 500."""

    @property
    def metrics(self) -> Registry: ...

    def health(self) -> Health: ...

    def status(self) -> BookieStatus: ...

    async def trigger_gc(self, *, major: bool, minor: bool) -> None:
        """Begin a run of garbage collection, with these compactions forced. Returns once it has begun."""
        ...

    async def set_readonly(self, readonly: bool) -> None:
        """Become read-only or writable, in the metadata store too. Raises `Refused` if that cannot be."""
        ...

    def suspend_compaction(self, *, major: bool, minor: bool) -> None: ...

    def resume_compaction(self, *, major: bool, minor: bool) -> None: ...


class AdminServer:
    """Serves a source while its block runs. Raises `OSError` on entry if the address cannot be had."""

    def __init__(self, source: AdminSource, host: str = "127.0.0.1", port: int = 0) -> None:
        self._source, self._host, self._port = source, host, port
        self._stop = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)
        """Where it listens; the port is the real one once the block is entered."""

    async def __aenter__(self) -> Self:
        from quire.bookie._admin_paths import AdminPaths

        server = _http_server(AdminPaths(self._source).application())
        listener = await _listen(self._host, self._port)
        self.address = listener.getsockname()[:2]
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="admin")
        self._stop.push_async_callback(_stop, server, serving, listener)
        _log.info("admin.listening", host=self.address[0], port=self.address[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop.aclose()


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


def _http_server(application: "Starlette") -> "uvicorn.Server":
    """A uvicorn that changes nothing of the process around it: no signal handlers, no settings of `logging`."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class AdminConnection(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.access_log = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > CONNECTIONS_MAX:
                transport.abort()

    class EmbeddedServer(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

    config = uvicorn.Config(
        application,
        http=AdminConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    return EmbeddedServer(config)
