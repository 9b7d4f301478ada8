"""Reading a ledger: entries in order, from whichever replica has them, each one verified.

    async for entry in reader.read(0, reader.last_add_confirmed): ...     # what is confirmed now
    async for entry in reader.follow(): ...                               # and what comes, until the ledger is closed

A reader knows the ledger's metadata and how far its entries are confirmed. Both only ever get newer: while the reader's
block runs, the metadata of a ledger that is not closed is watched, and each answer that tells of a later LAC counts.

Invariants:
  LacOnlyGrows      `last_add_confirmed` never moves back; once the ledger is closed it does not move at all.
  NewerOnly         metadata is replaced by a later version only.
  NothingStays      when the block ends, nothing of the reader runs any more.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import Entry, EntryCodec
from quire.errors import InvalidArgument, NoSuchLedger, QuireError
from quire.ledger import follow, poll, tail
from quire.ledger.damage import BAD_COPY
from quire.ledger.news import News
from quire.ledger.ranges import EntryRange
from quire.ledger.reader_statistics import ReadCounts, ReaderStatistics
from quire.ledger.watching import MetadataWatch
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_set
from quire.runtime.opening import Opened
from quire.types import NO_ENTRY, BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerState

if TYPE_CHECKING:
    from quire.ledger.client import LedgerClient


class LedgerEntry(NamedTuple):
    """An entry as it was appended."""

    entry_id: EntryId
    payload: bytes


_new_entry = tuple.__new__  # Half of what `LedgerEntry(…)` costs, and there is one for each entry.


class LedgerReader(Opened):
    """A ledger that is read. Made by `LedgerClient.open`."""

    def __init__(
        self, client: "LedgerClient", stored: StoredLedger, password: bytes, *, keep_metadata: bool = False
    ) -> None:
        """With `keep_metadata` the metadata is watched when the ledger is closed, too: entries may be moved."""
        self.client, self.settings, self.clock = client, client.settings, client.clock
        self._stored, self._keep_metadata = stored, keep_metadata
        self.codec = EntryCodec(stored.ledger_id, digest_for(stored.metadata.digest or DigestType.CRC32C, password))
        self.master_key = master_key(password)
        self.can_batch = client.settings.batch_reads
        self.counts = ReadCounts()
        self.part_of: Mapping[str, object] = {}  # What its entries belong to, for those who read of them in a log.
        self.gone: NoSuchLedger | None = None  # The ledger was deleted.
        self._lac = NO_ENTRY
        self._stuck_to = client._runtime.rng.randrange(stored.metadata.quorum.ensemble)
        self._news = News()
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

    # --- What is known

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
        """Payload bytes of a closed ledger; 0 while it is not closed."""
        return self._stored.metadata.length if self.is_closed else 0

    def statistics(self) -> ReaderStatistics:
        return self.counts.snapshot(last_add_confirmed=self.last_add_confirmed, is_closed=self.is_closed)

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
        return (await EntryRange(self, entry_id, entry_id).fetch(entry_id))[0]

    async def read_from(self, bookie: BookieId, entry_id: EntryId, *, fence: bool) -> Entry:
        """One entry from one bookie, which may be told to fence the ledger first.

        In version 3: in version 2 the answer to a fencing read could be taken for that of another one.
        """
        timeout_s = self.settings.read_timeout_s
        try:
            channel = await self.client.pool.connect(bookie, 3, timeout_s=timeout_s)
            self.counts.requests += 1
            answer = await channel.read(
                self.id,
                entry_id,
                version=3,
                master_key=self.master_key if fence else None,
                high_priority=fence,
                timeout_s=timeout_s,
            )
            if answer.max_lac is not None:
                self.raise_lac(answer.max_lac)
            return self.codec.decode(answer.body or b"", entry_id=entry_id)
        except QuireError as error:
            self.counts.on_failure(error)
            self.client.on_bookie_error(bookie, error)
            self.on_bad_copy(bookie, entry_id, error)
            raise

    # --- A ledger that grows

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask the bookies how far the ledger is confirmed. No entry that was confirmed before the call is missed, but
        for the last one, of which bookies hear with the next.

        Raises `BookieUnavailable` if too few bookies answer to be sure.
        """
        if not self.is_closed:
            self.raise_lac(await tail.read_lac(self.client, self))
        return self.last_add_confirmed

    async def try_last_add_confirmed(self) -> EntryId:
        """The first answer that is news, or what is known if there are none. Raises `BookieUnavailable` if nobody
        answers.
        """
        if not self.is_closed:
            self.raise_lac(await tail.try_lac(self))
        return self.last_add_confirmed

    async def wait_entry(self, entry_id: int, *, timeout_s: float) -> LedgerEntry | None:
        """The entry as soon as it is confirmed. None if that takes too long, or the ledger was closed before it.

        Raises `BookieUnavailable` if no bookie could be asked, `NoSuchLedger` if the ledger was deleted, and what
        `read_entry` raises.
        """
        entry = await poll.wait_entry(self, EntryId(entry_id), timeout_s)
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
        """The same, as many entries at a time as come together: for whoever has much to read."""
        if first < 0:
            raise InvalidArgument(f"there is no entry {first}", ledger_id=self.id)
        return follow.windows(self, EntryId(first))

    def limit_read_ahead(self, bytes_max: int) -> None:
        """Ask bookies for no more than this at once, or for one entry. Two such answers at most are held."""
        limit = max(1, min(bytes_max, self.settings.read_ahead_bytes))
        self.settings = replace(self.settings, read_ahead_bytes=limit)

    # --- For the parts

    def adopt(self, stored: StoredLedger) -> None:
        """Take over what was read from the metadata store, if it is newer."""
        if stored.version > self._stored.version:
            self._stored = stored
            self.counts.metadata_updates += 1
            self.tell_news()

    def raise_lac(self, lac: EntryId) -> None:
        self._lac = max(self._lac, lac)

    def on_entries(self, entries: Sequence[Entry], payload_bytes: int) -> None:
        """These were fetched. The last of them tells how far the ledger was confirmed when it was sent."""
        self.counts.entries += len(entries)
        self.counts.payload_bytes += payload_bytes
        self.client.metrics.on_read(len(entries), payload_bytes)
        self.raise_lac(entries[-1].lac)

    def on_bad_copy(self, bookie: BookieId, entry_id: EntryId, error: QuireError) -> None:
        """A bookie did not give an entry. Told if that is because its copy cannot be used."""
        if isinstance(error, BAD_COPY):
            self.client.damage.on_copy(self.id, entry_id, bookie, error, self.part_of)

    def tell_news(self) -> None:
        """The metadata changed: whoever waits at bookies should look again."""
        news, self._news = self._news, News()
        news.come()

    @property
    def news(self) -> News:
        """The next change of the metadata."""
        return self._news

    @property
    def is_watching(self) -> bool:
        """Whether changes of the metadata come by themselves."""
        return self._watch.is_up

    async def refresh(self) -> None:
        """Look whether there is newer metadata. Without the store what is known has to do.

        Raises `NoSuchLedger` if the ledger was deleted.
        """
        try:
            async with asyncio.timeout(self.settings.read_timeout_s):
                self.adopt(await self.client.ledgers_metadata.read(self.id))
        except NoSuchLedger as error:
            self.gone = error
            raise
        except (QuireError, TimeoutError):
            pass

    async def has_moved(self, entry_id: EntryId, bookies: tuple[BookieId, ...]) -> bool:
        """Whether the entry is said to be on other bookies than these, by now."""
        if self.fragment_of(entry_id)[0].bookies == bookies:
            try:
                await self.refresh()
            except NoSuchLedger:
                return False
        return self.fragment_of(entry_id)[0].bookies != bookies

    def fragment_of(self, entry_id: EntryId) -> tuple[Fragment, EntryId | None]:
        """The bookies that have an entry, and the first entry that others have; None if there is none."""
        fragments = self._stored.metadata.fragments
        for fragment, following in zip(fragments, (*fragments[1:], None), strict=True):
            if following is None or entry_id < following.first_entry_id:
                return fragment, None if following is None else following.first_entry_id
        raise InvalidArgument(f"entry {entry_id} is in no fragment")

    def replicas_of(self, entry_id: EntryId) -> Sequence[BookieId]:
        """Whom to ask for an entry, in this order."""
        quorum, bookies = self._stored.metadata.quorum, self.fragment_of(entry_id)[0].bookies
        sticks = self.settings.sticky_reads and quorum.ensemble == quorum.write
        start = EntryId(self._stuck_to) if sticks else entry_id
        return self.client.read_order([bookies[place] for place in write_set(start, quorum)])
