"""Decide when to look for ledgers that lack copies. Sans-IO.

A bookie that left the list is lost. A single one may come back soon, so it is waited for as long as the cluster's delay
says; when a second one is lost meanwhile nobody waits any more. Other checks come round after their intervals, counted
from when anybody last ended them.

Invariants:
  OnceEach        a lost bookie causes one audit, and another one only after it came back.
  DelayedFirst    while a lost bookie is waited for no periodic check begins: it would mark what the delay protects.
"""

import math
from collections.abc import Collection, Mapping

from quire.types import BookieId
from quire.values import dataclass


class LostBookies:
    """Which bookies are lost, and when their ledgers are to be marked. `audit_at_s` is None if no audit is due."""

    def __init__(self, known: Collection[BookieId], delay_s: float) -> None:
        self._known, self._delay_s = set(known), delay_s
        self._known_before: set[BookieId] = set()  # The audit under way.
        self.audit_at_s: float | None = None
        self._since_s = 0.0

    @property
    def is_waiting(self) -> bool:
        return self.audit_at_s is not None

    def on_listing(self, listed: Collection[BookieId], now_s: float) -> list[BookieId]:
        """These bookies live now. Returns those that are lost, whether or not they are waited for."""
        self._known.update(listed)
        lost = sorted(self._known.difference(listed))
        if not lost:
            self.audit_at_s = None
        elif self._delay_s <= 0 or len(lost) > 1:
            self.audit_at_s = now_s
        elif self.audit_at_s is None:
            self._since_s = now_s
            self.audit_at_s = now_s + self._delay_s
        return lost

    def on_delay(self, delay_s: float, now_s: float) -> None:
        """The delay was written. 0, or what it was before, asks for an audit at once."""
        before, self._delay_s = self._delay_s, delay_s
        if delay_s <= 0 or delay_s == before:
            self.audit_at_s = now_s
        elif self.audit_at_s is not None:
            self.audit_at_s = self._since_s + delay_s

    def on_audit(self, listed: Collection[BookieId]) -> None:
        """An audit begins that sees these bookies alive, and takes care of all others. It has not read a ledger yet:
        what is lost from now on calls for another one."""
        self._known, self._known_before = set(listed), self._known
        self.audit_at_s = None

    def on_discarded(self, now_s: float) -> None:
        """The audit that began last took care of nobody."""
        self._known |= self._known_before
        self.audit_at_s = now_s


@dataclass(frozen=True, slots=True)
class _Due:
    interval_s: float
    at_s: float


class Rounds:
    """When each periodic check is due. An interval of 0 means never."""

    def __init__(self, intervals_s: Mapping[str, float], ages_s: Mapping[str, float | None], now_s: float) -> None:
        """`ages_s` says how long ago each check last ended; None if it never did, and it is due at once."""
        self._due = {
            name: _Due(interval_s, now_s if (age_s := ages_s.get(name)) is None else now_s + interval_s - age_s)
            for name, interval_s in intervals_s.items()
            if interval_s > 0
        }

    def next_at_s(self) -> float:
        return min((due.at_s for due in self._due.values()), default=math.inf)

    def due(self, now_s: float) -> str | None:
        """The check that has waited longest, if one is due."""
        at_s, name = min(((due.at_s, name) for name, due in self._due.items()), default=(math.inf, ""))
        return name if at_s <= now_s else None

    def on_done(self, name: str, now_s: float) -> None:
        """A check ended, in whichever way: the next one is an interval away."""
        due = self._due[name]
        self._due[name] = _Due(due.interval_s, now_s + due.interval_s)
