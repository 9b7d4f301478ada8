"""The admin API of one bookie: its health, status and metrics over HTTP, and the few switches that operators need.

    async with AdminServer(bookie, port=8080) as admin:
        print(admin.address)

It runs in the bookie's own event loop, on real sockets only. Programs that reach the port may use it, so it listens on
loopback unless told otherwise; web pages may not (`quire.runtime.http_guard`). starlette and uvicorn are imported for
the first client, not with this module. Which paths there are and what they answer is in `paths.py`.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from quire.bookie.admin.source import AdminSource
from quire.runtime.http_server import STOP_TIMEOUT_S, HttpServer
from quire.telemetry.events import logger

if TYPE_CHECKING:
    from starlette.applications import Starlette

_log = logger("bookie.admin")


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
        from quire.bookie.admin.paths import AdminPaths

        return AdminPaths(self._source).application()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop.aclose()
