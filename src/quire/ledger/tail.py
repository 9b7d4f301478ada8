"""How far a ledger that is still being written is confirmed: asked of its bookies, without disturbing the writer.

Bookies learn it from the entries, each of which carries the LAC that the writer knew, and from explicit LACs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from quire.errors import (
    BookieFailed,
    BookieUnavailable,
    DamagedEntry,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
    WrongPassword,
)
from quire.protocol.quorum import is_covered
from quire.rpc import BookieChannel
from quire.types import NO_ENTRY, BookieId, EntryId

if TYPE_CHECKING:
    from quire.ledger.client import LedgerClient
    from quire.ledger.reader import LedgerReader


async def read_lac(client: "LedgerClient", reader: "LedgerReader") -> EntryId:
    """The LAC, once so many of the last ensemble have answered that no acknowledged entry can have been missed.

    Raises `BookieUnavailable` if too few answer; `unanswered` in its facts are those who did not.
    """
    fragment, quorum = reader.metadata.metadata.fragments[-1], reader.metadata.metadata.quorum
    found = EntryId(fragment.first_entry_id - 1)
    answered: set[int] = set()
    errors: dict[BookieId, QuireError] = {}
    async with aclosing(_ask_all(reader, _lac_of, errors)) as answers:
        async for place, lac in answers:
            answered.add(place)
            found = max(found, lac)
            if is_covered(answered, quorum):
                return found
    raise _unanswered(reader, len(answered), errors)


async def try_lac(reader: "LedgerReader") -> EntryId:
    """The first LAC above the one that the reader knows; if there is none, the known one. Cheaper, and may be late.

    Raises `BookieUnavailable` if nobody answers.
    """
    known, answered = reader.last_add_confirmed, 0
    errors: dict[BookieId, QuireError] = {}
    async with aclosing(_ask_all(reader, _lac_of_last_entry, errors)) as answers:
        async for _, lac in answers:
            answered += 1
            if lac > known:
                return lac
    if not answered:
        raise _unanswered(reader, 0, errors)
    return known


# --- Asking


async def _ask_all(
    reader: "LedgerReader",
    ask: "Callable[[LedgerReader, BookieChannel], Coroutine[Any, Any, EntryId]]",
    errors: dict[BookieId, QuireError],
) -> AsyncGenerator[tuple[int, EntryId]]:
    """What the bookies of the last ensemble answer, as it comes, with their places. Those that fail are in `errors`."""
    ensemble = reader.metadata.metadata.fragments[-1].bookies
    tasks = [asyncio.create_task(_ask_one(reader, ask, place, bookie, errors)) for place, bookie in enumerate(ensemble)]
    try:
        for done in asyncio.as_completed(tasks):
            try:
                yield await done
            except WrongPassword:
                raise
            except QuireError:
                continue
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_one(
    reader: "LedgerReader",
    ask: "Callable[[LedgerReader, BookieChannel], Coroutine[Any, Any, EntryId]]",
    place: int,
    bookie: BookieId,
    errors: dict[BookieId, QuireError],
) -> tuple[int, EntryId]:
    """A bookie that has nothing of the ledger, or whose copy is damaged, has answered and knows of no LAC."""
    client = reader.client
    try:
        channel = await client.pool.connect(bookie, 3, timeout_s=reader.settings.read_timeout_s)
        reader.counts.requests += 1
        lac = await ask(reader, channel)
    except (NoSuchEntry, NoSuchLedger):
        return place, NO_ENTRY
    except QuireError as error:
        reader.counts.on_failure(error)
        client.on_bookie_error(bookie, error)
        if isinstance(error, DamagedEntry):
            return place, NO_ENTRY
        errors[bookie] = error
        raise
    client.on_bookie_answer(bookie)
    return place, lac


async def _lac_of(reader: "LedgerReader", channel: BookieChannel) -> EntryId:
    """What a bookie knows from its last entry, and from the explicit LAC if there is one."""
    try:
        answer = await channel.read_lac(reader.id, timeout_s=reader.settings.read_timeout_s)
    except BookieFailed:
        return await _lac_without_entries(reader, channel)
    lacs: list[EntryId] = []
    damage: DamagedEntry | None = None
    try:
        if answer.last_entry_body is not None:
            lacs.append(reader.codec.decode(answer.last_entry_body, entry_id=None).lac)
    except DamagedEntry as error:
        damage = error
    if answer.lac_body is not None:
        lacs.append(reader.codec.decode_lac(answer.lac_body))
    if damage is not None and not lacs:
        raise damage
    return max(lacs, default=NO_ENTRY)


async def _lac_without_entries(reader: "LedgerReader", channel: BookieChannel) -> EntryId:
    """A bookie fails to tell the LAC if it has an explicit one and no entry: one that has just joined, for example.

    Its failure may as well be that of a disk, which proves nothing. That it has no entry has to be said by itself; a
    poll that does not wait then tells the explicit LAC.
    """
    timeout_s = reader.settings.read_timeout_s
    try:
        return await _lac_of_last_entry(reader, channel)
    except (NoSuchEntry, NoSuchLedger):
        answer = await channel.long_poll(reader.id, NO_ENTRY, 0, timeout_s=timeout_s)
        return NO_ENTRY if answer.max_lac is None else answer.max_lac


async def _lac_of_last_entry(reader: "LedgerReader", channel: BookieChannel) -> EntryId:
    answer = await channel.read(reader.id, NO_ENTRY, version=3, timeout_s=reader.settings.read_timeout_s)
    lac = reader.codec.decode(answer.body or b"", entry_id=None).lac
    return lac if answer.max_lac is None else max(lac, answer.max_lac)


def _unanswered(reader: "LedgerReader", answered: int, errors: dict[BookieId, QuireError]) -> BookieUnavailable:
    last_error = next(reversed(errors.values()), None)
    ensemble = reader.metadata.metadata.quorum.ensemble
    unanswered = BookieUnavailable(
        f"how far ledger {reader.id} is confirmed cannot be told: {answered} of {ensemble} bookies answered, "
        f"the last error was: {last_error}",
        ledger_id=reader.id,
        unanswered=tuple(errors),
    )
    unanswered.__cause__ = last_error
    return unanswered
