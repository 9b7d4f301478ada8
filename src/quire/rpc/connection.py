"""The life of one TCP connection to a bookie, and its bytes: frames in, parts out, one write a turn, one coarse tick.

What the frames say is for the subclass, which is told of three events: bytes arrived, time passed, all is over.

Invariants:
  ClosedIsFinal   once ended, for whatever reason, a connection never sends again, and says why to everyone who tries.
  OneWriteATurn   all that is handed over in one turn of the loop leaves in one write, in that order.
  UnsentIsBounded requests are refused above `unsent_bytes_max`, and `is_writable` says far earlier to slow down.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Self, cast

from quire.codec.digest import Buffer
from quire.codec.wire.frames import FrameSplitter
from quire.errors import BookieBusy, InvalidArgument, QuireError
from quire.rpc.errors import unanswered_error
from quire.rpc.settings import ChannelSettings
from quire.runtime import Runtime
from quire.runtime.network import write_parts

TICK_S: Final = 0.1  # Deadlines are some seconds; to notice one this much later does not matter.


class Connection(asyncio.Protocol):
    """Bytes to and from one bookie. `closed` from the moment on at which nothing can be sent any more."""

    _transport: asyncio.Transport

    def __init__(self, runtime: Runtime, address: tuple[str, int], settings: ChannelSettings) -> None:
        self.settings = settings
        self.bookie = f"{address[0]}:{address[1]}"  # How errors name the peer.
        self._clock, self._network = runtime.clock, runtime.network
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(frame_bytes_max=settings.frame_bytes_max)
        self._parts: list[Buffer] = []  # What leaves at the end of this turn.
        self._parts_bytes = 0
        self._paused = False
        self._room = asyncio.Event()
        self._tick: asyncio.TimerHandle | None = None
        self._problem: str | None = None  # Why nothing can be sent any more.
        self._cause: BaseException | None = None
        self._gone = asyncio.Event()

    # --- For the subclass ---------------------------------------------------------------------------------------

    def _on_tick(self, now_s: float) -> bool:
        """Look at deadlines. Returns whether another look will be needed."""
        raise NotImplementedError

    def _on_end(self, problem: str, cause: BaseException | None) -> None:
        """Fail all that waits for an answer. Called once."""
        raise NotImplementedError

    # --- Life ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._problem is not None

    async def wait_closed(self) -> None:
        """Return once the connection is gone, for whatever reason."""
        await self._gone.wait()

    async def aclose(self) -> None:
        """Send what was handed over, for up to `close_grace_s`, and let go. Whatever waits for an answer fails."""
        self._flush()
        self._end("the channel was closed")
        self._transport.close()
        try:
            async with asyncio.timeout(self.settings.close_grace_s):
                await self._gone.wait()
        except TimeoutError:
            pass
        finally:  # Also when cancelled: whoever gives up on waiting still wants it gone.
            self._transport.abort()
        await self._gone.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def _abort(self, problem: str, cause: BaseException | None = None) -> None:
        """Let go at once; what was not sent yet is dropped."""
        self._end(problem, cause)
        self._transport.abort()

    def _end(self, problem: str, cause: BaseException | None = None) -> None:
        if self._problem is not None:
            return
        self._problem, self._cause = problem, cause
        self._parts, self._parts_bytes = [], 0
        self._room.set()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._on_end(problem, cause)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection broke: {exc}" if exc else "the bookie closed the connection", exc)
        self._gone.set()

    def _use(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self.settings.unsent_bytes_high)
        self._transport = transport

    # --- Sending ------------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What was handed over and has not left this process: it grows when the bookie, or the way there, is slow."""
        return self._parts_bytes + (0 if self.closed else self._transport.get_write_buffer_size())

    @property
    def is_writable(self) -> bool:
        """Whether to send more now. False above `unsent_bytes_high`, until most of that has left, and when closed."""
        return not self._paused and self._parts_bytes <= self.settings.unsent_bytes_high and not self.closed

    async def wait_writable(self) -> None:
        """Return once `is_writable`. Raises `BookieUnavailable` if that will never be."""
        while not self.is_writable:
            if self.closed:
                raise self._closed_error()
            self._room.clear()
            await self._room.wait()

    def _check_sendable(self) -> None:
        if self._problem is not None:
            raise self._closed_error()
        unsent_bytes = self._parts_bytes + self._transport.get_write_buffer_size()
        if unsent_bytes >= self.settings.unsent_bytes_max:
            raise BookieBusy(
                f"{unsent_bytes} bytes for bookie {self.bookie} wait to be sent: it does not keep up",
                hint="Send when the channel is writable.",
                bookie=self.bookie,
            )

    def _check_size(self, frame_bytes: int) -> None:
        if frame_bytes > self.settings.frame_bytes_max:
            raise InvalidArgument(
                f"a request of {frame_bytes} bytes exceeds the limit of {self.settings.frame_bytes_max}"
            )

    def _closed_error(self) -> QuireError:
        error = unanswered_error(f"{self._problem}", bookie=self.bookie, may_be_done=False)
        error.__cause__ = self._cause  # Here a violation is but the cause: nothing of this request was sent.
        return error

    def _send(self, parts: Sequence[Buffer]) -> None:
        """Hand over bytes for the write at the end of this turn, and see to it that deadlines are looked at."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts += parts
        self._parts_bytes += sum(map(len, parts))
        if self._tick is None:
            self._tick = self._loop.call_later(TICK_S, self._look_at_deadlines)

    def _flush(self) -> None:
        parts = self._parts
        if parts:
            size, self._parts, self._parts_bytes = self._parts_bytes, [], 0
            write_parts(self._transport, parts, size)
            if not self._paused:
                self._room.set()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._room.set()

    def _look_at_deadlines(self) -> None:
        self._tick = None
        again = self._on_tick(self._clock.monotonic())
        if again and self._tick is None:  # Whoever was told of a loss may have sent more, and set it already.
            self._tick = self._loop.call_later(TICK_S, self._look_at_deadlines)
