"""What is acknowledged is durable: nothing is answered before its record is, but for what asks to be."""

import asyncio
from collections.abc import Callable

import pytest

from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import DEFERRED_SYNC, AddRequest, AddResponse, ForceLedgerRequest
from quire.types import EntryId
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    V3,
    Answer,
    Version,
    World,
    bookie_settings,
    entry,
    with_bookie,
    write_lac,
)

OK = Status.EOK
SYNC_S = 3.0


def deferred(entry_id: int, *, recovery: bool = False) -> AddRequest:
    return AddRequest(LEDGER, EntryId(entry_id), KEY, entry(LEDGER, entry_id), DEFERRED_SYNC, recovery)


REQUESTS: dict[str, Callable[[], bytes]] = {
    "add of version 2": lambda: V2.add(LEDGER, 0),
    "add of version 1": lambda: V2.add(LEDGER, 0)[:4] + b"\x01" + V2.add(LEDGER, 0)[5:],
    "add of version 3": lambda: V3.add(LEDGER, 0),
    "recovery add": lambda: V3.add(LEDGER, 0, recovery=True, priority=True),
    "deferred recovery add": lambda: V3.frame(deferred(0, recovery=True)),
    "fence of version 2": lambda: V2.read(LEDGER, -1, fence=KEY),
    "fence of version 3": lambda: V3.read(LEDGER, -1, fence=KEY),
    "explicit LAC": lambda: V3.frame(write_lac(3)),
}


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("journals", [1, 3])
def test_the_answer_comes_after_the_sync(what: str, journals: int) -> None:
    async def check(world: World) -> None:
        world.slow_syncs(SYNC_S)
        began = world.sim.loop.time()
        world.client.send(REQUESTS[what]())
        await world.until(lambda: any(journal.last for journal in world.storage.journals.all))
        await world.pass_time(SYNC_S / 2)
        assert not world.client.frames
        await world.client.frame()
        assert world.sim.loop.time() - began >= SYNC_S

    with_bookie(check, settings=bookie_settings(journals=journals))


@pytest.mark.parametrize("what", REQUESTS)
def test_nothing_is_answered_when_the_sync_fails(what: str) -> None:
    """The connection ends instead, and so does the bookie."""

    async def check(world: World) -> None:
        world.bookie.host.disk.faults.fail_next("sync", path="/journal0/0000000000000001.journal")
        world.client.send(REQUESTS[what]())
        await world.client.closed()
        await world.until(lambda: not world.bookie.is_running)
        await world.bookie.start()
        world.client = await world.connect()

    with_bookie(check)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_answered_is_there_after_a_crash(version: Version, seed: int) -> None:
    """Method: adds pour in, the power fails in the middle of them, and all that was acknowledged is read back."""

    async def check(world: World) -> None:
        client = world.client
        client.send(*(version.add(LEDGER, entry_id) for entry_id in range(300)))
        await client.until(lambda: len(client.frames) >= 40 + 20 * seed)
        await world.bookie.crash()
        acknowledged = [version.answer(frame).entry_id for frame in client.frames]
        await world.bookie.start()
        world.client = await world.connect()
        for entry_id in acknowledged:
            assert await world.client.read(version, LEDGER, entry_id) == Answer(
                OK, LEDGER, entry_id, entry(LEDGER, entry_id)
            )

    with_bookie(check, seed=seed)


# --- Deferred sync


def test_a_deferred_add_is_answered_before_the_sync_and_made_durable_by_force() -> None:
    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        world.slow_syncs(SYNC_S)
        began = world.sim.loop.time()
        answer = await world.client.ask_v3(deferred(1))
        assert (answer.status, answer.content) == (OK, AddResponse(LEDGER, EntryId(1)))
        assert world.sim.loop.time() - began < SYNC_S
        assert world.storage.journals.of(LEDGER).durable < world.storage.journals.of(LEDGER).last
        assert (await world.client.ask_v3(ForceLedgerRequest(LEDGER))).status is OK
        assert world.sim.loop.time() - began >= SYNC_S
        await world.restart(crash=True)
        for entry_id in range(2):
            assert (await world.client.read(V3, LEDGER, entry_id)).body == entry(LEDGER, entry_id)

    with_bookie(check)


