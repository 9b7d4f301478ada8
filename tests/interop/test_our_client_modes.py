"""Less common ways to write, between our client and Java's: ids of one's own, deferred sync, explicit LACs."""

import asyncio
import random

import pytest

from quire.errors import LedgerExists, LedgerFenced
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret
from tests.interop.our_client import read_all, shut_out
from tests.interop.peer import JavaError

SECRET = Secret()
LONG_READS = {"readEntryTimeoutSec": 30}
EXPLICIT_LACS = LedgerSettings(explicit_lac_interval_s=0.05)

every_kind = kinds("apache", "quire", "mixed")
every_layout = kinds("flat", "mixed", "longhierarchical")  # Mixed is hierarchical.


def new_ledger_id(bookies: Bookies) -> int:
    """An id that no generator gives: as long as the layout allows."""
    return random.SystemRandom().randrange(1 << 30, (1 << 31) - 1 if bookies.kind == "flat" else (1 << 63) - 1)


async def payloads_of(ledgers: LedgerClient, ledger_id: int) -> list[bytes]:
    async with ledgers.open(ledger_id, password=SECRET.password) as reader:
        return [entry.payload async for entry in reader.read()]


# --- Ids of one's own


@every_layout
async def test_java_reads_our_advanced_ledger(bookies: Bookies, open_client: OpenClient) -> None:
    """Entries in any order, of a ledger whose id we chose. Java cannot take that id, and shuts us out."""
    payloads, client, ledger_id = Payloads("advanced"), await open_client(3), new_ledger_id(bookies)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        shut_out(ledgers.create_advanced(ledger_id=ledger_id, password=SECRET.password)) as ledger,
    ):
        order = random.SystemRandom().sample(range(50), 50)
        await asyncio.gather(*(ledger.append(number, payloads[number]) for number in order))
        assert ledger.id == ledger_id
        with pytest.raises(JavaError, match="LedgerExist"):
            await client.create(SECRET, advanced=True, ledger_id=ledger_id)
        recovered = await client.open(ledger_id, SECRET)
        assert await recovered.read(0, 49) == payloads.entries(0, 49)
        assert (await recovered.state())["lac"] == 49
        with pytest.raises(LedgerFenced):
            await ledger.append(50, b"too late")


@every_layout
async def test_we_read_an_advanced_ledger_of_javas(bookies: Bookies, open_client: OpenClient) -> None:
    """We recover it up to its gap: what is behind it was never acknowledged."""
    payloads, client, ledger_id = Payloads("Java's advanced"), await open_client(3), new_ledger_id(bookies)
    ledger = await client.create(SECRET, advanced=True, ledger_id=ledger_id)
    await ledger.write(payloads, random.SystemRandom().sample(range(50), 50))
    behind_the_gap = asyncio.create_task(ledger.write(payloads, [51, 52]))
    async with open_ledgers(bookies.uri) as ledgers:
        with pytest.raises(LedgerExists):
            await create(ledgers, ledger_id)
        assert await payloads_of(ledgers, ledger_id) == [payloads[number] for number in range(50)]
    with pytest.raises(JavaError, match="BKLedgerFencedException"):
        await ledger.write(payloads, [50])
    with pytest.raises(JavaError):
        await behind_the_gap


async def create(ledgers: LedgerClient, ledger_id: int) -> None:
    async with ledgers.create(ledger_id=ledger_id):
        pass


# --- Deferred sync


@every_kind
async def test_java_sees_of_our_deferred_ledger_what_was_forced(bookies: Bookies, open_client: OpenClient) -> None:
    payloads, client = Payloads("deferred"), await open_client(3)
    async with open_ledgers(bookies.uri) as ledgers:
        async with ledgers.create(deferred_sync=True, password=SECRET.password) as ledger:
            await ledger.append_many([payloads[number] for number in range(10)])
            reader = await client.open(ledger.id, SECRET, recover=False)
            assert await reader.last_add_confirmed() == -1
            assert await ledger.force() == 9
            await ledger.append(payloads[10])  # Tells what was forced.
            assert await reader.last_add_confirmed() == 9
            assert await reader.read(0, 9) == payloads.entries(0, 9)
        assert await read_all(ledgers, ledger.id, SECRET) == payloads.entries(0, 9)
    opened = await client.open(ledger.id, SECRET)
    assert (await opened.state())["lac"] == 9, "what was not forced is not in the ledger"


@every_kind
async def test_we_see_of_a_deferred_ledger_of_javas_what_was_forced(bookies: Bookies, open_client: OpenClient) -> None:
    payloads = Payloads("Java's deferred")
    ledger = await (await open_client(3)).create(SECRET, deferred=True)
    await ledger.append(payloads, 10)
    async with open_ledgers(bookies.uri) as ledgers:
        assert await read_all(ledgers, ledger.id, SECRET, recover=False) == []
        await ledger.force()
        await ledger.append(payloads, 1, first=10)
        assert await read_all(ledgers, ledger.id, SECRET, recover=False) == payloads.entries(0, 9)
        assert await read_all(ledgers, ledger.id, SECRET) == payloads.entries(0, 10), "no bookie has lost anything"
    with pytest.raises(JavaError, match="BKLedgerFencedException"):
        await ledger.append(payloads, 1)


# --- Explicit LACs


@every_kind
async def test_our_explicit_lac_wakes_java(bookies: Bookies, open_client: OpenClient) -> None:
    """No entry follows that could tell of the last one."""
    payloads, client = Payloads("explicit"), await open_client(3, **LONG_READS)
    async with (
        open_ledgers(bookies.uri, settings=EXPLICIT_LACS) as ledgers,
        ledgers.create(password=SECRET.password) as ledger,
    ):
        await ledger.append_many([payloads[number] for number in range(10)])
        reader = await client.open(ledger.id, SECRET, recover=False)
        answer = await reader.tail(9, wait_ms=20_000)
        assert (answer.lac, answer.entry) == (9, payloads.entries(9, 9)[0])
        assert await reader.explicit_lac() == 9
        assert await reader.read(0, 9) == payloads.entries(0, 9)


@every_kind
async def test_an_explicit_lac_of_javas_wakes_us(bookies: Bookies, open_client: OpenClient) -> None:
    payloads = Payloads("Java's explicit")
    ledger = await (await open_client(3, explicitLacInterval=50)).create(SECRET)
    await ledger.append(payloads, 10)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.open(ledger.id, password=SECRET.password, recover=False) as reader,
    ):
        last = await reader.wait_entry(9, timeout_s=20.0)
        assert last is not None
        assert (last.entry_id, last.payload) == (9, payloads[9])
        assert await reader.read_last_add_confirmed() == 9
