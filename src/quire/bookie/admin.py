"""The admin API of one bookie: its health, status and metrics over HTTP, and the few switches that operators need.

    async with AdminServer(bookie, port=8080) as admin:
        print(admin.address)

It runs in the bookie's own event loop, on real sockets only. Programs that reach the port may use it, so it listens on
loopback unless told otherwise; web pages may not (`quire.runtime.http_guard`). starlette and uvicorn are imported for
the first client, not with this module. Which paths there are and what they answer is in `_admin_paths`.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import field
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, Self, TypedDict

from quire.runtime.http_server import STOP_TIMEOUT_S, HttpServer
from quire.telemetry.events import logger
from quire.telemetry.metrics import Registry
from quire.values import dataclass

if TYPE_CHECKING:
    from starlette.applications import Starlette

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

    def __init__(
        self, source: AdminSource, host: str = "127.0.0.1", port: int = 0, *, hosts: Iterable[str] = ()
    ) -> None:
        """`hosts` are other names than `host` by which clients ask for it."""
        self._source, self._host, self._port, self._hosts = source, host, port, hosts
        self._stop = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)
        """Where it listens; the port is the real one once the block is entered."""

    async def __aenter__(self) -> Self:
        server = HttpServer(
            self._application,
            self._host,
            self._port,
            name="admin",
            hosts=self._hosts,
            stop_timeout_s=STOP_TIMEOUT_S,
        )
        await self._stop.enter_async_context(server)
        self.address = server.address
        _log.info("admin.listening", host=self.address[0], port=self.address[1])
        return self

    def _application(self) -> "Starlette":
        from quire.bookie._admin_paths import AdminPaths

        return AdminPaths(self._source).application()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop.aclose()
