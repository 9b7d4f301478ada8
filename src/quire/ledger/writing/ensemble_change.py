"""Changes of a ledger's metadata, each of which sees the newest version and may find that it is too late.

The writer, a recovery and re-replication write the same metadata. All of them go through one loop of compare-and-swap
and decide anew from what they find: these are the decisions.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from quire.errors import LedgerClosed, LedgerFenced, NotEnoughBookies, invariant
from quire.ledger.context import LedgerContext
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_sets
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState

RETRY_PAUSE_S: Final = 0.2  # Before bookies that failed just now are tried again, if there are no others.


class EnsembleChange:
    """Other bookies in the places of failed ones, from the entry after `confirmed` on.

    Afterwards `replaced` says who is in those places now, and `vacant` which of them nobody took: allowed only while
    every entry can reach its ack quorum without them. Name those again in the next change. If bookies of vacant
    places are `back`, that begins a fragment all the same: repairs look at the ends of fragments.
    """

    def __init__(
        self,
        client: LedgerContext,
        confirmed: EntryId,
        failed: Mapping[int, BookieId],
        avoid: Collection[BookieId] = (),
        *,
        back: Mapping[int, BookieId] = MappingProxyType({}),
    ) -> None:
        """Those to `avoid` failed just now, in this place or another."""
        self._back = back
        self._client, self._first, self._failed = client, EntryId(confirmed + 1), failed
        self._exclude = frozenset({*failed.values(), *avoid})
        self.replaced: dict[int, BookieId] = {}

    @property
    def vacant(self) -> dict[int, BookieId]:
        return {place: bookie for place, bookie in self._failed.items() if place not in self.replaced}

    async def publish(self, stored: StoredLedger) -> StoredLedger:
        """Store the change. Raises `LedgerFenced`, `LedgerClosed`, `NotEnoughBookies`, `NoSuchLedger`."""
        return await self._client.ledgers_metadata.update(
            stored, lambda metadata: self.apply(metadata, stored.ledger_id)
        )

    def apply(self, metadata: LedgerMetadata, ledger_id: LedgerId) -> LedgerMetadata | None:
        """The metadata with the change; None if nothing is left to change."""
        if metadata.state is LedgerState.CLOSED:
            raise LedgerClosed(f"ledger {ledger_id} was closed by another client", ledger_id=ledger_id)
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(f"ledger {ledger_id} is being recovered by another client", ledger_id=ledger_id)
        return self.replace_in(metadata)

    def replace_in(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The same without asking whether the ledger is still open: for a recovery, which owns it."""
        last = metadata.fragments[-1]
        ensemble = list(last.bookies)
        named = (*self._failed.items(), *self._back.items())
        self.replaced = {p: ensemble[p] for p, bookie in named if ensemble[p] != bookie}
        missing = [p for p, bookie in self._failed.items() if ensemble[p] == bookie]
        if not missing and not self._back:
            return None
        without: list[int] = []
        for position in missing:
            try:
                ensemble[position] = self._client.replacement(metadata, tuple(ensemble), position, self._exclude)
                self.replaced[position] = ensemble[position]
            except NotEnoughBookies:
                without.append(position)
                if not _suffices(metadata, without):
                    raise
        is_begun = last.first_entry_id == self._first
        if len(without) == len(missing) and (is_begun or not self._back):
            return None
        fragment = Fragment(self._first, tuple(ensemble))
        invariant(last.first_entry_id <= self._first, "a fragment begins behind entries that are not confirmed")
        kept = metadata.fragments[:-1] if is_begun else metadata.fragments
        return replace(metadata, fragments=(*kept, fragment))


def _suffices(metadata: LedgerMetadata, without: list[int]) -> bool:
    """Whether every entry can reach its ack quorum without these places."""
    quorum = metadata.quorum
    return all(sum(p not in without for p in window) >= quorum.ack for window in write_sets(quorum))


def closed_metadata(
    metadata: LedgerMetadata, ledger_id: LedgerId, last_entry_id: EntryId, length: int, *, is_all: bool
) -> LedgerMetadata | None:
    """The writer seals its ledger. If `is_all` that was ever sent, a recovery under way is overtaken: it can find no
    other end. Else it may have found, and shown to readers, entries of which this writer does not know the fate.

    Raises `LedgerFenced` if the ledger was or will be sealed by another client: then where it ends is not for this
    writer to say.
    """
    if metadata.state is LedgerState.IN_RECOVERY and not is_all:
        raise LedgerFenced(f"ledger {ledger_id} is being recovered by another client", ledger_id=ledger_id)
    if metadata.state is LedgerState.CLOSED:
        if metadata.last_entry_id == last_entry_id:
            return None
        raise LedgerFenced(
            f"ledger {ledger_id} was recovered by another client and ends with entry {metadata.last_entry_id}, "
            f"not {last_entry_id}",
            ledger_id=ledger_id,
        )
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
