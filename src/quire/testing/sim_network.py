"""Many hosts in one simulated network: `Network` for each of them, and the faults between them.

    net = SimNetwork(loop, rng)
    server = await net.host("b1").serve("b1", 3181, BookieProtocol)
    transport, protocol = await net.host("client").connect("b1", 3181, ClientProtocol, timeout_s=5)
    net.partition("client", "b1", one_way=True)
    net.tap("b1", "client", lambda frame, send: later.append(send) if is_late(frame) else send())

Every delay, every split of the bytes and every lost connection comes from the seed. TLS is refused: its randomness
comes from OpenSSL, so no seed could repeat it; test it on real sockets.
"""

import asyncio
import contextvars
import errno
import functools
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, Self, TypeVar

from quire.runtime.network import AcceptedConnections
from quire.testing.sim_errors import SimRefused
from quire.testing.sim_loop import SimLoop
from quire.testing.sim_rng import SimRng
from quire.testing.sim_transport import Address, OnFrame, SimTransport
from quire.testing.sim_wire import Wire

P = TypeVar("P", bound=asyncio.BaseProtocol)

LATENCY_S: Final = (0.000_1, 0.005)
WINDOW_BYTES: Final = 64 * 1024
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_WILDCARD: Final = ("", "0.0.0.0", "::")  # noqa: S104  # Names of addresses; nothing is bound.
_FIRST_FREE_PORT: Final = 32_768
_CLOSE_GRACE_S: Final = 1.0
_NO_TLS: Final = "TLS is refused in a simulation: OpenSSL's randomness cannot be repeated from a seed"


