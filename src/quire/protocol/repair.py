"""Decide what a repair may change, and when it tries again. Sans-IO.

Copies come first: metadata names a new bookie only when that bookie has acknowledged every entry that is its own. The
change is made to one fragment, to the places that still have the old bookie, and to nothing else.

Invariants:
  LastIsForeign   the last fragment of a ledger that is not closed is never changed: its writer, or a recovery, alone
                  knows which entries count there.
  OneEach         no bookie is twice in an ensemble.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from quire.errors import invariant
from quire.protocol.fragments import Span
from quire.protocol.quorum import write_sets
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum
from quire.values import dataclass

_DOUBLINGS: Final = 5


class Fault(enum.Enum):
    """What is wrong with a bookie's copies."""

    AWAY = enum.auto()  # The bookie is not listed.
    SILENT = enum.auto()  # It is, and does not answer us; it may answer others. Or it says that it lost some.
    ABSENT = enum.auto()  # It says that it has no such entry: it lost it, never got it, or will get it any moment.
    BAD = enum.auto()  # What it has is damaged, or cannot be read.


class Exchange(NamedTuple):
    """Who leaves a place in an ensemble, and who takes it. The same bookie if it only gets back what it lacks."""

    old: BookieId
    new: BookieId


def exchanged(
    metadata: LedgerMetadata, first_entry_id: EntryId, exchanges: Mapping[int, Exchange]
) -> LedgerMetadata | None:
    """The metadata after a repair of one fragment; None if nothing is left to change, since others were faster."""
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    if first_entry_id not in firsts:
        return None
    place = firsts.index(first_entry_id)
    fragment = metadata.fragments[place]
    if metadata.state is not LedgerState.CLOSED and place == len(metadata.fragments) - 1:
        return None  # It was the last but one, and the one behind it is gone: not ours to change.
    bookies = list(fragment.bookies)
    for position, exchange in exchanges.items():
        if bookies[position] == exchange.old and exchange.new not in bookies:
            bookies[position] = exchange.new
    if tuple(bookies) == fragment.bookies:
        return None
    invariant(len(set(bookies)) == len(bookies), "a bookie would be twice in an ensemble", bookies=bookies)
    changed = Fragment(first_entry_id, tuple(bookies))
    fragments = metadata.fragments
    return replace(metadata, fragments=(*fragments[:place], changed, *fragments[place + 1 :]))


def abandoned(metadata: LedgerMetadata, writable: Collection[BookieId]) -> list[BookieId]:
    """Members of the last ensemble of a ledger that is not closed who take no entries: read-only ones count, too."""
    if metadata.state is LedgerState.CLOSED:
        return []
    return [bookie for bookie in metadata.fragments[-1].bookies if bookie not in writable]


def may_shut_out(metadata: LedgerMetadata, writable: Collection[BookieId]) -> bool:
    """Whether a ledger that nobody closed should be recovered, now that its writer had time to replace who is missing.

    Its writer, if it lives, will fail. So it is not shut out where that would help nobody: when there is no bookie that
    could take a missing one's place.
    """
    missing = abandoned(metadata, writable)
    spare = set(writable) - set(metadata.fragments[-1].bookies)
    return 0 < len(missing) <= len(spare)


@dataclass(frozen=True, slots=True)
class Look:
    """What was found wrong, at one moment, with the last fragment of a ledger that is not closed."""

    span: Span
    faults: Mapping[int, Fault]


def may_close(quorum: Quorum, before: Look, after: Look) -> bool:
    """Whether a ledger that nobody closed should be recovered, although all its bookies take entries: since copies of
    its last fragment are bad that its writer, if there is one, knows nothing of. Between the looks it had time.

    A bookie that is behind its writer, that only we do not reach, or that lost some and so refuses what the writer
    sends, is no reason while the writer gets on. Nor is a ledger recovered if so many bookies deny an entry that is
    confirmed that some of them must have lost it: a recovery would believe them about the entries behind it, too, and
    cut the ledger off there.
    """
    if (before.span.first, before.span.bookies) != (after.span.first, after.span.bookies):
        return False  # The writer has replaced somebody since.
    lasting = [fault for place, fault in after.faults.items() if place in before.faults]
    is_idle = before.span.last == after.span.last
    if Fault.BAD not in lasting and not (lasting and is_idle):
        return False
    absent = {place for place, fault in after.faults.items() if fault is Fault.ABSENT}
    return all(len(absent.intersection(places)) <= quorum.write - quorum.ack for places in write_sets(quorum))


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a ledger that could not be repaired is kept from everybody: longer each time, up to `longest_s`."""

    longest_s: float

    def delay_s(self, failures: int) -> float:
        """After so many failures in a row, one at least."""
        return self.longest_s / 2.0 ** max(0, _DOUBLINGS - failures + 1)
