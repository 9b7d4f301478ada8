"""A client of HTTP/2 in a simulation that does what it likes, and keeps what it is told. It answers PINGs."""

import asyncio

from quire.codec import http2
from quire.codec.http2 import Frames
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.methods import WRITE, Method
from quire.testing import Simulation

DELIVERED_S = 1.0  # Of virtual time, within which everything arrives that the network has taken.


class Stranger(asyncio.Protocol):
    """One connection. Made by `stranger`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._frames, self._next_id = Frames(), 1
        self.received: list[tuple[int, int, int, bytes]] = []
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            type, flags, _, payload = frame
            self.received.append(frame)
            if type == http2.PING and not flags & http2.ACK:
                self.transport.write(http2.frame(http2.PING, http2.ACK, 0, payload))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    def of(self, type: int, number: int = 0) -> list[bytes]:
        """The payloads of such frames."""
        return [payload for kind, _, call, payload in self.received if (kind, call) == (type, number)]

    @property
    def reason(self) -> int | None:
        """The code with which the other end took leave."""
        good_byes = self.of(http2.GOAWAY)
        return http2.goaway_of(good_byes[-1])[1] if good_byes else None

    def open(self, method: Method = WRITE) -> int:
        """A call; returns its number."""
        number, self._next_id = self._next_id, self._next_id + 2
        block = request_headers(method.path, address="x", client_id="stranger", attempt=1, tried=(), timeout_s=None)
        self.transport.write(http2.headers_frames(number, block, end_stream=False))
        return number

    async def send(self, data: bytes) -> None:
        """Returns when it has arrived, or the connection is gone."""
        self.transport.write(data)
        while self.transport.get_write_buffer_size() and not self.is_closed:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(DELIVERED_S)
        await asyncio.sleep(DELIVERED_S)


async def stranger(sim: Simulation, host: str, port: int, *, name: str = "stranger") -> Stranger:
    """A connection that has said hello."""
    _, made = await sim.host(name).runtime.network.connect(host, port, Stranger, timeout_s=5)
    await made.send(http2.PREFACE + http2.settings_frame([]))
    return made
