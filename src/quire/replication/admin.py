"""The admin API of one autorecovery process over HTTP: its health and its metrics.

  /healthz   200 while the process does its work
  /readyz    200 while it can reach the metadata store
  /metrics   Prometheus: what autorecovery counts; /metrics/client what its ledger client does

The answers need starlette, which is imported for the first client.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from quire.replication.autorecovery import Autorecovery
from quire.runtime.http_server import HttpServer
from quire.telemetry.events import logger

if TYPE_CHECKING:
    from starlette.applications import Starlette

_log = logger("autorecovery.admin")


class AutorecoveryAdmin:
    """Serves while its block runs. Raises `OSError` on entry if the address cannot be had."""

    def __init__(self, autorecovery: Autorecovery, host: str, port: int, *, hosts: Iterable[str] = ()) -> None:
        """`hosts` are other names than `host` by which clients ask for it."""
        self._autorecovery, self._hosts = autorecovery, hosts
        self._stack = AsyncExitStack()
        self.address: tuple[str, int] = (host, port)

    async def __aenter__(self) -> Self:
        server = HttpServer(self._application, *self.address, name="autorecovery admin", hosts=self._hosts)
        await self._stack.enter_async_context(server)
        self.address = server.address
        _log.info("admin.listening", host=self.address[0], port=self.address[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def _application(self) -> "Starlette":
        from quire.replication._admin_paths import application

        return application(self._autorecovery)
