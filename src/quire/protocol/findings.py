"""What a check of a cluster tells: one finding for each thing that is wrong, and what may be done about it."""

import enum

from quire.types import BookieId, LedgerId
from quire.values import dataclass


class Severity(enum.StrEnum):
    """What it means for whoever reads and writes."""

    LOST = "lost"  # Something cannot be read, and no copy is known.
    AT_RISK = "at risk"  # Everything can be read, with fewer copies than there should be.
    UNTIDY = "untidy"  # Nothing is missing. Something is in the way, or takes room.


class Repair(enum.StrEnum):
    """What can be done about a finding without a risk."""

    COPY = "copy what is missing from the other bookies"
    DELETE_EMPTY = "delete the ledger, which has no entries"
    CLEAR_ALLOCATION = "forget the allocated ledger, which does not exist"
    SWEEP_STAGED = "delete the staged ledgers, which are in no stream"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    severity: Severity
    subject: str
    problem: str
    repair: Repair | None = None
    advice: str = ""
    """For a person, where there is no repair."""

    ledger_id: LedgerId | None = None
    stream: str | None = None
    bookies: tuple[BookieId, ...] = ()