def test_a_deferred_add_that_was_answered_survives_the_process() -> None:
    """It is in the journal's file by then, though a power cut could still take it."""

    async def check(world: World) -> None:
        world.slow_syncs(SYNC_S)
        assert (await world.client.ask_v3(deferred(0))).status is OK
        await world.bookie.crash(power_loss=False)
        world.slow_syncs(0.001)
        await world.bookie.start()
        world.client = await world.connect()
        assert (await world.client.read(V3, LEDGER, 0)).body == entry(LEDGER, 0)

    with_bookie(check)


def test_force_waits_for_what_came_before_it_only() -> None:
    """Method: entry 1 is in a flush, entry 2 waits for the next one, the force comes between them."""

    async def check(world: World) -> None:
        world.slow_syncs(SYNC_S)
        other, third = await world.connect(), await world.connect()
        world.client.send(V3.add(LEDGER, 1))
        await world.until(lambda: world.storage.journals.of(LEDGER).last == 2)  # The key, and the entry.
        began = world.sim.loop.time()
        forcing = asyncio.ensure_future(other.ask_v3(ForceLedgerRequest(LEDGER)))
        await world.pass_time(0.5)
        third.send(V3.add(LEDGER, 2))
        assert (await forcing).status is OK
        assert world.sim.loop.time() - began < 1.5 * SYNC_S
        assert not third.frames
        await third.frame()

    with_bookie(check)


def test_nobody_waits_for_a_force_that_has_nothing_to_wait_for() -> None:
    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        world.slow_syncs(SYNC_S)
        began = world.sim.loop.time()
        assert (await world.client.ask_v3(ForceLedgerRequest(LEDGER))).status is OK
        assert world.sim.loop.time() - began < 1.0

    with_bookie(check)


def test_a_slow_journal_does_not_hold_up_ledgers_of_another(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, 0, 0)
        await world.client.add(version, 1, 0)
        disk = world.bookie.host.disk
        stuck = asyncio.Event()
        real_write = world.storage.journals.all[1]._write_group

        async def write_group(calls: int) -> None:
            await stuck.wait()
            await real_write(calls)

        world.storage.journals.all[1]._write_group = write_group  # type: ignore[method-assign]
        world.client.send(version.add(1, 1))
        for entry_id in range(1, 30):
            assert await world.client.add(version, 0, entry_id) == Answer(OK, 0, entry_id)
        stuck.set()
        assert version.answer(await world.client.frame()) == Answer(OK, 1, 1)
        assert disk.faults.latency_by_operation_s == {}

    with_bookie(check, settings=bookie_settings(journals=2))


def test_answers_of_several_journals_do_not_mix(version: Version) -> None:
    """Each journal counts for itself: the number 5 of one says nothing about the number 5 of another."""

    async def check(world: World) -> None:
        sent = [(ledger_id, entry_id) for entry_id in range(40) for ledger_id in range(7)]
        world.client.send(*(version.add(*ids) for ids in sent))
        answers = [version.answer(await world.client.frame()) for _ in sent]
        assert sorted((answer.ledger_id, answer.entry_id) for answer in answers) == sorted(sent)
        await world.restart(crash=True)
        for ledger_id, entry_id in sent:
            assert (await world.client.read(version, ledger_id, entry_id)).body == entry(ledger_id, entry_id)

    with_bookie(check, settings=bookie_settings(journals=3))


def test_the_figures_of_adds_count_every_add_once() -> None:
    """Also where a flush ends in the middle of what arrived at once, and more arrives before the rest is durable."""

    async def check(world: World) -> None:
        world.slow_syncs(0.5)
        requests = world.service.metrics.requests
        for start in range(0, 400, 40):
            large = [entry(LEDGER, entry_id, bytes(400)) for entry_id in range(start, start + 40)]
            world.client.send(*(V2.add(LEDGER, start + at, body) for at, body in enumerate(large)))
            await world.pass_time(0.2)
            assert requests.adds_in_progress.value >= 0
        for _ in range(400):
            await world.client.frame()
        assert requests.add_entry.ok.count == 400
        assert requests.adds_in_progress.value == 0
        assert min(requests.add_entry.ok.counts) >= 0

    with_bookie(check)
