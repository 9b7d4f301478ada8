"""What a writer tells of entries that it could not write."""

from quire.errors import AppendOutcomeUnknown, LedgerClosed, LedgerFenced, QuireError
from quire.types import LedgerId


def again(error: QuireError) -> QuireError:
    """The same error as a new one. One that is raised again and again would keep all that its raisers held."""
    again = type(error)(str(error), hint=error.hint, **error.facts)
    again.__cause__ = error.__cause__
    return again


def append_error(error: QuireError, ledger_id: LedgerId, bookie_error: QuireError | None) -> QuireError:
    if isinstance(error, LedgerFenced | LedgerClosed | AppendOutcomeUnknown):
        return error
    why = "" if bookie_error is None or bookie_error is error else f". Others were needed since: {bookie_error}"
    unknown = AppendOutcomeUnknown(f"ledger {ledger_id} broke off: {error}{why}", ledger_id=ledger_id)
    unknown.__cause__ = error
    return unknown
