"""Decide when entry logs are compacted, which ones, and in which order. Sans-IO.

To compact a log costs what is alive in it and gives back the rest. So logs that are almost empty are compacted often
(minor), and those with a fair share of garbage seldom (major). A major compaction takes in all that a minor one would.

Invariants:
  EmptiestFirst      what gives back most for the least comes first: on a full disk it makes room for the others.
  SuspendedIsLast    nothing runs against a suspension, not even what somebody asked for.
  NoLogUnexplained   a log that is not compacted has a reason that a person can read.
"""

import enum
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple


class Compaction(enum.Enum):
    """The two kinds."""

    MINOR = "minor"
    MAJOR = "major"


class CompactionRule(NamedTuple):
    """Compact every `interval_s` the logs of which a smaller share than `live_ratio_max` is alive. 0 means never."""

    live_ratio_max: float
    interval_s: float


class CompactionSchedule:
    """When each kind is due, and which kinds are suspended. Times are monotonic seconds."""

    def __init__(self, rules: Mapping[Compaction, CompactionRule], *, now_s: float) -> None:
        self._rules = rules
        self._due_s = {kind: now_s + rule.interval_s for kind, rule in rules.items()}
        self.suspended: set[Compaction] = set()

    def due(self, now_s: float, *, forced: Collection[Compaction] = ()) -> Compaction | None:
        """What to do now: the kind that is due, or that somebody asked for; the major one if both are."""
        for kind in (Compaction.MAJOR, Compaction.MINOR):
            if (kind in forced or self._due_s[kind] <= now_s) and self.is_allowed(kind):
                return kind
        return None

    def is_allowed(self, kind: Compaction) -> bool:
        return kind not in self.suspended and self._rules[kind].live_ratio_max > 0

    def on_done(self, kind: Compaction, now_s: float) -> None:
        """A compaction went through all its logs."""
        for each in Compaction if kind is Compaction.MAJOR else (kind,):
            self._due_s[each] = now_s + self._rules[each].interval_s

    def covers(self, kind: Compaction, live_ratio: float | None) -> bool:
        """Whether a log is one for this kind. Of a damaged one the ratio may not be known: that is for the major."""
        if live_ratio is None:
            return kind is Compaction.MAJOR
        return live_ratio < self._rules[kind].live_ratio_max

    def reason(self, live_ratio: float | None, *, now_s: float, wall_ms: int) -> str:
        """Why a log with this ratio is not being compacted now."""
        covering = [kind for kind in Compaction if self._rules[kind].live_ratio_max > 0]
        covering = [kind for kind in covering if self.covers(kind, live_ratio)]
        allowed = [kind for kind in covering if self.is_allowed(kind)]
        if covering and not allowed:
            return "compaction suspended"
        what = "live ratio unknown" if live_ratio is None else f"live ratio {live_ratio:.2f}"
        if not allowed:
            return f"{what} is above {max(rule.live_ratio_max for rule in self._rules.values()):.2f}"
        kind = min(allowed, key=self._due_s.__getitem__)
        due_ms = wall_ms + round(max(0.0, self._due_s[kind] - now_s) * 1000)
        when = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{what}: {kind.value} compaction is due at {when}"


def emptiness(live_bytes: int | None, log_bytes: int) -> float:
    """What to sort logs by, so that the emptiest comes first, and those of which nothing is known come last."""
    return 1.0 if live_bytes is None else live_bytes / max(1, log_bytes)
