"""One lane: a task that reads a stream's entries from a place on, and the readers that go along.

Entries come from an `EntrySource`, which follows the stream across rolls, recoveries and failovers and gives nothing
that is not confirmed. The lane puts them into its window, and wakes those who wait for them. A few readers are woken at
once; many are woken one after the other and not too often, each with everything since its last message, and never so
many in one turn of the loop that what else is to be done has to wait.

Invariants:
  ConfirmedOnly    nothing but what the source gave comes into the window.
  ErrorsComeLast   what ended a lane is told to whoever has taken all that was before it; and is not remembered by
                   others.
  NobodysTask      the lane belongs to the proxy: a reader that goes away changes nothing for the others.
"""

import asyncio
import enum
import heapq
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from quire.protocol.read_lanes import Ahead
from quire.protocol.read_pools import Pool
from quire.protocol.read_windows import Chunk, Window
from quire.proxy.read.frames import chunk_of
from quire.stream.entry_source import EntrySource, Run
from quire.types import DLSN, LedgerId

if TYPE_CHECKING:
    from quire.proxy.read.cursor import Cursor

_READ_PART: Final = 0.25  # Of the interval of readers: entries that come meanwhile are read together.
_WOKEN_AT_ONCE: Final = 64  # In one turn of the loop: what goes to one connection leaves in one piece.


class LaneEnd(enum.Enum):
    """Why a lane reads no more."""

    SEALED = enum.auto()  # The stream has ended.
    MET = enum.auto()  # Another lane reads on from here.
    CLOSED = enum.auto()  # Nobody needed it, or others needed its place.
    FAILED = enum.auto()


class LaneHome(Protocol):
    """What a lane needs of those who started it."""

    async def open_source(self, begin: DLSN) -> EntrySource: ...

    async def check_same_stream(self) -> None:
        """Raise `NoSuchStream` if the stream is not the one that the lane was started for."""
        ...

    def on_tail(self, lane: "Lane") -> None:
        """The lane has read all that is confirmed."""
        ...

    def on_chunk(self, lane: "Lane", chunk: Chunk) -> None:
        """There is more in its window."""
        ...

    def on_ended(self, lane: "Lane") -> None: ...


