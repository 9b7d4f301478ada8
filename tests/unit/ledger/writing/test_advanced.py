"""Entry ids of the application's choice: any order, no gap, nothing twice."""

import asyncio

import pytest
from tests.unit.ledger.writing.test_writer import SETTINGS, on_cluster

from quire.errors import DuplicateEntryId, InvalidArgument, LedgerClosed, LedgerExists, RequestTooLarge
from quire.ledger.client import LedgerClient
from quire.testing import SimBookie, Simulation


def test_entries_in_any_order_are_acknowledged_without_a_gap() -> None:
    """Far more than the window holds, from many tasks, shuffled."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        order = list(range(200))
        order = sim.rng.sample(order, len(order))
        async with ledgers.create_advanced(ledger_id=77) as ledger:
            acknowledged: list[int] = []

            async def append(entry_id: int) -> None:
                await ledger.append(entry_id, b"%d" % entry_id)
                assert ledger.last_add_confirmed >= entry_id
                acknowledged.append(entry_id)

            await asyncio.gather(*map(append, order))
            assert sorted(acknowledged) == list(range(200))
        assert ledger.id == 77
        async with ledgers.open(77) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"%d" % number for number in range(200)]
        with pytest.raises(LedgerExists):
            async with ledgers.create_advanced(ledger_id=77):
                pass

    on_cluster(check, seeds=4)


def test_an_entry_waits_for_all_before_it_and_comes_once() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create_advanced() as ledger:
            assert await ledger.append(0, b"first") == 0
            early = asyncio.create_task(ledger.append_many([(2, b"third"), (3, b"fourth")]))
            await asyncio.sleep(3)
            assert not early.done()
            for entry_id in (0, 2, 3):
                with pytest.raises(DuplicateEntryId):
                    await ledger.append(entry_id, b"again")
            with pytest.raises(DuplicateEntryId):
                await ledger.append_many([(5, b"a"), (5, b"b")])
            with pytest.raises(InvalidArgument):
                await ledger.append(-1, b"")
            with pytest.raises(RequestTooLarge):
                await ledger.append(1, bytes(6 << 20))
            assert await ledger.append(1, b"second") == 1
            assert await early == [2, 3]
            with pytest.raises(DuplicateEntryId):
                await ledger.append(1, b"again")

    on_cluster(check)


def test_what_waits_behind_a_gap_is_told_when_the_ledger_ends() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create_advanced() as ledger:
            await ledger.append(0, b"first")
            early = [asyncio.create_task(ledger.append(entry_id, bytes(10))) for entry_id in range(2, 60)]
            await asyncio.sleep(1)  # The window is full of them, and more wait for room.
        for each in await asyncio.gather(*early, return_exceptions=True):
            assert isinstance(each, LedgerClosed)
        async with ledgers.open(ledger.id) as reader:
            assert reader.last_add_confirmed == 0

    on_cluster(check, settings=SETTINGS)
