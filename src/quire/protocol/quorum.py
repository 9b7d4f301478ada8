"""Which bookies get an entry, how many must answer, and when enough have answered to be sure. Sans-IO.

Entries go round the ensemble: entry e is on the `write` positions from e mod `ensemble` on. Only `ensemble` different
write sets exist, so what holds for each of these windows holds for every entry.
"""

from collections.abc import Collection, Sequence
from typing import overload

from quire.types import EntryId, Quorum


def write_set(entry_id: EntryId, quorum: Quorum) -> tuple[int, ...]:
    """The positions in the ensemble that get an entry, in the order in which readers ask them."""
    return tuple((entry_id + step) % quorum.ensemble for step in range(quorum.write))


def write_sets(quorum: Quorum) -> list[tuple[int, ...]]:
    """The write set of every entry, by entry id modulo the ensemble size."""
    return [write_set(EntryId(first), quorum) for first in range(quorum.ensemble)]


def entries_at(position: int, first: EntryId, end: EntryId, quorum: Quorum) -> Sequence[EntryId]:
    """The entries from `first` up to and without `end` that a position of the ensemble gets, ascending. They take no
    room, however many they are."""
    return _EntriesAt(position, first, end, quorum)


class _EntriesAt(Sequence[EntryId]):
    def __init__(self, position: int, first: EntryId, end: EntryId, quorum: Quorum) -> None:
        self._first, self._round = first, quorum.ensemble
        in_round = (offset for offset in range(quorum.ensemble) if _is_at(position, first + offset, quorum))
        self._offsets = tuple(in_round)  # Within each round over the ensemble.
        rounds, rest = divmod(max(0, end - first), quorum.ensemble)
        self._count = rounds * quorum.write + sum(offset < rest for offset in self._offsets)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> EntryId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EntryId]: ...
    def __getitem__(self, index: int | slice) -> EntryId | Sequence[EntryId]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        rounds, place = divmod(index % self._count, len(self._offsets))
        return EntryId(self._first + rounds * self._round + self._offsets[place])


def _is_at(position: int, entry_id: int, quorum: Quorum) -> bool:
    return (position - entry_id) % quorum.ensemble < quorum.write


def is_covered(answered: Collection[int], quorum: Quorum) -> bool:
    """Whether no ack quorum of any entry can consist of positions that have not answered.

    Then nothing can have been acknowledged that all who answered know nothing of; and once they are fenced, nothing
    can be acknowledged any more without one of them.
    """
    return all(sum(position not in answered for position in window) < quorum.ack for window in write_sets(quorum))


def absences_needed(quorum: Quorum) -> int:
    """How many bookies of an entry's write set must deny it, before it is certain that it was not acknowledged."""
    return quorum.write - quorum.ack + 1
