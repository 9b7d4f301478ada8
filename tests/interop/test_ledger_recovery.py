"""Java's clients shut a writer out and recover its ledger; bookies that are killed forget nothing of it."""

import asyncio
from collections.abc import Callable

import pytest

from quire.codec.entry import stored_ids, stored_lac
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import SHUT_OUT, Payloads, Secret, Wire, await_entries, java_shut_out
from tests.interop.peer import JavaError
from tests.support.servers.bookie_process import BookieProcess

both_wires = pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])


@kinds("apache", "quire")
@both_wires
@pytest.mark.parametrize("quorum", [(3, 3, 2), (3, 2, 2), (3, 3, 3)], ids=lambda quorum: "-".join(map(str, quorum)))
async def test_recovery_shuts_the_writer_out_and_keeps_what_was_acknowledged(
    bookies: Bookies, open_client: OpenClient, wire: Wire, quorum: tuple[int, int, int]
) -> None:
    # By default a bookie that is silent for 5 s counts as failed, and there is no fourth one to take its place.
    writer, payloads = await open_client(wire, addEntryTimeoutSec=60), Payloads("shut out")
    ledger = await writer.create(Secret(), quorum=quorum)
    await ledger.start_writing(payloads, inflight_max=30)
    await await_entries(ledger, 200)

    recovered = await (await open_client(wire)).open(ledger.id, Secret())
    ended = await ledger.stop_writing()
    assert ended.error in java_shut_out(quorum)
    state = await recovered.state()
    assert state["closed"]
    assert state["lac"] >= ended.acknowledged - 1
    assert await recovered.check(payloads, state["lac"]) == state["lac"] + 1
    again = await (await (await open_client(wire)).open(ledger.id, Secret())).state()
    assert (again["lac"], again["length"]) == (state["lac"], state["length"]), "from now on all readers agree"
    with pytest.raises(JavaError, match="|".join(SHUT_OUT)):
        await ledger.append(payloads, 1)


@kinds("apache", "quire")
@both_wires
async def test_two_clients_that_recover_at_once_agree(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    writer, payloads = await open_client(wire), Payloads("agreed")
    ledger = await writer.create(Secret())
    await ledger.start_writing(payloads)
    await await_entries(ledger, 50)
    rivals = [await open_client(2), await open_client(3)]
    opened = await asyncio.gather(*(rival.open(ledger.id, Secret()) for rival in rivals))
    acknowledged = (await ledger.stop_writing()).acknowledged
    states = [await each.state() for each in opened]
    lacs = {state["lac"] for state in states}
    assert len(lacs) == 1
    assert lacs.pop() >= acknowledged - 1


@kinds("apache", "quire")
@pytest.mark.parametrize(
    ("wire", "settings"),
    [
        (2, {}),
        (3, {}),
        (2, {"recoveryBatchReadEnabled": "true", "recoveryReadBatchSize": 20}),
        (3, {"recoveryReadBatchSize": 20}),
    ],
    ids=["v2", "v3", "v2-batches", "v3-many-at-once"],
)
async def test_what_a_writer_left_behind_is_recovered(
    bookies: Bookies, open_client: OpenClient, wire: Wire, settings: dict[str, object]
) -> None:
    """The bookies do not know yet that the last entries were acknowledged: recovery has to find them."""
    writer, payloads = await open_client(wire), Payloads("left behind")
    ledger = await writer.create(Secret())
    await ledger.append(payloads, 50)
    beside = await (await open_client(3)).open(ledger.id, Secret(), recover=False)
    assert (await beside.state())["lac"] < 49
    recovered = await (await open_client(wire, **settings)).open(ledger.id, Secret())
    state = await recovered.state()
    assert (state["lac"], state["closed"]) == (49, True)
    assert state["length"] == payloads.entries(49, 49)[0].length
    assert await recovered.read(0, 49) == payloads.entries(0, 49)


@kinds("apache", "quire")
async def test_bookies_that_are_killed_forget_nothing(bookies: Bookies, open_client: OpenClient) -> None:
    """Kill -9 of all three at once, in the middle of writing."""
    await check_return(bookies, open_client, BookieProcess.kill)


@kinds("quire")
async def test_bookies_that_are_stopped_forget_nothing(bookies: Bookies, open_client: OpenClient) -> None:
    """In good order, in the middle of writing. Apache's default storage forgets explicit LACs here; ours must not."""
    await check_return(bookies, open_client, lambda bookie: bookie.stop())


async def check_return(bookies: Bookies, open_client: OpenClient, end: Callable[[BookieProcess], object]) -> None:
    """Entries, fences and LACs that were acknowledged are there when all bookies have ended and come back."""
    client, payloads = await open_client(3), Payloads("back again")
    fenced = await client.create(Secret())
    await fenced.append(payloads, 5)
    await (await open_client(3)).open(fenced.id, Secret())
    explicit = await client.create(Secret())
    for bookie in bookies.names:
        assert await client.add_to(bookie, explicit.id, 0, b"first", key=Secret().key) == "OK"
        assert await client.write_lac_to(bookie, explicit.id, 0, key=Secret().key) == "OK"
    ledger = await client.create(Secret())
    await ledger.start_writing(payloads, inflight_max=100)
    await await_entries(ledger, 500)
    for member in bookies.members:
        end(member)
    acknowledged = (await ledger.stop_writing()).acknowledged
    bookies.start()

    client = await open_client(3)
    recovered = await client.open(ledger.id, Secret())
    lac = (await recovered.state())["lac"]
    assert lac >= acknowledged - 1
    assert await recovered.check(payloads, lac) == lac + 1
    for bookie in bookies.names:
        assert await client.add_to(bookie, fenced.id, 5, b"late", key=Secret().key) == "BKLedgerFencedException"
        code, packet, last = await client.read_lac_from(bookie, explicit.id)
        assert (code, stored_lac(packet), stored_ids(last)) == ("OK", (explicit.id, 0), (explicit.id, 0, -1))
