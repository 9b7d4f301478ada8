"""Reading entries: from the write cache, from what was read ahead, or from the log that the index names.

Invariants:
  NewestWins      an entry that was written anew is never answered with its older bytes once that was acknowledged.
  ReadsEnd        `aclose` returns when no thread asks the index any more, so that the index can be closed.

What was read ahead is kept only if nothing happened meanwhile that could make it old: no checkpoint and no deletion
(the `generation`), no rewrite in the same ledger, and no newer copy in the write cache.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import TypeVar

from quire.bookie.entry_log import EntryLogs
from quire.bookie.index import Index
from quire.bookie.ledger_table import LedgerTable
from quire.bookie.read_cache import ReadCache
from quire.bookie.write_cache import WriteCache
from quire.codec.entry_log import Location
from quire.codec.wire.availability import EntryAvailability
from quire.errors import DamagedEntry, InvariantBroken
from quire.runtime import Clock
from quire.types import EntryId, LedgerId

Observe = Callable[[str, float], None]  # A stage of the work, and how many seconds it took.
T = TypeVar("T")


class EntryReader:
    """The reading half of a ledger storage."""

    def __init__(
        self,
        clock: Clock,
        index: Index,
        logs: EntryLogs,
        table: LedgerTable,
        write_cache: WriteCache,
        read_cache: ReadCache,
    ) -> None:
        self._clock, self._index, self._logs, self._table = clock, index, logs, table
        self._write_cache, self._read_cache = write_cache, read_cache
        self.generation = 0  # Raised whenever what the index says changes.
        self.observe: Observe = lambda _, __: None
        self._asking: set[asyncio.Future[object]] = set()

    def cached(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """The entry if it is in memory."""
        body = self._write_cache.get(ledger_id, entry_id)
        return self._read_cache.get(ledger_id, entry_id) if body is None else body

    async def read(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """The entry, or None if it is not here. Raises `DamagedEntry`, or the disk's error: that is not None."""
        ahead = self._read_cache.ahead(ledger_id, entry_id)
        for last_try in (False, True):
            state = self._state(ledger_id)
            if self._table.is_dropping(ledger_id):
                return self.cached(ledger_id, entry_id)  # What the index still has is of a life that is over.
            began = self._clock.monotonic()
            places = await self.ask_index(
                lambda: self._index.locations(ledger_id, entry_id, None, limit=ahead.entries_max)
            )
            self.observe("index", self._clock.monotonic() - began)
            if not places or places[0][0] != entry_id:
                return self.cached(ledger_id, entry_id)  # It may have come while the index was being asked.
            try:
                return await self._fetch(ledger_id, places, ahead.bytes_max, state)
            except DamagedEntry:
                if last_try:
                    raise  # The first time, its log may have been compacted away under our hands.
        raise InvariantBroken("the second try returns or raises")

    def _state(self, ledger_id: LedgerId) -> tuple[object, int, int]:
        """What must be the same before and after a fetch, for its entries to be kept."""
        ledger = self._table.find(ledger_id)
        return ledger, 0 if ledger is None else ledger.rewrites, self.generation

    async def _fetch(
        self,
        ledger_id: LedgerId,
        places: list[tuple[EntryId, Location]],
        bytes_max: int,
        state: tuple[object, int, int],
    ) -> bytes:
        """Read the first of `places`, and the others as far as they follow in the same log."""
        (entry_id, location), began = places[0], self._clock.monotonic()
        fetched = await self._logs.read_ahead(
            location, ledger_id, entry_id, entries_max=len(places), bytes_max=bytes_max
        )
        self.observe("read", self._clock.monotonic() - began)
        newer = self._write_cache.get(ledger_id, entry_id)
        if newer is not None:
            return newer
        if state == self._state(ledger_id) and state[0] is not None:
            indexed = dict(places)  # What a crash left in a log is not to be found again by reading past the index.
            kept = [
                (each, body)
                for each, place, body in fetched
                if indexed.get(each) == place and self._write_cache.get(ledger_id, each) is None
            ]
            self._read_cache.put(ledger_id, kept)
        return fetched[0][2]

    async def availability(self, ledger_id: LedgerId) -> EntryAvailability:
        """Which entries of a ledger are here. What is added or deleted meanwhile may or may not be counted."""
        cached = self._write_cache.entry_ids(ledger_id)

        def look() -> EntryAvailability:
            merged = heapq.merge(cached, self._index.entry_ids(ledger_id))
            return EntryAvailability.of(entry_id for entry_id, _ in itertools.groupby(merged))

        return await self.ask_index(look)

    async def ask_index(self, call: Callable[[], T]) -> T:
        """Run a call on a thread. `aclose` waits for it, also if whoever asked has been cancelled."""
        asking: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(None, call)
        self._asking.add(asking)  # type: ignore[arg-type]
        asking.add_done_callback(self._asking.discard)
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # Somebody was told, or left.
        return await asyncio.shield(asking)

    async def aclose(self) -> None:
        """Return when nobody asks the index any more."""
        if self._asking:
            await asyncio.wait(self._asking)