class Lane:
    """Reads from `begin` on as soon as it is made. Ends by itself, or by `aclose`."""

    def __init__(
        self,
        home: LaneHome,
        begin: DLSN,
        pool: Pool,
        *,
        now_s: float,
        interval_of: Callable[[int], float],
        name: str,
        monotonic: Callable[[], float],
    ) -> None:
        """`interval_of` says how often each of so many readers is woken."""
        self.window, self.pool = Window(begin), pool
        self.readers: set[Cursor] = set()
        self.is_tail = False
        self.used_s = self.left_s = now_s  # When somebody took something; when the last reader went.
        self.end: LaneEnd | None = None
        self.error: Exception | None = None
        self.reads = 0  # Runs.
        self.interval_s = 0.0  # How long a reader waits at least between two messages.
        self.shared: tuple[object, object] | None = None  # What was made for a reader last, and for which: see `share`.
        self._home, self._ahead, self._foremost = home, Ahead(), begin
        self._interval_of, self._monotonic = interval_of, monotonic
        self._hungry: dict[Cursor, None] = {}  # Who has taken all there is, and waits for more.
        self._turns: list[tuple[float, int, Cursor]] = []  # A heap: who there is something for, and when.
        self._turns_given = 0
        self._parked: dict[Cursor, int] = {}  # Who waits for more than the next entry: for so many bytes.
        self._asked = asyncio.Event()
        self._wake_timer: asyncio.Handle | None = None
        pool.enter(self)
        self._task = asyncio.create_task(self._run(), name=name)

    @property
    def is_open(self) -> bool:
        return self.end is None

    @property
    def is_joinable(self) -> bool:
        return self.end is None or self.end is LaneEnd.SEALED

    @property
    def reader_count(self) -> int:
        return len(self.readers)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything of it."""
        return not self._hungry and not self._parked and not self._turns

    def slowest(self) -> DLSN | None:
        return min((reader.position for reader in self.readers), default=None)

    def serves(self, place: DLSN) -> bool:
        """Whether a reader at this place is right here."""
        return self.window.begin <= place and (place <= self.window.end or (self.is_tail and self.is_open))

    def move_to(self, pool: Pool) -> None:
        self.pool.leave(self)
        self.pool = pool
        pool.enter(self)

    # --- Readers

    def enter(self, reader: "Cursor") -> None:
        self.readers.add(reader)
        self.interval_s = self._interval_of(len(self.readers))
        self.used_s = self._monotonic()
        self._foremost = max(self._foremost, reader.position)

    def leave(self, reader: "Cursor") -> None:
        self.forget(reader)
        self.readers.discard(reader)
        self.interval_s = self._interval_of(len(self.readers))
        if not self.readers:
            self.left_s = self._monotonic()

    def await_more(self, reader: "Cursor", bytes_min: int) -> None:
        """Wake the reader when there is something at its place, and when it is its turn."""
        if bytes_min > 1 or reader.position > self.window.end:
            self._parked[reader] = bytes_min
        elif reader.position < self.window.end:
            self._give_turn(reader)
            self._wake_due()
            return
        else:
            self._hungry[reader] = None
        self._ahead.on_waited()
        self._asked.set()

    def forget(self, reader: "Cursor") -> None:
        """Do not wake it."""
        self._hungry.pop(reader, None)
        self._parked.pop(reader, None)
        reader.turn = 0

    def share(self, key: object, made: object) -> None:
        """Keep what was made for one reader of many: the next one is likely to need the same."""
        if self.interval_s > 0:
            self.shared = (key, made)

    def on_taken(self, reader: "Cursor") -> None:
        """It has gone on to its new place."""
        if reader.position > self._foremost:
            self._foremost = reader.position
            self.used_s = self._monotonic()
            self._asked.set()

    # --- Reading

    async def _run(self) -> None:
        try:
            source = await self._home.open_source(self.window.end)
            source.on_tail = lambda: self._home.on_tail(self)
            checked: LedgerId | None = None
            async with aclosing(source.runs()) as runs:
                async for run in runs:
                    if run.entries and run.entries[0].ledger_id != checked:
                        await self._home.check_same_stream()
                        checked = run.entries[0].ledger_id
                    self._add(run)
                    while self.is_open and not self._goes_on():
                        self._asked.clear()
                        await self._asked.wait()
                    if not self.is_open:
                        return
                    if self.interval_s and source.is_at_tail:
                        await asyncio.sleep(self.interval_s * _READ_PART)
            self._finish(LaneEnd.SEALED)
        except Exception as error:  # Delivered, not dropped: whoever reads along raises it.
            self.error = error
            self._finish(LaneEnd.FAILED)

    def _goes_on(self) -> bool:
        if self.is_tail or self._parked or self._hungry:
            return True
        return bool(self.readers) and self.pool.has_room and not self._ahead.is_far(self.window, self._foremost)

    def _add(self, run: Run) -> None:
        chunk = chunk_of(run, before=self.window.end)
        self.window.append(chunk, now_s=self._monotonic())
        self.reads += 1
        self._home.on_chunk(self, chunk)
        self._wake_parked()
        for reader in self._hungry:
            self._give_turn(reader)
        self._hungry.clear()
        self._wake_due()

    def stop(self, end: LaneEnd) -> None:
        """Read no more. What is in the window stays for those who are on it."""
        if self.is_open:
            self._finish(end)
            self._asked.set()
            if asyncio.current_task() is not self._task:
                self._task.cancel()

    async def aclose(self) -> None:
        self.stop(LaneEnd.CLOSED)
        self.discard()
        await asyncio.wait([self._task])

    def discard(self) -> None:
        """Give back what it holds: nobody is on it any more."""
        self.pool.leave(self)
        if self._wake_timer is not None:
            self._wake_timer.cancel()

    def _finish(self, end: LaneEnd) -> None:
        self.end = end
        for reader in [*self._hungry, *self._parked]:
            reader.wake()
        self._hungry.clear()
        self._parked.clear()
        self._home.on_ended(self)

    # --- Waking

    def _wake_parked(self) -> None:
        for reader, bytes_min in list(self._parked.items()):
            if self.window.bytes_from(reader.position) >= bytes_min and reader.position < self.window.end:
                del self._parked[reader]
                reader.wake()

    def _give_turn(self, reader: "Cursor") -> None:
        self._turns_given += 1
        reader.turn = self._turns_given
        heapq.heappush(self._turns, (reader.due_s, self._turns_given, reader))

    def _wake_due(self) -> None:
        """Wake those whose turn it is, and come back for the others."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        loop, turns, left = asyncio.get_running_loop(), self._turns, _WOKEN_AT_ONCE
        now_s = loop.time()
        while turns:
            due_s, turn, reader = turns[0]
            if due_s > now_s:
                self._wake_timer = loop.call_at(due_s, self._wake_due)
                return
            if not left:
                self._wake_timer = loop.call_soon(self._wake_due)
                return
            heapq.heappop(turns)
            if reader.turn == turn:  # Otherwise it did not wait so long.
                reader.wake()
                left -= 1
