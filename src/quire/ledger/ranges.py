"""Entries in order: a window of them is fetched while the one before it is used.

Where every bookie has every entry, one bookie is asked for as many as fit into a batch. Where entries are striped over
the ensemble, a batch would end at the first entry that its bookie does not have: then each bookie gets one run of
requests for all entries of the window that it should have.

Invariants:
  InOrder      each entry is yielded once, and never before the one before it.
  Bounded      a window is `read_ahead_bytes` or one entry, as a batch; as a run it has `read_ahead_entries_max`
               entries at most, and fewer where the last window had large ones. Two windows at most are held.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from quire.codec.entry import Entry
from quire.ledger.reading import ReplicaRead, entry_error, lost_error, read_all
from quire.types import BookieId, EntryId

if TYPE_CHECKING:
    from quire.ledger.reader import LedgerReader

_FIRST_WINDOW: Final = 16  # Nothing is known of the sizes of entries yet.
_GROWTH: Final = 4


class EntryRange:
    """The entries from `first` to `last`, both included."""

    def __init__(self, reader: "LedgerReader", first: EntryId, last: EntryId) -> None:
        self._reader, self._next, self._last = reader, first, last
        self._window = _FIRST_WINDOW
        self._server: BookieId | None = None  # Who gave the last batch.
        self._unasked, self._all_asked = 0, asyncio.Event()  # Of the reads of the present window.

    async def windows(self) -> AsyncGenerator[list[Entry]]:
        """One or more entries at a time. Raises what `fetch` raises, after all entries before that one."""
        ahead: asyncio.Task[list[Entry]] | None = None
        try:
            while self._next <= self._last:
                entries = await (ahead or self.fetch(self._next))
                self._next, ahead = EntryId(entries[-1].entry_id + 1), None
                if self._next <= self._last:
                    # The requests leave first: a caller that waits for nothing else keeps the loop to itself, and the
                    # bookies should work meanwhile.
                    self._all_asked.clear()
                    ahead = asyncio.create_task(self.fetch(self._next), name=f"read ahead in ledger {self._reader.id}")
                    ahead.add_done_callback(lambda _: self._all_asked.set())
                    await self._all_asked.wait()
                yield entries
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def fetch(self, first: EntryId) -> list[Entry]:
        """One or more from `first` on. Raises `lost_error`, or the error that says most, if no replica has it."""
        reader, metrics = self._reader, self._reader.client.metrics
        began_s, stage, others = reader.clock.monotonic(), "bookies", metrics.speculative_reads.value
        while True:
            fragment, end = reader.fragment_of(first)
            last = self._last if end is None else min(self._last, EntryId(end - 1))
            answered: set[BookieId] = set()
            reads = self._batch(first, last, answered) or self._runs(first, last, answered)
            self._unasked = len(reads)
            await read_all(reads)
            entries = _in_order(reads, first)
            if entries:
                self._server = min(answered, default=None)  # Of a batch it is the only one.
                self._on_entries(entries)
                if stage == "bookies" and metrics.speculative_reads.value > others:
                    stage = "slow bookie"  # Another one was asked as well.
                metrics.on_read_seconds(reader.clock.monotonic() - began_s, stage, reader.id, first)
                return entries
            if not await reader.has_moved(first, fragment.bookies):
                metrics.on_read_failed()
                problems = next((read.problems[first] for read in reads if first in read.problems), {})
                raise await lost_error(reader, first, problems) or entry_error(problems, reader.id, first)
            stage = "moved entries"

    def _batch(self, first: EntryId, last: EntryId, answered: set[BookieId]) -> list[ReplicaRead] | None:
        quorum = self._reader.metadata.metadata.quorum
        if last == first or quorum.ensemble != quorum.write or not self._reader.can_batch:
            return None
        replicas = list(self._reader.replicas_of(first))
        if self._server in replicas:  # It has read ahead by now. The others need not do that, too.
            replicas.remove(self._server)
            replicas.insert(0, self._server)
        return [ReplicaRead(self._reader, (first,), replicas, answered, self._on_asked, batch_last=last)]

    def _runs(self, first: EntryId, last: EntryId, answered: set[BookieId]) -> list[ReplicaRead]:
        """One for each write set: its entries have the same replicas."""
        reader, stripes = self._reader, self._reader.metadata.metadata.quorum.ensemble
        end = min(last + 1, first + self._window)
        return [
            ReplicaRead(
                reader,
                [EntryId(each) for each in range(start, end, stripes)],
                reader.replicas_of(start),
                answered,
                self._on_asked,
            )
            for start in map(EntryId, range(first, min(end, first + stripes)))
        ]

    def _on_asked(self) -> None:
        self._unasked -= 1
        if self._unasked == 0:
            self._all_asked.set()

    def _on_entries(self, entries: list[Entry]) -> None:
        reader, sizes = self._reader, [len(entry.payload) for entry in entries]
        reader.on_entries(entries, sum(sizes))
        fitting = reader.settings.read_ahead_bytes // max(1, max(sizes))
        self._window = max(1, min(self._window * _GROWTH, fitting, reader.settings.read_ahead_entries_max))


def _in_order(reads: list[ReplicaRead], first: EntryId) -> list[Entry]:
    """All that were found from `first` on without a gap."""
    found = reads[0].found
    if len(reads) > 1:
        found = {entry_id: entry for read in reads for entry_id, entry in read.found.items()}
    entries: list[Entry] = []
    while (entry := found.get(EntryId(first + len(entries)))) is not None:
        entries.append(entry)
    return entries
