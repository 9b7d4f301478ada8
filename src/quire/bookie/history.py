"""What a bookie went through lately: each change of what it takes, and each time that room came back.

`quire bookie status` shows it, so that whoever comes when it is over still sees why writers moved away, and what
brought the bookie back.
"""

from collections import deque
from typing import Final

from quire.bookie.compaction import GarbageCounters
from quire.protocol.space import SpaceMode, shown_bytes
from quire.runtime import Clock
from quire.values import dataclass

STEPS_MAX: Final = 30

_MODES: Final = {
    SpaceMode.WRITABLE: "takes entries again",
    SpaceMode.READ_ONLY: "takes no more entries but those of recovery",
    SpaceMode.CLOSED: "takes no entries at all",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened, in words."""

    at_ms: int
    what: str


class History:
    """The last steps, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self._deleted = self._reclaimed = self._compacted = 0

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps)

    def note(self, what: str) -> None:
        self._steps.append(Step(self._clock.wall_ms(), what))

    def on_mode(self, mode: SpaceMode, reasons: tuple[str, ...]) -> None:
        self.note(": ".join([_MODES[mode], *(["; ".join(reasons)] if reasons else [])]))

    def on_pass(self, counters: GarbageCounters) -> None:
        """A pass of garbage collection is over. Told only if it brought something."""
        told = []
        if deleted := counters.deleted_ledgers - self._deleted:
            told.append(f"{deleted} ledgers forgotten")
        if compacted := counters.compacted_logs - self._compacted:
            told.append(f"{compacted} entry logs compacted")
        if reclaimed := counters.reclaimed_bytes - self._reclaimed:
            told.append(f"{shown_bytes(reclaimed)} reclaimed")
        self._deleted, self._compacted = counters.deleted_ledgers, counters.compacted_logs
        self._reclaimed = counters.reclaimed_bytes
        if told:
            self.note(f"garbage collection: {', '.join(told)}")
