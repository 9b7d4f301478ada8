"""The proxy's end of one connection: which calls it opens, how they end, and when it has to go."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from quire.codec import http2
from quire.codec.http2 import Http2Violation, headers_block
from quire.errors import InvalidArgument, OverCapacity, QuireError
from quire.rpc.serving.grpc_headers import RESPONSE_HEADERS, trailers
from quire.rpc.serving.http2_call import Call, MessageRefused
from quire.rpc.serving.http2_connection import Headers, Http2Connection
from quire.rpc.serving.refusals import Refusals
from quire.rpc.serving.results import result_of
from quire.rpc.serving.settings import ServingSettings
from quire.telemetry.events import Seldom

_RESETS_MAX: Final = 500  # Calls that a client opens and gives up within a second. Nobody reasonable does.
_HTTP1_VERBS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_HTTP1_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This is a Quire proxy, and this port speaks gRPC. Its HTTP gateway is on another port.\n"
)
_END_SHARE: Final = 16  # Of an end so little counts as unread output: very many calls may end at once.
_LEAVING: Final = b"leaving."  # Eight bytes, as a PING has.


class CallServer(Protocol):
    """What a connection belongs to."""

    settings: ServingSettings
    refusals: Refusals
    tell_refused: Seldom

    def on_connection(self, connection: "ServerConnection") -> None: ...

    def on_lost(self, connection: "ServerConnection") -> None: ...

    def on_call(self, connection: "ServerConnection", call: Call, headers: Mapping[str, str]) -> None: ...

    def age_s(self) -> float: ...

    def reserve(self, size: int, *, held_bytes: int) -> bool: ...

    def release(self, size: int) -> None: ...


class ServerConnection(Http2Connection):
    """One connection of one client."""

    is_client = False
    peer = ""

    def __init__(self, server: CallServer) -> None:
        super().__init__(server.settings.calls)
        self._server = server
        self._tasks: dict[Call, asyncio.Task[None]] = {}  # Those that end with their call.
        self._silent: dict[Call, float] = {}  # Calls that wait for their first request, and until when; oldest first.
        self._timers: list[asyncio.TimerHandle] = []
        self._silence_timer: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._early = b""  # What came before `begin`.
        self._has_begun = self._is_ready = self._is_leaving = self._has_left = False
        self._resets, self._resets_since_s = 0, 0.0
        self._held_bytes = 0  # What is reserved for this connection.

    # --- Life -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = self.peer_name()
        self.transport.pause_reading()
        self._server.on_connection(self)

    def begin(self) -> None:
        """Take calls."""
        self._has_begun = True
        self.transport.resume_reading()
        calls_max = (http2.MAX_CONCURRENT_STREAMS, self._server.settings.calls_per_connection_max)
        self.say_hello(calls_max)
        self._later(self.settings.connect_timeout_s, self._see_whether_ready)
        self._later(self._server.age_s(), self.leave, self._server.settings.connection_age_grace_s)
        if self._early:
            super().data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            super().data_received(data)
        else:
            self._early += data
            self.transport.pause_reading()  # Again: uvloop forgets it if it is told before it has begun to read.

    def _later(self, delay_s: float, action: Callable[..., object], *args: object) -> None:
        self._timers.append(self._loop.call_later(delay_s, action, *args))

    def on_ready(self) -> None:
        self._is_ready = True

    def _see_whether_ready(self) -> None:
        if not self._is_ready:
            self._server.refusals.count("silent_connection")
            self.close(reason="nothing was said")
            self._later(self.settings.connect_timeout_s, self.abort)

    def leave(self, grace_s: float | None) -> None:
        """Let go of the client: it opens no more calls, and the connection is closed behind the last one; after
        `grace_s` in any case.

        Calls may be under way that the client opened before it heard of this. They are still taken: only when the
        client has answered is it certain that none is left, and no call is ever lost to this.
        """
        if not self._is_leaving and not self.is_lost:
            self._is_leaving = True
            self.write(http2.goaway_frame(http2.STREAM_ID_MAX, http2.NO_ERROR))
            self.write(http2.frame(http2.PING, 0, 0, _LEAVING))
            if grace_s is not None:
                self._later(grace_s, self.close)

    def on_pong(self, payload: bytes) -> None:
        if payload == _LEAVING and self._is_leaving and not self._has_left:
            self._has_left = True
            self.write(http2.goaway_frame(self._last_id, http2.NO_ERROR))
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._has_left and not self.calls and not self.is_lost:
            self.close()

    def give_up_calls(self) -> None:
        """End all calls, without a word about what became of them."""
        for call in list(self.calls.values()):
            self.reset(call, http2.CANCEL)

    def on_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self.give_up_calls()
        self._server.on_lost(self)

    # --- Calls ------------------------------------------------------------------------------------------------

    def last_call_id(self) -> int:
        return self._last_id

    def is_unheard_of(self, call_id: int) -> bool:
        return call_id > self._last_id or not call_id & 1

    def on_headers(self, call_id: int, headers: Headers, *, ends: bool) -> None:
        call = self.calls.get(call_id)
        if call is not None:  # Trailers, which say nothing in a request.
            if not ends:
                raise Http2Violation("headers in the middle of a call")
            if not call.is_read_out:
                self._take_data(call, b"", ends=True)
            return
        if not call_id & 1 or call_id <= self._last_id:
            raise Http2Violation("a call has the number of another")
        if self._has_left:
            return  # It was told that we would not look at this.
        self._last_id = call_id
        if len(self.calls) >= self._server.settings.calls_per_connection_max:
            self._server.refusals.count("too_many_calls")
            self.write_control(http2.number_frame(http2.RST_STREAM, call_id, http2.REFUSED_STREAM))
            return
        call = self.calls[call_id] = Call(self, call_id)
        self.exchanges += 1
        if ends:
            call.is_read_out = True
        else:
            self._expect_request(call)
        self._server.on_call(self, call, headers)

    def _take_data(self, call: Call, payload: bytes, *, ends: bool) -> None:
        try:
            call.on_data(payload, len(payload), ends=ends)
        except MessageRefused as refusal:
            self.on_refused(call, refusal)

    def on_serving(self, call: Call, task: "asyncio.Task[None]", *, may_cancel: bool) -> None:
        if may_cancel:
            self._tasks[call] = task

    def on_served(self, call: Call) -> None:
        self._tasks.pop(call, None)

    def on_reset(self, call: Call, code: int) -> None:
        now_s = self._loop.time()
        if now_s - self._resets_since_s > 1.0:
            self._resets, self._resets_since_s = 0, now_s
        self._resets += 1
        if self._resets > _RESETS_MAX:
            self._server.refusals.count("too_many_resets")
            raise Http2Violation("too many calls are given up", http2.ENHANCE_YOUR_CALM)
        self.forget(call)

    def on_forgotten(self, call: Call) -> None:
        self._silent.pop(call, None)
        call.drop_unread()
        task = self._tasks.pop(call, None)
        if task is not None and not call.is_over:
            task.cancel()
        self._close_if_idle()

    async def respond(self, call: Call, body: bytes) -> None:
        if not call.headers_sent and not call.is_over:
            call.headers_sent = True
            self.write_control(http2.headers_frames(call.id, RESPONSE_HEADERS, end_stream=False), share=_END_SHARE)
        await call.send(body)

    def end(self, call: Call, block: bytes) -> None:
        """The last that is said of a call."""
        if not call.headers_sent:
            block = RESPONSE_HEADERS + block
        self._finish(call, block)

    def refuse_http(self, call: Call, status: str) -> None:
        self._finish(call, headers_block([(":status", status)]))

    def _finish(self, call: Call, block: bytes) -> None:
        if not call.is_over:
            call.finish(None)
            self.write_control(http2.headers_frames(call.id, block, end_stream=True), share=_END_SHARE)
            if call.is_read_out:
                self.forget(call)
            else:
                self.reset(call, http2.NO_ERROR)  # What else the client sends is of no use.

    # --- What is not taken ------------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        if not self._server.reserve(size, held_bytes=self._held_bytes):
            return False
        self._held_bytes += size
        return True

    def release(self, size: int) -> None:
        self._held_bytes -= size
        self._server.release(size)

    def on_refused(self, call: Call, refusal: MessageRefused) -> None:
        self._server.refusals.count(refusal.cause)
        kind = OverCapacity if refusal.cause == "too_many_bytes" else InvalidArgument
        self._cut_off(call, kind(str(refusal)))

    def _cut_off(self, call: Call, error: QuireError) -> None:
        """End a call that is being served."""
        task = self._tasks.pop(call, None)
        self.end(call, trailers(result_of(error)))
        if task is not None:
            task.cancel()

    def _expect_request(self, call: Call) -> None:
        self._silent[call] = self._loop.time() + self._server.settings.first_message_timeout_s
        if self._silence_timer is None:
            self._see_who_is_silent()

    def _see_who_is_silent(self) -> None:
        now_s, self._silence_timer = self._loop.time(), None
        while self._silent:
            call, until_s = next(iter(self._silent.items()))
            speaks = call.received_message or call.is_read_out
            if until_s > now_s and not speaks:
                self._silence_timer = self._loop.call_at(until_s, self._see_who_is_silent)
                return
            del self._silent[call]
            if not speaks:
                self._server.refusals.count("no_first_message")
                self._cut_off(call, InvalidArgument("the call was opened, and nothing was sent"))

    def on_violation(self, violation: Http2Violation) -> None:
        self._server.refusals.count("broken_rules")
        self._server.tell_refused(self._loop.time(), peer=self.peer, reason=str(violation))

    def on_other_protocol(self, beginning: bytes) -> None:
        self._server.refusals.count("other_protocol")
        self._server.tell_refused(self._loop.time(), peer=self.peer, reason="not HTTP/2", beginning=beginning[:8])
        if beginning.startswith(_HTTP1_VERBS):
            self.write(_HTTP1_ANSWER)
