"""Connections as byte streams between asyncio protocols: whoever dials or listens takes a `Network`.

Hot paths parse in `Protocol.data_received` and write to the transport; stream readers cost a task switch per read. So
this seam hands out nothing but asyncio's own transports, and a simulation provides transports of the same kind.

A `BufferedProtocol` should hand out memoryviews: asyncio's TLS slices the buffer it gets, and a slice of a bytearray is
a copy, so bytes written there would be lost without a word.

Every failure to connect is an `OSError`: ConnectionRefusedError, TimeoutError, a name that does not resolve, a TLS
handshake that fails. What it means for the caller is said once, in `quire.rpc`.

A server takes as many descriptors as the system allows its process, and closes connections at once that would take one
of the last: those are for files.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar, cast

from quire.runtime.descriptors import is_reserved, raise_limit
from quire.runtime.disk import Buffer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

P = TypeVar("P", bound=asyncio.BaseProtocol)

_BACKLOG: Final = 1024  # After a restart every client comes back at once; a refused one would wait for its back-off.
_ACCEPTS_PER_TURN: Final = 8  # Each has a descriptor by the time that the first of them can be refused.
_CLOSE_GRACE_S: Final = 1.0
_PART_BYTES_MIN: Final = 4096  # From here on copying a part costs more than handing it to the kernel by itself.


def are_worth_joining(parts: Sequence[Buffer], size: int) -> bool:
    """Whether `parts`, of `size` bytes in all, are cheaper to send, or to write, as one than as they are."""
    return size < _PART_BYTES_MIN * len(parts)


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[Buffer], size: int) -> None:
    """Send `parts`, of `size` bytes in all: in one write, and without copying them if they are large.

    Not copied means that they must never change: hand over `bytes`, or views of them.
    """
    if len(parts) == 1:
        transport.write(parts[0])
    elif are_worth_joining(parts, size):
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


class Server(Protocol):
    """A listening address and the connections accepted there."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port actually bound: the port is never 0."""
        ...

    @property
    def refused(self) -> int:
        """How many connections were closed at once, since few descriptors were left."""
        ...

    async def listen(self) -> None:
        """Accept connections from now on; for a server that is `silent` so far. Raises `OSError`."""
        ...

    async def aclose(self, *, grace_s: float = _CLOSE_GRACE_S) -> None:
        """Stop listening, close every connection, and return when each protocol has seen `connection_lost`.

        Bytes already handed to a transport are still sent, for up to `grace_s`; then connections are aborted.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class Network(Protocol):
    """The network as seen from one machine."""

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
        """Open a connection. `timeout_s` covers name lookup, connecting and the TLS handshake. Raises `OSError`."""
        ...

    async def serve(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        silent: bool = False,
    ) -> Server:
        """Listen on `host` (port 0: any free port), with one new protocol per connection. Raises `OSError`.

        A `silent` server takes the address only: clients are refused, as if there were none, until its `listen`.
        With port 0 give an IP address: a name may stand for several, and each would get a port of its own.
        """
        ...

    async def start_tls(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.BaseProtocol,
        tls: ssl.SSLContext,
        *,
        timeout_s: float,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> asyncio.Transport:
        """Encrypt an open connection. The old transport must not be used any more: use the one returned."""
        ...


class AsyncioNetwork:
    """The running event loop's sockets."""

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
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            return await loop.create_connection(protocol_factory, host, port, ssl=tls, server_hostname=server_hostname)

    async def serve(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        silent: bool = False,
    ) -> Server:
        raise_limit()
        loop = asyncio.get_running_loop()
        accepted = AcceptedConnections(keeps_reserve=True)
        listener = await loop.create_server(
            lambda: accepted.admit(protocol_factory),
            host,
            port,
            ssl=tls,
            backlog=_ACCEPTS_PER_TURN,  # That is how asyncio understands it, too.
            start_serving=False,
        )
        server = AsyncioServer(listener, accepted)
        if not silent:
            try:
                await server.listen()
            except BaseException:
                listener.close()
                raise
        return server

    async def start_tls(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.BaseProtocol,
        tls: ssl.SSLContext,
        *,
        timeout_s: float,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        current = transport.get_protocol()
        # An accepted connection keeps its bookkeeping in between, or the server would lose sight of it.
        inner = current if isinstance(current, _Accepted) else protocol
        async with asyncio.timeout(timeout_s):
            encrypted = await loop.start_tls(
                transport, inner, tls, server_side=server_side, server_hostname=server_hostname
            )
        if encrypted is None:
            raise ConnectionResetError("the connection was closed during the TLS handshake")
        if isinstance(inner, _Accepted):
            inner.transport = encrypted
        return encrypted


class AsyncioServer:
    """A listening socket of the running loop."""

    def __init__(self, listener: asyncio.Server, accepted: "AcceptedConnections") -> None:
        host, port = listener.sockets[0].getsockname()[:2]
        self._address: tuple[str, int] = (host, port)
        self._listener = listener
        self._accepted = accepted

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def refused(self) -> int:
        return self._accepted.refused

    async def listen(self) -> None:
        await self._listener.start_serving()
        for listening in self._listener.sockets:
            with listening.dup() as same:  # How many wait in the kernel is not how many are accepted in one turn.
                same.listen(_BACKLOG)

    async def aclose(self, *, grace_s: float = _CLOSE_GRACE_S) -> None:
        self._listener.close()
        await self._accepted.aclose(grace_s=grace_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class AcceptedConnections:
    """Knows the live connections of one server: asyncio's own server, in Python 3.11, does not.

    With `keeps_reserve` it refuses connections that would take the last descriptors of the process.
    """

    def __init__(self, *, keeps_reserve: bool = False) -> None:
        self.refused = 0
        self._keeps_reserve = keeps_reserve
        self._live: dict[_Accepted, None] = {}
        self._closing = False
        self._changed = asyncio.Event()

    def admit(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Make the protocol of one more connection, with our bookkeeping around it."""
        protocol = protocol_factory()
        if isinstance(protocol, asyncio.BufferedProtocol):
            return _AcceptedBuffered(self, protocol)
        return _AcceptedStream(self, protocol)

    def refuses(self, transport: asyncio.Transport) -> bool:
        """Whether a connection that was just accepted has to be closed at once."""
        refused = self._keeps_reserve and is_reserved(transport.get_extra_info("socket").fileno())
        self.refused += refused
        return refused

    def on_made(self, connection: "_Accepted") -> None:
        self._live[connection] = None
        if self._closing:  # Accepted by the kernel before the listening socket was closed.
            connection.transport.abort()

    def on_lost(self, connection: "_Accepted") -> None:
        self._live.pop(connection, None)
        self._changed.set()

    async def aclose(self, *, grace_s: float) -> None:
        self._closing = True
        for connection in list(self._live):
            connection.transport.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._wait_empty()
        except TimeoutError:
            pass
        finally:  # Also when cancelled: whoever gives up on waiting still wants them gone.
            for connection in list(self._live):
                connection.transport.abort()
        async with asyncio.timeout(_CLOSE_GRACE_S):
            await self._wait_empty()

    async def _wait_empty(self) -> None:
        while self._live:
            self._changed.clear()
            await self._changed.wait()


class _Accepted(asyncio.BaseProtocol):
    """Passes every event on to the server's own protocol, and tells the server when the connection ends."""

    transport: asyncio.Transport

    def __init__(self, connections: AcceptedConnections, protocol: asyncio.BaseProtocol) -> None:
        self._connections = connections
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._connections.refuses(self.transport):
            self._protocol = asyncio.Protocol()  # Nothing more is heard of it.
            self.transport.abort()
        self._protocol.connection_made(transport)
        self._connections.on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.on_lost(self)
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class _AcceptedStream(_Accepted, asyncio.Protocol):
    _protocol: asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()


class _AcceptedBuffered(_Accepted, asyncio.BufferedProtocol):
    _protocol: asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> "ReadableBuffer":
        return self._protocol.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()
