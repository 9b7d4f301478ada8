"""Decide which in-flight entries of one ledger may be acknowledged. Sans-IO, and in runs.

Each entry waits for its ack quorum; entries are acknowledged in order, so the first one without a quorum holds up all
behind it. While a bookie is being replaced nothing is acknowledged: an entry confirmed meanwhile could count a bookie
that the new fragment no longer lists, and the new fragment begins right behind the last confirmed one.

Invariants, under the names that the checkers use:
  LacIsPrefix      every entry up to `confirmed` had an ack quorum of the ensemble of its time; it never moves back.
  AcksAreCurrent   only members of the current ensemble count for an entry that is not confirmed yet.
  FrozenWhileChanging  between `suspend` and `resume` nothing is confirmed.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from quire.errors import invariant
from quire.protocol.quorum import write_sets
from quire.types import NO_ENTRY, EntryId, Quorum

_NOTHING: Final[tuple[EntryId, ...]] = ()


class PendingAppends:
    """The entries in flight, and who has them. Positions in the ensemble stand for bookies."""

    def __init__(self, quorum: Quorum, *, confirmed: EntryId = NO_ENTRY) -> None:
        invariant(quorum.ack > 0, "without an ack quorum nothing would ever wait", quorum=quorum)
        self._quorum = quorum
        self._masks = [sum(1 << position for position in window) for window in write_sets(quorum)]
        self._acks: deque[int] = deque()  # For each entry behind `confirmed`: who has it, a bit for each position.
        self.confirmed = confirmed
        self._is_suspended = False

    @property
    def pushed(self) -> EntryId:
        """The last entry that got an id."""
        return EntryId(self.confirmed + len(self._acks))

    @property
    def in_flight(self) -> int:
        return len(self._acks)

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    def push(self, count: int = 1) -> EntryId:
        """Give ids to the next entries, and return the first of them."""
        first = EntryId(self.pushed + 1)
        self._acks.extend([0] * count)
        return first

    def on_acks(self, position: int, entry_ids: Iterable[EntryId]) -> EntryId:
        """A bookie of the current ensemble has these entries. Returns `confirmed`, which may have moved.

        An answer for an entry that is confirmed already, or that this position does not get, changes nothing.
        """
        acks, masks, ensemble = self._acks, self._masks, self._quorum.ensemble
        base, end, bit = self.confirmed + 1, len(self._acks), 1 << position
        for entry_id in entry_ids:
            place = entry_id - base
            if 0 <= place < end and masks[entry_id % ensemble] & bit:
                acks[place] |= bit
        return self._confirm()

    def _confirm(self) -> EntryId:
        if not self._is_suspended:
            acks, needed = self._acks, self._quorum.ack
            count = 0
            while acks and acks[0].bit_count() >= needed:
                acks.popleft()
                count += 1
            self.confirmed = EntryId(self.confirmed + count)
        return self.confirmed

    def missing(self, position: int) -> list[EntryId]:
        """The entries in flight that this position should get and has not acknowledged, ascending."""
        bit, ensemble, base = 1 << position, self._quorum.ensemble, self.confirmed + 1
        return [
            EntryId(base + place)
            for place, acks in enumerate(self._acks)
            if self._masks[(base + place) % ensemble] & bit and not acks & bit
        ]

    def reachable(self, lost: Iterable[int]) -> bool:
        """Whether every entry in flight can still get its ack quorum without the positions in `lost`."""
        gone = sum(1 << position for position in set(lost))
        return all((mask & ~gone).bit_count() >= self._quorum.ack for mask in self._masks)

    # --- Ensemble changes

    def suspend(self) -> EntryId:
        """Stop confirming while bookies are replaced; return the first entry of the new fragment."""
        self._is_suspended = True
        return EntryId(self.confirmed + 1)

    def resume(self, changed: Iterable[int]) -> EntryId:
        """Positions in `changed` have new bookies, which have nothing yet: send them what they are `missing`.

        Returns `confirmed`: entries that did not need those positions may be confirmed now.
        """
        keep = ~sum(1 << position for position in set(changed))
        self._acks = deque(acks & keep for acks in self._acks)
        self._is_suspended = False
        return self._confirm()

    def give_up(self) -> int:
        """The handle is over: nothing is confirmed any more. Returns how many entries were in flight."""
        self._is_suspended = True
        return len(self._acks)
