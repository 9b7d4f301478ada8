"""One end of a simulated TCP connection: a transport that behaves like asyncio's own, on top of two wires.

    write() → unsent → [window] → wire … delay … → data_received()

`unsent` is the transport's own buffer, which flow control is about; the wire stands for both kernels and the network
between them, and has room for a limited window. A tap stands before both: what it keeps was never written.

A protocol is called in the context in which its end was made, as asyncio does it, whoever's bytes arrive: the tasks
that it starts belong to its own host.
"""

import asyncio
import contextvars
import functools
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar, TypeVarTuple, cast

from quire.codec.wire.frames import LENGTH_BYTES, FrameSplitter
from quire.testing.sim_loop import SimLoop
from quire.testing.sim_wire import Wire

_HIGH_WATER_BYTES: Final = 64 * 1024

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Address = tuple[str, int]
OnFrame: TypeAlias = Callable[[bytes, Callable[[], None]], None]  # A frame without its length, and what sends it.


class SimTransport(asyncio.Transport):
    """One end of a connection, with the behaviour of asyncio's socket transports."""

    peer: "SimTransport"

    def __init__(
        self,
        loop: SimLoop,
        wire: Wire,
        protocol: asyncio.BaseProtocol,
        context: contextvars.Context,
        *,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.host = local[0]
        self._context = context
        self.on_lost: Callable[[], None] = lambda: None  # The network's, to forget the connection.
        self._loop = loop
        self.wire = wire  # The one that leads away from here.
        self._protocol = protocol
        self._tap: tuple[FrameSplitter, OnFrame] | None = None
        self._unsent = bytearray()
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._reading_paused = False
        self._made = False
        self._unread = False
        self._eof_written = False
        self._closing = False
        self._lost = False

    def start(self) -> None:
        """Tell the protocol, in a callback as asyncio does; bytes may follow only then."""
        self._loop.call_soon(self._start)

    def _start(self) -> None:
        if not self._lost:
            self._made = True
            self._tell(self._protocol.connection_made, self)
            self.peer.wire.poke()

    def _tell(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        # In a copy: a call may lead to another one before it returns, and a context is entered once only.
        return self._context.copy().run(call, *args)

    # --- Writing ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        if self._closing or self._tap is None:
            self._put(data)
            return
        splitter, on_frame = self._tap
        for body in splitter.split(bytes(data)):
            frame = len(body).to_bytes(LENGTH_BYTES, "big") + body
            on_frame(frame[LENGTH_BYTES:], functools.partial(self._put, frame))

    def tap(self, on_frame: OnFrame | None) -> None:
        """Hand every frame to `on_frame` instead of sending it; None ends that. Not in the middle of a frame."""
        self._tap = None if on_frame is None else (FrameSplitter(), on_frame)

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._eof_written:
            return
        self._unsent += data
        self._flush()
        if len(self._unsent) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._eof_written and not self._closing:
            self._eof_written = True
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def on_room(self) -> None:
        """The wire has taken bytes off and has room again."""
        if self._lost:
            return
        self._flush()
        if self._writing_paused and len(self._unsent) <= self._low:
            self._writing_paused = False
            self._tell(self._protocol.resume_writing)

    def _flush(self) -> None:
        room = self.wire.room()
        if self._unsent and room > 0:
            self.wire.send(bytes(self._unsent[:room]))
            del self._unsent[:room]
        if not self._unsent:
            if self._eof_written or self._closing:
                self.wire.send_eof()
            if self._closing:
                if self._unread:  # A kernel answers with a reset when a socket is closed with bytes unread.
                    self.wire.send_reset()
                self._lose(None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({self._high}) must be >= low ({self._low}) must be >= 0")

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # --- Reading ----------------------------------------------------------------------------------------------

    def can_receive(self) -> bool:
        """Whether the wire may hand something over now. A connection that is closing takes, and throws away."""
        return self._made and (not self._reading_paused or self._closing)

    def receive(self, data: bytes) -> None:
        if self._closing:
            self._unread = True
            if self._lost:
                self.wire.send_reset()
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            self._tell(_fill_buffers, self._protocol, data)
        else:
            self._tell(cast(asyncio.Protocol, self._protocol).data_received, data)

    def receive_eof(self) -> None:
        if not self._closing and not self._tell(cast(asyncio.Protocol, self._protocol).eof_received):
            self.close()

    def receive_reset(self) -> None:
        self._lose(ConnectionResetError("connection reset by peer (simulated)"))

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self.peer.wire.poke()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    # --- Ending -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._flush()
            self.peer.wire.poke()

    def abort(self) -> None:
        if not self._lost:
            self._unsent.clear()
            self.wire.send_abort()
            self._lose(None)

    def break_off(self, error: Exception) -> None:
        """The connection is gone, whatever was on its way."""
        self.wire.clear()
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._unsent.clear()
            self.on_lost()
            self._loop.call_soon(self._report_lost, error)
            self.peer.wire.poke()

    def _report_lost(self, error: Exception | None) -> None:
        if self._made:
            self._tell(self._protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self._closing

    def is_lost(self) -> bool:
        return self._lost

    def is_made(self) -> bool:
        """Whether the protocol was told of the connection."""
        return self._made

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


def _fill_buffers(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = memoryview(cast(bytearray, protocol.get_buffer(len(data)))).cast("B")
        if not buffer:
            raise RuntimeError("get_buffer() returned an empty buffer")
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
