"""The one table from what a bookie answered, or did not answer, to the errors that callers see.

    EOK                    no error
    ENOLEDGER              NoSuchLedger
    ENOENTRY               NoSuchEntry
    EBADREQ, EIO           BookieFailed
    EUA                    WrongPassword
    EBADVERSION            ProtocolViolation
    EFENCED                LedgerFenced
    EREADONLY              BookieReadOnly
    ETOOMANYREQUESTS       BookieBusy
    EUNKNOWNLEDGERSTATE    EntriesUnknown
    no connection          BookieUnavailable: nothing was sent
    no answer              BookieOutcomeUnknown if the request could change something, else BookieUnavailable

Where no answer came because the deadline passed, the error has the fact `timed_out`: the connection stood, and the
bookie said nothing. Clients hold that against a bookie; that a connection broke they do not.

In version 2 a bookie that lost data says EIO, since Java clients know no other code for it. So a `BookieFailed` of
version 2 may stand for `EntriesUnknown`: like that one, it never means that an entry is not there.
"""

import ssl
from typing import Any, Final

from quire.codec.wire.codes import Status
from quire.errors import (
    BookieBusy,
    BookieFailed,
    BookieOutcomeUnknown,
    BookieReadOnly,
    BookieUnavailable,
    EntriesUnknown,
    InvariantBroken,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolViolation,
    QuireError,
    WrongPassword,
)
from quire.types import EntryId, LedgerId

_TLS_HINT: Final = (
    "Trust the authority of the bookie's certificate, and have it name the host that the bookie advertises."
)

ERRORS: Final[dict[Status, type[QuireError]]] = {
    Status.ENOLEDGER: NoSuchLedger,
    Status.ENOENTRY: NoSuchEntry,
    Status.EBADREQ: BookieFailed,
    Status.EIO: BookieFailed,
    Status.EUA: WrongPassword,
    Status.EBADVERSION: ProtocolViolation,
    Status.EFENCED: LedgerFenced,
    Status.EREADONLY: BookieReadOnly,
    Status.ETOOMANYREQUESTS: BookieBusy,
    Status.EUNKNOWNLEDGERSTATE: EntriesUnknown,
}


def status_error(
    status: Status, *, bookie: str, ledger_id: LedgerId | None = None, entry_id: EntryId | None = None
) -> QuireError:
    """What to raise for an answer other than `EOK`. `bookie` is whatever names it best to a person."""
    if status is Status.EOK:
        raise InvariantBroken("an answer of EOK is no error")
    return ERRORS[status](
        f"bookie {bookie} answered {status.name}{_place(ledger_id, entry_id)}: {status.meaning}",
        bookie=bookie,
        status=status.name,
        **_facts(ledger_id, entry_id),
    )


def unanswered_error(
    problem: str,
    *,
    bookie: str,
    may_be_done: bool,
    timed_out: bool = False,
    ledger_id: LedgerId | None = None,
    entry_id: EntryId | None = None,
    cause: BaseException | None = None,
) -> QuireError:
    """What to raise when a request was sent and its answer will not come.

    After a `ProtocolViolation` that is what everybody gets who waited: to connect and try again would not help.
    """
    kind: type[QuireError] = BookieOutcomeUnknown if may_be_done else BookieUnavailable
    if isinstance(cause, ProtocolViolation):
        kind = ProtocolViolation
    message = f"bookie {bookie}{_place(ledger_id, entry_id)}: {problem}"
    facts = _facts(ledger_id, entry_id) | ({"timed_out": True} if timed_out else {})
    error = kind(message, bookie=bookie, **facts)
    error.__cause__ = cause
    return error


def unreachable_error(bookie: str, error: OSError) -> BookieUnavailable:
    """What to raise, `from error`, when there is no connection at all."""
    what = str(error) or type(error).__name__  # A timeout says nothing of itself.
    hint = _TLS_HINT if isinstance(error, ssl.SSLError) else ""
    return BookieUnavailable(f"bookie {bookie} cannot be reached: {what}", hint=hint, bookie=bookie)


def _place(ledger_id: LedgerId | None, entry_id: EntryId | None) -> str:
    if ledger_id is None:
        return ""
    return f" for ledger {ledger_id}" if entry_id is None else f" for entry {entry_id} of ledger {ledger_id}"


def _facts(ledger_id: LedgerId | None, entry_id: EntryId | None) -> dict[str, Any]:
    facts = {"ledger_id": ledger_id, "entry_id": entry_id}
    return {name: number for name, number in facts.items() if number is not None}
