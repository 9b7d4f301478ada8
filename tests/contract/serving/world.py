"""A proxy's server, its clients, and a link between them that a test can cut or hold: on real sockets, or simulated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Channel, Handlers
from quire.runtime import Runtime
from quire.runtime.network import Server as Listener

Check = Callable[["World"], Coroutine[Any, Any, None]]
OnWorld = Callable[[Check], None]

WORLDS = ["sockets", "uvloop", *(f"sim-{seed}" for seed in range(1, 7))]
DEADLINE_S = 20.0


class World:
    """Two machines. What is made here is closed behind the check."""

    def __init__(self, here: Runtime, there: Runtime, host: str) -> None:
        self.here, self._there, self._host = here, there, host
        self._servers: list[GrpcServer] = []
        self._transports: list[GrpcTransport] = []
        self._links: list[Link] = []

    async def bind(self, *, settings: ServingSettings | None = None, port: int = 0) -> GrpcServer:
        server = await bind_grpc(self._there, self._host, port, settings=settings)
        self._servers.append(server)
        return server

    async def serve(self, handlers: Handlers, *, settings: ServingSettings | None = None, port: int = 0) -> GrpcServer:
        server = await self.bind(settings=settings, port=port)
        await server.start(handlers)
        return server

    def transport(self, client_id: str = "client-1", settings: CallSettings | None = None) -> GrpcTransport:
        transport = GrpcTransport(self.here, client_id, settings=settings)
        self._transports.append(transport)
        return transport

    def channel(
        self, to: "GrpcServer | Link", *, client_id: str = "client-1", settings: CallSettings | None = None
    ) -> Channel:
        host, port = to.address
        return self.transport(client_id, settings).channel(f"{host}:{port}")

    async def link(self, server: GrpcServer) -> "Link":
        link = Link(self._there, self._host, server.address[1])
        link.listener = await self._there.network.serve(self._host, 0, lambda: _Near(link))
        self._links.append(link)
        return link

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.here.clock.sleep(0.005)

    async def pass_time(self, seconds: float) -> None:
        """For what must *not* happen within it, and for what is about time itself."""
        await self.here.clock.sleep(seconds)

    async def aclose(self) -> None:
        for transport in self._transports:
            await transport.aclose()
        for server in self._servers:
            await server.aclose()
        for link in self._links:
            link.cut()
            await link.listener.aclose()


@asynccontextmanager
async def world(here: Runtime, there: Runtime, host: str) -> AsyncIterator[World]:
    made = World(here, there, host)
    try:
        yield made
    finally:
        await made.aclose()


class Link:
    """Forwards connections to one port of its own machine."""

    listener: Listener

    def __init__(self, runtime: Runtime, host: str, port: int) -> None:
        self.runtime, self.host, self.port = runtime, host, port
        self.is_held = False
        self.pairs: list[_Near] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.address

    def cut(self) -> None:
        """Break what is open. New connections are made again."""
        for near in self.pairs:
            for end in (near, near.far):
                if end.transport is not None:
                    end.transport.abort()
        self.pairs.clear()

    def hold(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        self.is_held = True


class _End(asyncio.Protocol):
    transport: asyncio.Transport | None = None
    other: "_End"
    link: Link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.link.is_held and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.close()


class _Near(_End):
    """The client's side."""

    def __init__(self, link: Link) -> None:
        self.link, self.far, self._early = link, _End(), b""
        self.far.link, self.far.other, self.other = link, self, self.far
        link.pairs.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.link.tasks.append(asyncio.create_task(self._connect()))

    def data_received(self, data: bytes) -> None:
        if self.far.transport is None:
            self._early += data
        else:
            super().data_received(data)

    async def _connect(self) -> None:
        assert self.transport is not None
        try:
            await self.link.runtime.network.connect(self.link.host, self.link.port, lambda: self.far, timeout_s=5)
        except OSError:
            self.transport.abort()
        else:
            super().data_received(self._early)
