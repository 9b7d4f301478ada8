"""Our ledger client in the tests, doing what `JavaLedger` does over there."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar

from quire.errors import LedgerFenced
from quire.ledger.client import LedgerClient
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.advanced import AdvancedWriter
from quire.ledger.writing.writer import LedgerWriter
from tests.interop.ledger_client import Entry, Payloads, Secret
from tests.support.waiting import at_a_random_moment, eventually

_Writer = TypeVar("_Writer", LedgerWriter, AdvancedWriter)

INFLIGHT_MAX = 30
PIPELINED = LedgerSettings(window_entries_max=INFLIGHT_MAX)


@asynccontextmanager
async def shut_out(creating: AbstractAsyncContextManager[_Writer]) -> AsyncIterator[_Writer]:
    """A ledger that another client seals meanwhile. Its writer may be told so once more when it lets go of it."""
    ledger = await creating.__aenter__()
    try:
        yield ledger
    finally:
        with suppress(LedgerFenced):
            await creating.__aexit__(None, None, None)


async def keep_writing(ledger: LedgerWriter, payloads: Payloads, *, pause_s: float = 0.0) -> None:
    """Append payload after payload without waiting for them, as far as the window allows. Ends with an error only."""
    number = 0
    while True:
        assert await ledger.enqueue([payloads[number]]) == [number]
        number += 1
        await at_a_random_moment(pause_s, 1.0)


async def await_acknowledged(ledger: LedgerWriter, count: int) -> None:
    """Wait until entries of a writer in the background were acknowledged."""

    async def written() -> bool:
        return ledger.last_add_confirmed >= count - 1

    await eventually(written, what=f"{count} entries are acknowledged")


async def read_all(
    ledgers: LedgerClient, ledger_id: int, secret: Secret, *, recover: bool = True, recovered_by_java: bool = False
) -> list[Entry]:
    """What we get of a ledger: all of it, or what is confirmed so far.

    Java's recovery takes the length from the entry that told it the LAC, even if that entry is not in the ledger.
    """
    async with ledgers.open(ledger_id, password=secret.password, recover=recover) as reader:
        found, length = [], 0
        async for entry in reader.read():
            length += len(entry.payload)
            found.append(Entry(entry.entry_id, length, entry.payload))
        assert recovered_by_java or not recover or reader.length == length
        return found
