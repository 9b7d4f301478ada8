"""The ledgers that a bookie has: their keys, fences and LACs, in memory while they are in use, in the index for good.

Every change is journaled by the caller and waits here for the next checkpoint, which enters it into the index. Until
the index has it, its ledger stays in memory: what `find` read from the index meanwhile would be without it.

A ledger that was deleted while it was fenced leaves a tombstone, so that a writer who comes too late is still refused;
only a recovery brings such a ledger back, as fenced as it was.

After damage to a journal nobody knows which ledgers lost records, or were here at all. Until `settle_damage` every
ledger that comes into being is in limbo for that reason.
"""

from collections.abc import Iterable
from typing import Final

from quire.bookie.index import (
    DeleteLedger,
    DeleteMark,
    DeleteTombstone,
    Index,
    Operation,
    PutLedger,
    PutMark,
    PutTombstone,
)
from quire.bookie.ledger_state import Ledger
from quire.codec.entry import stored_lac
from quire.errors import InvalidArgument
from quire.protocol.fencing import LedgerGate, Refusal
from quire.types import NO_ENTRY, LedgerId

_DAMAGED: Final = "damaged"  # A mark in the index: part of a journal could not be read.
_LIMBO: Final = "limbo"  # Another one: there may be ledgers in limbo.


