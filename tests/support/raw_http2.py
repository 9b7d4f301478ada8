"""A client of HTTP/2 that does what it likes, on a blocking-free raw socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.codec import http2
from quire.codec.http2 import Frames
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.methods import Method

DEADLINE_S = 20.0


class RawClient:
    """Sends any bytes, and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = Frames()
        self._next_id = 1
        self.received: list[tuple[int, int, int, bytes]] = []

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def hello(self) -> None:
        self.send(http2.PREFACE, http2.settings_frame([]))

    def open(self, method: Method, *, client_id: str = "raw") -> int:
        """Headers of a call; returns its number."""
        number, self._next_id = self._next_id, self._next_id + 2
        block = request_headers(method.path, address="x", client_id=client_id, attempt=1, tried=(), timeout_s=None)
        self.send(http2.headers_frames(number, block, end_stream=False))
        return number

    def message(self, number: int, body: bytes, *, end: bool = False) -> None:
        self.send(http2.message_header(number, len(body), end_stream=end), body)

    async def until(self, type: int, number: int | None = None) -> tuple[int, int, int, bytes]:
        """The first frame of this type, and call."""
        async with asyncio.timeout(DEADLINE_S):
            seen = 0
            while True:
                for frame in self.received[seen:]:
                    if frame[0] == type and number in (None, frame[2]):
                        return frame
                seen = len(self.received)
                data = await self.reader.read(65536)
                assert data, f"the connection was closed; before that came {self.received[-3:]}"
                self.received += self._frames.feed(data)

    async def until_closed(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(DEADLINE_S):
            data = b""
            try:
                while more := await self.reader.read(65536):
                    data += more
            except ConnectionResetError:
                pass  # As good an end as any.
            return data


@asynccontextmanager
async def raw_client(address: tuple[str, int]) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()
