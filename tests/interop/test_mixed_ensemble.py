"""Apache's bookies and ours in one ensemble, written by Java, while one after the other is killed and comes back."""

import asyncio

import pytest

from quire.types import EntryId
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import JavaLedger, JavaLedgerClient, Payloads, Secret, Wire, await_entries
from tests.support.servers.bookie_process import BookieProcess

SECRET = Secret()
WRITTEN_BETWEEN = 100  # Entries that are acknowledged before anything else happens.

both_wires = pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])


async def await_more(ledger: JavaLedger) -> None:
    await await_entries(ledger, (await ledger.progress()).acknowledged + WRITTEN_BETWEEN)


async def come_back(bookie: BookieProcess) -> None:
    bookie.launch()
    await asyncio.to_thread(bookie.wait_ready)


async def copies(client: JavaLedgerClient, ledger: JavaLedger, payloads: Payloads, entry: int) -> int:
    """How many members of the entry's ensemble hold it, with the right bytes and digest."""
    ensembles = await ledger.ensembles()
    found = 0
    for bookie in ensembles[max(first for first in ensembles if first <= entry)]:
        code, stored = await client.read_from(bookie, ledger.id, entry)
        if code == "OK":
            assert SECRET.codec(ledger.id).decode(stored, entry_id=EntryId(entry)).payload == payloads[entry]
            found += 1
    return found


@kinds("mixed")
@both_wires
async def test_writing_goes_on_while_each_bookie_in_turn_is_killed_and_comes_back(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    """Two of three are enough. Java is told to go on with them instead of looking for a fourth one."""
    client, payloads = await open_client(wire, delayEnsembleChange="true"), Payloads("rolling", bytes_max=1_000)
    ledger = await client.create(SECRET, quorum=(3, 3, 2))
    await ledger.start_writing(payloads, pause_us=1_000)
    killed_at = []
    for bookie in bookies.members:
        await await_more(ledger)
        bookie.kill()
        killed_at.append((await ledger.progress()).acknowledged)
        await await_more(ledger)
        await come_back(bookie)
    await await_more(ledger)
    done = await ledger.stop_writing()
    assert done.error is None
    await ledger.seal()

    assert list(await ledger.ensembles()) == [0], "no bookie was replaced"
    reader = await (await open_client(5 - wire)).open(ledger.id, SECRET)
    assert (await reader.state())["lac"] == done.acknowledged - 1
    assert await reader.check(payloads, done.acknowledged - 1) == done.acknowledged
    for entry in (0, *killed_at, *(number + WRITTEN_BETWEEN // 2 for number in killed_at), done.acknowledged - 1):
        assert await copies(client, ledger, payloads, entry) >= 2


@kinds("mixed")
@both_wires
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["apache-sorted", "apache-rocksdb", "quire"])
async def test_a_killed_bookie_is_replaced_and_its_ledger_recovered_without_it(
    bookies: Bookies, open_client: OpenClient, wire: Wire, victim: int
) -> None:
    """Two hold each entry, the third is spare. The writer goes on with it, a second client recovers the ledger while
    the victim is still down, and finds everything. When the victim is back, it holds what it had acknowledged.
    """
    writer, payloads, bookie = await open_client(wire), Payloads("replaced"), bookies.members[victim]
    ledger = await writer.create(SECRET, quorum=(2, 2, 2))
    while bookie.name not in (await ledger.ensembles())[0]:
        ledger = await writer.create(SECRET, quorum=(2, 2, 2))
    await ledger.start_writing(payloads, pause_us=500)
    await await_more(ledger)
    bookie.kill()
    await await_more(ledger)
    ensembles = await ledger.ensembles()
    assert len(ensembles) == 2
    assert bookie.name not in ensembles[max(ensembles)]

    recovered = await (await open_client(wire)).open(ledger.id, SECRET)
    done = await ledger.stop_writing()
    lac = (await recovered.state())["lac"]
    assert lac >= done.acknowledged - 1
    assert await recovered.check(payloads, lac) == lac + 1, "read without the victim"

    await come_back(bookie)
    reader = await open_client(wire)
    for entry in (0, max(ensembles) - 1, max(ensembles), lac):
        assert await copies(reader, recovered, payloads, entry) == 2


@kinds("mixed")
@both_wires
async def test_each_bookie_alone_serves_what_all_three_acknowledged(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    """The same entry is the same bytes, whoever keeps it."""
    client, payloads = await open_client(wire), Payloads("alone")
    ledger = await client.create(SECRET, quorum=(3, 3, 3))
    await ledger.append(payloads, 20)
    for entry in range(20):
        stored = {await client.read_from(bookie, ledger.id, entry) for bookie in bookies.names}
        assert {code for code, _ in stored} == {"OK"}
        assert len(stored) == 1
