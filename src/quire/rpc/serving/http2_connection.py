"""A connection of HTTP/2 that carries calls of gRPC, on any of asyncio's transports: real sockets or simulated ones.

What both ends have in common is here: frames in and out, the windows of calls and of the connection, keep-alive, and
what becomes of peers that break the rules. What a new call, its headers and its end mean is said by the two ends
(`grpc_server`, `grpc_channel`).

Why not the library `grpcio`: docs/decisions/0012. In short, a message costs it some 90 µs of CPU at both ends together,
and a proxy with hundreds of readers does nothing else.

Invariants:
  OneWriteATurn    what all calls send in one turn of the loop leaves in one write.
  BoundedWork      a byte that arrives costs a bounded number of steps, whatever frame it belongs to: frames that carry
                   no message have a budget (`quire.codec.http2_budget`).
  BoundedInput     what has arrived and nobody has read, whole or in part, was reserved before it was kept.
  BoundedOutput    data waits with its sender while the transport is full; only small frames are written nevertheless,
                   and a peer that makes us write them without reading any is cut off.
"""

import asyncio
from typing import Any, Final, cast

from hpack import Decoder, HPACKError

from quire.codec import http2
from quire.codec.http2 import Frames, Http2Violation
from quire.codec.http2_budget import FrameBudget
from quire.errors import invariant
from quire.rpc.serving.http2_call import Call, MessageRefused
from quire.rpc.serving.settings import CallSettings
from quire.runtime.network import write_parts

Headers = dict[str, str]

_CONNECTION_WINDOW_BYTES: Final = 16 << 20
_HEADER_BYTES_MAX: Final = 16 << 10
_OUT_BYTES_HIGH: Final = 64 << 10  # From here on output leaves before the turn is over.
_UNREAD_CONTROL_BYTES_MAX: Final = 64 << 10
_CONTINUATIONS_MAX: Final = 8  # Of one block: the most that fits into it takes two.


