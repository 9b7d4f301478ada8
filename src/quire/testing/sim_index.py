"""`Index` in memory, with the crashes of a real one: synced commits stay, of the others the seed keeps the first few.

The same promises as in `quire.bookie.index`, and not one more. The folder outlives the processes that open it:

    folder = SimIndexFolder(rng)
    index = folder.open(create=True)
    ...
    folder.crash()                             # power loss: the open index is dead
    index = folder.open(create=False)          # what a new process finds

Other than the real one it takes no time and no thread, so that a simulation can call it from its loop.
"""

import copy
import errno
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Final, Literal, Self, assert_never, get_args

from quire.bookie.index import (
    DeleteLedger,
    DeleteMark,
    DeleteTombstone,
    LedgerRecord,
    LocationMove,
    Operation,
    PutLedger,
    PutLocations,
    PutMark,
    PutTombstone,
)
from quire.codec.entry_log import Location
from quire.codec.index_records import (
    encode_tombstone,
    ledger_key,
    location_bounds,
    location_items,
    location_key,
    mark_key,
)
from quire.errors import DamagedIndex, InvalidArgument, Refused, StoreClosed
from quire.testing.sim_rng import SimRng
from quire.types import EntryId, LedgerId
from quire.values import dataclass

IndexCall = Literal["open", "read", "commit", "sync"]

_NO_OPERATIONS: Final[tuple[Operation, ...]] = ()


@dataclass(slots=True)
class IndexFaults:
    """What a test can make go wrong with a simulated index. It outlives crashes, as a bad disk does."""

    _failures: list[tuple[IndexCall, OSError | DamagedIndex]] = field(default_factory=list)

    def fail_next(self, call: IndexCall, error: OSError | DamagedIndex | None = None, *, times: int = 1) -> None:
        """Let the next `times` calls of a kind raise `error`, EIO unless one is given.

        `commit` fails before anything can be seen of it, `sync` (also that of a commit) after. Either way the seed
        decides, when the index is opened again, what is left of the commits since the last good sync.
        """
        if call not in get_args(IndexCall):  # A misspelt fault would be a test that cannot fail.
            raise ValueError(f"{call!r} is nothing that an index does; known are {', '.join(get_args(IndexCall))}")
        self._failures += [(call, error or OSError(errno.EIO, "simulated I/O error", "index"))] * times

    def repair(self) -> None:
        """Forget failures that have not happened yet."""
        self._failures.clear()

    def check(self, call: IndexCall) -> None:
        """Raise if a failure is due for this call."""
        for number, (failing, error) in enumerate(self._failures):
            if failing == call:
                del self._failures[number]
                raise copy.copy(error)  # One raised twice would drag its first traceback along.


