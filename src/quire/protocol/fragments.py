"""Decide what a ledger's fragments hold: which entries belong to which bookie, and which of them are settled. Sans-IO.

A fragment runs from its first entry to the one before the next fragment. The last one of a closed ledger runs to the
ledger's end, and may be empty: then it begins one behind it. The last one of any other ledger belongs to its writer, or
to whoever recovers it, and nobody else may change it.

Invariants:
  LastIsForeign   the last fragment of a ledger that is not closed is never `is_closed`.
  SettledOnly     a fragment is `is_closed` only if everything up to its last entry is confirmed.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence

from quire.protocol.quorum import entries_at
from quire.types import BookieId, EntryId, LedgerMetadata, LedgerState, Quorum
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A fragment and where it ends. It is empty if its last entry is before its first one."""

    first: EntryId
    last: EntryId
    bookies: tuple[BookieId, ...]
    is_closed: bool
    is_last: bool

    @property
    def is_empty(self) -> bool:
        return self.last < self.first

    def entries_of(self, position: int, quorum: Quorum) -> Sequence[EntryId]:
        """What the bookie in this place of the ensemble should have, ascending."""
        return entries_at(position, self.first, EntryId(self.last + 1), quorum)


def spans_of(metadata: LedgerMetadata, lac: EntryId) -> list[Span]:
    """All fragments of a ledger that is confirmed up to `lac` at least; if it is closed, its metadata says how far."""
    is_closed = metadata.state is LedgerState.CLOSED
    confirmed = metadata.last_entry_id if is_closed else lac
    spans: list[Span] = []
    fragments = metadata.fragments
    for fragment, following in zip(fragments, (*fragments[1:], None), strict=True):
        if following is None:
            spans.append(Span(fragment.first_entry_id, confirmed, fragment.bookies, is_closed, True))
        else:
            last = EntryId(following.first_entry_id - 1)
            settled = is_closed or confirmed >= last
            spans.append(Span(fragment.first_entry_id, last, fragment.bookies, settled, False))
    return spans


def known_lac(metadata: LedgerMetadata) -> EntryId:
    """How far the metadata alone proves a ledger confirmed: a fragment is begun behind what is."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return EntryId(metadata.fragments[-1].first_entry_id - 1)


def sample(span: Span, position: int, quorum: Quorum, percentage: float) -> Iterator[EntryId]:
    """Which entries to ask a bookie for: its first and its last one, and so many evenly between them. Ascending."""
    stored = span.entries_of(position, quorum)
    if not stored:
        return
    count = max(1, min(len(stored), -int(-len(stored) * percentage // 100)))
    last = stored[-1]
    for place in range(count):
        if (entry_id := stored[place * len(stored) // count]) != last:
            yield entry_id
    yield last


def entries_in(span: Span, positions: Iterable[int], quorum: Quorum) -> Iterator[EntryId]:
    """What belongs into any of these places of the ensemble, ascending, each entry once."""
    merged = heapq.merge(*(span.entries_of(position, quorum) for position in positions))
    return (entry_id for entry_id, _ in itertools.groupby(merged))
