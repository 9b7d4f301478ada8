"""Connections within one process: pairs of connected sockets, made on demand, and not a single port.

Whoever listens is found in a table of this process, by host and port as anywhere else; the names are free to choose,
since nobody outside can see them. Everything runs on one event loop: that of the servers is that of their clients.
A transport here knows neither its own address nor that of its peer.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final, Self, TypeVar

from quire.runtime.network import _CLOSE_GRACE_S, AcceptedConnections, AsyncioNetwork

P = TypeVar("P", bound=asyncio.BaseProtocol)
Address = tuple[str, int]

_FIRST_PORT: Final = 49152
_LAST_PORT: Final = 65535
_SOCKET_BUFFER_BYTES: Final = 1 << 20  # The system's default holds two large entries; a write should seldom wait.


class LocalNetwork(AsyncioNetwork):
    """A network that ends where the process ends."""

    def __init__(self) -> None:
        self._listening: dict[Address, LocalServer] = {}

    async def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], P],
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, P]:
        server = self._listening.get((host, port))
        if server is None or server.is_silent:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port} in this process")
        loop = asyncio.get_running_loop()
        ours, theirs = _pair()
        hostname = (server_hostname or host) if tls is not None else None
        accepting = asyncio.create_task(server.accept(theirs), name=f"accept on {host}:{port}")
        try:
            async with asyncio.timeout(timeout_s):
                return await loop.create_connection(protocol_factory, sock=ours, ssl=tls, server_hostname=hostname)
        except BaseException:
            ours.close()
            raise
        finally:
            # A server's handshake that fails, or is given up, ends its own side; the client has its own error.
            await asyncio.wait([accepting])

    async def serve(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        silent: bool = False,
    ) -> "LocalServer":
        address = (host, port or self._free_port(host))
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, f"Address already in use in this process: {host}:{port}")
        server = LocalServer(address, protocol_factory, tls, on_closed=lambda: self._listening.pop(address, None))
        server.is_silent = silent
        self._listening[address] = server
        return server

    def _free_port(self, host: str) -> int:
        return next(port for port in range(_FIRST_PORT, _LAST_PORT) if (host, port) not in self._listening)


class LocalServer:
    """An entry of the table, and the connections that were made through it."""

    is_silent = False
    refused = 0

    def __init__(
        self,
        address: Address,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        *,
        on_closed: Callable[[], object],
    ) -> None:
        self._address, self._protocol_factory, self._tls, self._on_closed = address, protocol_factory, tls, on_closed
        self._accepted = AcceptedConnections()

    @property
    def address(self) -> Address:
        return self._address

    async def listen(self) -> None:
        self.is_silent = False

    async def accept(self, theirs: socket.socket) -> None:
        """Take one end of a pair as a new connection. A handshake that fails closes it, and is nobody's error here."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self._accepted.admit(self._protocol_factory), theirs, ssl=self._tls
            )
        except OSError:
            theirs.close()

    async def aclose(self, *, grace_s: float = _CLOSE_GRACE_S) -> None:
        self._on_closed()
        await self._accepted.aclose(grace_s=grace_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    return ours, theirs
