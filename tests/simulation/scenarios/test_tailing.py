"""Scenario 31: readers that wait for entries which are not there yet."""

import asyncio

import pytest

from quire.codec.wire.codes import Status
from quire.ledger.reading.reader import LedgerReader
from quire.types import LedgerState
from tests.simulation.scenarios.stage import SEEDS, Stage, payloads, play

every_seed = pytest.mark.parametrize("seed", SEEDS)


@every_seed
def test_scenario_31_a_long_poll_returns_the_entry_when_it_is_confirmed(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer = await (await stage.client("writer")).create(3, 3, 2)
        await writer.append_many(payloads(3))
        client = await stage.client()
        async with client.ledgers.open(writer.id, recover=False) as reader:
            waiting = asyncio.create_task(reader.wait_entry(5, timeout_s=50.0))
            await stage.until(lambda: bool(stage.heard("long poll")))
            await stage.pass_time()
            assert not waiting.done()
            for payload in payloads(6)[3:]:
                await writer.append(payload)
            await stage.pass_time()
            assert not waiting.done(), "bookies hear of entry 5 with entry 6"
            began_s = stage.sim.loop.time()
            await writer.append(b"entry 6")
            assert await waiting == (5, b"entry 5")
            assert stage.sim.loop.time() - began_s < 1.0
            assert reader.last_add_confirmed == 5
        assert stage.heard("fence") == []

    play(scene, seed)


@every_seed
def test_scenario_31_a_long_poll_that_runs_out_of_time_tells_the_lac_and_no_entry(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer = await (await stage.client("writer")).create(3, 3, 2)
        for payload in payloads(5):
            await writer.append(payload)
        client = await stage.client()
        async with client.ledgers.open(writer.id, recover=False) as reader:
            began_s = stage.sim.loop.time()
            assert await reader.wait_entry(5, timeout_s=7.0) is None
            assert 7.0 <= stage.sim.loop.time() - began_s < 8.0
            assert reader.last_add_confirmed == 3  # The LAC that came with the last entry.
            assert await writer.append(b"the writer was not disturbed") == 5

    play(scene, seed)


@every_seed
def test_scenario_31_a_ledger_that_bookies_do_not_know_is_not_asked_about_all_the_time(seed: int) -> None:
    """Nothing was written yet: bookies answer at once that there is no such ledger."""

    async def scene(stage: Stage) -> None:
        writer = await (await stage.client("writer")).create(3, 3, 2)
        client = await stage.client()
        async with client.ledgers.open(writer.id, recover=False) as reader:
            waiting = asyncio.create_task(reader.wait_entry(0, timeout_s=60.0))
            await stage.pass_time(20.0)
            assert len(stage.heard("long poll")) < 100
            assert {message.status for message in stage.heard("read", answer=True)} == {Status.ENOLEDGER}
            await writer.append(b"entry 0")
            await writer.append(b"entry 1")
            assert await waiting == (0, b"entry 0")

    play(scene, seed)


@every_seed
def test_scenario_31_a_ledger_that_is_fenced_and_not_closed_is_not_asked_about_all_the_time(seed: int) -> None:
    """Its recoverer died. A reader waits until the next one closes the ledger, and no other news will come."""

    async def scene(stage: Stage) -> None:
        old, client = await stage.client("writer"), await stage.client()
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        old.cut_off()
        dying = await stage.client("recoverer")
        answers = stage.hold("read", answer=True, client="recoverer")
        recovering = asyncio.create_task(dying.ledgers.recover(writer.id))
        await stage.until(lambda: len(answers.messages) == 3)
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)
        dying.cut_off()
        answers.drop()
        assert (await stage.metadata(writer.id)).state is LedgerState.IN_RECOVERY
        async with client.ledgers.open(writer.id, recover=False) as reader:
            before = len(stage.heard("long poll"))
            assert await reader.wait_entry(9, timeout_s=20.0) is None
            assert len(stage.heard("long poll")) - before < 100
            following = asyncio.create_task(collected(reader))
            await stage.pass_time(5.0)
            assert not following.done()
            heir = await stage.client("heir")
            await heir.ledgers.recover(writer.id)
            assert await following == payloads(5)

    play(scene, seed)


async def collected(reader: LedgerReader) -> list[bytes]:
    return [entry.payload async for entry in reader.follow()]
