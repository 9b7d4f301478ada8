"""One lane: a task that reads a stream's entries from a place on, and the readers that go along.

Entries come from an `EntrySource`, which follows the stream across rolls, recoveries and failovers and gives nothing
that is not confirmed. The lane puts them into its window, and wakes those who wait for them: a few readers at once,
many in rounds (`rounds`). At the tail a lane with many readers reads when the next round is due: all that came
meanwhile is read together, and given out at once.

Invariants:
  ConfirmedOnly    nothing but what the source gave comes into the window.
  ErrorsComeLast   what ended a lane is told to whoever has taken all that was before it; and is not remembered by
                   others.
  NobodysTask      the lane belongs to the proxy: a reader that goes away changes nothing for the others.
"""

import asyncio
import enum
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from quire.protocol.read_lanes import Ahead
from quire.protocol.read_pools import Pool
from quire.protocol.read_windows import Chunk, Window
from quire.proxy.read.frames import chunk_of
from quire.proxy.read.rounds import LaneReader, Rounds
from quire.stream.entry_source import EntrySource, Run
from quire.types import DLSN, LedgerId


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
        """The lane has read all that it knows to be confirmed. May stop it."""
        ...

    def on_segment(self, lane: "Lane", *, is_cold: bool) -> None:
        """The lane has come to another segment. Raises `OverCapacity` if it may not go on there."""
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
        """`interval_of`: see `Rounds`."""
        self.window, self.pool = Window(begin), pool
        self.readers: set[LaneReader] = set()
        self.is_tail = False
        self.is_cold = False  # What it reads is in cold storage only.
        self.used_s = self.left_s = now_s  # When somebody took something; when the last reader went.
        self.end: LaneEnd | None = None
        self.error: Exception | None = None
        self.reads = 0  # Runs.
        self.rounds = Rounds(interval_of)
        self.shared: tuple[object, object] | None = None  # What was made for a reader last, and for which: see `share`.
        self._home, self._ahead, self._foremost = home, Ahead(), begin
        self._monotonic = monotonic
        self._source: EntrySource | None = None
        self._parked: dict[LaneReader, int] = {}  # Who waits for more than the next entry: for so many bytes.
        self._asked = asyncio.Event()
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
        return self.rounds.is_idle and not self._parked

    @property
    def lag_entries(self) -> int:
        """Confirmed entries of the segment that it is in, and that it has not read yet."""
        return 0 if self._source is None or not self.is_open else self._source.lag_entries

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

    def enter(self, reader: LaneReader) -> None:
        self.readers.add(reader)
        self.rounds.set_readers(len(self.readers))
        self.used_s = self._monotonic()
        self._foremost = max(self._foremost, reader.position)

    def leave(self, reader: LaneReader) -> None:
        self.forget(reader)
        self.readers.discard(reader)
        self.rounds.set_readers(len(self.readers))
        if not self.readers:
            self.left_s = self._monotonic()

    def await_more(self, reader: LaneReader, bytes_min: int) -> None:
        """Wake the reader when there is something at its place, and when it is its turn."""
        if bytes_min > 1 or reader.position > self.window.end:
            self._parked[reader] = bytes_min
        elif reader.position < self.window.end:
            self.rounds.await_turn(reader)
            return
        else:
            self.rounds.await_more(reader)
        self._ahead.on_waited()
        self._asked.set()

    def forget(self, reader: LaneReader) -> None:
        """Do not wake it."""
        self.rounds.forget(reader)
        self._parked.pop(reader, None)

    def share(self, key: object, made: object) -> None:
        """Keep what was made for one reader of many: the next one is likely to need the same."""
        if self.rounds.interval_s > 0:
            self.shared = (key, made)

    def on_taken(self, reader: LaneReader) -> None:
        """It has gone on to its new place."""
        if reader.position > self._foremost:
            self._foremost = reader.position
            self.used_s = self._monotonic()
            self._asked.set()

    # --- Reading

    async def _run(self) -> None:
        try:
            source = self._source = await self._home.open_source(self.window.end)
            source.on_tail = self._on_tail
            source.on_segment = lambda is_cold: self._home.on_segment(self, is_cold=is_cold)
            checked: LedgerId | None = None
            async with aclosing(source.runs()) as runs:
                async for run in runs:
                    if run.entries and run.entries[0].ledger_id != checked:
                        await self._home.check_same_stream()
                        checked = run.entries[0].ledger_id
                    self._add(run, is_all=source.is_at_tail)
                    while self.is_open and not self._goes_on():
                        self._asked.clear()
                        await self._asked.wait()
                    if not self.is_open:
                        return
                    if self.rounds.interval_s and source.is_at_tail:
                        await asyncio.sleep(max(0.0, self.rounds.due_s - asyncio.get_running_loop().time()))
            self._finish(LaneEnd.SEALED)
        except _StoppedError:
            pass
        except Exception as error:  # Delivered, not dropped: whoever reads along raises it.
            self.error = error
            self._finish(LaneEnd.FAILED)

    def _on_tail(self) -> None:
        self._home.on_tail(self)
        if not self.is_open:
            raise _StoppedError  # Out of a wait for entries that may never come.

    def _goes_on(self) -> bool:
        if self.is_tail or self._parked or self.rounds.is_awaited:
            return True
        return bool(self.readers) and self.pool.has_room and not self._ahead.is_far(self.window, self._foremost)

    def _add(self, run: Run, *, is_all: bool = True) -> None:
        """With `is_all` nothing else is known to be confirmed."""
        chunk = chunk_of(run, before=self.window.end)
        self.window.append(chunk, now_s=self._monotonic())
        self.reads += 1
        self._home.on_chunk(self, chunk)
        self._wake_parked()
        self.rounds.on_more(is_all=is_all)

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
        self.rounds.cancel()

    def _finish(self, end: LaneEnd) -> None:
        self.end = end
        self.rounds.dismiss()
        for reader in self._parked:
            reader.wake()
        self._parked.clear()
        self._home.on_ended(self)

    def _wake_parked(self) -> None:
        for reader, bytes_min in list(self._parked.items()):
            if self.window.bytes_from(reader.position) >= bytes_min and reader.position < self.window.end:
                del self._parked[reader]
                reader.wake()


class _StoppedError(Exception):
    """The lane has come to where another one reads on."""
