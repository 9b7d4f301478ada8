"""How far a lane reads ahead, which lane a reader belongs to, and when two lanes are one. Sans-IO.

A lane is one way through a stream: entries are read along it once, for all readers that are on it. Readers that begin
at one place share one lane from the start; a lane that comes to where another one has been ends there, and its readers
go on in the other's window. The lane that has come to the end of the stream first is the tail: it reads on by itself as
long as somebody is there. All others read when a reader asks, and a little ahead of the foremost one.

Invariants:
  OneReadAnEntry   of two lanes that meet only one reads on.
  BoundedAhead     a lane that is not the tail is never more than `bytes_max`, and one run, ahead of its foremost
                   reader.
"""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from quire.protocol.read_windows import Window
from quire.types import DLSN

AHEAD_ENTRIES_FIRST: Final = 4
AHEAD_ENTRIES_MAX: Final = 32
AHEAD_BYTES_MAX: Final = 2 << 20


class Ahead:
    """How far ahead of its foremost reader a lane may be: further, the more often a reader had to wait for it."""

    __slots__ = ("bytes_max", "entries")

    def __init__(self, *, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.entries = AHEAD_ENTRIES_FIRST

    def on_waited(self) -> None:
        """A reader has caught up with the lane."""
        self.entries = min(2 * self.entries, AHEAD_ENTRIES_MAX)

    def is_far(self, window: Window, foremost: DLSN) -> bool:
        """Whether there is enough ahead of the foremost reader."""
        if window.bytes_from(foremost) >= self.bytes_max:
            return True
        return window.entries_from(foremost, self.entries) >= self.entries


class Laned(Protocol):
    """A lane, as far as it matters here."""

    window: Window

    @property
    def is_joinable(self) -> bool:
        """Whether a reader at its end gets there what comes next, if only the end of the stream."""
        ...

    @property
    def is_tail(self) -> bool: ...


L = TypeVar("L", bound=Laned)


def lane_for(place: DLSN, lanes: Iterable[L]) -> L | None:
    """The lane where a reader at `place` gets what it needs; None if one has to be started there.

    The tail before others, then the one that has read furthest. Who is beyond the tail waits there: another proxy may
    simply be ahead of us.
    """
    best: L | None = None
    for lane in lanes:
        if not lane.is_joinable:
            continue
        window = lane.window
        if lane.is_tail and window.begin <= place:
            return lane
        if window.covers(place) and (best is None or window.end > best.window.end):
            best = lane
    return best


def lane_met(by: L, lanes: Iterable[L]) -> L | None:
    """The lane in whose window `by` has arrived, and which reads on in its stead; None if it is alone there."""
    end = by.window.end
    return next((lane for lane in lanes if lane is not by and lane.is_joinable and lane.window.covers(end)), None)
