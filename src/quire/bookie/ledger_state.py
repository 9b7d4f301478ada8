"""What a bookie keeps in memory of one ledger: who may write, what is the last entry, how far entries are confirmed.

Invariants:
  LacOnlyGrows   the known LAC is the highest that any add or explicit LAC of the ledger carried.
  WokenOnce      a waiter is told once: that the LAC passed its own, or that the ledger was fenced or deleted.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from quire.codec.entry import stored_lac
from quire.codec.index_records import LedgerRecord
from quire.protocol.fencing import LedgerGate
from quire.types import NO_ENTRY, EntryId
from quire.values import dataclass

NO_DIGEST_YET: Final = 0


@dataclass(slots=True, eq=False)
class LacWaiter:
    """Somebody who waits for the LAC to pass `previous`. `wake` is told whether it has."""

    previous: EntryId
    wake: Callable[[bool], None]


@dataclass(slots=True, eq=False)
class Ledger:
    """One ledger. `lac` is a lower bound until `is_lac_known`: the last entry stored may carry a higher one."""

    gate: LedgerGate
    explicit_lac: bytes | None = None
    last: EntryId = NO_ENTRY  # The highest entry id that is here.
    last_lac: EntryId = NO_ENTRY  # The LAC that the entry of the highest id carries.
    lac: EntryId = NO_ENTRY
    is_lac_known: bool = True
    touched: int = 0  # When it was last added to, as the storage counts.
    fence_number: int = 0  # Of the fence's record in the journal; 0 if it is in the index already.
    rewrites: int = 0  # Adds that were not behind all others: they may have replaced an entry.
    digest: int = NO_DIGEST_YET  # What `entry_digest` learned of its entries.
    waiters: list[LacWaiter] = field(default_factory=list)

    def record(self) -> LedgerRecord:
        return LedgerRecord(self.gate.master_key, self.gate.fenced, self.explicit_lac, self.gate.limbo)

    @property
    def is_lac_stored(self) -> bool:
        """Whether the known LAC would be found again in the last entry or in the explicit LAC."""
        explicit = NO_ENTRY if self.explicit_lac is None else stored_lac(self.explicit_lac)[1]
        return self.lac <= max(self.last_lac, explicit)

    def is_continued_by(self, entry_ids: Sequence[EntryId]) -> bool:
        """Whether these are behind all entries that are here, and each behind the one before."""
        first, last = entry_ids[0], entry_ids[-1]
        if first <= self.last:
            return False
        if last - first == len(entry_ids) - 1 and tuple(entry_ids) == tuple(range(first, last + 1)):
            return True  # Nearly always, and quickly told.
        return all(before < after for before, after in itertools.pairwise(entry_ids))

    def on_entry(self, entry_id: EntryId, lac: EntryId) -> None:
        """An entry was accepted that carries this LAC."""
        if entry_id > self.last:
            self.last, self.last_lac = entry_id, lac
        else:
            self.rewrites += 1
            if entry_id == self.last:
                self.last_lac = lac
        if lac > self.lac:
            self.raise_lac(lac)

    def raise_lac(self, lac: EntryId) -> None:
        """Take in a LAC that a writer sent."""
        if lac <= self.lac:
            return
        self.lac = lac
        if self.waiters:
            woken = [waiter for waiter in self.waiters if waiter.previous < lac]
            self.waiters = [waiter for waiter in self.waiters if waiter.previous >= lac]
            for waiter in woken:
                waiter.wake(True)

    def wake_all(self) -> None:
        """The ledger was fenced or deleted: whoever waits should look again."""
        woken, self.waiters = self.waiters, []
        for waiter in woken:
            waiter.wake(False)
