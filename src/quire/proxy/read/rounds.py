"""When the readers of one lane are given what came: all of them together, in rounds, and not too often.

A message to one reader costs about the same whether it carries one record or fifty. So between two rounds there is a
while (`quire.protocol.read_pacing`) in which entries gather. All readers that are along with the lane get the same
message, made once; what goes to one connection leaves in one piece.

Invariants:
  NobodyStarves   whoever there is something for has a turn in the next round, and a round has an end.
  LoopIsShared    no more than `_AT_ONCE` readers have their turn before others of the process have theirs.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from quire.types import DLSN

_AT_ONCE: Final = 128


class LaneReader(Protocol):
    """A reader that goes along with a lane."""

    position: DLSN
    has_turn: bool

    def wake(self) -> None:
        """Look again at what there is."""

    def detach(self) -> None:
        """Leave the lane. Who waits there for more looks for another one."""

    def serve(self) -> bool:
        """Take what there is. Returns whether that was all."""
        ...


class Rounds:
    """Who waits for more, and when the next round is."""

    def __init__(self, interval_of: Callable[[int], float]) -> None:
        """`interval_of` says how long so many readers wait at least from one round to the next."""
        self.interval_s = 0.0
        self.due_s = 0.0  # When the next round may begin, in the loop's time.
        self._interval_of = interval_of
        self._hungry: dict[LaneReader, None] = {}  # Who has taken all there is.
        self._ready: dict[LaneReader, None] = {}  # Who there is something for.
        self._round: list[LaneReader] = []  # Whose turn it is, from `_next` on, unless they have lost it since.
        self._next = 0
        self._called_s: float | None = None  # There shall be another round, then or later.
        self._timer: asyncio.Handle | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody has taken all there is."""
        return bool(self._hungry)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not (self._hungry or self._ready or self._round)

    def set_readers(self, count: int) -> None:
        self.interval_s = self._interval_of(count)

    # --- Waiting

    def await_more(self, reader: LaneReader) -> None:
        self._hungry[reader] = None

    def await_turn(self, reader: LaneReader) -> None:
        """There is something for it, and it was given something just now. Usually more is about to come for all."""
        self._ready[reader] = None
        self.call(self.due_s + self.interval_s / 2)

    def forget(self, reader: LaneReader) -> None:
        self._hungry.pop(reader, None)
        self._ready.pop(reader, None)
        reader.has_turn = False

    def dismiss(self) -> None:
        """Wake everybody: nothing more will come."""
        everybody = [*self._hungry, *self._ready, *self._round[self._next :]]
        self._hungry.clear()
        self._ready.clear()
        self._round, self._next = [], 0
        self.cancel()
        for reader in everybody:
            reader.has_turn = False
            reader.wake()

    def cancel(self) -> None:
        self._called_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- Rounds

    def on_more(self, *, is_all: bool) -> None:
        """Something came for whoever waits. If that is not all there is now the rest is waited for, though not long."""
        self._ready.update(self._hungry)
        self._hungry.clear()
        if self._ready:
            self.call(0.0 if is_all else asyncio.get_running_loop().time() + self.interval_s / 2)

    def call(self, at_s: float) -> None:
        """Begin a round, then or when it may."""
        if self._called_s is None or at_s < self._called_s:
            self._called_s = at_s
        if not self._round:
            self._begin_when_due()

    def _begin_when_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._called_s is None:
            return
        loop, due_s = asyncio.get_running_loop(), max(self._called_s, self.due_s)
        if loop.time() < due_s:
            self._timer = loop.call_at(due_s, self._begin_when_due)
            return
        self._called_s, self.due_s = None, loop.time() + self.interval_s
        self._round, self._next, self._ready = [*self._ready], 0, {}
        for reader in self._round:
            reader.has_turn = True
        self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        begin, self._next = self._next, self._next + _AT_ONCE
        for reader in self._round[begin : self._next]:
            if reader.has_turn:
                reader.has_turn = False
                if reader.serve():
                    self._hungry[reader] = None
        if self._next < len(self._round):
            self._timer = asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._round, self._next = [], 0
            self._begin_when_due()
