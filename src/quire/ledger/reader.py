"""Reading a ledger: entries in order, from whichever replica has them, each one verified.

    async for entry in reader.read(0, reader.last_add_confirmed): ...

An entry's replicas are asked one after the other, in the order of its write set with bookies that failed lately at the
end; when one is slow another one is asked as well. A copy that fails its digest counts as an error of that bookie. An
entry is called missing only if every replica said so.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import Entry, EntryCodec
from quire.errors import (
    BookieFailed,
    BookieUnavailable,
    DamagedEntry,
    EntriesUnknown,
    InvalidArgument,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
)
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_set
from quire.types import NO_ENTRY, BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerState

if TYPE_CHECKING:
    from quire.ledger.client import LedgerClient


class LedgerEntry(NamedTuple):
    """An entry as it was appended."""

    entry_id: EntryId
    payload: bytes


class LedgerReader:
    """A ledger that is read. Made by `LedgerClient.open`."""

    def __init__(self, client: "LedgerClient", stored: StoredLedger, password: bytes) -> None:
        self._client, self._stored, self._settings = client, stored, client.settings
        self.codec = EntryCodec(stored.ledger_id, digest_for(stored.metadata.digest or DigestType.CRC32C, password))
        self.master_key = master_key(password)
        self._lac = NO_ENTRY
        self._can_batch = True

    @property
    def id(self) -> LedgerId:
        return self._stored.ledger_id

    @property
    def metadata(self) -> StoredLedger:
        return self._stored

    @property
    def is_closed(self) -> bool:
        return self._stored.metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read: the end of a closed ledger, or as far as this reader knows."""
        return self._stored.metadata.last_entry_id if self.is_closed else self._lac

    @property
    def length(self) -> int:
        return self._stored.metadata.length if self.is_closed else 0

    def adopt(self, stored: StoredLedger) -> None:
        """Newer metadata is known."""
        self._stored = stored

    def raise_lac(self, lac: EntryId) -> None:
        self._lac = max(self._lac, lac)

    # --- Ranges

    async def read(self, first: int = 0, last: int | None = None) -> AsyncIterator[LedgerEntry]:
        """The entries from `first` to `last`, both included; None is the last confirmed one. In order, each once.

        Raises `InvalidArgument` beyond the last confirmed entry, and what `read_entry` raises.
        """
        end = self.last_add_confirmed if last is None else EntryId(last)
        if first < 0 or end > self.last_add_confirmed:
            raise InvalidArgument(
                f"entries {first} to {end} of ledger {self.id} cannot be read: the last confirmed one is "
                f"{self.last_add_confirmed}",
                ledger_id=self.id,
            )
        async for entry in self.read_unconfirmed(first, end):
            yield entry

    async def read_unconfirmed(self, first: int, last: int) -> AsyncIterator[LedgerEntry]:
        """The same without asking whether the entries are confirmed. There is no promise about those that are not."""
        entry_id = EntryId(first)
        ahead: asyncio.Task[list[Entry]] | None = None
        try:
            while entry_id <= last:
                batch = await (ahead or self._fetch(entry_id, EntryId(last)))
                following = EntryId(batch[-1].entry_id + 1)
                ahead = None
                if following <= last:
                    ahead = asyncio.create_task(self._fetch(following, EntryId(last)))
                for entry in batch:
                    yield LedgerEntry(entry.entry_id, entry.payload)
                entry_id = following
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _fetch(self, first: EntryId, last: EntryId) -> list[Entry]:
        """One or more entries from `first` on."""
        fragment, end = self.fragment_of(first)
        quorum = self._stored.metadata.quorum
        last = min(last, EntryId(end - 1)) if end is not None else last
        if self._can_batch and quorum.ensemble == quorum.write and last > first:
            batch = await self._fetch_batch(fragment, first, last)
            if batch:
                return batch
        count = min(last - first + 1, 64)
        entries = [self.read_entry(EntryId(first + step)) for step in range(count)]
        return list(await asyncio.gather(*entries))

    async def _fetch_batch(self, fragment: Fragment, first: EntryId, last: EntryId) -> list[Entry]:
        """What one bookie gives at once, as far as it verifies. Empty if none could: then entries are read singly."""
        for bookie in self._order(fragment, first)[:2]:
            try:
                channel = await self._client.pool.connect(bookie, 2, timeout_s=self._settings.read_timeout_s)
                found = await channel.read_batch(
                    self.id,
                    first,
                    entries_max=last - first + 1,
                    bytes_max=self._settings.read_ahead_bytes,
                    timeout_s=self._settings.read_timeout_s,
                )
            except QuireError as error:
                self._client.on_bookie_error(bookie, error)
                continue
            entries: list[Entry] = []
            for step, body in enumerate(found):
                try:
                    entries.append(self.codec.decode(body, entry_id=EntryId(first + step)))
                except DamagedEntry as error:
                    self._client.on_bookie_error(bookie, error)
                    break
            if entries:
                return entries
        return []

    # --- One entry

    async def read_entry(self, entry_id: EntryId, *, fence: bool = False) -> Entry:
        """One entry, from the first replica that has it intact.

        Raises `NoSuchEntry` only if every replica denied it; else the error that says most.
        """
        fragment, _ = self.fragment_of(entry_id)
        errors: list[QuireError] = []
        waiting: set[asyncio.Task[Entry]] = set()
        candidates = self._order(fragment, entry_id)
        try:
            for number, bookie in enumerate(candidates):
                waiting.add(asyncio.create_task(self.read_from(bookie, entry_id, fence=fence)))
                patience_s = self._settings.speculative_read_s or None
                is_last = number == len(candidates) - 1
                while waiting:
                    done, waiting = await asyncio.wait(
                        waiting, timeout=None if is_last else patience_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not done:
                        break  # Too slow: ask the next one as well.
                    for task in done:
                        error = task.exception()
                        if error is None:
                            return task.result()
                        if not isinstance(error, QuireError):
                            raise error
                        errors.append(error)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        raise worst(errors, self.id, entry_id)

    async def read_from(self, bookie: BookieId, entry_id: EntryId, *, fence: bool) -> Entry:
        try:
            # In version 2 the answer to a fencing read could be taken for that of another one.
            version: Literal[2, 3] = 3 if fence else 2
            channel = await self._client.pool.connect(bookie, version, timeout_s=self._settings.read_timeout_s)
            answer = await channel.read(
                self.id,
                entry_id,
                version=version,
                master_key=self.master_key if fence else None,
                high_priority=fence,
                timeout_s=self._settings.read_timeout_s,
            )
            return self.codec.decode(answer.body or b"", entry_id=entry_id)
        except QuireError as error:
            self._client.on_bookie_error(bookie, error)
            raise

    def fragment_of(self, entry_id: EntryId) -> tuple[Fragment, EntryId | None]:
        """The bookies that have an entry, and the first entry that others have; None if there is none."""
        fragments = self._stored.metadata.fragments
        for fragment, following in zip(fragments, (*fragments[1:], None), strict=True):
            if following is None or entry_id < following.first_entry_id:
                return fragment, None if following is None else following.first_entry_id
        raise InvalidArgument(f"entry {entry_id} is in no fragment")

    def _order(self, fragment: Fragment, entry_id: EntryId) -> Sequence[BookieId]:
        quorum = self._stored.metadata.quorum
        return self._client.read_order([fragment.bookies[p] for p in write_set(entry_id, quorum)])


def worst(errors: list[QuireError], ledger_id: LedgerId, entry_id: EntryId) -> QuireError:
    """The error that says most: "no such entry" only if nobody said anything else, "unavailable" if nobody knew."""
    denials = [error for error in errors if isinstance(error, NoSuchEntry | NoSuchLedger)]
    if len(denials) == len(errors) and errors:
        return NoSuchEntry(f"ledger {ledger_id} has no entry {entry_id}", ledger_id=ledger_id, entry_id=entry_id)
    for kind in (DamagedEntry, EntriesUnknown, BookieFailed):
        for error in errors:
            if isinstance(error, kind):
                return error
    others = [error for error in errors if error not in denials]
    return others[-1] if others else BookieUnavailable(f"no bookie has entry {entry_id} of ledger {ledger_id}")
