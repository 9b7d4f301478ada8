"""How far a ledger that is still being written is confirmed: asked of its bookies, without disturbing the writer."""

import asyncio
from typing import TYPE_CHECKING

from quire.errors import BookieUnavailable, DamagedEntry, NoSuchEntry, NoSuchLedger, QuireError, WrongPassword
from quire.protocol.quorum import is_covered
from quire.types import NO_ENTRY, BookieId, EntryId

if TYPE_CHECKING:
    from quire.ledger.client import LedgerClient
    from quire.ledger.reader import LedgerReader


async def read_lac(client: "LedgerClient", reader: "LedgerReader") -> EntryId:
    """The LAC, once so many of the last ensemble have answered that no acknowledged entry can have been missed.

    Raises `BookieUnavailable` if too few answer.
    """
    ensemble, quorum = reader.metadata.metadata.fragments[-1].bookies, reader.metadata.metadata.quorum
    floor = EntryId(reader.metadata.metadata.fragments[-1].first_entry_id - 1)
    answered: set[int] = set()
    found, last_error = floor, None
    tasks = [asyncio.create_task(_ask(client, reader, bookie, place)) for place, bookie in enumerate(ensemble)]
    try:
        for done in asyncio.as_completed(tasks):
            try:
                place, lac = await done
            except WrongPassword:
                raise
            except QuireError as error:
                last_error = error
                continue
            answered.add(place)
            found = max(found, lac)
            if is_covered(answered, quorum):
                return found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise BookieUnavailable(
        f"how far ledger {reader.id} is confirmed cannot be told: {len(answered)} of {len(ensemble)} bookies answered, "
        f"the last error was: {last_error}",
        ledger_id=reader.id,
    ) from last_error


async def _ask(client: "LedgerClient", reader: "LedgerReader", bookie: BookieId, place: int) -> tuple[int, EntryId]:
    """What one bookie knows: from its last entry, and from the explicit LAC if there is one."""
    timeout_s = client.settings.read_timeout_s
    lac = NO_ENTRY
    try:
        channel = await client.pool.connect(bookie, 3, timeout_s=timeout_s)
        answer = await channel.read_lac(reader.id, timeout_s=timeout_s)
    except (NoSuchEntry, NoSuchLedger):
        return place, lac
    except QuireError as error:
        client.on_bookie_error(bookie, error)
        raise
    try:
        if answer.last_entry_body is not None:
            lac = max(lac, reader.codec.decode(answer.last_entry_body, entry_id=None).lac)
        if answer.lac_body is not None:
            lac = max(lac, reader.codec.decode_lac(answer.lac_body))
    except DamagedEntry as error:
        client.on_bookie_error(bookie, error)
    return place, lac
