"""Readers that count and look at the clock, hundreds on a few connections, for `python -m benchmarks proxy`.

To the read proxy they are calls like any other: the same requests, windows and frames. At their own end they have
neither tasks nor queues, and a message that several of them get is decoded once: what is measured is the proxy, and not
a machine full of readers. Each of them still looks at every message, whether it follows on the last one, and when it
was there.
"""

import asyncio
import time
from collections.abc import Callable

from benchmarks.proxy.messages import DecodedMessage, Messages
from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import invariant
from quire.rpc.serving.grpc_channel import ClientConnection
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.http2_call import Call
from quire.rpc.serving.methods import READ
from quire.rpc.serving.settings import CallSettings
from quire.runtime import Runtime


class LeanReader:
    """One call of `Read`."""

    def __init__(self, call: Call, on_open: Callable[[], None]) -> None:
        self.call, self._on_open = call, on_open
        self.count = 0  # Records that it was given.
        self.had: list[tuple[float, DecodedMessage]] = []  # When a message was there, and what it had.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ungranted_bytes = 0
        self.partial = b""  # Of a message that came in parts.
        self._last: tuple[int, int] = (-1, -1)
        self._is_open = False

    def on_message(self, message: DecodedMessage) -> None:
        self.had.append((time.perf_counter(), message))
        if message.last is not None:
            invariant(message.follows(self._last), "an entry is missing, or came twice", last=self._last)
            self._last = message.last
            self.count += len(message.due_s)
        elif not self._is_open:
            self._is_open = True
            self._on_open()


class LeanConnection(ClientConnection):
    """One connection, with readers on it, and beside them calls that nobody reads."""

    def __init__(self, settings: CallSettings, address: str, messages: Messages) -> None:
        super().__init__(settings, address)
        self._readers: dict[int, LeanReader] = {}
        self._messages = messages

    async def read(self, request: pb.ReadRequest, on_open: Callable[[], None]) -> LeanReader:
        """A new reader."""
        call = await self.call(request)
        reader = self._readers[call.id] = LeanReader(call, on_open)
        return reader

    async def call(self, request: pb.ReadRequest) -> Call:
        """A call, and nothing more. Its window is all that it is ever sent."""
        headers = request_headers(
            READ.path, address=self._address, client_id="bench readers", attempt=1, tried=(), timeout_s=None
        )
        call = self.open(headers)
        await call.send(request.SerializeToString(), end=True)
        return call

    def _on_data(self, call_id: int, flags: int, payload: bytes) -> None:
        reader = self._readers.get(call_id)
        if reader is None or flags & http2.PADDED:
            super()._on_data(call_id, flags, payload)
            return
        self.take_room(len(payload))
        reader.ungranted_bytes += len(payload)
        if reader.ungranted_bytes >= self.settings.window_bytes // 2:
            self.write_control(http2.number_frame(http2.WINDOW_UPDATE, call_id, reader.ungranted_bytes))
            reader.ungranted_bytes = 0
        if reader.partial:
            payload, reader.partial = reader.partial + payload, b""
        # A frame never has more than one message of ours, though it may have less.
        if len(payload) < http2.MESSAGE_PREFIX_BYTES or len(payload) < http2.MESSAGE_PREFIX_BYTES + _size(payload):
            reader.partial = payload
        else:
            reader.on_message(self._messages.decoded(payload))

    def on_forgotten(self, call: Call | None) -> None:
        super().on_forgotten(call)
        reader = self._readers.pop(call.id, None) if call is not None else None
        if reader is not None and not reader.done.done():
            if reader.call.error is not None:
                reader.done.set_exception(reader.call.error)
            else:
                reader.done.set_result(None)


def _size(data: bytes) -> int:
    return http2.prefix_of(data)[1]


async def connect_lean(runtime: Runtime, address: str, messages: Messages) -> LeanConnection:
    """Raises `OSError`."""
    settings = CallSettings()
    host, _, port = address.rpartition(":")
    timeout_s = settings.connect_timeout_s
    _, connection = await runtime.network.connect(
        host, int(port), lambda: LeanConnection(settings, address, messages), timeout_s=timeout_s
    )
    await connection.ready.wait()
    return connection
