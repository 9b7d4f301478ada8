"""Readers of one maker wait for entries of a writer of the other: long polls, and how far a ledger is confirmed."""

import asyncio

from quire.ledger.client import open_ledgers
from quire.ledger.reading.reader import LedgerEntry
from quire.types import EntryId
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret, Tail
from tests.support.waiting import eventually

SECRET = Secret()
POLL_S = 20.0  # Much longer than any test takes: whoever waits for it in vain is noticed.
LONG_READS = {"readEntryTimeoutSec": 30}  # Java gives up a read after 5 s by default, and so a long poll too.

every_kind = kinds("apache", "quire", "mixed")


def entry_of(payloads: Payloads, number: int) -> LedgerEntry:
    found = payloads.entries(number, number)[0]
    return LedgerEntry(EntryId(found.entry_id), found.payload)


@every_kind
async def test_we_wait_for_entries_of_javas(bookies: Bookies, open_client: OpenClient) -> None:
    """Entry n is confirmed, and so visible, by the entry that follows it."""
    payloads = Payloads("waited for by us")
    ledger = await (await open_client(3)).create(SECRET)
    await ledger.append(payloads, 1)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.open(ledger.id, password=SECRET.password, recover=False) as reader,
    ):
        for number in range(5):
            waiting = asyncio.create_task(reader.wait_entry(number, timeout_s=POLL_S))
            assert await reader.read_last_add_confirmed() == number - 1
            assert not waiting.done()
            await ledger.append(payloads, 1, first=number + 1)
            assert await waiting == entry_of(payloads, number)
        assert await reader.wait_entry(5, timeout_s=0.2) is None
        assert await reader.try_last_add_confirmed() == 4
        waiting = asyncio.create_task(reader.wait_entry(5, timeout_s=POLL_S))
        await ledger.seal()
        assert await waiting == entry_of(payloads, 5), "confirmed by the end of the ledger"
        assert await reader.wait_entry(6, timeout_s=POLL_S) is None
        assert [entry async for entry in reader.follow()] == [entry_of(payloads, number) for number in range(6)]


@every_kind
async def test_java_waits_for_entries_of_ours(bookies: Bookies, open_client: OpenClient) -> None:
    payloads, client = Payloads("waited for by Java"), await open_client(3, **LONG_READS)
    async with open_ledgers(bookies.uri) as ledgers, ledgers.create(password=SECRET.password) as ledger:
        await ledger.append(payloads[0])
        reader = await client.open(ledger.id, SECRET, recover=False)
        for number in range(5):
            polling = asyncio.create_task(reader.tail(number, wait_ms=round(POLL_S * 1_000)))
            assert await reader.last_add_confirmed() == number - 1
            assert not polling.done()
            await ledger.append(payloads[number + 1])
            assert await polling == Tail(number, payloads.entries(number, number)[0])
        assert await reader.tail(5, wait_ms=200) == Tail(4, None)
        assert await reader.try_last_add_confirmed() == 4

    async def closed() -> bool:
        return bool((await reader.state())["closed"])

    await eventually(closed, what="Java hears that the ledger is closed")
    assert await reader.last_add_confirmed() == 5, "confirmed by the end of the ledger"


@every_kind
async def test_our_wait_ends_when_java_recovers_the_ledger(bookies: Bookies, open_client: OpenClient) -> None:
    payloads, client = Payloads("waited in vain"), await open_client(3)
    ledger = await client.create(SECRET)
    await ledger.append(payloads, 3)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.open(ledger.id, password=SECRET.password, recover=False) as reader,
    ):
        waiting = asyncio.create_task(reader.wait_entry(3, timeout_s=POLL_S))
        await reader.read_last_add_confirmed()
        await (await open_client(3)).open(ledger.id, SECRET)
        assert await waiting is None
        assert (reader.is_closed, reader.last_add_confirmed) == (True, 2)
