"""Calls of gRPC from a client's side: `GrpcTransport`, over whatever network its runtime has.

A channel keeps one connection, and opens another when that one has as many calls as the proxy allows, or takes no more.

Certainty: a proxy has not seen a call if no connection came about, if the proxy took leave and named an earlier call as
the last one that it looked at, or if it refused the call by the code that HTTP/2 has for that. A connection counts only
once the proxy has sent its settings: a listener behind which nobody serves yet never sees a call. All other ends
without a word from the proxy are `ProxyOutcomeUnknown`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from google.protobuf.message import DecodeError, Message

from quire.codec import http2
from quire.codec.http2 import Http2Violation
from quire.errors import InvalidArgument, OverCapacity, ProxyFailed, ProxyOutcomeUnknown, ProxyUnreachable, QuireError
from quire.rpc.serving.grpc_headers import error_in, request_headers
from quire.rpc.serving.http2_call import Call, CallOver, MessageRefused
from quire.rpc.serving.http2_connection import Headers, Http2Connection
from quire.rpc.serving.methods import Method
from quire.rpc.serving.settings import CallSettings
from quire.rpc.serving.tokens import Token
from quire.runtime import Runtime

_CONNECTIONS_MAX: Final = 8  # To one proxy. More calls than they carry are a mistake.
_CACHED_HEADERS_MAX: Final = 64
_CLOSE_GRACE_S: Final = 1.0


class GrpcTransport:
    """All ways of one client to proxies."""

    def __init__(
        self,
        runtime: Runtime,
        client_id: str,
        *,
        settings: CallSettings | None = None,
        tls: ssl.SSLContext | None = None,
        token: Token | None = None,
    ) -> None:
        """`token` is shown with every call, for proxies that ask for one."""
        self._runtime, self._client_id, self._tls, self._token = runtime, client_id, tls, token
        self._settings = settings or CallSettings()
        self._channels: dict[str, GrpcChannel] = {}
        if tls is not None:
            tls.set_alpn_protocols(["h2"])

    def channel(self, address: str) -> "GrpcChannel":
        if address not in self._channels:
            self._channels[address] = GrpcChannel(
                self._runtime,
                address,
                client_id=self._client_id,
                settings=self._settings,
                tls=self._tls,
                token=self._token,
            )
        return self._channels[address]

    async def aclose(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.aclose()


class GrpcChannel:
    """The way to one proxy."""

    def __init__(
        self,
        runtime: Runtime,
        address: str,
        *,
        client_id: str,
        settings: CallSettings,
        tls: ssl.SSLContext | None,
        token: Token | None = None,
    ) -> None:
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdigit():
            raise InvalidArgument(f"{address!r} is not the address of a proxy", hint="Write host:port.")
        self._address, self._host, self._port = address, host.removeprefix("[").removesuffix("]"), int(port)
        self._runtime, self._client_id, self._settings, self._tls = runtime, client_id, settings, tls
        self._token = token
        self._connections: list[ClientConnection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._headers: dict[tuple[object, ...], bytes] = {}
        self._is_closed = False

    @property
    def address(self) -> str:
        return self._address

    async def call(
        self, method: Method, request: Message, *, timeout_s: float, attempt: int = 1, tried: Sequence[str] = ()
    ) -> Any:
        body = self._encoded(request)
        call: Call | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connection()
                call = connection.open(self._request_headers(method, attempt, tried, timeout_s))
                await self._send(call, body, end=True)
                response = await call.receive()
                if response is None:
                    raise ProxyOutcomeUnknown(f"the proxy at {self._address} ended the call without an answer")
                return self._decoded(method, response)
        except TimeoutError as error:
            if call is None:
                raise ProxyUnreachable(f"{self._address} was not reached within {timeout_s:g} s") from error
            raise ProxyOutcomeUnknown(f"{self._address} did not answer within {timeout_s:g} s") from error
        finally:
            if call is not None:
                call.connection.reset(call, http2.CANCEL)

    @asynccontextmanager
    async def stream(
        self, method: Method, request: Message, *, attempt: int = 1, tried: Sequence[str] = ()
    ) -> "AsyncIterator[GrpcStream]":
        body = self._encoded(request)
        connection = await self._connection()
        call = connection.open(self._request_headers(method, attempt, tried, None))
        try:
            await self._send(call, body, end=True)
            yield GrpcStream(self, method, call)
        finally:
            connection.reset(call, http2.CANCEL)

    @asynccontextmanager
    async def duplex(self, method: Method) -> "AsyncIterator[GrpcDuplex]":
        connection = await self._connection()
        call = connection.open(self._request_headers(method, 1, (), None))
        try:
            yield GrpcDuplex(self, method, call)
        finally:
            connection.reset(call, http2.CANCEL)

    async def aclose(self) -> None:
        """Calls that are left end with `ProxyOutcomeUnknown`."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
        try:
            async with asyncio.timeout(_CLOSE_GRACE_S):
                for connection in connections:
                    await connection.lost.wait()
        except TimeoutError:
            for connection in connections:
                connection.abort()

    # --- Connections ------------------------------------------------------------------------------------------

    async def _connection(self) -> "ClientConnection":
        """One with room for another call."""
        while True:
            if self._is_closed:
                raise ProxyUnreachable(f"the channel to {self._address} is closed")
            self._connections = [each for each in self._connections if not each.is_lost]
            for connection in self._connections:
                if connection.takes_calls():
                    return connection
            if sum(not each.is_leaving for each in self._connections) >= _CONNECTIONS_MAX:
                raise OverCapacity(f"as many calls are open to {self._address} as it allows")
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect(), name=f"connect to {self._address}")
                self._connecting.add_done_callback(self._on_connected)
            connecting = self._connecting
            try:
                await asyncio.shield(connecting)  # Others may wait for it, too: their going away must not end it.
            except asyncio.CancelledError:
                us = asyncio.current_task()
                if us is None or us.cancelling() or not connecting.cancelled():
                    raise
                # Not we were cancelled, but the attempt: the channel was closed.

    def _on_connected(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            task.exception()  # Whoever waited for it may have gone away.

    async def _connect(self) -> None:
        """All that changes when it is over changes before the task is: whoever comes between its end and the calls that
        are made for that would find a task that is done, and nothing to wait for."""
        timeout_s = self._settings.connect_timeout_s
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self._runtime.network.connect(
                    self._host,
                    self._port,
                    lambda: ClientConnection(self._settings, self._address),
                    timeout_s=timeout_s,
                    tls=self._tls,
                )
                await connection.ready.wait()
                if connection.is_lost:
                    raise ConnectionResetError("it closed the connection before it said anything")
                self._connections.append(connection)
                connection = None
        except OSError as error:  # Also TimeoutError.
            reason = str(error) or f"no answer within {timeout_s:g} s"
            raise ProxyUnreachable(f"{self._address} cannot be reached: {reason}", address=self._address) from error
        finally:
            self._connecting = None
            if connection is not None:
                connection.abort()

    # --- Messages ---------------------------------------------------------------------------------------------

    def _request_headers(self, method: Method, attempt: int, tried: Sequence[str], timeout_s: float | None) -> bytes:
        token = self._token() if callable(self._token) else self._token or ""
        key = (method, attempt, tuple(tried), timeout_s, token)
        found = self._headers.get(key)
        if found is None:
            if len(self._headers) >= _CACHED_HEADERS_MAX:
                self._headers.clear()
            found = self._headers[key] = request_headers(
                method.path,
                address=self._address,
                client_id=self._client_id,
                attempt=attempt,
                tried=tried,
                timeout_s=timeout_s,
                token=token,
            )
        return found

    def _encoded(self, request: Message) -> bytes:
        body = request.SerializeToString()
        if len(body) > self._settings.message_bytes_max:
            raise InvalidArgument(
                f"a request of {len(body)} bytes is too large",
                hint=f"Send at most {self._settings.message_bytes_max} bytes at a time.",
            )
        return body

    async def _send(self, call: Call, body: bytes, *, end: bool) -> None:
        try:
            await call.send(body, end=end)
        except (CallOver, QuireError) as over:
            if not end:
                raise ProxyOutcomeUnknown(f"the call to {self._address} is over") from over
            # The proxy answered before it had read everything; what it said is there to be received.

    def _decoded(self, method: Method, response: bytes) -> Any:
        try:
            return method.response_type.FromString(response)
        except DecodeError as error:
            raise ProxyFailed(f"{self._address} sent something that is no {method.response_type.__name__}") from error


class GrpcStream:
    """The responses of one call."""

    def __init__(self, channel: GrpcChannel, method: Method, call: Call) -> None:
        self._channel, self._method, self._call = channel, method, call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._call.receive()
        if message is None:
            raise StopAsyncIteration
        return self._channel._decoded(self._method, message)


class GrpcDuplex(GrpcStream):
    """A call in which both sides send."""

    async def send(self, request: Message) -> None:
        if self._call.sent_end:
            raise InvalidArgument("sent after done_sending()")
        await self._channel._send(self._call, self._channel._encoded(request), end=False)

    async def done_sending(self) -> None:
        self._call.finish_sending()


class ClientConnection(Http2Connection):
    """The client's end of one connection."""

    is_client = True

    def __init__(self, settings: CallSettings, address: str) -> None:
        super().__init__(settings)
        self.is_leaving = False
        """Whether it takes no new calls, and ends with the last one."""
        self.ready, self.lost = asyncio.Event(), asyncio.Event()
        self._address = address
        self._next_id = 1
        self._calls_max = 100  # Until the proxy says so.

    def takes_calls(self) -> bool:
        return (
            not (self.is_leaving or self.is_lost or self.transport.is_closing()) and len(self.calls) < self._calls_max
        )

    def open(self, headers: bytes) -> Call:
        call = Call(self, self._next_id)
        self._next_id += 2
        if self._next_id > http2.STREAM_ID_MAX:
            self.is_leaving = True
        self.calls[call.id] = call
        self.write(http2.headers_frames(call.id, headers, end_stream=False))
        return call

    # --- What the other end says ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.say_hello((http2.ENABLE_PUSH, 0))

    def on_ready(self) -> None:
        self.ready.set()

    def on_setting(self, name: int, value: int) -> None:
        if name == http2.MAX_CONCURRENT_STREAMS:
            self._calls_max = value

    def should_ask(self) -> bool:
        return bool(self.calls)

    def is_unheard_of(self, call_id: int) -> bool:
        return call_id >= self._next_id or not call_id & 1

    def on_headers(self, call_id: int, headers: Headers, *, ends: bool) -> None:
        call = self.calls.get(call_id)
        if call is None:
            if self.is_unheard_of(call_id):
                raise Http2Violation("headers of a call that nobody opened")
            return
        status, call.received_any = headers.get(":status"), True
        if ends:
            self._end(call, error_in(headers, address=self._address))
        elif status is not None and not status.startswith("1") and status != "200":
            self._end(call, ProxyFailed(f"{self._address} answered with HTTP status {status}", address=self._address))

    def on_reset(self, call: Call, code: int) -> None:
        error: QuireError | None
        if code == http2.REFUSED_STREAM and not call.received_any:
            error = ProxyUnreachable(f"the proxy at {self._address} took no more calls", address=self._address)
        else:
            error = ProxyOutcomeUnknown(f"the proxy at {self._address} gave up the call", address=self._address)
        self._end(call, error)

    def on_refused(self, call: Call, refusal: MessageRefused) -> None:
        self.write_control(http2.number_frame(http2.RST_STREAM, call.id, http2.CANCEL))
        self._end(call, ProxyOutcomeUnknown(f"the answer of {self._address} is not taken: {refusal}"))

    def on_goaway(self, last_call_id: int) -> None:
        self.is_leaving = True
        for call in [each for each in self.calls.values() if each.id > last_call_id and not each.received_any]:
            self._end(call, ProxyUnreachable(f"the proxy at {self._address} is leaving", address=self._address))
        self.on_forgotten(None)

    def on_violation(self, violation: Http2Violation) -> None:
        self.is_leaving = True

    def on_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        for call in list(self.calls.values()):
            self._end(call, ProxyOutcomeUnknown(f"the connection to {self._address} broke{reason}"))
        self.ready.set()
        self.lost.set()

    def on_forgotten(self, call: Call | None) -> None:
        if self.is_leaving and not self.calls and not self.is_lost:
            self.close()

    def _end(self, call: Call, error: QuireError | None) -> None:
        call.finish(error)
        self.forget(call)
