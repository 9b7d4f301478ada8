"""What a benchmark of ledgers found, and how two sides that took turns compare. No I/O.

A round is one turn of one side. Speeds and costs are given as the median of the rounds; waits as percentiles of all
rounds together, since rare ones need many. The sides are compared round by round, because a machine that is slow for a
while is slow for both: a ratio is the median of these, with the lowest and the highest beside it, and above 1 the first
side is ahead.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Which ledgers are measured: E/Qw/Qa, and the payload of an entry."""

    quorum: tuple[int, int, int]
    entry_bytes: int

    @property
    def quorum_text(self) -> str:
        return "/".join(map(str, self.quorum))


@dataclass(frozen=True, slots=True)
class Work:
    """What some entries took: by the clock, of the client's process, and of all bookies together."""

    entries: int
    wall_s: float
    client_cpu_s: float
    bookies_cpu_s: float

    @property
    def entries_per_s(self) -> float:
        return self.entries / self.wall_s

    @property
    def client_cpu_us(self) -> float:
        return self.client_cpu_s / self.entries * 1e6

    @property
    def bookies_cpu_us(self) -> float:
        return self.bookies_cpu_s / self.entries * 1e6


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of one side."""

    append: Work
    read: Work
    waits_s: Sequence[float]
    """From when each of the paced entries was due until it was acknowledged."""


@dataclass(frozen=True, slots=True)
class Ratio:
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """As fast as the window allows: medians of the rounds."""

    operation: str
    quorum: str
    entry_bytes: int
    side: str
    entries: int
    entries_per_s: float
    client_cpu_us: float
    bookies_cpu_us: float
    rounds_entries_per_s: tuple[float, ...]
    ahead: Ratio | None
    """Of entries a second, to the other side. None on its own row, and without another side."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """At a fixed rate: how long entries waited from when they were due, all rounds together."""

    quorum: str
    entry_bytes: int
    side: str
    entries: int
    entries_per_s: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    ahead_p50: Ratio | None
    ahead_p99: Ratio | None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed, by counting: never one between two."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Round by round."""
    each = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(median(each), min(each), max(each))


def throughput_rows(case: Case, rounds: Mapping[str, Sequence[Round]]) -> list[ThroughputRow]:
    """Appends and reads of each side. The first side is compared with the second, if there is one."""
    rows = []
    for operation in ("append", "read"):
        works: dict[str, list[Work]] = {
            side: [turn.append if operation == "append" else turn.read for turn in turns]
            for side, turns in rounds.items()
        }
        speeds = {side: tuple(work.entries_per_s for work in done) for side, done in works.items()}
        rows += [
            ThroughputRow(
                operation,
                case.quorum_text,
                case.entry_bytes,
                side,
                done[0].entries,
                median(speeds[side]),
                median(work.client_cpu_us for work in done),
                median(work.bookies_cpu_us for work in done),
                speeds[side],
                ratio(*speeds.values()) if place == 0 and len(speeds) == 2 else None,
            )
            for place, (side, done) in enumerate(works.items())
        ]
    return rows


def latency_rows(case: Case, rounds: Mapping[str, Sequence[Round]], *, rate: int) -> list[LatencyRow]:
    """Waits of each side."""

    def ahead(share: float) -> Ratio | None:
        if len(rounds) != 2:
            return None
        ours, theirs = ([percentile(turn.waits_s, share) for turn in turns] for turns in rounds.values())
        return ratio(theirs, ours)  # Waiting less is being ahead.

    rows = []
    for place, (side, turns) in enumerate(rounds.items()):
        waits_ms = sorted(wait_s * 1000 for turn in turns for wait_s in turn.waits_s)
        rows.append(
            LatencyRow(
                case.quorum_text,
                case.entry_bytes,
                side,
                len(waits_ms),
                rate,
                percentile(waits_ms, 0.5),
                percentile(waits_ms, 0.99),
                percentile(waits_ms, 0.999),
                waits_ms[-1],
                ahead(0.5) if place == 0 else None,
                ahead(0.99) if place == 0 else None,
            )
        )
    return rows
