"""How much a read proxy may keep, and what goes first when it is too much. Sans-IO.

There are two pools: a scan of old records must not cost the readers at the tail what they share. Each has a budget in
bytes that only the newest chunk of each window may exceed: what a reader is waiting for is never thrown away before it
was there to be taken.

Invariants:
  WithinBudget   after `shrink` a pool is within its budget, or nothing but newest chunks is left in it.
  PassedGoesOff  what every attached reader has passed goes when it is `passed_s` old: late comers have that long to
                 share it.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from quire.protocol.read_windows import Account, Window
from quire.types import DLSN

TAIL_SHARE: Final = 0.75  # Of the whole budget.
_LOW_WATER: Final = (
    0.9  # A pool that was too large shrinks to this part of its budget, so that it is not at once again.
)


class Pooled(Protocol):
    """A window with readers."""

    window: Window
    used_s: float  # When a reader took something from it.

    @property
    def reader_count(self) -> int: ...

    def slowest(self) -> DLSN | None:
        """The first place where an attached reader is; None if there is none."""
        ...


class Pool:
    """The windows of one kind. `is_tail` says whose chunks go first: see `_burden`."""

    def __init__(self, budget_bytes: int, *, is_tail: bool, passed_s: float, age_s_max: float | None) -> None:
        self.budget_bytes, self._is_tail = budget_bytes, is_tail
        self._passed_s, self._age_s_max = passed_s, age_s_max
        self._members: dict[Pooled, None] = {}
        self._account = Account()
        self.evicted = 0  # Chunks that went because there was no room.
        self.expired = 0  # Chunks that went because nobody needs them any more.

    def __len__(self) -> int:
        return len(self._members)

    @property
    def bytes(self) -> int:
        return self._account.bytes

    @property
    def has_room(self) -> bool:
        """Whether something may be read that nobody asked for yet."""
        return self.bytes < self.budget_bytes * _LOW_WATER

    def enter(self, member: Pooled) -> None:
        self._members[member] = None
        member.window.charge(self._account)

    def leave(self, member: Pooled) -> None:
        if member in self._members:
            del self._members[member]
            member.window.charge(Account())

    def members(self) -> Iterable[Pooled]:
        return self._members.keys()

    def shrink(self) -> int:
        """Make room, if there is too much. Returns how many chunks went."""
        if self.bytes <= self.budget_bytes:
            return 0
        dropped = 0
        while self.bytes > self.budget_bytes * _LOW_WATER:
            victim = max((each for each in self._members if len(each.window) > 1), key=self._burden, default=None)
            if victim is None:
                break
            victim.window.drop_oldest()
            dropped += 1
        self.evicted += dropped
        return dropped

    def _burden(self, member: Pooled) -> tuple[float, float]:
        """At the tail the most bytes for each reader go first; of scans those that nobody has used for longest."""
        share = member.window.bytes / (1 + member.reader_count)
        return (share, -member.used_s) if self._is_tail else (-member.used_s, share)

    def expire(self, now_s: float) -> int:
        """Drop what is old, and what nobody will ask for. Returns how many chunks went."""
        dropped = 0
        for member in self._members:
            window, slowest = member.window, member.slowest()
            while (oldest := window.oldest) is not None:
                age_s = now_s - oldest.added_s
                is_passed = age_s > self._passed_s and (slowest is None or oldest.after <= slowest)
                is_old = self._age_s_max is not None and age_s > self._age_s_max
                if not is_passed and not is_old:
                    break
                window.drop_oldest()
                dropped += 1
        self.expired += dropped
        return dropped