class Http2Connection(asyncio.Protocol):
    """One end. `on_...` without an underscore is what an end has to say about it."""

    is_client: bool

    def __init__(self, settings: CallSettings) -> None:
        self.settings = settings
        self.calls: dict[int, Call] = {}
        self.peer_window_bytes = http2.WINDOW_BYTES
        self._frame_bytes_max = http2.FRAME_BYTES_MAX  # That we may send.
        self.is_lost = False
        self._frames, self._decoder = Frames(), Decoder(max_header_list_size=_HEADER_BYTES_MAX)
        self._preface = b"" if self.is_client else http2.PREFACE  # What we still expect of it.
        self._block: tuple[int, int, bytearray] | None = None  # Headers that have not ended: call, flags, bytes.
        self._continuations = 0  # Of that.
        self._kept_bytes = 0  # Of frames and headers that are not whole, as far as they are reserved.
        self._window_out = http2.WINDOW_BYTES
        self._window_in = http2.WINDOW_BYTES
        self._out: list[bytes | memoryview] = []
        self._out_bytes = self._unread_control_bytes = 0
        self.exchanges = 0  # Calls that the other end opened, and frames of data that it was sent.
        self._budget = FrameBudget()
        self._is_flushing = self._is_full = False
        self._waiting: dict[Call, None] = {}  # Calls with something to send, and room for it in their own window.
        self._alive_timer: asyncio.TimerHandle | None = None
        self._last_heard_s = 0.0
        self._asked_s: float | None = None

    # --- For the two ends to say ------------------------------------------------------------------------------

    def on_ready(self) -> None:
        """The other end has shown that it speaks HTTP/2."""

    def on_headers(self, call_id: int, headers: Headers, *, ends: bool) -> None:
        """Headers, or trailers."""
        raise NotImplementedError

    def on_reset(self, call: Call, code: int) -> None:
        """The other end gave up a call."""
        raise NotImplementedError

    def on_refused(self, call: Call, refusal: MessageRefused) -> None:
        """A message of the call was not taken."""
        raise NotImplementedError

    def on_goaway(self, last_call_id: int) -> None:
        """The other end takes no more calls. It has not looked at those behind this one."""

    def on_pong(self, payload: bytes) -> None:
        """The answer to a PING."""

    def on_setting(self, name: int, value: int) -> None:
        """One that is of no meaning here."""

    def on_violation(self, violation: Http2Violation) -> None:
        """The other end broke the rules; the connection is being closed."""

    def on_other_protocol(self, beginning: bytes) -> None:
        """The other end does not speak HTTP/2; the connection is being closed."""

    def on_lost(self, error: Exception | None) -> None:
        """The connection is gone; its calls are still there to be ended."""
        raise NotImplementedError

    def reserve(self, size: int) -> bool:
        """Whether there is memory for so much of what arrives."""
        return True

    def release(self, size: int) -> None:
        """Give it back."""

    def should_ask(self) -> bool:
        """Whether it matters that the other end lives."""
        return True

    # --- Life -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def say_hello(self, *settings: tuple[int, int]) -> None:
        """Begin: our settings, and room for all calls together."""
        preface = http2.PREFACE if self.is_client else b""
        ours = (http2.INITIAL_WINDOW_SIZE, self.settings.window_bytes)
        header_bytes = (http2.MAX_HEADER_LIST_SIZE, _HEADER_BYTES_MAX)
        frame_bytes = (http2.MAX_FRAME_SIZE, http2.FRAME_BYTES_TAKEN)
        room = _CONNECTION_WINDOW_BYTES - self._window_in
        self._window_in += room
        self.write(preface + http2.settings_frame([*settings, ours, header_bytes, frame_bytes]))
        self.write(http2.number_frame(http2.WINDOW_UPDATE, 0, room))
        self._last_heard_s = self._loop.time()
        self._alive_timer = self._loop.call_later(self.settings.keep_alive_s, self._see_whether_alive)

    def last_call_id(self) -> int:
        """The last call of the other end that we have looked at. To name too early a one would be a lie: the other end
        takes those behind it for never seen."""
        return 0

    def close(self, code: int = http2.NO_ERROR, reason: str = "") -> None:
        """Say good-bye, and close when it is sent. Calls that are left end with the connection."""
        if not self.transport.is_closing():
            self.write(http2.goaway_frame(self.last_call_id(), code, reason))
            self._flush()
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        self._out.clear()
        self._waiting.clear()
        self._keep(0)
        self.on_lost(exc)
        invariant(not self.calls, "calls outlive their connection")

    def _see_whether_alive(self) -> None:
        """The other end may be gone without a word: ask it, and wait for anything at all."""
        now_s, settings = self._loop.time(), self.settings
        if self._asked_s is not None and self._last_heard_s >= self._asked_s:
            self._asked_s = None
        if self._asked_s is None and now_s >= self._last_heard_s + settings.keep_alive_s and self.should_ask():
            self._asked_s = now_s
            self.write(http2.frame(http2.PING, 0, 0, bytes(8)))
        if self._asked_s is not None:
            next_s = self._asked_s + settings.keep_alive_timeout_s
            if now_s >= next_s:
                self.abort()
                return
        else:
            next_s = max(self._last_heard_s, now_s - settings.keep_alive_s / 2) + settings.keep_alive_s
        self._alive_timer = self._loop.call_at(next_s, self._see_whether_alive)

    # --- Frames in --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._last_heard_s = self._loop.time()
        if self._preface:
            data = self._without_preface(data)
        try:
            for type, flags, call_id, payload in self._frames.feed(data):
                if type == http2.DATA and self._block is None:
                    self._on_data(call_id, flags, payload)
                else:
                    self._on_frame(type, flags, call_id, payload)
                if self.transport.is_closing():
                    return
            self._keep(self._frames.kept_bytes + (0 if self._block is None else len(self._block[2])))
        except Http2Violation as violation:
            self.on_violation(violation)
            self.close(violation.code, str(violation))

    def _keep(self, size: int) -> None:
        """So much is kept of what is not whole yet. BoundedInput."""
        more = size - self._kept_bytes
        if more > 0 and not self.reserve(more):
            raise Http2Violation("no memory is left for the rest of a frame", http2.ENHANCE_YOUR_CALM)
        if more < 0:
            self.release(-more)
        self._kept_bytes = size

    def _without_preface(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            self.on_other_protocol(http2.PREFACE[: len(http2.PREFACE) - len(self._preface)] + data)
            self._flush()
            self.transport.close()
            return b""
        self._preface = self._preface[size:]
        return data[size:]

    def _on_data(self, call_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self.take_room(size)
        call = self.calls.get(call_id)
        if not size and (call is None or not flags & http2.END_STREAM):
            self._spend()
        if call is None or call.is_read_out:
            if call_id == 0 or self.is_unheard_of(call_id):
                raise Http2Violation("data of a call that nobody opened")
            return  # Of a call that has ended here: it was under way.
        if flags & http2.PADDED:
            payload = http2.without_padding(payload, flags)
        call.received_any = True
        try:
            call.on_data(payload, size, ends=bool(flags & http2.END_STREAM))
        except MessageRefused as refusal:
            self.on_refused(call, refusal)

    def take_room(self, size: int) -> None:
        """So many bytes came, for whichever call. Room for more is given back at once, though not for each frame."""
        self._window_in -= size
        if self._window_in < 0:
            raise Http2Violation("more data than the connection has room for", http2.FLOW_CONTROL_ERROR)
        if self._window_in < _CONNECTION_WINDOW_BYTES // 2:
            room = _CONNECTION_WINDOW_BYTES - self._window_in
            self._window_in += room
            self.write_control(http2.number_frame(http2.WINDOW_UPDATE, 0, room))

    def is_unheard_of(self, call_id: int) -> bool:
        """Whether no call of this number was ever opened."""
        raise NotImplementedError

    def _on_frame(self, type: int, flags: int, call_id: int, payload: bytes) -> None:
        if self._block is not None and type != http2.CONTINUATION:
            raise Http2Violation("a frame in the middle of headers")
        match type:
            case http2.HEADERS:
                block, self._continuations = bytearray(http2.without_padding(payload, flags)), 0
                self._on_header_block(call_id, flags, block, has_ended=bool(flags & http2.END_HEADERS))
            case http2.CONTINUATION:
                if self._block is None or self._block[0] != call_id:
                    raise Http2Violation("headers go on that never began")
                self._continuations += 1
                if self._continuations > _CONTINUATIONS_MAX:
                    raise Http2Violation("headers in too many parts", http2.ENHANCE_YOUR_CALM)
                self._spend()
                _, first_flags, block = self._block
                block += payload
                self._on_header_block(call_id, first_flags, block, has_ended=bool(flags & http2.END_HEADERS))
            case http2.RST_STREAM:
                code, call = http2.number_of(payload), self.calls.get(call_id)
                if call is not None:
                    self.on_reset(call, code)
                elif call_id == 0 or self.is_unheard_of(call_id):
                    raise Http2Violation("a call is given up that nobody opened")
                else:
                    self._spend()
            case http2.SETTINGS:
                self._on_settings(flags, payload)
            case http2.PING:
                if len(payload) != 8:
                    raise Http2Violation("a PING of a wrong size", http2.FRAME_SIZE_ERROR)
                self._spend()
                if flags & http2.ACK:
                    self.on_pong(payload)
                else:
                    self.write_control(http2.frame(http2.PING, http2.ACK, 0, payload))
            case http2.GOAWAY:
                self._spend(calls=len(self.calls))
                self.on_goaway(http2.goaway_of(payload)[0])
            case http2.WINDOW_UPDATE:
                self._spend()
                self._on_room(call_id, http2.number_of(payload))
            case http2.PUSH_PROMISE:
                raise Http2Violation("nobody asked to be pushed to")
            case http2.DATA:
                raise Http2Violation("data in the middle of headers")
            case _:
                self._spend()  # PRIORITY, and what is not known yet, means nothing to us.

    def _spend(self, *, calls: int = 0) -> None:
        """A frame came that carries no message. BoundedWork."""
        self._budget.spend(self._last_heard_s, exchanges=self.exchanges, calls=calls)

    def _on_header_block(self, call_id: int, flags: int, block: bytearray, *, has_ended: bool) -> None:
        if len(block) > 2 * _HEADER_BYTES_MAX:
            raise Http2Violation("too many headers", http2.ENHANCE_YOUR_CALM)
        if not has_ended:
            self._block = (call_id, flags, block)
            return
        self._block = None
        headers = http2.plain_headers(bytes(block))
        if headers is None:
            try:
                headers = {str(name): str(value) for name, value in self._decoder.decode(bytes(block))}
            except (HPACKError, UnicodeDecodeError) as error:
                raise Http2Violation(f"headers that cannot be read: {error}", http2.COMPRESSION_ERROR) from error
        if call_id == 0:
            raise Http2Violation("headers of no call")
        self.on_headers(call_id, headers, ends=bool(flags & http2.END_STREAM))

    def _on_settings(self, flags: int, payload: bytes) -> None:
        self._spend(calls=len(self.calls))
        if flags & http2.ACK:
            return
        for name, value in http2.settings_of(payload).items():
            if name == http2.INITIAL_WINDOW_SIZE:
                if value > http2.WINDOW_BYTES_MAX:
                    raise Http2Violation("a window that is too large", http2.FLOW_CONTROL_ERROR)
                change, self.peer_window_bytes = value - self.peer_window_bytes, value
                for call in self.calls.values():
                    call.window_out += change
                    self._consider(call)
            elif name == http2.MAX_FRAME_SIZE:
                if not http2.FRAME_BYTES_MAX <= value < 1 << 24:
                    raise Http2Violation(f"frames of {value} bytes")
                self._frame_bytes_max = min(value, http2.FRAME_BYTES_TAKEN)
            else:
                self.on_setting(name, value)
        self.write_control(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self.on_ready()
        self._pump()

    def _on_room(self, call_id: int, room: int) -> None:
        room &= http2.WINDOW_BYTES_MAX
        if room == 0:
            raise Http2Violation("room for nothing")
        if call_id == 0:
            self._window_out += room
            if self._window_out > http2.WINDOW_BYTES_MAX:
                raise Http2Violation("a window that is too large", http2.FLOW_CONTROL_ERROR)
        elif (call := self.calls.get(call_id)) is not None:
            call.window_out += room
            if call.window_out > http2.WINDOW_BYTES_MAX:
                raise Http2Violation("a window that is too large", http2.FLOW_CONTROL_ERROR)
            self._consider(call)
        elif self.is_unheard_of(call_id):
            raise Http2Violation("room for a call that nobody opened")
        self._pump()

    # --- Frames out -------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        """Send with all else of this turn."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _OUT_BYTES_HIGH:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def write_control(self, data: bytes, *, share: int = 1) -> None:
        """The same for an answer that the peer can make us write. Of some only a share counts. BoundedOutput."""
        if self._is_full:
            self._unread_control_bytes += len(data) // share
            if self._unread_control_bytes > _UNREAD_CONTROL_BYTES_MAX:
                self.on_violation(Http2Violation("asks and does not read", http2.ENHANCE_YOUR_CALM))
                self.abort()
                return
        self.write(data)

    def _flush(self) -> None:
        self._is_flushing = False
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if out and not self.transport.is_closing():
            write_parts(self.transport, out, size)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full, self._unread_control_bytes = False, 0
        self._pump()

    def send_at_once(self, call: Call, message: bytes, *, end: bool) -> bool:
        """Send a message if it fits into a frame and there is room, and nobody waits for that room."""
        size = len(message) + http2.MESSAGE_PREFIX_BYTES
        if (
            size > self._frame_bytes_max
            or size > call.window_out
            or size > self._window_out
            or self._is_full
            or self._waiting
        ):
            return False
        call.window_out -= size
        self._window_out -= size
        self.exchanges += 1
        call.sent_end = end
        self._out.append(http2.message_header(call.id, len(message), end_stream=end))
        self._out_bytes += size
        self.write(message)
        return True

    def send_when_possible(self, call: Call) -> None:
        """Send the call's `unsent` as room comes; then `sending` is done."""
        self._consider(call)
        self._pump()

    def _consider(self, call: Call) -> None:
        if call.unsent is not None and call.window_out > 0:
            self._waiting[call] = None

    def _pump(self) -> None:
        """Send what waits, each call a frame at a time and in turn, so that a long message does not hold up others."""
        waiting = self._waiting
        while waiting and self._window_out > 0 and not self._is_full and not self.is_lost:
            call = next(iter(waiting))
            del waiting[call]
            unsent = call.unsent
            if unsent is None or call.is_over:
                continue
            size = min(len(unsent), self._frame_bytes_max, call.window_out, self._window_out)
            if size <= 0:
                continue
            part, rest = unsent[:size], unsent[size:]
            call.window_out -= size
            self._window_out -= size
            self.exchanges += 1
            self.write(http2.data_header(call.id, size, end_stream=call.sent_end and not rest))
            self.write(part)
            if rest:
                call.unsent = rest
                self._consider(call)
            else:
                call.unsent = None
                if call.sending is not None and not call.sending.done():
                    call.sending.set_result(None)

    # --- Calls ------------------------------------------------------------------------------------------------

    def reset(self, call: Call, code: int) -> None:
        """Give up a call, and tell the other end."""
        if self.calls.get(call.id) is call and not self.is_lost:
            self.write_control(http2.number_frame(http2.RST_STREAM, call.id, code))
        self.forget(call)

    def forget(self, call: Call) -> None:
        """The call is over for both."""
        if self.calls.get(call.id) is call:
            del self.calls[call.id]
            self._waiting.pop(call, None)
            self.on_forgotten(call)
        call.finish(None)

    def on_forgotten(self, call: Call) -> None:
        """There is one call less."""

    def peer_name(self) -> str:
        peer: Any = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else ""
