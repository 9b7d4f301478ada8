"""The table from answers to errors: complete, and with the facts that a caller needs."""

import pytest

from quire.codec.wire.codes import Status
from quire.errors import (
    BookieFailed,
    BookieOutcomeUnknown,
    BookieUnavailable,
    EntriesUnknown,
    InvariantBroken,
    NoSuchEntry,
    Outcome,
    ProtocolViolation,
)
from quire.rpc.errors import ERRORS, status_error, unanswered_error, unreachable_error
from quire.types import EntryId, LedgerId


def test_every_status_but_success_has_an_error() -> None:
    assert set(ERRORS) == set(Status) - {Status.EOK}


def test_an_error_says_who_what_and_where() -> None:
    error = status_error(Status.ENOENTRY, bookie="b1:3181", ledger_id=LedgerId(5), entry_id=EntryId(0))
    assert isinstance(error, NoSuchEntry)
    assert error.facts == {"bookie": "b1:3181", "status": "ENOENTRY", "ledger_id": 5, "entry_id": 0}
    assert "b1:3181 answered ENOENTRY for entry 0 of ledger 5" in str(error)


def test_success_is_no_error() -> None:
    with pytest.raises(InvariantBroken):
        status_error(Status.EOK, bookie="b1:3181")


def test_neither_failure_nor_loss_of_data_is_taken_for_absence() -> None:
    """Recovery ends a ledger where bookies say "no such entry". These must not look like that."""
    failed, unknown = (status_error(status, bookie="b1:3181") for status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE))
    assert isinstance(failed, BookieFailed)
    assert isinstance(unknown, EntriesUnknown)


def test_what_was_sent_and_not_answered_may_have_happened_if_it_could_change_something() -> None:
    write = unanswered_error("gone", bookie="b1:3181", may_be_done=True)
    read = unanswered_error("gone", bookie="b1:3181", may_be_done=False, ledger_id=LedgerId(5))
    assert isinstance(write, BookieOutcomeUnknown)
    assert write.outcome is Outcome.UNKNOWN
    assert isinstance(read, BookieUnavailable)
    assert read.facts == {"bookie": "b1:3181", "ledger_id": 5}


def test_a_violation_stays_one_for_all_who_waited() -> None:
    cause = ProtocolViolation("what is this")
    error = unanswered_error("gone", bookie="b1:3181", may_be_done=False, cause=cause)
    assert isinstance(error, ProtocolViolation)
    assert error is not cause
    assert error.__cause__ is cause


def test_an_error_of_the_system_that_says_nothing_is_named_after_its_kind() -> None:
    assert "cannot be reached: TimeoutError" in str(unreachable_error("b1:3181", TimeoutError()))
