"""Where each entry is, and what is known of each ledger: the index behind a bookie's entry logs.

What every implementation keeps to:
  Atomic          the operations of one `commit` happen all or not at all, in the order given.
  SyncedStays     a commit with `sync`, and everything before it, is durable once it has returned.
  SuffixIsLost    a crash loses unsynced commits from the newest backwards: what is left has no gap.
  NoShortAnswers  a list that could not be read to its end raises. What garbage collection does not find in a list it
                  deletes, and what a reader does not find it calls missing.
  FirstErrorIsLast  after a commit or a sync failed, none succeeds any more. Whether the failed one is stored is not
                  known before the index is opened again. Reading goes on.

An index has a position, a number that every commit moves forward and that survives with it. Whoever relies on a commit
(a checkpoint that frees journals, a compaction that deletes a log) stores the position with what it did, and names it
when the index is opened again: an index that lost anything before it is refused as damaged. Without a position, a log
whose end was cut off looks like any crash, and what a power cut left of one may look like damage, and be refused.

All methods are plain calls, safe from several threads. Reads of what RocksDB has in memory take a few microseconds;
those that may go to the disk, and everything that writes, are marked as blocking: run them off the event loop.

Errors: `DamagedIndex`; plain `OSError`s as from a disk, since the caller must say what a full disk means;
`InvalidArgument` for an id out of range; `StoreClosed` after `close`.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from quire.codec.entry_log import Location
from quire.codec.index_records import LedgerRecord
from quire.types import EntryId, LedgerId
from quire.values import dataclass

__all__ = [
    "TOMBSTONE_KEPT_MS",
    "DeleteLedger",
    "DeleteMark",
    "DeleteTombstone",
    "Index",
    "LedgerRecord",
    "LocationMove",
    "Operation",
    "PutLedger",
    "PutLocations",
    "PutMark",
    "PutTombstone",
]

TOMBSTONE_KEPT_MS: Final = 7 * 24 * 60 * 60 * 1000  # As long as Apache's bookies remember a ledger they fenced.


@dataclass(frozen=True, slots=True)
class PutLocations:
    """Enter where entries are, over what was there. The sequence must not change until the commit has returned.

    A ledger's entries are found through its record: put that too, or garbage collection will never see them.
    """

    entries: Sequence[tuple[LedgerId, EntryId, Location]]


@dataclass(frozen=True, slots=True)
class PutLedger:
    """Enter what is known of a ledger, over what was there."""

    ledger_id: LedgerId
    record: LedgerRecord


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Forget a ledger's record and the locations of all its entries. Costs the same however many there are."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class PutTombstone:
    """Remember that a ledger was fenced before it was deleted here, so that late writers are still refused."""

    ledger_id: LedgerId
    expires_ms: int


@dataclass(frozen=True, slots=True)
class DeleteTombstone:
    """Forget a tombstone, because it expired or because a recovery brought the ledger back."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class PutMark:
    """Keep a few bytes under a name, for facts about the whole bookie."""

    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteMark:
    """Forget a mark."""

    name: str


Operation: TypeAlias = PutLocations | PutLedger | DeleteLedger | PutTombstone | DeleteTombstone | PutMark | DeleteMark


class LocationMove(NamedTuple):
    """An entry that compaction copied from `old` to `new`."""

    ledger_id: LedgerId
    entry_id: EntryId
    old: Location
    new: Location


class Index(Protocol):
    """One bookie's index. The promises are at the top of this module."""

    # --- Reading

    def location(self, ledger_id: LedgerId, entry_id: EntryId) -> Location | None:
        """Where an entry is. Other threads run meanwhile, so a look-up that must wait for the disk can be moved off."""
        ...

    def locations(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId | None = None, *, limit: int
    ) -> list[tuple[EntryId, Location]]:
        """The entries from `first` to `last` (included; None is the end) that are here, ascending, `limit` at most."""
        ...

    def last_entry(self, ledger_id: LedgerId) -> EntryId | None:
        """The highest entry id of a ledger that is here."""
        ...

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[EntryId]:
        """All entry ids of a ledger, ascending. Blocking. Memory stays flat however many there are.

        What is entered or deleted while the iteration runs may or may not be seen.
        """
        ...

    def ledger(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """What is known of a ledger."""
        ...

    def ledgers(self) -> Sequence[LedgerId]:
        """All ledgers that have a record, ascending. Blocking; 8 bytes for each.

        Complete as of the call, not as of some later moment: garbage collection compares it with metadata that it
        reads afterwards, and must not take a ledger that came in between for a deleted one.
        """
        ...

    def tombstone(self, ledger_id: LedgerId) -> int | None:
        """When the ledger's tombstone expires, in ms since 1970. It stays after that, until somebody deletes it."""
        ...

    def tombstones(self) -> list[tuple[LedgerId, int]]:
        """All tombstones and when they expire, by ledger id. Blocking."""
        ...

    def mark(self, name: str) -> bytes | None:
        """The bytes kept under a name."""
        ...

    @property
    def position(self) -> int:
        """The position of the newest commit, durable or not. Store what `commit` or `sync` returned instead."""
        ...

    # --- Writing

    def commit(self, *operations: Operation, sync: bool = True) -> int:
        """Carry out all operations or none, and return the position after them. Blocking.

        Without `sync` a crash may lose it. Large amounts are better committed as some thousand entries at a time, only
        the last commit synced: while a batch is entered, a quarter of a microsecond an entry, no other thread runs.
        """
        ...

    def sync(self) -> int:
        """Make all commits so far durable, and return the position up to which they are. Blocking."""
        ...

    def replace_locations(self, moves: Sequence[LocationMove], *, sync: bool = True) -> int:
        """Enter the new location of every entry that is still at its old one, in one commit. Blocking.

        Returns how many that were. The others were written anew or deleted meanwhile, and their copies are garbage.
        """
        ...

    def set_fenced(self, ledger_id: LedgerId, *, sync: bool = True) -> LedgerRecord | None:
        """Fence a ledger and return its record as it is now; None if the ledger is not known. Blocking."""
        ...

    def close(self) -> None:
        """Make everything durable and let go of the folder. Blocking. Other calls must have returned."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...
