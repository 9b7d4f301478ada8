"""What an auditor looks at: whose bookies are gone, which fragments are bad, where ledgers stand, how many copies.

Each check goes through all ledgers, some at a time. None of them changes a ledger; the first two mark what they find,
and workers look again before they do anything. A ledger that is deleted meanwhile is nobody's problem.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

from quire.codec.wire.availability import EntryAvailability
from quire.errors import DamagedMetadata, NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.client import LedgerClient
from quire.ledger.repair.fragment_check import check_ledger, learn_lac, members_of, plain_reader
from quire.metadata import Cluster, StoredLedger
from quire.metadata.underreplication import Underreplication
from quire.protocol.fragments import spans_of
from quire.protocol.quorum import write_set
from quire.replication.metrics import AutorecoveryMetrics
from quire.replication.settings import AutorecoverySettings
from quire.runtime import Clock
from quire.telemetry.events import logger
from quire.types import BookieId, EntryId, LedgerId, LedgerState

_log = logger("autorecovery")
_AT_ONCE: Final = 1000  # Entries that are counted before others have their turn.


class Checks:
    """The checks of one auditor. Each raises what the metadata store raises, and can be begun anew."""

    def __init__(
        self,
        client: LedgerClient,
        cluster: Cluster,
        marks: Underreplication,
        clock: Clock,
        settings: AutorecoverySettings,
        metrics: AutorecoveryMetrics,
    ) -> None:
        self._client, self._cluster, self._marks, self._clock = client, cluster, marks, clock
        self._settings, self._metrics = settings, metrics

    # --- Lost bookies

    async def audit_bookies(self, on_begin: Callable[[Collection[BookieId]], None]) -> bool:
        """Mark all ledgers of bookies that do not live. False if nothing was marked, as autorecovery is disabled.

        `on_begin` is told which bookies live before the ledgers are read: one that is lost later may have got ledgers
        behind our back, and calls for another audit.
        """
        with self._metrics.timed(self._metrics.audits):
            before = await self._cluster.bookies.listing()
            on_begin(before.writable | before.readonly)
            index: dict[BookieId, list[LedgerId]] = {}
            async for stored in self._ledgers():
                for bookie in sorted(members_of(stored.metadata)):
                    index.setdefault(bookie, []).append(stored.ledger_id)
            if not await self._marks.is_enabled():
                _log.info("audit.discarded", reason="autorecovery was disabled meanwhile")
                return False
            listing = await self._cluster.bookies.listing()
            listed = listing.writable | listing.readonly
            lost = sorted(bookie for bookie in index if bookie not in listed)
            self._metrics.lost_bookies.value = len(lost)
            missing: dict[LedgerId, list[BookieId]] = {}
            for bookie in lost:
                for ledger_id in index[bookie]:
                    missing.setdefault(ledger_id, []).append(bookie)
            for ledger_id, bookies in missing.items():
                await self._mark(ledger_id, bookies)
            _log.info("audit.done", lost_bookies=lost, ledgers=len(missing))
            return True

    async def _mark(self, ledger_id: LedgerId, bookies: list[BookieId]) -> None:
        if await self._marks.mark(ledger_id, bookies):
            self._metrics.marked.add()
            _log.info("ledger.marked", ledger_id=ledger_id, missing=bookies)

    # --- All ledgers

    async def check_ledgers(self) -> None:
        """Ask every bookie for entries of every fragment that it should have, and mark ledgers of which some lack."""
        with self._metrics.timed(self._metrics.ledger_checks):
            await self._client.pool.wait_listed()
            async for batch in self._batches():
                await asyncio.gather(*map(self._check_ledger, batch))
            _log.info("ledger_check.done")

    async def _check_ledger(self, stored: StoredLedger) -> None:
        reader = plain_reader(self._client, stored)
        unanswered = await learn_lac(reader)
        listing = await self._cluster.bookies.listing()
        bad = await check_ledger(
            reader, listing.writable | listing.readonly, percentage=self._settings.verification_percentage
        )
        self._metrics.ledgers_checked.add()
        lacking = {bookie for each in bad for bookie in each.bookies}.union(unanswered)
        if lacking and await self._marks.is_enabled():
            await self._mark(stored.ledger_id, sorted(lacking))

    # --- Placement

    async def check_placement(self) -> None:
        """Count closed ledgers whose bookies the policy would not have chosen."""
        with self._metrics.timed(self._metrics.placement_checks):
            await self._client.pool.wait_listed()
            misplaced = 0
            async for stored in self._ledgers():
                metadata = stored.metadata
                if metadata.state is not LedgerState.CLOSED:
                    continue
                if all(self._client.keeps_placement(metadata, each.bookies) for each in metadata.fragments):
                    continue
                misplaced += 1
                _log.info("ledger.misplaced", ledger_id=stored.ledger_id)
                if self._settings.mark_misplaced:
                    await self._mark(stored.ledger_id, [])
            self._metrics.misplaced.value = misplaced

    # --- Copies

    async def check_replicas(self) -> None:
        """Count closed ledgers with entries that have no copy, or fewer than a quorum. What bookies list is believed;
        one that does not answer is taken to have nothing."""
        with self._metrics.timed(self._metrics.replicas_checks):
            await self._client.pool.wait_listed()
            none = below_ack = below_write = 0
            async for batch in self._batches():
                for fewest, quorum in await asyncio.gather(*map(self._fewest_copies, batch)):
                    none += fewest == 0
                    below_ack += 0 < fewest < quorum[0]
                    below_write += quorum[0] <= fewest < quorum[1]
            self._metrics.without_copy.value = none
            self._metrics.below_ack_quorum.value = below_ack
            self._metrics.below_write_quorum.value = below_write
            _log.info("replicas_check.done", none=none, below_ack_quorum=below_ack, below_write_quorum=below_write)

    async def _fewest_copies(self, stored: StoredLedger) -> tuple[int, tuple[int, int]]:
        """How many copies the entry has that has the fewest, and the ack and write quorums."""
        metadata = stored.metadata
        quorum = metadata.quorum
        fewest = quorum.write
        if metadata.state is LedgerState.CLOSED:
            held = {bookie: await self._listed(bookie, stored) for bookie in sorted(members_of(metadata))}
            for span in spans_of(metadata, metadata.last_entry_id):
                for entry_id in map(EntryId, range(span.first, span.last + 1)):
                    if entry_id % _AT_ONCE == 0:
                        await self._clock.sleep(0)  # Others have something to do as well.
                    members = [span.bookies[place] for place in write_set(entry_id, quorum)]
                    fewest = min(fewest, sum(entry_id in held[bookie] for bookie in members))
        return fewest, (quorum.ack, quorum.write)

    async def _listed(self, bookie: BookieId, stored: StoredLedger) -> EntryAvailability:
        timeout_s = self._settings.replicas_timeout_s
        try:
            channel = await self._client.pool.connect(bookie, 3, timeout_s=timeout_s)
            return await channel.list_entries(stored.ledger_id, timeout_s=timeout_s)
        except (NoSuchLedger, NoSuchEntry):
            return EntryAvailability(())
        except QuireError as error:
            _log.warning("replicas_check.unanswered", bookie=bookie, ledger_id=stored.ledger_id, error=str(error))
            return EntryAvailability(())

    # --- All ledgers, some at a time

    async def _ledgers(self) -> AsyncIterator[StoredLedger]:
        async for batch in self._batches():
            for stored in batch:
                yield stored

    async def _batches(self) -> AsyncIterator[list[StoredLedger]]:
        wanted: list[LedgerId] = []
        async for ledger_id in self._cluster.ledgers.scan():
            wanted.append(ledger_id)
            if len(wanted) == self._settings.ledgers_at_once:
                yield await self._read(wanted)
                wanted = []
        if wanted:
            yield await self._read(wanted)

    async def _read(self, ledger_ids: list[LedgerId]) -> list[StoredLedger]:
        found = await asyncio.gather(*map(self._read_one, ledger_ids))
        return [stored for stored in found if stored is not None]

    async def _read_one(self, ledger_id: LedgerId) -> StoredLedger | None:
        try:
            return await self._cluster.ledgers.read(ledger_id)
        except NoSuchLedger:
            return None
        except DamagedMetadata as error:
            _log.error("ledger.metadata_damaged", ledger_id=ledger_id, error=str(error))
            return None
