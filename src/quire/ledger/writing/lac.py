"""What a writer tells bookies besides entries: how far these are confirmed, and to have all of them on disk."""

import asyncio
from collections.abc import Sequence

from quire.errors import QuireError
from quire.ledger.context import LedgerContext
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_set
from quire.rpc import BookieChannel
from quire.types import BookieId, EntryId, LedgerId


async def tell_lac(
    client: LedgerContext,
    stored: StoredLedger,
    ensemble: Sequence[BookieId],
    confirmed: EntryId,
    master_key: bytes,
    packet: bytes,
) -> bool:
    """Tell those who have entry `confirmed` that it is: the next entry would, but there may be none for long.

    Readers see it then. Returns whether an ack quorum knows it; if not, nothing is lost but time.
    """

    async def tell(bookie: BookieId) -> bool:
        timeout_s = client.settings.read_timeout_s
        try:
            channel = await client.pool.connect(bookie, 3, timeout_s=timeout_s)
            await channel.write_lac(stored.ledger_id, confirmed, master_key, packet, timeout_s=timeout_s)
        except QuireError as error:
            client.on_bookie_error(bookie, error)
            return False
        return True

    quorum = stored.metadata.quorum
    told = await asyncio.gather(*(tell(ensemble[place]) for place in write_set(confirmed, quorum)))
    return sum(told) >= quorum.ack


async def force_all(ledger_id: LedgerId, channels: Sequence[BookieChannel], *, timeout_s: float) -> None:
    """Return when every bookie has on disk all that it acknowledged. Raises what the first one raises that cannot.

    The channels have to be those of the adds: the answer is about what a bookie acknowledged in this life, and one that
    lost power since then knows nothing of what it lost.
    """
    tasks = [asyncio.create_task(channel.force(ledger_id, timeout_s=timeout_s)) for channel in channels]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
