"""The life of a stream at a write proxy, from the first request that names it to its removal. Sans-IO.

    UNINITIALIZED   known by name, nothing is opened: waits for its turn to be acquired       operations wait
    INITIALIZING    the lock is being taken, and what the last owner left is recovered        operations wait
    INITIALIZED     this proxy is the owner                                                   operations are carried out
    ERROR           the writer failed, ownership was lost or refused, or an answer took too long      refused
    CLOSING         being given up; whoever asks who owns what is not told of it any more             refused
    CLOSED          the writer is closed, and the lock given back                                     refused

A life only moves forward. A stream that is needed again gets another one: nothing of a failed one is left in it.
The numbers are those of Apache DistributedLog's gauges.
"""

import enum
from typing import Final

from quire.errors import invariant


class StreamState(enum.Enum):
    UNINITIALIZED = -1
    INITIALIZING = 0
    INITIALIZED = 1
    CLOSING = -4
    CLOSED = -5
    ERROR = -6


class Treatment(enum.Enum):
    """What happens to an operation."""

    WAIT = enum.auto()
    CARRY_OUT = enum.auto()
    REFUSE = enum.auto()


_FOLLOWING: Final = {
    # A proxy that is stopped does not begin what nobody waits for any more.
    StreamState.UNINITIALIZED: frozenset({StreamState.INITIALIZING, StreamState.ERROR}),
    StreamState.INITIALIZING: frozenset({StreamState.INITIALIZED, StreamState.ERROR}),
    StreamState.INITIALIZED: frozenset({StreamState.ERROR, StreamState.CLOSING}),
    StreamState.ERROR: frozenset({StreamState.CLOSING}),
    StreamState.CLOSING: frozenset({StreamState.CLOSED}),
    StreamState.CLOSED: frozenset[StreamState](),
}
_TREATMENTS: Final = {
    StreamState.UNINITIALIZED: Treatment.WAIT,
    StreamState.INITIALIZING: Treatment.WAIT,
    StreamState.INITIALIZED: Treatment.CARRY_OUT,
    StreamState.ERROR: Treatment.REFUSE,
    StreamState.CLOSING: Treatment.REFUSE,
    StreamState.CLOSED: Treatment.REFUSE,
}


class StreamLife:
    """One life. An impossible step is a bug, and its error tells the way that led to it."""

    __slots__ = ("_history",)

    def __init__(self) -> None:
        self._history = [StreamState.UNINITIALIZED]  # At most one of each.

    @property
    def state(self) -> StreamState:
        return self._history[-1]

    @property
    def treatment(self) -> Treatment:
        return _TREATMENTS[self.state]

    @property
    def is_over(self) -> bool:
        """Whether it will never be carried out here again."""
        return self.treatment is Treatment.REFUSE

    @property
    def was_serving(self) -> bool:
        """Whether it is worth flushing when it closes: nothing went wrong before."""
        return StreamState.INITIALIZED in self._history and StreamState.ERROR not in self._history

    def move(self, to: StreamState) -> None:
        history = [state.name for state in self._history]
        invariant(to in _FOLLOWING[self.state], "a stream's life cannot go on like that", to=to.name, history=history)
        self._history.append(to)
