"""After damage to its journals, a bookie asks the metadata what it may have lost part of, and has it repaired.

Nobody can say what a group of journal records held that does not read any more: entries, a fence, a ledger that was
never heard of again. But every ledger that names this bookie is in the metadata before its first entry. So each of them
is put in limbo: what is here is served, what is not is "unknown", and ordinary adds are refused, as by a bookie that
failed. One that is closed or being recovered is fenced as well, since a fence may be among what was lost. All other
ledgers are as certain as before.

A ledger leaves limbo when everything that the metadata says should be here is here: `Limbo` looks now and then, and
marks what lacks entries for autorecovery, which copies them here or elsewhere.

Invariants:
  FencedOrOpen      a ledger leaves limbo fenced, unless the metadata says that it is open: a recovery says first that
                    it has begun, and fences then, so no fence of such a ledger can be lost.
  NotWhileWritten   the last fragment of a ledger that is not closed keeps its bookies in limbo: what they acknowledged
                    of it, and lost, is in no metadata yet, and a recovery must not be told that it never was.
"""

import asyncio
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from quire.bookie.compaction import Pacer
from quire.bookie.ledger_storage import LedgerStorage
from quire.codec.digest import master_key
from quire.errors import DamagedMetadata, NoSuchLedger, QuireError
from quire.metadata import Cluster
from quire.protocol.fragments import known_lac, spans_of
from quire.runtime import Runtime
from quire.telemetry.events import logger
from quire.types import BookieId, LedgerId, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from quire.metadata.underreplication import Underreplication

_LOG = logger("bookie.integrity")
_LOOK_AGAIN_S: Final = 10.0  # And twice as long each time: what lacks entries takes as long as repairs take.
_LOOK_AGAIN_S_MAX: Final = 600.0
_READS_PER_S: Final = 1000.0  # So that a bookie with a million ledgers does not crowd out the metadata's clients.
_IDS_AT_ONCE: Final = 1000  # So many are looked up before others have their turn.


async def settle_damage(storage: LedgerStorage, cluster: Cluster, bookie: BookieId) -> int:
    """Put in limbo whatever the damage may have touched. Returns how many ledgers that are. Call it before serving.

    Raises what the metadata store raises; it is done again at the next start then.
    """
    count = 0
    await cluster.store.sync()  # A server that lags may not know of the newest ledgers.
    async for ledger_id in cluster.ledgers.scan():
        try:
            metadata = (await cluster.ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            continue  # Deleted since the scan saw it.
        if not any(bookie in fragment.bookies for fragment in metadata.fragments):
            continue
        is_over = metadata.state is not LedgerState.OPEN
        storage.table.put_in_limbo(ledger_id, master_key(metadata.password or b""), fenced=is_over)
        count += 1
    storage.table.settle_damage()
    await storage.checkpoint()
    _LOG.warning("journal.damage_settled", ledgers_in_limbo=count, places=len(storage.damages))
    return count


class Limbo:
    """The ledgers of one bookie that are in limbo, until none is."""

    def __init__(self, storage: LedgerStorage, cluster: Cluster, runtime: Runtime, bookie: BookieId) -> None:
        self._storage, self._cluster, self._runtime, self._bookie = storage, cluster, runtime, bookie

    @cached_property
    def _marks(self) -> "Underreplication":
        from quire.metadata.underreplication import Underreplication  # Few bookies are ever damaged.

        return Underreplication(self._cluster.store, self._cluster.uri.root, self._runtime, self._bookie)

    async def run(self) -> None:
        """Returns when no ledger is in limbo: none gets there while a bookie runs."""
        waiting: list[LedgerId] | None = None  # None as long as nobody has looked.
        pause_s = _LOOK_AGAIN_S
        while waiting is None or waiting:
            try:
                waiting = await self.look(waiting)
            except (QuireError, OSError) as error:
                _LOG.warning("limbo.not_looked_at", error=str(error))
            if waiting != []:
                await self._runtime.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_AGAIN_S_MAX)
        self._storage.table.has_limbo = False
        _LOG.info("limbo.over")

    async def look(self, among: Iterable[LedgerId] | None = None) -> list[LedgerId]:
        """Let out of limbo what is whole, and mark what is not. Returns the ledgers that are still in limbo."""
        await self._cluster.store.sync()  # A state that is read from now on is no older than this bookie's life.
        pacer = Pacer(self._runtime.clock, per_s=_READS_PER_S)
        still: list[LedgerId] = []
        for number, ledger_id in enumerate(await self._storage.ledger_ids() if among is None else among):
            if number % _IDS_AT_ONCE == 0:
                await self._runtime.clock.sleep(0)
            if self._storage.table.is_in_limbo(ledger_id):
                await pacer.take(1)
                if not await self._is_out(ledger_id):
                    still.append(ledger_id)
        return still

    async def _is_out(self, ledger_id: LedgerId) -> bool:
        try:
            metadata = (await self._cluster.ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            return False  # Garbage collection deletes it.
        except DamagedMetadata as error:
            _LOG.warning("limbo.metadata_damaged", ledger_id=ledger_id, error=str(error))
            return False
        if metadata.state is not LedgerState.CLOSED and self._bookie in metadata.fragments[-1].bookies:
            return False
        if not await self._has_all(ledger_id, metadata):
            await self._mark(ledger_id)
            return False
        self._storage.table.leave_limbo(ledger_id, fenced=metadata.state is not LedgerState.OPEN)
        _LOG.info("ledger.left_limbo", ledger_id=ledger_id)
        return True

    async def _has_all(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        here = await self._storage.reader.availability(ledger_id)
        should_be_here = (
            entry_id
            for span in spans_of(metadata, known_lac(metadata))
            for place, bookie in enumerate(span.bookies)
            if bookie == self._bookie
            for entry_id in span.entries_of(place, metadata.quorum)
        )
        return await asyncio.to_thread(lambda: all(entry_id in here for entry_id in should_be_here))

    async def _mark(self, ledger_id: LedgerId) -> None:
        """Have autorecovery look at the ledger, unless it does so already."""
        if await self._marks.lock_holder(ledger_id) is None and await self._marks.is_enabled():
            await self._marks.prepare()
            if await self._marks.mark(ledger_id, [self._bookie]):
                _LOG.warning("ledger.lacks_entries", ledger_id=ledger_id)
