"""The admin API of one proxy over HTTP: its health, its metrics, and what it is doing.

    async with ProxyAdmin(source, port=8080) as admin:
        print(admin.address)

Paths (`/debug` and its parts answer JSON made for people who look for a cause, and may change):
  /healthz          200 while the process does its work
  /readyz           200 while clients should be sent here: it is in the live set, not draining, and its loop is quick
  /metrics          Prometheus
  /debug/NAME       what the proxy tells of itself under that name; /debug lists the names
  /debug/config     every setting as it is, and where that comes from
  /debug/tasks      the tasks of the process, and where its event loop was when it was late
  /admin/drain      POST: give up all streams in good order, then stop
  /admin/loglevel   POST {"level": "DEBUG"}: say more, or less; with "logger": "proxy.write" only there

Programs that reach the port may look, so it listens on loopback unless told otherwise; web pages may not
(`quire.runtime.http_guard`). If the proxy asks for tokens, those who want to change something have to show one. The
answers are made in `paths.py`, which needs starlette, and is imported for the first client.
"""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from quire.proxy.admin.source import AdminSource
from quire.proxy.loop_lag import LoopLag
from quire.rpc.serving.tokens import Tokens
from quire.runtime import Clock
from quire.runtime.http_server import HttpServer
from quire.telemetry import names
from quire.telemetry.events import logger

if TYPE_CHECKING:
    from starlette.applications import Starlette

_log = logger("proxy.admin")


class ProxyAdmin:
    """Serves a source while its block runs. Raises `OSError` on entry if the address cannot be had."""

    def __init__(
        self,
        source: AdminSource,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        hosts: Iterable[str] = (),
        tokens: Tokens | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`hosts` are other names than `host` by which clients ask for it. `tokens` are those that may change
        something; without them everybody may. `config` is what to show of it."""
        self._hosts = hosts
        self._source, self._lag, self._tokens, self._config = source, LoopLag(clock), tokens, config
        self._stack = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._lag)
        self._source.metrics.gauge(names.PROXY_LOOP_LAG_S, lambda: self._lag.worst_s)
        server = HttpServer(self._application, *self.address, name="proxy admin", hosts=self._hosts)
        await self._stack.enter_async_context(server)
        self.address = server.address
        _log.info("admin.listening", host=self.address[0], port=self.address[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def _application(self) -> "Starlette":
        from quire.proxy.admin.paths import AdminPaths

        return AdminPaths(self._source, self._lag, self._tokens, self._config).application()
