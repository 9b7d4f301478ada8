"""Java's readers follow a ledger that is still being written: long polls, and LACs that are sent on their own."""

import asyncio
import time

import pytest

from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import JavaLedger, Payloads, Secret, Tail, Wire, await_entries, follow
from tests.support.waiting import eventually

POLL_MS = 20_000  # Much longer than any test takes: whoever waits for it in vain is noticed.
LONG_READS = {"readEntryTimeoutSec": 30}  # Java gives up a read after 5 s by default, and so a long poll too.
EXPLICIT_LACS = {"explicitLacInterval": 20}

both_modes = pytest.mark.parametrize("parallel", [False, True], ids=["in-turn", "parallel"])


async def answered_late(reader: JavaLedger, poll: asyncio.Task[Tail]) -> None:
    """Give a long poll the chance to be answered before its time: Java has read and answered another request since."""
    await reader.state()
    await reader.last_add_confirmed()
    assert not poll.done()


@kinds("apache", "quire")
@both_modes
async def test_a_long_poll_waits_for_its_entry(bookies: Bookies, open_client: OpenClient, parallel: bool) -> None:
    """Entry n is confirmed, and so visible, by the entry that follows it."""
    writer, payloads = await open_client(3), Payloads("waited for")
    ledger = await writer.create(Secret())
    await ledger.append(payloads, 1)
    reader = await (await open_client(3, **LONG_READS)).open(ledger.id, Secret(), recover=False)
    for entry in range(5):
        poll = asyncio.create_task(reader.tail(entry, wait_ms=POLL_MS, parallel=parallel))
        await answered_late(reader, poll)
        await ledger.append(payloads, 1, first=entry + 1)
        assert await poll == Tail(entry, payloads.entries(entry, entry)[0])


@kinds("apache", "quire")
@both_modes
async def test_a_long_poll_ends_empty_when_its_time_is_up(
    bookies: Bookies, open_client: OpenClient, parallel: bool
) -> None:
    client, payloads = await open_client(3), Payloads("in vain")
    ledger = await client.create(Secret())
    await ledger.append(payloads, 2)
    await ledger.append(payloads, 1, first=2)
    reader = await client.open(ledger.id, Secret(), recover=False)
    assert await reader.tail(2, wait_ms=200, parallel=parallel) == Tail(1, None)


@kinds("apache", "quire")
@both_modes
async def test_a_reader_follows_a_writer_to_the_end(bookies: Bookies, open_client: OpenClient, parallel: bool) -> None:
    """Each entry comes once and in order, the last ones when the writer seals its ledger."""
    writer, payloads = await open_client(3), Payloads("followed")
    ledger = await writer.create(Secret(), quorum=(3, 2, 2))  # Striped: no bookie has all that is waited for.
    await ledger.start_writing(payloads, inflight_max=5, pause_us=2_000)
    await await_entries(ledger, 3)  # Before its first entry, a bookie does not know the ledger.
    reader = await (await open_client(3)).open(ledger.id, Secret(), recover=False)
    entries = 0
    while entries < 150:
        entries += await follow(reader, payloads, entries, parallel=parallel)
    done = await ledger.stop_writing()
    assert done.error is None
    await ledger.seal()
    while entries < done.acknowledged:
        entries += await follow(reader, payloads, entries, parallel=parallel)
    assert (await reader.state())["closed"]


@kinds("apache", "quire")
async def test_fencing_ends_a_long_poll(bookies: Bookies, open_client: OpenClient) -> None:
    """A reader that waits for a writer which was shut out would wait in vain.

    Method: it waits at all bookies. One that asks them in turn waits again at the next one, fenced or not.
    """
    client, payloads = await open_client(3, **LONG_READS), Payloads("fenced")
    ledger = await client.create(Secret())
    await ledger.append(payloads, 3)
    reader = await client.open(ledger.id, Secret(), recover=False)
    lac = (await reader.state())["lac"]
    poll = asyncio.create_task(reader.tail(3, wait_ms=POLL_MS, parallel=True))
    await answered_late(reader, poll)
    start_s = time.monotonic()
    await (await open_client(3)).open(ledger.id, Secret())
    answer = await poll
    assert answer.entry is None
    assert lac <= answer.lac <= 2
    assert time.monotonic() - start_s < POLL_MS / 1_000 / 2


# --- Explicit LACs


@kinds("apache", "quire")
@pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])
async def test_an_explicit_lac_confirms_the_last_entry(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    """No entry follows that could tell of it. A client in version 2 sends this in version 3, beside its entries."""
    writer, payloads = await open_client(wire, **EXPLICIT_LACS), Payloads("explicit")
    ledger = await writer.create(Secret())
    await ledger.append(payloads, 10)
    reader = await (await open_client(wire)).open(ledger.id, Secret(), recover=False)

    async def confirmed() -> bool:
        return await reader.explicit_lac() == 9

    await eventually(confirmed, what="the explicit LAC arrives")
    assert await reader.read(0, 9) == payloads.entries(0, 9)
    other = await (await open_client(3)).open(ledger.id, Secret(), recover=False)
    assert await other.last_add_confirmed() == 9


@kinds("apache", "quire")
@both_modes
async def test_an_explicit_lac_wakes_a_long_poll(bookies: Bookies, open_client: OpenClient, parallel: bool) -> None:
    writer, payloads = await open_client(3, **EXPLICIT_LACS), Payloads("woken")
    ledger = await writer.create(Secret())
    await ledger.append(payloads, 1)
    reader = await (await open_client(3, **LONG_READS)).open(ledger.id, Secret(), recover=False)
    answer = await reader.tail(0, wait_ms=POLL_MS, parallel=parallel)
    assert answer == Tail(0, payloads.entries(0, 0)[0])
    poll = asyncio.create_task(reader.tail(1, wait_ms=POLL_MS, parallel=parallel))
    await answered_late(reader, poll)
    await ledger.append(payloads, 1, first=1)
    assert await poll == Tail(1, payloads.entries(1, 1)[0])
