"""Decide which journal writes share one flush of the disk. Sans-IO.

While a flush is under way, whatever arrives waits for the next one: the slower the disk, the larger the group, and the
cost of a flush is shared by all who would have waited for it anyway. An idle journal flushes at once, so a lone write
never waits for company.

Invariants:
  InOrder       writes become durable in the order of their numbers, which begin at 1.
  OneAtATime    a group is only begun when the one before is durable, so a crash tears at most the last group.
  FailureEnds   after a failed flush nothing is ever called durable again: the disk may have dropped what it held.
"""

from collections import deque
from typing import Final

from quire.errors import invariant

NOTHING_DURABLE: Final = 0


class GroupCommit:
    """Numbers writes and says which of them to flush next."""

    def __init__(self, *, group_bytes_max: int) -> None:
        invariant(group_bytes_max > 0, "a group must have room", group_bytes_max=group_bytes_max)
        self._group_bytes_max = group_bytes_max
        self._waiting: deque[tuple[int, int]] = deque()  # What no group has taken yet: how many writes, and bytes.
        self.last = 0  # The number of the newest write.
        self.durable = NOTHING_DURABLE  # Every write up to this number survives a crash.
        self.queued_bytes = 0
        self._flushing_to: int | None = None
        self._failed = False

    @property
    def flushing(self) -> int:
        """The number of the last write in the group that is being flushed; that of the last durable one if none is."""
        return self.durable if self._flushing_to is None else self._flushing_to

    def on_write(self, size: int, count: int = 1) -> int:
        """Take a write of `size` bytes, or several that arrived together, and return the number of the last one."""
        self._waiting.append((count, size))
        self.queued_bytes += size
        self.last += count
        return self.last

    def next_group(self) -> int | None:
        """How many calls of `on_write`, from the oldest on, to flush now; None while a flush is under way or nothing
        waits.

        A group holds at most `group_bytes_max`, but always at least what one call brought.
        """
        waiting = self._waiting
        if self._flushing_to is not None or self._failed or not waiting:
            return None
        calls = writes = size = 0
        while waiting and (calls == 0 or size + waiting[0][1] <= self._group_bytes_max):
            together, together_bytes = waiting.popleft()
            calls, writes, size = calls + 1, writes + together, size + together_bytes
        self.queued_bytes -= size
        self._flushing_to = self.durable + writes
        return calls

    def on_flushed(self) -> int:
        """The group is durable. Returns the number of the last durable write."""
        invariant(self._flushing_to is not None, "no flush was under way")
        self.durable = self._flushing_to or 0
        self._flushing_to = None
        return self.durable

    def on_failed(self) -> None:
        """The flush failed, and with it the journal: nothing more is flushed."""
        self._failed = True
