"""A bookie is killed under a writer, which goes on with another one; a reader of the other maker follows it there.

Each entry is on two of three bookies, and the third is spare. The reader gets each entry once, in order, to the end.
"""

import asyncio
from contextlib import suppress

from quire.ledger.client import open_ledgers
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import JavaLedger, Payloads, Secret, await_entries, follow
from tests.interop.our_client import PIPELINED, await_acknowledged, keep_writing
from tests.support.waiting import eventually

SECRET = Secret()
WRITTEN_BETWEEN = 100  # Entries that are acknowledged before anything else happens.
PAUSE_S = 0.01  # A long poll for each entry takes about as long.

either_maker = kinds("apache", "quire", "mixed")


async def follow_from(reader: JavaLedger, payloads: Payloads, first: int, end: int) -> int:
    entry = first
    while entry < end:
        entry += await follow(reader, payloads, entry, parallel=False)
    return entry


@either_maker
async def test_java_follows_us_to_another_bookie(bookies: Bookies, open_client: OpenClient) -> None:
    payloads, client = Payloads("followed by Java"), await open_client(3)
    async with open_ledgers(bookies.uri, settings=PIPELINED) as ledgers:
        creating = ledgers.create(ensemble=2, write_quorum=2, ack_quorum=2, password=SECRET.password)
        async with creating as ledger:
            writing = asyncio.create_task(keep_writing(ledger, payloads, pause_s=PAUSE_S))
            await await_acknowledged(ledger, WRITTEN_BETWEEN)
            reader = await client.open(ledger.id, SECRET, recover=False)
            entries = await follow_from(reader, payloads, 0, WRITTEN_BETWEEN)

            async def changed() -> bool:
                return len(ledger.metadata.metadata.fragments) > 1

            before = ledger.metadata.metadata.fragments[0].bookies
            bookies[before[0]].kill()
            await eventually(changed, what="the bookie is replaced")
            after = ledger.metadata.metadata.fragments[1]
            assert before[0] not in after.bookies
            entries = await follow_from(reader, payloads, entries, after.first_entry_id + WRITTEN_BETWEEN // 2)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
    assert await follow_from(reader, payloads, entries, ledger.last_add_confirmed + 1) == ledger.last_add_confirmed + 1
    assert (await reader.state())["closed"]


@either_maker
async def test_java_reads_and_follows_us_across_bookies_that_are_taken_back(
    bookies: Bookies, open_client: OpenClient
) -> None:
    """Two bookies are killed, the second when the first is back. There is no spare one: fragments name the same."""
    payloads, client = Payloads("taken back"), await open_client(3)
    async with open_ledgers(bookies.uri, settings=PIPELINED) as ledgers:
        creating = ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2, password=SECRET.password)
        async with creating as ledger:
            writing = asyncio.create_task(keep_writing(ledger, payloads, pause_s=PAUSE_S))
            await await_acknowledged(ledger, WRITTEN_BETWEEN)
            reader = await client.open(ledger.id, SECRET, recover=False)
            entries, ensemble = 0, ledger.metadata.metadata.fragments[0].bookies
            for number, name in enumerate(ensemble[:2]):
                bookies[name].kill()
                await await_acknowledged(ledger, ledger.last_add_confirmed + WRITTEN_BETWEEN)
                bookies[name].start()

                async def is_back(fragments: int = number + 2) -> bool:
                    return len(ledger.metadata.metadata.fragments) >= fragments

                await eventually(is_back, within_s=30, what=f"{name} is taken back")
                entries = await follow_from(reader, payloads, entries, ledger.last_add_confirmed)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
    last = ledger.last_add_confirmed
    assert {fragment.bookies for fragment in ledger.metadata.metadata.fragments} == {ensemble}
    assert await follow_from(reader, payloads, entries, last + 1) == last + 1
    again = await client.open(ledger.id, SECRET)
    assert await again.check(payloads, last) == last + 1


@either_maker
async def test_we_follow_java_to_another_bookie(bookies: Bookies, open_client: OpenClient) -> None:
    payloads = Payloads("followed by us")
    ledger = await (await open_client(3)).create(SECRET, quorum=(2, 2, 2))
    await ledger.start_writing(payloads, inflight_max=5, pause_us=2_000)
    await await_entries(ledger, WRITTEN_BETWEEN)
    expected, changed_at, acknowledged = 0, -1, -1
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.open(ledger.id, password=SECRET.password, recover=False) as reader,
    ):
        async for entry in reader.follow():
            assert (entry.entry_id, entry.payload) == (expected, payloads[expected])
            expected += 1
            if expected == WRITTEN_BETWEEN:
                bookies[(await ledger.ensembles())[0][0]].kill()
            elif changed_at < 0 and expected % WRITTEN_BETWEEN == 0:
                changed_at = max(await ledger.ensembles(), default=0) or changed_at
            elif changed_at >= 0 and acknowledged < 0 and expected > changed_at + WRITTEN_BETWEEN:
                done = await ledger.stop_writing()
                assert done.error is None
                acknowledged = done.acknowledged
                await ledger.seal()
    assert expected == acknowledged > changed_at > 0
