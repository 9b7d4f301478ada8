"""Places as runs behave as a list of them does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.stream.dlsn_runs import DlsnRuns, PlacedRun
from quire.types import DLSN, EntryId, Lssn, SlotId

NUMBERS = st.integers(0, 5)
RUNS = st.lists(
    st.builds(lambda lssn, entry, slot, count: PlacedRun(Lssn(lssn), EntryId(entry), slot, count), *[NUMBERS] * 4)
)


def listed(runs: list[PlacedRun]) -> list[DLSN]:
    return [
        DLSN(run.lssn, run.entry_id, SlotId(slot))
        for run in runs
        for slot in range(run.first_slot, run.first_slot + run.records)
    ]


@given(RUNS, st.slices(12))
def test_they_are_the_sequence_of_their_places(runs: list[PlacedRun], part: slice) -> None:
    places, wanted = DlsnRuns(runs), listed(runs)
    assert (len(places), list(places), repr(places)) == (len(wanted), wanted, repr(wanted))
    assert [places[at] for at in range(-len(wanted), len(wanted))] == wanted + wanted
    assert places[part] == wanted[part]
    assert [type(place) for place in places] == [DLSN] * len(wanted)
    assert list(reversed(places)) == wanted[::-1]
    for beyond in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            places[beyond]


@given(RUNS, RUNS)
def test_they_are_equal_to_what_has_the_same_places(runs: list[PlacedRun], others: list[PlacedRun]) -> None:
    same = listed(runs) == listed(others)
    assert (DlsnRuns(runs) == DlsnRuns(others)) is same
    assert (DlsnRuns(runs) == listed(others)) is same
    assert (listed(others) == DlsnRuns(runs)) is same
    assert DlsnRuns(runs) != [*listed(runs), None]
    assert DlsnRuns(runs) != len(runs)