class SimIndexFolder:
    """The folder of a simulated index: what is durable in it, and what is not yet."""

    def __init__(self, rng: SimRng) -> None:
        self.faults = IndexFaults()
        self.contents = _Contents()  # As the open index sees it.
        self._rng = rng
        self._durable = _Contents()
        self._pending: list[tuple[Operation, ...]] = []  # Committed since the last sync.
        self._doubtful = False  # A sync failed: the kernel may have dropped what is pending, though nothing crashed.
        self._index: SimIndex | None = None
        self._exists = False

    def open(self, *, create: bool, position_min: int | None = None) -> "SimIndex":
        """As `RocksIndex.open`."""
        self.faults.check("open")
        if self._index is not None:
            raise Refused("the simulated index is open already", folder="index")
        if not self._exists and not create:
            raise DamagedIndex("there is no simulated index", folder="index")
        if position_min is not None and self.contents.position < position_min:
            raise DamagedIndex(
                f"the simulated index ends at position {self.contents.position}, not at {position_min}",
                position=self.contents.position,
                position_min=position_min,
            )
        self._exists = True
        self._index = SimIndex(self)
        return self._index

    def crash(self) -> None:
        """The machine loses power: unsynced commits are kept up to where the seed says. The open index is dead."""
        for operations in self._pending[: self._rng.randrange(len(self._pending) + 1)]:
            self._durable.apply(operations)
        self._pending.clear()
        self._doubtful = False
        self.contents = copy.deepcopy(self._durable)
        self._index = None

    def kill(self) -> None:
        """Only the process dies: the kernel has every commit, unless a sync failed. The open index is dead."""
        if self._doubtful:
            self.crash()
        self._index = None

    # --- For the index ----------------------------------------------------------------------------------------

    def check_alive(self, index: "SimIndex") -> None:
        if self._index is not index:
            raise OSError(errno.EIO, "the simulated machine has stopped since", "index")

    def write(self, operations: tuple[Operation, ...]) -> None:
        try:
            self.faults.check("commit")
        except (OSError, DamagedIndex):
            self._pending.append(operations)  # It may have reached the disk before the error did.
            self._doubtful = True
            raise
        self.contents.apply(operations)
        self._pending.append(operations)

    def sync(self) -> None:
        try:
            self.faults.check("sync")
        except (OSError, DamagedIndex):
            self._doubtful = True
            raise
        for operations in self._pending:
            self._durable.apply(operations)
        self._pending.clear()


class SimIndex:
    """An open simulated index. Made by `SimIndexFolder.open`."""

    def __init__(self, folder: SimIndexFolder) -> None:
        self._folder = folder
        self._failed = False
        self._closed = False

    # --- Reading ----------------------------------------------------------------------------------------------

    def location(self, ledger_id: LedgerId, entry_id: EntryId) -> Location | None:
        location_key(ledger_id, entry_id)  # For its check: the ids are refused here as they are in production.
        return self._contents().entries(ledger_id).at.get(entry_id)

    def locations(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId | None = None, *, limit: int
    ) -> list[tuple[EntryId, Location]]:
        if limit < 1:
            raise InvalidArgument(f"a limit of {limit} entries leaves none", limit=limit)
        location_bounds(ledger_id, first, last)
        entries = self._contents().entries(ledger_id)
        start = bisect_left(entries.ids, first)
        end = len(entries.ids) if last is None else bisect_left(entries.ids, last + 1)
        return [(entry_id, entries.at[entry_id]) for entry_id in entries.ids[start : min(end, start + limit)]]

    def last_entry(self, ledger_id: LedgerId) -> EntryId | None:
        location_bounds(ledger_id)
        ids = self._contents().entries(ledger_id).ids
        return ids[-1] if ids else None

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[EntryId]:
        location_bounds(ledger_id)
        return iter(self._contents().entries(ledger_id).ids.copy())

    def ledger(self, ledger_id: LedgerId) -> LedgerRecord | None:
        ledger_key(ledger_id)
        return self._contents().ledgers.get(ledger_id)

    def ledgers(self) -> Sequence[LedgerId]:
        return sorted(self._contents().ledgers)

    def tombstone(self, ledger_id: LedgerId) -> int | None:
        ledger_key(ledger_id)
        return self._contents().tombstones.get(ledger_id)

    def tombstones(self) -> list[tuple[LedgerId, int]]:
        return sorted(self._contents().tombstones.items())

    def mark(self, name: str) -> bytes | None:
        mark_key(name)
        return self._contents().marks.get(name)

    @property
    def position(self) -> int:
        self._check_open()
        return self._folder.contents.position

    def _contents(self) -> "_Contents":
        self._check_open()
        self._folder.faults.check("read")
        return self._folder.contents

    # --- Writing ----------------------------------------------------------------------------------------------

    def commit(self, *operations: Operation, sync: bool = True) -> int:
        self._write(tuple(_checked(operation) for operation in operations), sync=sync)
        return self._folder.contents.position

    def sync(self) -> int:
        self._write(_NO_OPERATIONS, sync=True)
        return self._folder.contents.position

    def replace_locations(self, moves: Sequence[LocationMove], *, sync: bool = True) -> int:
        present = {move[:2]: self.location(move.ledger_id, move.entry_id) for move in moves}
        held: list[tuple[LedgerId, EntryId, Location]] = []
        for move in moves:
            if present[move[:2]] == move.old:
                held.append((move.ledger_id, move.entry_id, move.new))
                present[move[:2]] = move.new
        self.commit(PutLocations(held), sync=sync)
        return len(held)

    def set_fenced(self, ledger_id: LedgerId, *, sync: bool = True) -> LedgerRecord | None:
        record = self.ledger(ledger_id)
        if record is None:
            return None
        fenced = replace(record, fenced=True)
        self.commit(*([] if record.fenced else [PutLedger(ledger_id, fenced)]), sync=sync)
        return fenced

    def _write(self, operations: tuple[Operation, ...], *, sync: bool) -> None:
        self._check_open()
        if self._failed:
            raise OSError(errno.EIO, "an earlier write to the index failed; open it again", "index")
        try:
            if operations:
                self._folder.write(operations)
            if sync:
                self._folder.sync()
        except (OSError, DamagedIndex):
            self._failed = True
            raise

    # --- Closing ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._folder.check_alive(self)
        self._closed = True
        try:
            if not self._failed:
                self._folder.sync()
        finally:
            self._folder.kill()  # Nothing is left to lose, unless the sync failed now or before.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the simulated index is closed")
        self._folder.check_alive(self)


