"""Decide which in-flight entries of one ledger may be acknowledged. Sans-IO, and in runs.

Each entry waits for its ack quorum; entries are acknowledged in order, so the first one without a quorum holds up all
behind it. While a bookie is being replaced nothing is acknowledged: an entry confirmed meanwhile could count a bookie
that the new fragment no longer lists, and the new fragment begins right behind the last confirmed one.

Bookies answer in order, nearly always. So what each of them has is one number, the first of its entries that it has not
acknowledged, and a set for answers that came before their turn: a run of answers costs about as much as one.

Invariants, under the names that the checkers use:
  LacIsPrefix      every entry up to `confirmed` had an ack quorum of the ensemble of its time; it never moves back.
  AcksAreCurrent   only members of the current ensemble count for an entry that is not confirmed yet.
  FrozenWhileChanging  between `suspend` and `resume` nothing is confirmed.
"""

from collections.abc import Iterable, Sequence

from quire.errors import invariant
from quire.protocol.quorum import write_sets
from quire.types import NO_ENTRY, EntryId, Quorum


class PendingAppends:
    """The entries in flight, and who has them. Positions in the ensemble stand for bookies."""

    def __init__(self, quorum: Quorum, *, confirmed: EntryId = NO_ENTRY) -> None:
        invariant(quorum.ack > 0, "without an ack quorum nothing would ever wait", quorum=quorum)
        self._quorum = quorum
        self._windows = write_sets(quorum)
        self._is_everyone = quorum.ensemble == quorum.write
        self.confirmed = self.pushed = confirmed
        """The last entry that is confirmed, and the last one that got an id."""
        self._next = [self._own_from(position, confirmed + 1) for position in range(quorum.ensemble)]
        self._early: list[set[EntryId]] = [set() for _ in range(quorum.ensemble)]  # Acknowledged beyond `_next`.
        self._is_suspended = False

    @property
    def in_flight(self) -> int:
        return self.pushed - self.confirmed

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    def push(self, count: int = 1) -> EntryId:
        """Give ids to the next entries, and return the first of them."""
        first = EntryId(self.pushed + 1)
        self.pushed = EntryId(self.pushed + count)
        return first

    def on_acks(self, position: int, entry_ids: Sequence[EntryId]) -> EntryId:
        """A bookie of the current ensemble has these entries. Returns `confirmed`, which may have moved.

        An answer for an entry that this position does not get, or that was never sent, changes nothing.
        """
        following = self._next[position]
        if (
            self._is_everyone
            and not self._early[position]
            and entry_ids
            and entry_ids[0] == following
            and entry_ids[-1] <= self.pushed
            and tuple(entry_ids) == tuple(range(following, following + len(entry_ids)))
        ):
            self._next[position] = EntryId(following + len(entry_ids))
        else:
            self._on_scattered(position, entry_ids)
        return self._confirm()

    def _on_scattered(self, position: int, entry_ids: Iterable[EntryId]) -> None:
        following, early = self._next[position], self._early[position]
        for entry_id in entry_ids:
            if entry_id > self.pushed or not self._is_own(position, entry_id):
                continue
            if entry_id == following:
                following = self._own_from(position, entry_id + 1)
                while early and following in early:
                    early.remove(following)
                    following = self._own_from(position, following + 1)
            elif entry_id > following:
                early.add(entry_id)
        self._next[position] = following

    def _is_own(self, position: int, entry_id: int) -> bool:
        """Whether the position is in the entry's write set."""
        return (position - entry_id) % self._quorum.ensemble < self._quorum.write

    def _own_from(self, position: int, entry_id: int) -> EntryId:
        """The position's first entry from this one on."""
        places_before = (position - entry_id) % self._quorum.ensemble
        return EntryId(entry_id + max(0, places_before - self._quorum.write + 1))

    def _confirm(self) -> EntryId:
        if not self._is_suspended:
            confirmed = max(self.confirmed, min(self.pushed, self._everything_below() - 1))
            if any(self._early):
                while confirmed < self.pushed and self._has_quorum(EntryId(confirmed + 1)):
                    confirmed += 1
            self.confirmed = EntryId(confirmed)
        return self.confirmed

    def _everything_below(self) -> int:
        """The first entry without a quorum, if nobody had acknowledged any before its turn."""
        following, ack = self._next, self._quorum.ack
        if self._is_everyone:
            return sorted(following)[-ack]
        ensemble = self._quorum.ensemble
        first_without: list[int] = []
        for residue, window in enumerate(self._windows):
            bound = sorted(following[position] for position in window)[-ack]
            first_without.append(bound + (residue - bound) % ensemble)  # The first entry of this window from there on.
        return min(first_without)

    def _has_quorum(self, entry_id: EntryId) -> bool:
        window = self._windows[entry_id % self._quorum.ensemble]
        return sum(entry_id < self._next[p] or entry_id in self._early[p] for p in window) >= self._quorum.ack

    def missing(self, position: int) -> list[EntryId]:
        """The entries in flight that this position should get and has not acknowledged, ascending."""
        early = self._early[position]
        entry_id = max(self._next[position], self._own_from(position, self.confirmed + 1))
        found: list[EntryId] = []
        while entry_id <= self.pushed:
            if entry_id not in early:
                found.append(entry_id)
            entry_id = self._own_from(position, entry_id + 1)
        return found

    def reachable(self, lost: Iterable[int]) -> bool:
        """Whether every entry in flight can still get its ack quorum without the positions in `lost`."""
        gone = set(lost)
        return all(sum(position not in gone for position in window) >= self._quorum.ack for window in self._windows)

    # --- Ensemble changes

    def suspend(self) -> EntryId:
        """Stop confirming while bookies are replaced; return the first entry of the new fragment."""
        self._is_suspended = True
        return EntryId(self.confirmed + 1)

    def replace(self, positions: Iterable[int]) -> None:
        """These positions have new bookies, which have nothing yet: send what they are `missing`, then `resume`."""
        for position in positions:
            self._next[position] = self._own_from(position, self.confirmed + 1)
            self._early[position].clear()

    def resume(self) -> EntryId:
        """Go on confirming. Returns `confirmed`: entries with a quorum of those who stayed are confirmed now."""
        self._is_suspended = False
        return self._confirm()

    def first_missing(self, position: int) -> EntryId:
        """Everything of the position's own before this entry is acknowledged."""
        return self._next[position]

    def give_up(self) -> int:
        """The handle is over: nothing is confirmed any more. Returns how many entries were in flight."""
        self._is_suspended = True
        return self.in_flight
