"""Copies of entries that cannot be used: told, so that somebody looks after the disk that they are on.

A reader that meets one takes the entry from another bookie, and whoever asked for it notices nothing. Nobody else would
either: so each such copy is counted, and the first one of a ledger on a bookie is an event, with its place in the
stream if the ledger is a segment. More of it follow `AGAIN_S` later at the soonest: a bad disk must not fill a log.

Invariants:
  Told        whoever has not been told of a ledger's copies on a bookie within `AGAIN_S` is told at once.
  Bounded     what is remembered of it is no more than `PAIRS_MAX` pairs; the oldest are forgotten first.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from quire.errors import BookieFailed, DamagedEntry, EntriesUnknown, QuireError
from quire.telemetry.events import logger
from quire.telemetry.metrics import Counter
from quire.types import BookieId, EntryId, LedgerId

BAD_COPY: Final = (DamagedEntry, EntriesUnknown, BookieFailed)
"""What says that a bookie has, or should have, a copy that cannot be used. One that is missing is not among them:
entries are acknowledged before all copies are there."""

IS_LOST: Final = "is_lost"
"""In the facts of a `DamagedEntry`: each bookie of the entry has answered, and no copy can be used."""

AGAIN_S: Final = 600.0
PAIRS_MAX: Final = 1024

_log = logger("ledger")


def is_lost(error: QuireError) -> bool:
    """Whether the error is about an entry of which no copy is left, so that it makes no sense to try again."""
    return bool(error.facts.get(IS_LOST))


class DamagedCopies:
    """Those that one client met. `now` gives monotonic seconds."""

    def __init__(self, counter: Counter, now: Callable[[], float]) -> None:
        self._counter, self._now = counter, now
        self._told_s: dict[tuple[object, ...], float] = {}  # The oldest first.

    def on_copy(
        self, ledger_id: LedgerId, entry_id: EntryId, bookie: BookieId, error: QuireError, part_of: Mapping[str, object]
    ) -> None:
        """A bookie has no usable copy of an entry, as `error` says. `part_of` is where the ledger belongs."""
        self._counter.add()
        key, now_s = (ledger_id, bookie, *part_of.values()), self._now()
        if now_s - self._told_s.get(key, -math.inf) < AGAIN_S:
            return
        self._told_s.pop(key, None)
        if len(self._told_s) >= PAIRS_MAX:
            del self._told_s[next(iter(self._told_s))]
        self._told_s[key] = now_s
        _log.warning(
            "ledger.damaged_copy", **part_of, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie, error=str(error)
        )
