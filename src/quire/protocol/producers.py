"""Decide which of a producer's records a stream has already. Sans-IO.

A producer counts its records from 1, and sends again what was not acknowledged. The owner of the stream knows the last
number that it appended for each producer, and where the last of them are: so what comes again is answered and not
appended. Numbers count when they are handed to the writer; places are known when that has acknowledged them.

Invariants:
  AppendedOnce     while a producer is known, no number of it is appended twice, and none is left out.
  LatestRemain     of all producers seen within `AGE_MS_MAX` the last `PRODUCERS_MAX` are known, and in any case those
                   with records under way.
  Bounded          a snapshot of everything fits into one control record, whatever producers do.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from quire.errors import invariant
from quire.types import DLSN, ProducerFacts, ProducerRun, SlotId

PRODUCERS_MAX: Final = 10_000
AGE_MS_MAX: Final = 24 * 3600 * 1000
RUNS_MAX: Final = 16_384  # Of all producers together: half a megabyte of a snapshot.
_RUNS_EACH_MAX: Final = 256  # As many batches as a call has under way at once.


class Append(NamedTuple):
    """Append the records of the batch, but for the first `skip`, which are there."""

    skip: int


class Duplicate(NamedTuple):
    """All of it was appended before. If `is_durable` is False that is still under way."""

    is_durable: bool


class OutOfOrder(NamedTuple):
    """Records before these are missing."""

    expected_seq: int


Verdict = Append | Duplicate | OutOfOrder


class _Known:
    __slots__ = ("durable_seq", "last_seq", "runs", "seen_ms")

    def __init__(self, last_seq: int, seen_ms: int) -> None:
        self.last_seq = self.durable_seq = last_seq
        self.seen_ms = seen_ms
        self.runs: deque[ProducerRun] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is under way."""
        return self.last_seq == self.durable_seq


class ProducerTable:
    """The producers of one stream, at its owner."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX, age_ms_max: int = AGE_MS_MAX) -> None:
        self._known: dict[bytes, _Known] = {}  # Those first that were not seen for longest.
        self._producers_max, self._age_ms_max = producers_max, age_ms_max
        self.is_changed = False
        """Whether anything became durable since `is_changed` was set back: a snapshot would have news."""

    def __len__(self) -> int:
        return len(self._known)

    # --- Batches

    def judge(self, producer: bytes, first_seq: int, records: int) -> Verdict:
        """What to do with these records."""
        known = self._known.get(producer)
        if known is None:
            return Append(0)  # A new one, or one that was forgotten: it knows best.
        if first_seq > known.last_seq + 1:
            return OutOfOrder(known.last_seq + 1)
        last_seq = first_seq + records - 1
        if last_seq <= known.last_seq:
            return Duplicate(last_seq <= known.durable_seq)
        return Append(known.last_seq + 1 - first_seq)

    def on_appended(self, producer: bytes, first_seq: int, records: int, *, now_ms: int) -> None:
        """The writer has these, which `judge` said to append."""
        known = self._seen(producer, first_seq, now_ms)
        invariant(first_seq == known.last_seq + 1, "records were left out", first_seq=first_seq, last=known.last_seq)
        known.last_seq = first_seq + records - 1

    def on_durable(self, producer: bytes, runs: Iterable[ProducerRun]) -> None:
        """The writer has acknowledged these, in order."""
        known = self._known.get(producer)
        if known is not None:  # Else it was forgotten meanwhile.
            self._add(known, runs)
            self.is_changed = True

    def places(self, producer: bytes, first_seq: int, records: int) -> list[ProducerRun] | None:
        """Where these are, if that is known of all of them."""
        known = self._known.get(producer)
        found: list[ProducerRun] = []
        end_seq = first_seq + records
        for run in known.runs if known is not None else ():
            if first_seq < end_seq and run.first_seq <= first_seq < run.end_seq:
                skip, count = first_seq - run.first_seq, min(run.end_seq, end_seq) - first_seq
                lssn, entry_id, slot = run.place
                found.append(ProducerRun(first_seq, count, DLSN(lssn, entry_id, SlotId(slot + skip))))
                first_seq += count
        return found if first_seq == end_seq else None

    def _seen(self, producer: bytes, first_seq: int, now_ms: int) -> _Known:
        known = self._known.pop(producer, None) or _Known(first_seq - 1, now_ms)
        known.seen_ms = max(known.seen_ms, now_ms)
        self._known[producer] = known  # At the end.
        excess = len(self._known) - self._producers_max
        if excess > 0:
            # Never one with records under way: what comes again of it has to be known. So it may be more than one now.
            settled = (each for each, facts in self._known.items() if facts is not known and facts.is_settled)
            for oldest in list(islice(settled, excess)):
                del self._known[oldest]
        return known

    def _add(self, known: _Known, runs: Iterable[ProducerRun]) -> None:
        known.runs += runs
        if known.runs:
            known.durable_seq = max(known.durable_seq, known.runs[-1].end_seq - 1)
        runs_max = self._runs_each()
        while len(known.runs) > runs_max:
            known.runs.popleft()

    def _runs_each(self) -> int:
        return max(1, min(_RUNS_EACH_MAX, RUNS_MAX // max(1, len(self._known))))

    def forget_old(self, now_ms: int) -> None:
        """Forget whoever was not seen for long."""
        for producer, known in list(self._known.items()):
            if known.seen_ms >= now_ms - self._age_ms_max:
                return
            if known.is_settled:
                del self._known[producer]

    # --- Snapshots

    def facts(self) -> Iterator[ProducerFacts]:
        """What is durable, for a snapshot: those first that were not seen for longest."""
        runs_max = self._runs_each()
        for producer, known in self._known.items():
            if known.durable_seq > 0:
                newest = tuple(known.runs)[-runs_max:]
                yield ProducerFacts(producer, known.durable_seq, known.seen_ms, newest)

    def restore(self, snapshot: Iterable[ProducerFacts]) -> None:
        """Begin with what a snapshot says."""
        invariant(not self._known, "a table is restored before it is used")
        for producer, last_seq, seen_ms, runs in snapshot:
            known = self._known[producer] = _Known(last_seq, seen_ms)
            known.runs += runs

    def replay(self, producer: bytes, run: ProducerRun, *, now_ms: int) -> None:
        """These were found in the stream, behind everything that was restored and replayed before, or among it."""
        known = self._seen(producer, run.first_seq, now_ms)
        if run.end_seq - 1 > known.last_seq:
            known.last_seq = known.durable_seq = run.end_seq - 1
            self._add(known, [run])


class SnapshotRule(NamedTuple):
    """When the table is written down again: whoever takes over reads everything behind the last time."""

    entries: int
    seconds: float
    bytes_min: int

    def is_due(self, *, entries: int, size_bytes: int, age_s: float, snapshot_bytes: int, is_changed: bool) -> bool:
        """`entries` and `size_bytes` came since the last one, which had `snapshot_bytes`.

        Snapshots stay a small part of what is written, however large they are.
        """
        return (
            entries >= self.entries
            or size_bytes >= max(self.bytes_min, 8 * snapshot_bytes)
            or (is_changed and age_s >= self.seconds)
        )
