"""One reader's place in a stream, and how it gets what is there: from whichever lane has it.

Invariants:
  InOrder         a cursor is given what is at its place, then what is behind; it goes on only by `advance`.
  HoldsNoBytes    between two calls a cursor is a place and the name of a lane.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from quire.codec.pb import quire_v1_pb2 as pb
from quire.protocol.read_windows import Chunk, Window
from quire.proxy.incarnations import Incarnation
from quire.proxy.read.frames import SharedRecords
from quire.proxy.read.lane import Lane, LaneEnd
from quire.types import DLSN

_WORTH_BYTES: Final = 64 << 10  # So much is worth a message of its own: nobody waits for more to come.


class StreamEnded(Exception):
    """The stream is sealed, and everything was taken."""


class CursorHome(Protocol):
    """The stream that a cursor is in."""

    stream: str
    incarnation: Incarnation
    records: SharedRecords
    tail_bytes: int

    def cursor(self, position: DLSN) -> "Cursor":
        """Another one."""
        ...

    async def attach(self, cursor: "Cursor") -> Lane:
        """Put a reader on the lane that has its place. Raises `OverCapacity`."""
        ...

    def forget(self, cursor: "Cursor") -> None: ...


class Cursor:
    """Made by `StreamLanes.cursor`. One task at a time should use it."""

    def __init__(self, home: CursorHome, position: DLSN) -> None:
        self.home, self.position = home, position
        self.due_s = 0.0  # When it may be given more, in the loop's time: it shares its lane with others.
        self.has_turn = False  # In a round of its lane that has begun.
        self.offer: Callable[[], bool] | None = None
        """Hands out what is there without anybody being woken, if that can be; and says whether that was all."""
        self._mark: int | None = None  # How much the tail had read where we are; None until we were there once.
        self._loop = asyncio.get_running_loop()
        self._lane: Lane | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0

    @property
    def mode(self) -> pb.ReadMode:
        lane = self._lane
        if lane is None:
            return pb.CATCHUP
        return pb.TAIL if lane.is_tail else pb.COLD if lane.is_cold else pb.CATCHUP

    @property
    def behind_bytes(self) -> int:
        """How far it has fallen behind the tail since it was there; 0 if it never was."""
        return 0 if self._mark is None else max(0, self.home.tail_bytes - self._mark)

    @property
    def lane(self) -> Lane | None:
        return self._lane

    @property
    def is_along(self) -> bool:
        """Whether it has taken all that its lane has."""
        return self._lane is not None and self.position >= self._lane.window.end

    # --- Taking

    async def wait(self, *, deadline_s: float, bytes_min: int = 1) -> bool:
        """Return True when there are chunks at its place, of so many bytes; False if it takes longer than until then,
        in the loop's time, though there may be some.

        Raises `StreamEnded`, what ended the lane, and `OverCapacity` if no lane was to be had.
        """
        has_waited, self._deadline_s = False, deadline_s
        while True:
            if self._failure is not None:
                raise self._failure
            lane = self._lane
            if lane is None or not lane.serves(self.position):
                if has_waited:
                    bytes_min = 1  # There is no room to gather so much: whoever insists would never get anything.
                self.detach()
                lane = self._lane = await self.home.attach(self)
            window = lane.window
            if self.position < window.end and self._is_time(window, bytes_min):
                return True
            if lane.end is not None:
                if self.position < window.end:
                    return True  # There will not be more here: what comes next is on another lane, if anywhere.
                self._at_end_of(lane)
                continue
            if self._loop.time() >= self._deadline_s:
                return False
            if lane.is_tail and self.position >= window.end:
                self._mark = self.home.tail_bytes
            has_waited = True
            await self._sleep(lane, bytes_min)

    def _is_time(self, window: Window, bytes_min: int) -> bool:
        """Whether what is at its place is enough, and its turn has come. Also where a segment ends there is something,
        though it has no bytes.
        """
        if bytes_min <= 1 and self._loop.time() >= self.due_s:
            return True
        ready_bytes = window.bytes_from(self.position)
        return ready_bytes >= bytes_min and (ready_bytes >= _WORTH_BYTES or self._loop.time() >= self.due_s)

    def peek(self, bytes_max: int) -> list[Chunk]:
        """What is at its place: as many as fit, at least one if there is any."""
        lane = self._lane
        if lane is None or not lane.serves(self.position):
            return []
        return lane.window.chunks_from(self.position, bytes_max)

    def advance(self, position: DLSN, size_bytes: int) -> None:
        """Go on to a place behind what was taken."""
        self.position = position
        if self._mark is not None:
            self._mark += size_bytes
        lane = self._lane
        if lane is not None:
            self.due_s = lane.rounds.due_s
            lane.on_taken(self)

    def move(self, position: DLSN) -> None:
        """Go somewhere else."""
        self.detach()
        self.position, self._mark = position, None

    def _at_end_of(self, lane: Lane) -> None:
        """Everything before the end of a lane was taken."""
        self.detach()
        if lane.end is LaneEnd.SEALED:
            raise StreamEnded
        if lane.end is LaneEnd.FAILED and self.position == lane.window.end and lane.error is not None:
            raise lane.error.with_traceback(None)

    # --- Waiting

    async def _sleep(self, lane: Lane, bytes_min: int) -> None:
        loop, deadline_s = self._loop, self._deadline_s
        self._waiter = loop.create_future()
        # One that was set for an earlier deadline looks again when it fires: most waits make none.
        if self._timer is None or self._timer.when() > deadline_s:
            self._cancel_timer()
            self._timer = loop.call_at(deadline_s, self._on_timer)
        lane.await_more(self, bytes_min)
        try:
            await self._waiter
        finally:
            self._waiter = None
            lane.forget(self)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() >= self._deadline_s:
            self.wake()
        else:
            self._timer = self._loop.call_at(self._deadline_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def serve(self) -> bool:
        """There is something for it, and it is its turn. Whether it has taken all, and waits on: else it is woken."""
        waiter = self._waiter
        is_asleep = waiter is not None and not waiter.done() and self._failure is None
        if is_asleep and self.offer is not None and self.offer():
            return True
        self.wake()
        return False

    def postpone(self, deadline_s: float) -> None:
        """Wait longer than it was said: meanwhile something was handed out."""
        self._deadline_s = deadline_s

    def wake(self) -> None:
        """Look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Raise this from now on."""
        self._failure = error
        self.wake()

    # --- Going

    def detach(self) -> None:
        """Leave the lane. Whoever waits there for more looks for another one."""
        if self._lane is not None:
            self._lane.leave(self)
            self._lane = None
            self.wake()

    def close(self) -> None:
        self.detach()
        self._cancel_timer()
        self.home.forget(self)