@dataclass(slots=True)
class _Entries:
    """The entries of one ledger."""

    at: dict[EntryId, Location] = field(default_factory=dict)
    ids: list[EntryId] = field(default_factory=list)  # Sorted: the keys of `at`.

    def put(self, entry_id: EntryId, location: Location) -> None:
        if entry_id not in self.at:
            insort(self.ids, entry_id)
        self.at[entry_id] = location


@dataclass(slots=True)
class _Contents:
    """Everything in an index."""

    position: int = 0
    ledgers: dict[LedgerId, LedgerRecord] = field(default_factory=dict)
    tombstones: dict[LedgerId, int] = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)
    _entries: dict[LedgerId, _Entries] = field(default_factory=dict)

    def entries(self, ledger_id: LedgerId) -> _Entries:
        return self._entries.get(ledger_id) or _Entries()

    def apply(self, operations: tuple[Operation, ...]) -> None:
        self.position += 1
        for operation in operations:
            match operation:
                case PutLocations(entries):
                    for ledger_id, entry_id, location in entries:
                        self._entries.setdefault(ledger_id, _Entries()).put(entry_id, location)
                case PutLedger(ledger_id, record):
                    self.ledgers[ledger_id] = record
                case DeleteLedger(ledger_id):
                    self._entries.pop(ledger_id, None)
                    self.ledgers.pop(ledger_id, None)
                case PutTombstone(ledger_id, expires_ms):
                    self.tombstones[ledger_id] = expires_ms
                case DeleteTombstone(ledger_id):
                    self.tombstones.pop(ledger_id, None)
                case PutMark(name, value):
                    self.marks[name] = value
                case DeleteMark(name):
                    self.marks.pop(name, None)
                case _:
                    assert_never(operation)


def _checked(operation: Operation) -> Operation:
    """The operation as it is now, if production would take it; it raises here if it raises there."""
    match operation:
        case PutLocations(entries):
            entries = tuple(entries)
            for _ in location_items(entries):
                pass
            return PutLocations(entries)
        case PutTombstone(ledger_id, expires_ms):
            ledger_key(ledger_id)
            encode_tombstone(expires_ms)
        case PutLedger(ledger_id) | DeleteLedger(ledger_id) | DeleteTombstone(ledger_id):
            ledger_key(ledger_id)
        case PutMark(name) | DeleteMark(name):
            mark_key(name)
        case _:
            assert_never(operation)
    return operation
