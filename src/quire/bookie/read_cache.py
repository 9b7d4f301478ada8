"""Entries read ahead of being asked for: whoever reads a ledger in order finds the next ones in memory.

A read that misses fetches what follows it in the log as well: little at first, twice as much as it got each time the
reader goes on where the last fetch ended, or not far behind. Blocks leave in the order in which they came.
"""

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from quire.types import EntryId, LedgerId

_FIRST_BYTES: Final = 16 << 10
_FIRST_ENTRIES: Final = 64
_BYTES_MAX: Final = 1 << 20
_ENTRIES_MAX: Final = 4096
_RECORD_BYTES: Final = 64  # What a log has around an entry, and more.
_STRIDE_MAX: Final = 32  # Of a striped ledger a bookie has, and is asked for, some of so many entries.
_READERS_MAX: Final = 10_000  # Ledgers of which is remembered where their reader is.


class Ahead(NamedTuple):
    """How much one fetch brings at most."""

    bytes_max: int
    entries_max: int


_NOTHING: Final = Ahead(0, 0)


class ReadCache:
    """Bodies of entries, `bytes_max` of them at most, of all ledgers."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bodies: dict[LedgerId, dict[EntryId, bytes]] = {}
        self._blocks: deque[tuple[LedgerId, list[EntryId], int]] = deque()
        self._next: OrderedDict[LedgerId, tuple[EntryId, Ahead]] = OrderedDict()  # Where a reader is, and what it got.
        self.bytes = 0

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        bodies = self._bodies.get(ledger_id)
        return None if bodies is None else bodies.get(entry_id)

    def ahead(self, ledger_id: LedgerId, entry_id: EntryId) -> Ahead:
        """How much to fetch for a miss on this entry, itself included."""
        expected, got = self._next.get(ledger_id, (None, _NOTHING))
        bytes_max = min(_BYTES_MAX, self._bytes_max // 4)
        if expected is None or not 0 <= entry_id - expected < _STRIDE_MAX:
            return Ahead(min(_FIRST_BYTES, bytes_max), _FIRST_ENTRIES)
        twice = 2 * (got.bytes_max + got.entries_max * _RECORD_BYTES)  # Else the second of two large ones never fits.
        return Ahead(
            min(max(twice, _FIRST_BYTES), bytes_max),
            min(max(2 * got.entries_max, _FIRST_ENTRIES), _ENTRIES_MAX),
        )

    def put(self, ledger_id: LedgerId, entries: list[tuple[EntryId, bytes]]) -> None:
        """Keep what was fetched. Entries that are here already stay as they are: a block owns only what it brought."""
        got = Ahead(sum(len(body) for _, body in entries), len(entries))
        self._next[ledger_id] = (EntryId(entries[-1][0] + 1), got)
        self._next.move_to_end(ledger_id)
        if len(self._next) > _READERS_MAX:
            self._next.popitem(last=False)
        bodies = self._bodies.setdefault(ledger_id, {})
        brought = [(entry_id, body) for entry_id, body in entries if entry_id not in bodies]
        if not brought:
            return
        size = sum(len(body) for _, body in brought)
        bodies.update(brought)
        self._blocks.append((ledger_id, [entry_id for entry_id, _ in brought], size))
        self.bytes += size
        while self.bytes > self._bytes_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        ledger_id, entry_ids, size = self._blocks.popleft()
        self.bytes -= size
        bodies = self._bodies.get(ledger_id)
        if bodies is None:
            return
        for entry_id in entry_ids:
            bodies.pop(entry_id, None)
        if not bodies:
            del self._bodies[ledger_id]

    def forget_entry(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Drop an entry that is written anew: recovery may send it with another LAC, and so with other bytes."""
        bodies = self._bodies.get(ledger_id)
        if bodies is not None:
            bodies.pop(entry_id, None)

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop all of a ledger that was deleted. Its blocks go on counting, as empty ones, until it is their turn."""
        self._next.pop(ledger_id, None)
        self._bodies.pop(ledger_id, None)
