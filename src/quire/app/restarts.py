"""Decide when a process that ended is started again, and when somebody should hear why it does not start. Sans-IO.

A process that ran for a while and crashed is started again soon. One that does not get anywhere is tried ever more
rarely, but never given up: the disk may be freed, or the port, and then it comes back by itself.
"""

from typing import Final

from quire.values import dataclass

FIRST_S: Final = 1.0
LAST_S: Final = 30.0
_STEADY_S: Final = 60.0  # Whoever served for so long is no part of a series of crashes.
FAILING_STARTS: Final = 5  # So many in a row for one reason are no accident.


@dataclass(frozen=True, slots=True)
class Restart:
    """What follows from an end."""

    delay_s: float
    is_failing: bool
    """It has not started so many times in a row, for the same reason, that somebody has to do something."""
    is_news: bool
    """Nobody has been told of this reason yet, or it has just become one to worry about."""


class RestartPolicy:
    """The ends of one process, in order."""

    def __init__(self, *, first_s: float = FIRST_S, last_s: float = LAST_S) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._delay_s = first_s
        self._why: str | None = None
        self._failed_starts = 0

    @property
    def failed_starts(self) -> int:
        """How many times in a row it did not start, for one and the same reason."""
        return self._failed_starts

    def on_end(self, *, served_s: float | None, why: str) -> Restart:
        """It ended for this reason, after it had served for so long; None if it never came to that."""
        if served_s is not None and served_s >= _STEADY_S:
            self._delay_s = self._first_s
        delay_s, self._delay_s = self._delay_s, min(self._last_s, 2 * self._delay_s)
        if served_s is not None:
            self._failed_starts, self._why = 0, None
            return Restart(delay_s, is_failing=False, is_news=True)
        is_new = why != self._why
        self._failed_starts, self._why = 1 if is_new else self._failed_starts + 1, why
        return Restart(
            delay_s,
            is_failing=self._failed_starts >= FAILING_STARTS,
            is_news=is_new or self._failed_starts == FAILING_STARTS,
        )
