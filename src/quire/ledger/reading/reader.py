"""Reading a ledger: entries in order, from whichever replica has them, each one verified.

    async for entry in reader.read(0, reader.last_add_confirmed): ...     # what is confirmed now
    async for entry in reader.follow(): ...                               # and what comes, until the ledger is closed

While the reader's block runs, the metadata of a ledger that is not closed is watched. When it ends, nothing of the
reader runs any more.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, Self

from quire.codec.entry import Entry
from quire.errors import InvalidArgument
from quire.ledger.context import LedgerContext
from quire.ledger.reading import tailing
from quire.ledger.reading.entries import EntryRange, read_entry
from quire.ledger.reading.view import LedgerView, MetadataWatch
from quire.metadata import StoredLedger
from quire.runtime.opening import Opened
from quire.types import EntryId


class LedgerEntry(NamedTuple):
    """An entry as it was appended."""

    entry_id: EntryId
    payload: bytes


_new_entry = tuple.__new__  # Half of what `LedgerEntry(…)` costs, and there is one for each entry.


class LedgerReader(LedgerView, Opened):
    """A ledger that is read. Made by `LedgerClient.open`."""

    def __init__(
        self, client: LedgerContext, stored: StoredLedger, password: bytes, *, keep_metadata: bool = False
    ) -> None:
        """With `keep_metadata` the metadata is watched when the ledger is closed, too: entries may be moved."""
        super().__init__(client, stored, password)
        self._keep_metadata = keep_metadata
        self._watch = MetadataWatch(self)

    async def __aenter__(self) -> Self:
        if self._keep_metadata or not self.is_closed:
            self._watch.start(keep=self._keep_metadata)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._watch.stop()

    async def close(self) -> None:
        """Let go of the ledger. Fine if it is closed."""
        await self._close_opening()

    # --- Ranges

    def read(self, first: int = 0, last: int | None = None) -> AsyncGenerator[LedgerEntry]:
        """The entries from `first` to `last`, both included; None is the last confirmed one. In order, each once.

        Raises `InvalidArgument` beyond the last confirmed entry; while reading, what `read_entry` raises.
        """
        end = self.last_add_confirmed if last is None else EntryId(last)
        if first < 0 or end > self.last_add_confirmed:
            raise InvalidArgument(
                f"entries {first} to {end} of ledger {self.id} cannot be read: the last confirmed one is "
                f"{self.last_add_confirmed}",
                ledger_id=self.id,
            )
        return self.read_unconfirmed(first, end)

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[LedgerEntry]:
        """The same without asking whether the entries are confirmed. There is no promise about those that are not."""
        async with aclosing(EntryRange(self, EntryId(first), EntryId(last)).windows()) as windows:
            async for entries in windows:
                for entry in entries:
                    yield _new_entry(LedgerEntry, (entry.entry_id, entry.payload))

    async def read_entry(self, entry_id: EntryId) -> Entry:
        """One entry, from the first replica that has it intact.

        Raises `NoSuchEntry` only if every replica denied it; `DamagedEntry` if no copy of it is left, or the bookies
        with others cannot be reached; else the error that says most.
        """
        return await read_entry(self, entry_id)

    # --- A ledger that grows

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask the bookies how far the ledger is confirmed. No entry that was confirmed before the call is missed, but
        for the last one, of which bookies hear with the next.

        Raises `BookieUnavailable` if too few bookies answer to be sure.
        """
        if not self.is_closed:
            self.raise_lac(await tailing.read_lac(self.client, self))
        return self.last_add_confirmed

    async def try_last_add_confirmed(self) -> EntryId:
        """Ask as well, and return at the first answer above the known LAC; if there is none, the known one.

        Raises `BookieUnavailable` if no bookie answers.
        """
        if not self.is_closed:
            self.raise_lac(await tailing.try_lac(self))
        return self.last_add_confirmed

    async def wait_entry(self, entry_id: int, *, timeout_s: float) -> LedgerEntry | None:
        """The entry as soon as it is confirmed. None if that takes too long, or the ledger was closed before it.

        Raises `BookieUnavailable` if no bookie could be asked, `NoSuchLedger` if the ledger was deleted, and what
        `read_entry` raises.
        """
        entry = await tailing.wait_entry(self, EntryId(entry_id), timeout_s)
        return None if entry is None else LedgerEntry(entry.entry_id, entry.payload)

    async def follow(self, first: int = 0) -> AsyncGenerator[LedgerEntry]:
        """All entries from `first` on as they are confirmed. Ends when the ledger is closed and read to its end.

        It waits for the next entry as long as bookies answer. Raises what `wait_entry` raises, after trying for
        `read_patience_s`; but at once if no copy of an entry is left.
        """
        async with aclosing(self.follow_windows(first)) as windows:
            async for entries in windows:
                for entry in entries:
                    yield _new_entry(LedgerEntry, (entry.entry_id, entry.payload))

    def follow_windows(self, first: int = 0) -> AsyncGenerator[list[Entry]]:
        """The same in batches: as many entries at a time as arrive together."""
        if first < 0:
            raise InvalidArgument(f"there is no entry {first}", ledger_id=self.id)
        return tailing.follow(self, EntryId(first))
