"""The write cache: entries that are in the journals only, until a checkpoint has put them into an entry log.

Two halves: new entries go into the one while a checkpoint writes the other, and both can be read.
"""

from collections.abc import Collection, Sequence

from quire.codec.entry_log import Entry
from quire.errors import invariant
from quire.types import EntryId, LedgerId

_Half = dict[LedgerId, dict[EntryId, bytes]]


class WriteCache:
    """Entries by ledger and id. `active_bytes` wait for a checkpoint, `flushing_bytes` are being written by one."""

    __slots__ = ("_active", "_flushing", "active_bytes", "flushing_bytes")

    def __init__(self) -> None:
        self._active: _Half = {}
        self._flushing: _Half = {}
        self.active_bytes = self.flushing_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._active)

    @property
    def total_bytes(self) -> int:
        return self.active_bytes + self.flushing_bytes

    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Keep an entry, over one of the same id."""
        bodies = self._active.get(ledger_id)
        if bodies is None:
            bodies = self._active[ledger_id] = {}
        elif entry_id in bodies:
            self.active_bytes -= len(bodies[entry_id])
        bodies[entry_id] = body
        self.active_bytes += len(body)

    def put_new(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: Sequence[bytes]) -> None:
        """Keep several entries whose ids are behind all others of their ledger."""
        kept = self._active.get(ledger_id)
        if kept is None:
            kept = self._active[ledger_id] = {}
        kept.update(zip(entry_ids, bodies, strict=True))
        self.active_bytes += sum(map(len, bodies))

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        bodies = self._active.get(ledger_id)
        body = None if bodies is None else bodies.get(entry_id)
        if body is None and self._flushing:
            bodies = self._flushing.get(ledger_id)
            body = None if bodies is None else bodies.get(entry_id)
        return body

    def entry_ids(self, ledger_id: LedgerId) -> list[EntryId]:
        """The entries of a ledger that are here, ascending."""
        return sorted({*self._active.get(ledger_id, ()), *self._flushing.get(ledger_id, ())})

    @property
    def ledgers(self) -> Collection[LedgerId]:
        """The ledgers that have entries here: waiting for a checkpoint, or being written by one."""
        return self._active.keys() | self._flushing.keys()

    def begin_flush(self) -> list[Entry]:
        """What a checkpoint has to write: everything that waits, by ledger and entry. New entries wait for the next."""
        invariant(not self._flushing, "a checkpoint begins where another one was given up")
        self._flushing, self._active = self._active, {}
        self.flushing_bytes, self.active_bytes = self.active_bytes, 0
        return [
            (ledger_id, entry_id, body)
            for ledger_id, bodies in sorted(self._flushing.items())
            for entry_id, body in sorted(bodies.items())
        ]

    def end_flush(self) -> None:
        """The checkpoint's entries can be found through the index now."""
        self._flushing, self.flushing_bytes = {}, 0

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop what waits of a ledger that is deleted."""
        self.active_bytes -= sum(map(len, self._active.pop(ledger_id, {}).values()))
