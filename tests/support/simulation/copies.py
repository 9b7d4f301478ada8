"""The proof that a ledger has all its copies, by asking each bookie for each entry. It uses no code of repairs."""

from collections.abc import Collection

from quire.codec.digest import digest_for
from quire.codec.entry import EntryCodec
from quire.codec.wire.codes import Status
from quire.errors import QuireError
from quire.ledger.client import LedgerClient
from quire.metadata import StoredLedger
from quire.protocol.quorum import entries_at
from quire.rpc import status_error
from quire.types import BookieId, DigestType, EntryId, LedgerState


async def check_whole(ledgers: LedgerClient, stored: StoredLedger, listed: Collection[BookieId]) -> str | None:
    """What a ledger lacks: bookies that live, or intact copies that are the same. Of one that is not closed, the last
    fragment is its writer's: bookies may lack entries there, but none that is confirmed may be damaged."""
    metadata = stored.metadata
    is_closed = metadata.state is LedgerState.CLOSED
    codec = EntryCodec(stored.ledger_id, digest_for(metadata.digest or DigestType.CRC32C, metadata.password or b""))
    fragments = metadata.fragments
    ends = [*(each.first_entry_id for each in fragments[1:]), EntryId(metadata.last_entry_id + 1)]
    for fragment, end in zip(fragments, ends, strict=True):
        is_open = fragment is fragments[-1] and not is_closed
        if is_open:
            try:
                end = await _confirmed_end(ledgers, stored)
            except QuireError as error:
                return f"how far ledger {stored.ledger_id} goes cannot be told: {error!r}"
        away = [bookie for bookie in fragment.bookies if bookie not in listed]
        if away and not is_open:
            return f"ledger {stored.ledger_id} names {away} from entry {fragment.first_entry_id} on"
        payloads: dict[EntryId, bytes] = {}
        for place, bookie in enumerate(fragment.bookies):
            if bookie in away:
                continue
            wanted = list(entries_at(place, fragment.first_entry_id, end, metadata.quorum))
            try:
                found = await _copies(ledgers, bookie, codec, wanted, may_lack=is_open)
            except QuireError as error:
                return f"ledger {stored.ledger_id} on {bookie}: {error!r}"
            for entry_id, payload in found.items():
                if payloads.setdefault(entry_id, payload) != payload:
                    return f"entry {entry_id} of ledger {stored.ledger_id} has copies that differ"
    return None


async def _confirmed_end(ledgers: LedgerClient, stored: StoredLedger) -> EntryId:
    """One behind the last entry that its bookies know to be confirmed."""
    async with ledgers.open(stored.ledger_id, recover=False) as reader:
        return EntryId(await reader.read_last_add_confirmed() + 1)


async def _copies(
    ledgers: LedgerClient, bookie: BookieId, codec: EntryCodec, wanted: list[EntryId], *, may_lack: bool
) -> dict[EntryId, bytes]:
    """What one bookie has of these entries: all of them, unless it may lack some, and all intact."""
    if not wanted:
        return {}
    channel = await ledgers.pool.connect(bookie, 2, timeout_s=5.0)
    run = channel.send_reads(codec.ledger_id, wanted, timeout_s=5.0)
    await run.future
    found: dict[EntryId, bytes] = {}
    for entry_id in wanted:
        body = run.found[entry_id]
        if may_lack and body in (Status.ENOENTRY, Status.ENOLEDGER):
            continue
        if isinstance(body, Status):
            raise status_error(body, bookie=bookie, ledger_id=codec.ledger_id, entry_id=entry_id)
        found[entry_id] = codec.decode(body, entry_id=entry_id).payload
    return found
