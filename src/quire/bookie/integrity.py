"""After damage to its journals, a bookie asks the metadata which ledgers it may have lost part of.

Nobody can say what a group of journal records held that does not read any more: entries, a fence, a ledger that was
never heard of again. But every ledger that names this bookie is in the metadata before its first entry. So each of them
is put in limbo: what is here is served, what is not is "unknown". One that is still open, and has this bookie in its
last ensemble, is fenced as well, since a fence may be among what was lost. All other ledgers are as certain as before.
"""

from quire.bookie.ledger_storage import LedgerStorage
from quire.codec.digest import master_key
from quire.errors import NoSuchLedger
from quire.metadata import Cluster
from quire.telemetry.events import logger
from quire.types import BookieId, LedgerState

_LOG = logger("bookie.integrity")


async def settle_damage(storage: LedgerStorage, cluster: Cluster, bookie: BookieId) -> int:
    """Put in limbo whatever the damage may have touched. Returns how many ledgers that are. Call it before serving.

    Raises what the metadata store raises; it is done again at the next start then.
    """
    count = 0
    async for ledger_id in cluster.ledgers.scan():
        try:
            metadata = (await cluster.ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            continue  # Deleted since the scan saw it.
        if not any(bookie in fragment.bookies for fragment in metadata.fragments):
            continue
        is_open = metadata.state is not LedgerState.CLOSED and bookie in metadata.fragments[-1].bookies
        storage.table.put_in_limbo(ledger_id, master_key(metadata.password or b""), fenced=is_open)
        count += 1
    storage.table.settle_damage()
    await storage.checkpoint()
    _LOG.warning("journal.damage_settled", ledgers_in_limbo=count, places=len(storage.damages))
    return count
