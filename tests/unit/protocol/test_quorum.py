"""Round robin, and the rule when enough bookies have answered."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.quorum import absences_needed, entries_at, is_covered, write_set
from quire.types import EntryId, Quorum


@st.composite
def quorums(draw: st.DrawFn) -> Quorum:
    ensemble = draw(st.integers(1, 7))
    write = draw(st.integers(1, ensemble))
    return Quorum(ensemble, write, draw(st.integers(1, write)))


@pytest.mark.parametrize(
    ("entry_id", "quorum", "positions"),
    [
        (7, Quorum(5, 3, 2), (2, 3, 4)),
        (9, Quorum(5, 3, 2), (4, 0, 1)),
        (0, Quorum(1, 1, 1), (0,)),
        (2**62, Quorum(3, 2, 2), (1, 2)),
    ],
)
def test_entries_go_round_the_ensemble(entry_id: int, quorum: Quorum, positions: tuple[int, ...]) -> None:
    assert write_set(EntryId(entry_id), quorum) == positions


@given(quorums(), st.integers(0, 100), st.integers(0, 30))
def test_a_position_gets_what_its_write_sets_say(quorum: Quorum, first: int, count: int) -> None:
    for position in range(quorum.ensemble):
        expected = [each for each in range(first, first + count) if position in write_set(EntryId(each), quorum)]
        assert list(entries_at(position, EntryId(first), EntryId(first + count), quorum)) == expected


@given(quorums(), st.data())
def test_covered_means_that_no_ack_quorum_is_silent(quorum: Quorum, data: st.DataObject) -> None:
    """The rule by brute force: every set of positions that could have acknowledged some entry met one that answered."""
    answered = data.draw(st.sets(st.integers(0, quorum.ensemble - 1)))
    could_hide = any(
        not answered & set(acked)
        for first in range(quorum.ensemble)
        for acked in itertools.combinations(write_set(EntryId(first), quorum), quorum.ack)
    )
    assert is_covered(answered, quorum) == (not could_hide)


@given(quorums())
def test_enough_denials_leave_no_ack_quorum(quorum: Quorum) -> None:
    assert quorum.write - absences_needed(quorum) < quorum.ack
    assert quorum.write - (absences_needed(quorum) - 1) >= quorum.ack
