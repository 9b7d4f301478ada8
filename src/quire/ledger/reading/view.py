"""What is known of a ledger that is read: its metadata, and how far its entries are confirmed.

Both only ever get newer. Each answer of a bookie that tells of a later LAC counts, and metadata is read again when an
entry is not where it should be; a watch may bring it as well.

Invariants:
  LacOnlyGrows      `last_add_confirmed` never moves back; once the ledger is closed it does not move at all.
  NewerOnly         metadata is replaced by a later version only.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import Entry, EntryCodec
from quire.errors import InvalidArgument, NoSuchLedger, QuireError, StoreClosed
from quire.ledger.context import LedgerContext
from quire.ledger.damage import BAD_COPY
from quire.ledger.reading.news import News
from quire.ledger.reading.statistics import ReadCounts, ReaderStatistics
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_set
from quire.telemetry.events import logger
from quire.types import NO_ENTRY, BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerState

_log = logger("ledger")
_RETRY_S_MIN: Final = 0.1
_RETRY_S_MAX: Final = 5.0


class LedgerView:
    """A ledger as its reader sees it. It has no task of its own: a reader that goes on for long keeps it fresh."""

    def __init__(self, client: LedgerContext, stored: StoredLedger, password: bytes) -> None:
        self.client, self.settings, self.clock = client, client.settings, client.clock
        self._stored = stored
        self.codec = EntryCodec(stored.ledger_id, digest_for(stored.metadata.digest or DigestType.CRC32C, password))
        self.master_key = master_key(password)
        self.can_batch = client.settings.batch_reads
        self.counts = ReadCounts()
        self.part_of: Mapping[str, object] = {}  # What its entries belong to, for those who read of them in a log.
        self.gone: NoSuchLedger | None = None  # The ledger was deleted.
        self.is_watching = False  # Whether changes of the metadata come by themselves.
        self._lac = NO_ENTRY
        self._stuck_to = client.runtime.rng.randrange(stored.metadata.quorum.ensemble)
        self._news = News()

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

    def limit_read_ahead(self, bytes_max: int) -> None:
        """Ask bookies for no more than this at once, or for one entry. Two such answers at most are held."""
        limit = max(1, min(bytes_max, self.settings.read_ahead_bytes))
        self.settings = replace(self.settings, read_ahead_bytes=limit)

    # --- What bookies and the metadata store tell

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

    # --- One bookie

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


class MetadataWatch:
    """Follows the metadata of one ledger, from `start` to `stop`: new bookies, and its end."""

    def __init__(self, view: LedgerView) -> None:
        self._view = view
        self._task: asyncio.Task[None] | None = None

    def start(self, *, keep: bool) -> None:
        """With `keep` the watch goes on when the ledger is closed: its entries may be moved to other bookies."""
        self._task = asyncio.create_task(self._run(keep), name=f"metadata of ledger {self._view.id}")

    async def stop(self) -> None:
        """Return when nothing of it runs any more. Raises the bug that ended it, if one did."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _run(self, keep: bool) -> None:
        view, retry_s = self._view, _RETRY_S_MIN
        ledgers = view.client.ledgers_metadata
        while True:
            try:
                async with ledgers.watch(view.id) as watch:
                    while True:
                        view.adopt(await ledgers.read(view.id))
                        if view.is_closed and not keep:
                            return
                        view.is_watching, retry_s = True, _RETRY_S_MIN
                        await watch.wait_changed()
            except NoSuchLedger as error:
                view.gone = error
                view.tell_news()
                return
            except StoreClosed:
                return
            except QuireError as error:
                if view.is_watching or retry_s == _RETRY_S_MIN:
                    _log.warning("ledger.watch_failed", ledger_id=view.id, error=str(error))
            finally:
                view.is_watching = False
            await view.clock.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_S_MAX)
