"""Serve a gateway inside our own event loop.

    async with serve_gateway({"default": client}, port=8000) as served:
        print(served.url)

When the block ends, event streams and waiting reads end first, then requests that are under way have their answer, then
what was appended is in its streams, and last the writers are closed.
"""

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from quire.proxy.gateway.app import Gateway
from quire.proxy.gateway.clients import StreamClient
from quire.proxy.gateway.connection import Watch
from quire.proxy.gateway.settings import GatewaySettings
from quire.rpc.serving.tokens import Tokens
from quire.runtime.http_server import HttpServer
from quire.telemetry import names
from quire.telemetry.events import logger
from quire.telemetry.metrics import Registry

_log = logger("proxy.gateway")


class ServedGateway(NamedTuple):
    """A gateway that listens."""

    gateway: Gateway
    server: HttpServer
    watch: Watch

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def statistics(self) -> dict[str, Any]:
        watch = self.watch
        connections = {"malformed": watch.malformed, "cut": watch.cut, "crowded": self.server.crowded_out}
        return {**self.gateway.statistics(), "connections": connections}


@asynccontextmanager
async def serve_gateway(
    clients: Mapping[str, StreamClient],
    settings: GatewaySettings | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    hosts: Iterable[str] = (),
    registry: Registry | None = None,
    tokens: Tokens | None = None,
) -> AsyncIterator[ServedGateway]:
    """Serve the namespaces of `clients` while the block runs. Raises `OSError` if the address cannot be had. What is
    counted is shown in `registry`. With `tokens` each request needs one.

    Programs that reach the port may use it, so it listens on loopback unless told otherwise. `hosts` are other names
    than `host` by which they ask for it: web pages of other names are refused.
    """
    settings = settings or GatewaySettings()
    gateway = Gateway(clients, settings, registry=registry, tokens=tokens)
    try:
        async with Watch(stall_timeout_s=settings.stall_timeout_s) as watch:
            if registry is not None:
                registry.counter(names.GATEWAY_BAD_CONNECTIONS_TOTAL, cause="malformed").read = lambda: watch.malformed
                registry.counter(names.GATEWAY_BAD_CONNECTIONS_TOTAL, cause="cut").read = lambda: watch.cut
            server = HttpServer(
                lambda: gateway.application,
                host,
                port,
                name="gateway",
                hosts=hosts,
                refuse=gateway.refuse,
                connections_max=settings.connections_max,
                stop_timeout_s=math.ceil(settings.stop_timeout_s),
                connection_type=watch.connection_type(),
            )
            if registry is not None:
                registry.counter(names.GATEWAY_BAD_CONNECTIONS_TOTAL, cause="crowded").read = lambda: server.crowded_out
            async with server:
                _log.info("gateway.listening", host=server.address[0], port=server.address[1])
                try:
                    yield ServedGateway(gateway, server, watch)
                finally:
                    gateway.stop_reading()
    finally:
        await gateway.aclose()
