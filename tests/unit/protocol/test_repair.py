"""What a repair may change in a ledger's metadata, and how long it waits."""

from quire.protocol.fragments import Span
from quire.protocol.repair import Backoff, Exchange, Fault, Look, abandoned, exchanged, may_close, may_shut_out
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

A, B, C, D, E = (BookieId(name) for name in "abcde")
FIRST, LAST = EntryId(0), EntryId(10)


def ledger(state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    fragments = (Fragment(FIRST, (A, B, C)), Fragment(LAST, (A, B, D)))
    return LedgerMetadata(Quorum(3, 3, 2), fragments, state=state, last_entry_id=EntryId(20))


def test_a_bookie_is_replaced_in_one_fragment_only() -> None:
    changed = exchanged(ledger(), FIRST, {0: Exchange(A, E)})
    assert changed is not None
    assert [fragment.bookies for fragment in changed.fragments] == [(E, B, C), (A, B, D)]


def test_several_places_are_changed_at_once() -> None:
    changed = exchanged(ledger(), LAST, {0: Exchange(A, E), 2: Exchange(D, C)})
    assert changed is not None
    assert changed.fragments[-1].bookies == (E, B, C)


def test_nothing_is_left_to_do_when_somebody_else_replaced_the_bookie() -> None:
    assert exchanged(ledger(), FIRST, {0: Exchange(D, E)}) is None


def test_nothing_is_changed_in_a_fragment_that_is_not_there() -> None:
    assert exchanged(ledger(), EntryId(7), {0: Exchange(A, E)}) is None


def test_no_bookie_gets_two_places() -> None:
    """Another repair has put it there meanwhile."""
    assert exchanged(ledger(), FIRST, {0: Exchange(A, B)}) is None


def test_the_last_fragment_of_a_ledger_that_is_not_closed_stays_as_it_is() -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        assert exchanged(ledger(state), LAST, {0: Exchange(A, E)}) is None
        assert exchanged(ledger(state), FIRST, {0: Exchange(A, E)}) is not None


def test_only_members_of_the_last_ensemble_hold_up_an_open_ledger() -> None:
    assert abandoned(ledger(LedgerState.OPEN), {A, B, D}) == []
    assert abandoned(ledger(LedgerState.OPEN), {A, C, D}) == [B]
    assert abandoned(ledger(), {A}) == []


def test_a_writer_is_shut_out_only_where_another_bookie_can_take_over() -> None:
    assert not may_shut_out(ledger(LedgerState.OPEN), {A, B, D, E})
    assert may_shut_out(ledger(LedgerState.OPEN), {A, B, E})
    assert not may_shut_out(ledger(LedgerState.OPEN), {A, B}), "nobody could take the place"
    assert not may_shut_out(ledger(), {A})


def look(lac: int, first: int = 0, **faults: Fault) -> Look:
    """Places by letter, with what is wrong with them."""
    span = Span(EntryId(first), EntryId(lac), (A, B, C), is_closed=False, is_last=True)
    return Look(span, {span.bookies.index(BookieId(name)): fault for name, fault in faults.items()})


def test_a_ledger_is_closed_for_bad_copies_whether_or_not_it_is_written() -> None:
    quorum = Quorum(3, 3, 2)
    for lac in (5, 9):
        assert may_close(quorum, look(5, a=Fault.BAD), look(lac, a=Fault.BAD))
    assert not may_close(quorum, look(5, a=Fault.BAD), look(5, b=Fault.BAD)), "that one was not seen twice"
    assert not may_close(quorum, look(5, a=Fault.BAD), look(9, 6, a=Fault.BAD)), "the writer has changed bookies"


def test_a_writer_that_gets_on_is_not_shut_out_for_who_is_behind_or_does_not_answer_us() -> None:
    quorum = Quorum(3, 3, 2)
    for fault in (Fault.ABSENT, Fault.SILENT):
        assert not may_close(quorum, look(5, a=fault), look(6, a=fault))
        assert may_close(quorum, look(5, a=fault), look(5, a=fault))
        assert not may_close(quorum, look(5, a=fault), look(5))


def test_no_recovery_is_begun_that_would_believe_bookies_which_have_lost_entries() -> None:
    """A confirmed entry has an ack quorum: if more deny it than that leaves, some of them had it."""
    two = look(5, a=Fault.ABSENT, b=Fault.ABSENT)
    assert not may_close(Quorum(3, 3, 2), two, two)
    one = look(5, a=Fault.ABSENT)
    assert not may_close(Quorum(3, 3, 3), one, one)
    mixed = look(5, a=Fault.ABSENT, b=Fault.BAD)
    assert may_close(Quorum(3, 3, 2), mixed, mixed)
    assert not may_close(Quorum(3, 2, 2), mixed, mixed)


def test_a_ledger_that_fails_again_is_left_alone_for_longer() -> None:
    delays = [Backoff(320.0).delay_s(failures) for failures in range(1, 9)]
    assert delays == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 320.0, 320.0]
