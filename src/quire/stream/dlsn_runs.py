"""The places of many records, as runs: what a call of `append_many` returns.

Records that went into one entry have places that differ by their slots only. Most programs look at the last place, or
at none, so that a place is made when it is asked for.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import eq
from typing import NamedTuple, overload

from quire.types import DLSN, EntryId, Lssn

_new = tuple.__new__  # Half of what `DLSN(…)` costs, and there may be one for each record.


class PlacedRun(NamedTuple):
    """Records that follow each other in one entry."""

    lssn: Lssn
    entry_id: EntryId
    first_slot: int
    records: int


class DlsnRuns(Sequence[DLSN]):
    """DLSNs in order. Equal to any sequence of the same ones, and cannot be changed."""

    __slots__ = ("_ends", "_runs")

    def __init__(self, runs: Sequence[PlacedRun]) -> None:
        self._runs = runs
        self._ends = [runs[0].records] if len(runs) == 1 else list(accumulate(run.records for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> DLSN: ...

    @overload
    def __getitem__(self, index: slice) -> list[DLSN]: ...

    def __getitem__(self, index: int | slice) -> DLSN | list[DLSN]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]  # Raises what a list would, and counts from the end as one does.
        which = bisect_right(self._ends, place)
        lssn, entry_id, first_slot, records = self._runs[which]
        return _new(DLSN, (lssn, entry_id, first_slot + records - self._ends[which] + place))

    def __iter__(self) -> Iterator[DLSN]:
        for lssn, entry_id, first_slot, records in self._runs:
            slots = range(first_slot, first_slot + records)
            yield from map(_new, repeat(DLSN), zip(repeat(lssn), repeat(entry_id), slots))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # As a list has none.

    def __repr__(self) -> str:
        return repr(list(self))
