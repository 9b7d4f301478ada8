"""Decide which batches of one stream, in one call, may still be appended, and in which order answers go. Sans-IO.

A client sends batch after batch without waiting. If one of them fails, those behind it were meant to follow it: they
are refused, until the client says by a higher attempt that it knows, and means what it sends now.

Invariants:
  FailBehind        once a batch has failed, none behind it of the same or a lower attempt is appended.
  AnswersInOrder    batches are answered in the order in which they came, each once.
  BoundedByWindow   what is kept is what was not answered yet: the call's window bounds it.
"""

from collections import deque
from typing import Generic, TypeVar

from quire.errors import invariant

A = TypeVar("A")


class _Waiting(Generic[A]):
    """One batch that is not answered yet."""

    __slots__ = ("answer", "attempt", "is_decided", "number")

    def __init__(self, number: int, attempt: int) -> None:
        self.number, self.attempt = number, attempt
        self.is_decided = False
        self.answer: A | None = None


class StreamOrder(Generic[A]):
    """The batches of one stream in one call. `A` is what an answer is."""

    __slots__ = ("_failed", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[_Waiting[A]] = deque()
        # The first failure of each attempt, as attempt and number: batches behind it, up to that attempt, are refused.
        self._failed: list[tuple[int, int]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether a new order, in its place, would decide the same."""
        return not self._waiting and not self._failed

    def on_batch(self, number: int, attempt: int) -> bool:
        """A batch has come. Whether it may be tried; if not, it is still to be answered."""
        invariant(not self._waiting or number > self._waiting[-1].number, "batches come in order", number=number)
        if not self._waiting:
            del self._failed[:-1]  # All are behind each of them: the highest attempt is what counts.
        self._waiting.append(_Waiting(number, attempt))
        return self.may_append(number, attempt)

    def may_append(self, number: int, attempt: int) -> bool:
        """Ask again right before the batch is handed over, if it waited in between."""
        return not any(attempt <= failed and number > first for failed, first in self._failed)

    def on_decided(self, number: int, answer: A, *, failed: bool) -> list[A]:
        """What became of a batch. Returns the answers that can be given now, in their order."""
        decided = self._find(number)
        invariant(not decided.is_decided, "a batch is answered once", number=number)
        decided.is_decided, decided.answer = True, answer
        if failed and self.may_append(number, decided.attempt):
            self._note_failure(decided.attempt, number)
        ready: list[A] = []
        waiting = self._waiting
        while waiting and waiting[0].is_decided:
            first = waiting.popleft()
            assert first.answer is not None
            ready.append(first.answer)
        return ready

    def _note_failure(self, attempt: int, number: int) -> None:
        """Keep what is not said by another one: attempts and numbers both rise along the list."""
        kept = [(failed, first) for failed, first in self._failed if failed > attempt or first < number]
        self._failed = sorted([*kept, (attempt, number)])

    def _find(self, number: int) -> _Waiting[A]:
        """Nearly always the first one."""
        for each in self._waiting:
            if each.number == number:
                return each
        invariant(False, "a batch is answered that nobody sent", number=number)
        raise AssertionError
