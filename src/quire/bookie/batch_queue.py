"""Which batch reads of a connection are begun: a few at a time, since each holds its entries until it is complete."""

from collections import deque
from typing import Final, Protocol

_BATCHES_MAX: Final = 4
_WAITING_MAX: Final = 1000


class Batch(Protocol):
    """A batch read that waits for its turn."""

    def begin(self) -> None:
        """Read. Call `BatchQueue.on_end` when it is answered."""


class BatchQueue:
    """The batches of one connection, begun in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Batch] = deque()
        self._running = 0
        self._is_beginning = False

    def push(self, batch: Batch) -> bool:
        """Have the batch begun when it is its turn. False if too many wait already."""
        if len(self._waiting) >= _WAITING_MAX:
            return False
        self._waiting.append(batch)
        self._begin()
        return True

    def on_end(self) -> None:
        """One of those that were begun is answered."""
        self._running -= 1
        self._begin()

    def clear(self) -> None:
        self._waiting.clear()

    def _begin(self) -> None:
        if self._is_beginning:
            return  # A batch in memory is answered at once: the loop below goes on, and nothing is nested.
        self._is_beginning = True
        while self._waiting and self._running < _BATCHES_MAX:
            self._running += 1
            self._waiting.popleft().begin()
        self._is_beginning = False
