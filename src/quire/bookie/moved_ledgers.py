"""Which ledgers on this bookie have all their copies elsewhere by now: repaired while it was away, or rebalanced.

Their entries here are garbage, though the ledgers exist.

Invariants:
  ClosedOnly     only of a closed ledger is it certain that nobody writes here again, and that nobody counts on what
                 this bookie says of it.
  LockedFirst    whoever copies a ledger holds its lock of autorecovery, and names the taker in the metadata only at the
                 end. So with the lock in hand the metadata is read once more, and only then it counts.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from quire.errors import DamagedMetadata, NoSuchLedger
from quire.metadata import Cluster
from quire.runtime import Runtime
from quire.types import BookieId, LedgerId, LedgerState

if TYPE_CHECKING:
    from quire.metadata.underreplication import Underreplication


class MovedLedgers:
    """Asks the metadata about the ledgers of one bookie."""

    def __init__(self, cluster: Cluster, runtime: Runtime, bookie: BookieId) -> None:
        self._cluster, self._runtime, self._bookie = cluster, runtime, bookie
        self._ledgers = cluster.ledgers

    @cached_property
    def _locks(self) -> "Underreplication":
        from quire.metadata.underreplication import Underreplication  # A bookie that starts has no garbage yet.

        return Underreplication(self._cluster.store, self._cluster.uri.root, self._runtime, self._bookie)

    async def is_moved(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger is closed, and none of its fragments names this bookie. What is deleted, or cannot be
        read, is not moved."""
        try:
            metadata = (await self._ledgers.read(ledger_id)).metadata
        except (NoSuchLedger, DamagedMetadata):
            return False
        if metadata.state is not LedgerState.CLOSED:
            return False
        return all(self._bookie not in fragment.bookies for fragment in metadata.fragments)

    @asynccontextmanager
    async def certainly(self, ledger_id: LedgerId) -> AsyncIterator[bool]:
        """The same, while nobody can copy the ledger here. False if somebody works on it just now."""
        async with self._locks.locked(ledger_id) as lock:
            yield lock is not None and await self.is_moved(ledger_id)
