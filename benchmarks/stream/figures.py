"""What a benchmark of streams found, and how two sides that took turns compare. No I/O.

As for ledgers: speeds and costs are medians of the rounds, waits are percentiles of all rounds together, and the sides
are compared round by round. See `benchmarks.ledger.figures`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from benchmarks.ledger.figures import Ratio, Work, percentile, ratio
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class StreamCase:
    """Which streams are measured: E/Qw/Qa of their ledgers, the payload of a record, and how many of them at once."""

    quorum: tuple[int, int, int]
    record_bytes: int
    streams: int

    @property
    def quorum_text(self) -> str:
        return "/".join(map(str, self.quorum))


@dataclass(frozen=True, slots=True)
class StreamRound:
    """One turn of one side. The entries of `Work` are records here, and streams where they are opened."""

    opened: Work
    written: Work
    read: Work
    delivered: Mapping[int, "Delivery"]
    """By records a second."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records that were appended at a fixed rate, with a reader at the tail of each stream."""

    work: Work
    waits_s: Sequence[float]
    """From when each record was due to be appended until a reader had it."""


@dataclass(frozen=True, slots=True)
class StreamThroughputRow:
    """As fast as the window allows: medians of the rounds."""

    operation: str
    quorum: str
    record_bytes: int
    streams: int
    side: str
    count: int
    """Records; of `open` streams."""
    per_s: float
    client_cpu_us: float
    bookies_cpu_us: float
    rounds_per_s: tuple[float, ...]
    ahead: Ratio | None
    """Of `per_s`, to the other side. None on its own row, and without another side."""
    ahead_cpu: Ratio | None
    """The same of the CPU time of client and bookies together: above 1 the first side needs less."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """At a fixed rate: how long records took from when they were due to a reader at the tail, all rounds together."""

    quorum: str
    record_bytes: int
    streams: int
    side: str
    records: int
    records_per_s: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    ahead_p50: Ratio | None
    ahead_p99: Ratio | None


_UNPACED: Final = ("open", "write", "read")

Rounds = Mapping[str, Sequence[StreamRound]]


def stream_throughput_rows(case: StreamCase, rounds: Rounds, *, rates: Sequence[int]) -> list[StreamThroughputRow]:
    """What each side did as fast as it could, and what records at a fixed rate cost it.

    The first side is compared with the second, if there is one; not in speed where that was given.
    """
    operations: dict[str, Callable[[StreamRound], Work]] = {
        "open": lambda turn: turn.opened,
        "write": lambda turn: turn.written,
        "read": lambda turn: turn.read,
        **{paced(rate): partial(_delivering, rate=rate) for rate in rates},
    }
    rows = []
    for operation, work_of in operations.items():
        works = {side: [work_of(turn) for turn in turns] for side, turns in rounds.items()}
        speeds = {side: tuple(work.entries_per_s for work in done) for side, done in works.items()}
        costs = {side: [work.client_cpu_us + work.bookies_cpu_us for work in done] for side, done in works.items()}
        for place, (side, done) in enumerate(works.items()):
            is_compared = place == 0 and len(works) == 2
            rows.append(
                StreamThroughputRow(
                    operation,
                    case.quorum_text,
                    case.record_bytes,
                    case.streams,
                    side,
                    done[0].entries,
                    median(speeds[side]),
                    median(work.client_cpu_us for work in done),
                    median(work.bookies_cpu_us for work in done),
                    speeds[side],
                    ratio(*speeds.values()) if is_compared and operation in _UNPACED else None,
                    _cost_ratio(*costs.values()) if is_compared else None,
                )
            )
    return rows


def paced(rate: int) -> str:
    """What work at a fixed rate is called."""
    return f"{rate:,}/s"


def _delivering(turn: StreamRound, *, rate: int) -> Work:
    return turn.delivered[rate].work


def _cost_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Needing less is being ahead. None if a cost was too small to be counted."""
    return ratio(theirs, ours) if min(ours) > 0 else None


def delivery_rows(case: StreamCase, rounds: Rounds, *, rates: Sequence[int]) -> list[DeliveryRow]:
    """Waits of each side, at each rate."""
    rows = []
    for rate in rates:
        waits = {side: [turn.delivered[rate].waits_s for turn in turns] for side, turns in rounds.items()}
        for place, (side, turns) in enumerate(waits.items()):
            waits_ms = sorted(wait_s * 1000 for turn in turns for wait_s in turn)
            is_compared = place == 0 and len(waits) == 2
            rows.append(
                DeliveryRow(
                    case.quorum_text,
                    case.record_bytes,
                    case.streams,
                    side,
                    len(waits_ms),
                    rate,
                    percentile(waits_ms, 0.5),
                    percentile(waits_ms, 0.99),
                    percentile(waits_ms, 0.999),
                    waits_ms[-1],
                    _wait_ratio(0.5, *waits.values()) if is_compared else None,
                    _wait_ratio(0.99, *waits.values()) if is_compared else None,
                )
            )
    return rows


def _wait_ratio(share: float, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Ratio:
    """Waiting less is being ahead."""
    return ratio([percentile(turn, share) for turn in theirs], [percentile(turn, share) for turn in ours])