class SimNetwork:
    """All hosts, listeners and connections of a simulation, and what is wrong between them.

    `latency_s` bounds the delay of each piece of data; `link_latency_s` overrides it for (source, target).
    `loss_probability` is the chance, at each delivery, that the connection breaks instead.
    """

    def __init__(self, loop: SimLoop, rng: SimRng, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.latency_s: tuple[float, float] = LATENCY_S
        self.link_latency_s: dict[tuple[str, str], tuple[float, float]] = {}
        self.loss_probability = 0.0
        self._loop = loop
        self._rng = rng
        self.window_bytes = window_bytes  # Of connections that are made from now on.
        self._hosts: dict[str, SimHostNetwork] = {}
        self._listeners: dict[Address, SimServer] = {}
        self._connections: dict[SimTransport, None] = {}  # The client's end of each, in order of creation.
        self._blocked: dict[tuple[str, str], int] = {}  # With the number of the partition, for its delayed resets.
        self._partitions = 0
        self._taps: dict[tuple[str, str], OnFrame] = {}
        self._next_port = _FIRST_FREE_PORT
        self._healed = asyncio.Event()

    def host(self, name: str) -> "SimHostNetwork":
        """The network as seen from `name`, which exists from the first call on."""
        if name not in self._hosts:
            self._hosts[name] = SimHostNetwork(self, name)
        return self._hosts[name]

    # --- Faults -----------------------------------------------------------------------------------------------

    def cut(self, transport: asyncio.BaseTransport) -> None:
        """Break one connection, named by either of its ends; what was on its way is lost."""
        if not isinstance(transport, SimTransport):
            raise TypeError("cut() takes a transport of this network")
        self._break([transport])

    def reset_all(self, host: str) -> None:
        """Break every connection of a host. Its listeners stay."""
        self._break([end for end in self._connections if host in (end.host, end.peer.host)])

    def crash(self, host: str) -> None:
        """A host dies: its connections are reset, its listeners gone, its `Network` dead; `host` gives a new one."""
        self.host(host).power_off()
        del self._hosts[host]
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        self.reset_all(host)
        self.host(host)

    def partition(self, a: str, b: str, *, one_way: bool = False, reset_after_s: float | None = None) -> None:
        """Hold everything from `a` to `b`, and also back unless `one_way`, until `heal`.

        Connections stay up, as with TCP, unless they are still cut off after `reset_after_s`.
        """
        self._partitions += 1
        number = self._partitions
        ways = [(a, b)] if one_way else [(a, b), (b, a)]
        for way in ways:
            self._blocked[way] = number
        if reset_after_s is not None:
            self._loop.call_later(reset_after_s, self._reset_blocked, ways, number)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End the partition between `a` and `b` in both directions; or all that `a` is part of; or all there are."""
        healed = [way for way in self._blocked if (a is None or a in way) and (b is None or b in way)]
        for way in healed:
            del self._blocked[way]
        for end in self._connections:
            end.wire.poke_later()
            end.peer.wire.poke_later()
        self._healed.set()
        self._healed.clear()

    def tap(self, source: str, target: str, on_frame: OnFrame | None) -> None:
        """Hand every frame that `source` writes to `target` to `on_frame`, on all connections; None ends that.

        A frame is its length in four bytes, and the body, which is what `on_frame` gets; with a call that sends it: at
        once, later or never. Frames sent in between overtake it, as if it had been written later.
        """
        if on_frame is None:
            self._taps.pop((source, target), None)
        else:
            self._taps[source, target] = on_frame
        for end in self._connections:
            for side in (end, end.peer):
                if (side.host, side.peer.host) == (source, target):
                    side.tap(on_frame)

    def _reset_blocked(self, ways: list[tuple[str, str]], number: int) -> None:
        for way in ways:
            if self._blocked.get(way) == number:  # Not healed since, and not begun anew.
                self._break([end for end in self._connections if {end.host, end.peer.host} == set(way)])

    def _break(self, ends: list[SimTransport]) -> None:
        for end in ends:
            for side in (end, end.peer):
                side.break_off(ConnectionResetError("connection reset (simulated)"))

    # --- The state of the links, for wires ----------------------------------------------------------------------

    def delay_s(self, source: str, target: str) -> float:
        return self._rng.uniform(self.link_latency_s.get((source, target), self.latency_s))

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def loses_connection(self) -> bool:
        return self.loss_probability > 0 and self._rng.random() < self.loss_probability

    # --- Connecting, for hosts ----------------------------------------------------------------------------------

    async def travel(self, source: str, target: str) -> None:
        """Let one message get from `source` to `target`, however long a partition lasts."""
        await asyncio.sleep(self.delay_s(source, target))
        while self.is_blocked(source, target):
            await self._healed.wait()
            await asyncio.sleep(self.delay_s(source, target))

    def resolve(self, source: str, host: str) -> str:
        if host in _LOOPBACK:
            return source
        if host not in self._hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no simulated host is called {host!r}")
        return host

    def listen(self, server: "SimServer", port: int) -> int:
        if port == 0:
            port = self.next_port()
        if (server.host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {server.host}:{port} (simulated)")
        self._listeners[server.host, port] = server
        return port

    def stop_listening(self, server: "SimServer", port: int) -> None:
        if self._listeners.get((server.host, port)) is server:
            del self._listeners[server.host, port]

    def listener(self, host: str, port: int, *, local: bool) -> "SimServer | None":
        server = self._listeners.get((host, port))
        return server if server is not None and not server.is_silent and (local or not server.loopback_only) else None

    def next_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def join(
        self,
        client: Address,
        server: Address,
        near: asyncio.BaseProtocol,
        far: asyncio.BaseProtocol,
        *,
        far_context: contextvars.Context,
    ) -> SimTransport:
        """A new connection between two protocols; returns the client's end. Neither protocol knows of it yet."""
        wires = [
            Wire(self._loop, self._rng, self, source=source, target=target, window_bytes=self.window_bytes)
            for source, target in ((client[0], server[0]), (server[0], client[0]))
        ]
        here = SimTransport(self._loop, wires[0], near, contextvars.copy_context(), local=client, remote=server)
        there = SimTransport(self._loop, wires[1], far, far_context, local=server, remote=client)
        here.peer, there.peer = there, here
        for end in (here, there):
            end.wire.sender, end.wire.receiver = end, end.peer
            end.on_lost = functools.partial(self._forget_if_over, here)
            end.tap(self._taps.get((end.host, end.peer.host)))
        self._connections[here] = None
        return here

    def _forget_if_over(self, end: SimTransport) -> None:
        if end.is_lost() and end.peer.is_lost():
            self._connections.pop(end, None)


class SimHostNetwork:
    """The network of one simulated host, until that host crashes."""

    def __init__(self, net: SimNetwork, name: str) -> None:
        self.name = name
        self._net = net
        self._off = False

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
        _refuse_tls(tls)
        async with asyncio.timeout(timeout_s):
            target = self._net.resolve(self.name, host)
            await self._net.travel(self.name, target)
            self._check_alive()
            server = self._net.listener(target, port, local=target == self.name)
            if server is None:
                await self._net.travel(target, self.name)
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port} (simulated)")
            protocol = protocol_factory()
            transport = server.accept((self.name, self._net.next_port()), protocol)
            try:
                await self._net.travel(target, self.name)
                await self._made(transport)
            except BaseException:
                transport.abort()
                raise
            return transport, protocol

    async def serve(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        silent: bool = False,
    ) -> "SimServer":
        _refuse_tls(tls)
        await asyncio.sleep(0)
        self._check_alive()
        if host not in (self.name, *_LOOPBACK, *_WILDCARD):
            raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is not an address of {self.name!r} (simulated)")
        loopback = host if host in _LOOPBACK else None
        server = SimServer(self._net, self.name, protocol_factory, port=port, loopback=loopback)
        server.is_silent = silent
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
        raise SimRefused(_NO_TLS)

    def power_off(self) -> None:
        """Refuse every call from now on: the host has crashed, and this was its old life's network."""
        self._off = True

    def _check_alive(self) -> None:
        if self._off:
            raise OSError(errno.ENETDOWN, "the simulated host has crashed since")

    async def _made(self, transport: SimTransport) -> None:
        """Return once the client's protocol has seen `connection_made`, as asyncio's connect does."""
        self._check_alive()
        transport.start()
        await asyncio.sleep(0)  # The loop never lets a task overtake a callback: `connection_made` comes first.
        if not transport.is_made():
            raise ConnectionResetError("the connection broke while it was being made (simulated)")


class SimServer:
    """A listener of one simulated host."""

    is_silent = False
    refused = 0

    def __init__(
        self,
        net: SimNetwork,
        host: str,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        port: int,
        loopback: str | None,
    ) -> None:
        self.host = host
        self.loopback_only = loopback is not None
        self._net = net
        self._protocol_factory = protocol_factory
        self._accepted = AcceptedConnections()
        self._context = contextvars.copy_context()
        self._address: Address = (loopback or host, net.listen(self, port))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def listen(self) -> None:
        self.is_silent = False

    def accept(self, client: Address, protocol: asyncio.BaseProtocol) -> SimTransport:
        """Connect a client; returns its end, not yet started."""
        context = self._context.copy()  # That of whoever listens, not that of the client whose call this is.
        accepted = context.run(self._accepted.admit, self._protocol_factory)
        transport = self._net.join(client, (self.host, self._address[1]), protocol, accepted, far_context=context)
        transport.peer.start()
        return transport

    async def aclose(self, *, grace_s: float = _CLOSE_GRACE_S) -> None:
        self._net.stop_listening(self, self._address[1])
        await self._accepted.aclose(grace_s=grace_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _refuse_tls(tls: ssl.SSLContext | None) -> None:
    if tls is not None:
        raise SimRefused(_NO_TLS)