class LedgerTable:
    """All ledgers of one bookie. `by_id` holds those in memory; `find` also looks into the index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.by_id: dict[LedgerId, Ledger] = {}
        self._changed: dict[LedgerId, None] = {}  # Ledgers whose record in the index is out of date.
        self._committing: dict[LedgerId, None] = {}  # Those of them whose record is on its way there.
        self._revived: dict[LedgerId, None] = {}  # Ledgers that a recovery brought back: their tombstones are to go.
        self._dropping: dict[LedgerId, bool] = {}  # Deleted, whether or not the index knows yet; True if fenced.
        self._shrunk_touch = 0  # When the newest of those that left memory was last added to.
        self.is_damaged = index.mark(_DAMAGED) is not None
        self.has_limbo = self.is_damaged or index.mark(_LIMBO) is not None  # Whether a ledger may be in limbo.

    def find(self, ledger_id: LedgerId) -> Ledger | None:
        ledger = self.by_id.get(ledger_id)
        if ledger is None and ledger_id not in self._dropping and (record := self._index.ledger(ledger_id)) is not None:
            gate = LedgerGate(record.master_key, fenced=record.fenced, limbo=record.limbo)
            last = self._index.last_entry(ledger_id)
            ledger = self.by_id[ledger_id] = Ledger(gate, record.explicit_lac, NO_ENTRY if last is None else last)
            ledger.is_lac_known = last is None
            ledger.touched = self._shrunk_touch  # It may have been this one that left memory last.
            if record.explicit_lac is not None:
                ledger.lac = stored_lac(record.explicit_lac)[1]
        return ledger

    def is_buried(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger was fenced and then deleted here, not too long ago."""
        return self._dropping.get(ledger_id, False) or self._index.tombstone(ledger_id) is not None

    def create(self, ledger_id: LedgerId, master_key: bytes, *, revive: bool) -> Ledger | Refusal:
        """A new ledger. Where a tombstone lies only `revive` makes one, which is fenced from the start."""
        if ledger_id < 0:
            raise InvalidArgument(f"there can be no ledger {ledger_id}", ledger_id=ledger_id)
        buried = self.is_buried(ledger_id)
        if buried and not revive:
            return Refusal.GONE
        gate = LedgerGate(bytes(master_key), fenced=buried, limbo=self.is_damaged)
        ledger = self.by_id[ledger_id] = Ledger(gate)
        self._changed[ledger_id] = None
        if buried:
            self._revived[ledger_id] = None
        return ledger

    def on_change(self, ledger_id: LedgerId) -> None:
        """The ledger's record is to be written anew."""
        self._changed[ledger_id] = None

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> list[Operation]:
        """What the index has to learn. It is told once: call `end_commit` when it knows."""
        operations: list[Operation] = [PutLedger(each, self.by_id[each].record()) for each in self._changed]
        operations += [DeleteTombstone(each) for each in self._revived]
        for mark, is_set in ((_DAMAGED, self.is_damaged), (_LIMBO, self.has_limbo)):
            operations.append(PutMark(mark, b"") if is_set else DeleteMark(mark))
        self._committing, self._changed, self._revived = self._changed, {}, {}
        return operations

    def end_commit(self) -> None:
        """The index has what `take_changes` gave. Not to be called if it could not be told: then all has to stay."""
        self._committing = {}

    def ids(self, indexed: Iterable[LedgerId]) -> list[LedgerId]:
        """Every ledger, ascending, given those that the index has."""
        return sorted({*indexed, *self.by_id} - self._dropping.keys())

    # --- Deleting

    def begin_drop(
        self, ledger_ids: Iterable[LedgerId], *, tombstones_until_ms: int, touched_max: int
    ) -> list[Operation]:
        """Forget ledgers and return what the index has to do. Call `end_drop` when it has.

        Those that were added to after `touched_max` stay: somebody may have made a new ledger of the same id.
        """
        operations: list[Operation] = []
        for ledger_id in ledger_ids:
            touched = self.by_id[ledger_id].touched if ledger_id in self.by_id else self._shrunk_touch
            ledger = self.find(ledger_id)
            if ledger is None or touched > touched_max:
                continue
            del self.by_id[ledger_id]
            self._changed.pop(ledger_id, None)
            self._revived.pop(ledger_id, None)
            self._dropping[ledger_id] = ledger.gate.fenced
            operations.append(DeleteLedger(ledger_id))
            if ledger.gate.fenced:
                operations.append(PutTombstone(ledger_id, tombstones_until_ms))
            ledger.wake_all()
        return operations

    def is_dropping(self, ledger_id: LedgerId) -> bool:
        """Whether what the index has of a ledger is on its way out."""
        return ledger_id in self._dropping

    def end_drop(self) -> None:
        self._dropping = {}

    def shrink(self, ledgers_max: int, busy: Iterable[LedgerId]) -> None:
        """Drop from memory those that came first, if there are too many, unless they are busy or not in the index as
        they are.
        """
        excess = len(self.by_id) - ledgers_max
        if excess <= 0:
            return
        kept = self._changed.keys() | self._committing.keys() | set(busy)
        idle = [
            each
            for each, ledger in self.by_id.items()
            if each not in kept and not ledger.waiters and ledger.is_lac_stored
        ]
        for ledger_id in idle[:excess]:
            self._shrunk_touch = max(self._shrunk_touch, self.by_id.pop(ledger_id).touched)

    # --- Damage

    def enter_limbo(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Acknowledged records may be lost, and nobody knows of which of these ledgers: none of them is complete."""
        self.is_damaged = self.has_limbo = True
        for ledger_id in ledger_ids:
            ledger = self.find(ledger_id)
            if ledger is not None and not ledger.gate.limbo:
                ledger.gate.limbo = True
                self._changed[ledger_id] = None

    def put_in_limbo(self, ledger_id: LedgerId, master_key: bytes, *, fenced: bool) -> None:
        """The metadata says that this ledger should be here, and part of this bookie's data is lost."""
        ledger = self.find(ledger_id)
        if ledger is None:
            ledger = self.by_id[ledger_id] = Ledger(LedgerGate(master_key))
        ledger.gate.limbo = self.has_limbo = True
        ledger.gate.fenced = ledger.gate.fenced or fenced
        self._changed[ledger_id] = None

    def is_in_limbo(self, ledger_id: LedgerId) -> bool:
        """As `find` would tell, but the ledger does not come into memory for it."""
        ledger = self.by_id.get(ledger_id)
        if ledger is not None:
            return ledger.gate.limbo
        record = None if ledger_id in self._dropping else self._index.ledger(ledger_id)
        return record is not None and record.limbo

    def leave_limbo(self, ledger_id: LedgerId, *, fenced: bool) -> None:
        """Everything that the metadata says should be here is. A fence that may be lost is set again, in one write."""
        ledger = self.find(ledger_id)
        if ledger is not None:
            ledger.gate.limbo = False
            ledger.gate.fenced = ledger.gate.fenced or fenced
            self._changed[ledger_id] = None

    def settle_damage(self) -> None:
        """All ledgers that might be incomplete are in limbo now: what is unknown beyond them was never here."""
        self.is_damaged = False
