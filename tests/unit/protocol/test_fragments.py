"""Which entries of a ledger's fragments are settled, and what each bookie should have of them."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.fragments import Span, entries_in, known_lac, sample, spans_of
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

A, B, C, D = (BookieId(f"b{number}") for number in range(4))
TWO = (Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(5), (A, B, D)))


def ledger(state: LedgerState, last: int = -1, fragments: tuple[Fragment, ...] = TWO) -> LedgerMetadata:
    return LedgerMetadata(Quorum(3, 2, 2), fragments, state=state, last_entry_id=EntryId(last))


def test_all_fragments_of_a_closed_ledger_are_settled() -> None:
    first, last = spans_of(ledger(LedgerState.CLOSED, 8), EntryId(3))
    assert (first.first, first.last, first.is_closed, first.is_last) == (0, 4, True, False)
    assert (last.first, last.last, last.is_closed, last.is_last) == (5, 8, True, True)


def test_the_last_fragment_of_a_ledger_that_is_not_closed_is_never_settled() -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        assert [span.is_closed for span in spans_of(ledger(state), EntryId(100))] == [True, False]


def test_the_last_but_one_is_settled_only_once_all_of_it_is_known_to_be_confirmed() -> None:
    assert [span.is_closed for span in spans_of(ledger(LedgerState.OPEN), EntryId(3))] == [False, False]
    assert [span.is_closed for span in spans_of(ledger(LedgerState.OPEN), EntryId(4))] == [True, False]


def test_the_metadata_alone_prove_what_is_before_the_last_fragment() -> None:
    assert known_lac(ledger(LedgerState.OPEN)) == 4
    assert known_lac(ledger(LedgerState.CLOSED, 8)) == 8


def test_an_empty_last_fragment_asks_for_nothing() -> None:
    """It begins one behind the end of the closed ledger."""
    span = spans_of(ledger(LedgerState.CLOSED, 4), EntryId(4))[-1]
    assert span.is_empty
    assert span.is_closed
    assert [list(sample(span, place, Quorum(3, 2, 2), 100.0)) for place in range(3)] == [[], [], []]


quorums = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(
    lambda pair: Quorum(max(pair), min(pair), max(1, min(pair) - 1))
)


@given(quorums, st.integers(0, 50), st.integers(0, 60), st.floats(0, 100))
def test_a_sample_has_the_ends_of_what_a_bookie_stores_and_nothing_else(
    quorum: Quorum, first: int, count: int, percentage: float
) -> None:
    bookies = tuple(BookieId(f"b{number}") for number in range(quorum.ensemble))
    span = Span(EntryId(first), EntryId(first + count - 1), bookies, True, True)
    for place in range(quorum.ensemble):
        stored = list(span.entries_of(place, quorum))
        chosen = list(sample(span, place, quorum, percentage))
        assert set(chosen) <= set(stored)
        assert chosen == sorted(set(chosen))
        if stored:
            assert {stored[0], stored[-1]} <= set(chosen)
            assert len(chosen) >= len(stored) * percentage / 100 - 1e-6
        if percentage == 100:
            assert chosen == stored


@given(quorums, st.integers(0, 50), st.integers(0, 60), st.data())
def test_the_entries_of_several_places_come_in_order_and_once(
    quorum: Quorum, first: int, count: int, data: st.DataObject
) -> None:
    bookies = tuple(BookieId(f"b{number}") for number in range(quorum.ensemble))
    span = Span(EntryId(first), EntryId(first + count - 1), bookies, True, True)
    places = data.draw(st.sets(st.integers(0, quorum.ensemble - 1)))
    expected = sorted({entry_id for place in places for entry_id in span.entries_of(place, quorum)})
    assert list(entries_in(span, places, quorum)) == expected


def test_a_ledger_of_any_length_takes_no_room() -> None:
    """Method: one that no memory could hold the entry ids of."""
    quorum = Quorum(5, 3, 2)
    span = Span(EntryId(0), EntryId(10**15), tuple(BookieId(f"b{number}") for number in range(5)), True, True)
    assert len(span.entries_of(0, quorum)) == 3 * 10**15 // 5 + 1
    assert list(islice(sample(span, 0, quorum, 100.0), 4)) == [0, 3, 4, 5]
    assert list(islice(sample(span, 0, quorum, 1.0), 3)) == [0, 165, 333]
    assert list(islice(entries_in(span, (0, 1), quorum), 6)) == [0, 1, 3, 4, 5, 6]
