"""Deferred sync and explicit LAC: what is confirmed, when, and what readers are told."""

import pytest
from tests.unit.ledger.writing.test_writer import on_cluster

from quire.errors import AppendOutcomeUnknown, LedgerClosed
from quire.ledger.client import LedgerClient
from quire.ledger.settings import LedgerSettings
from quire.testing import SimBookie, Simulation


def test_nothing_is_confirmed_before_it_is_forced() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(deferred_sync=True) as ledger:
            assert await ledger.force() == -1
            assert await ledger.append_many([b"abc"] * 5) == [0, 1, 2, 3, 4]
            assert ledger.last_add_confirmed == -1
            assert await ledger.force() == 4
            assert ledger.last_add_confirmed == 4
            await ledger.append(b"cut off")
        metadata = (await ledgers.ledgers_metadata.read(ledger.id)).metadata
        assert (metadata.last_entry_id, metadata.length) == (4, 15)
        with pytest.raises(LedgerClosed):
            await ledger.force()

    on_cluster(check)


def test_what_is_forced_survives_the_loss_of_power_everywhere() -> None:
    """And what is not forced may be lost, but nothing else may be in its place."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(deferred_sync=True) as ledger:
            await ledger.append_many([b"%d" % number for number in range(10)])
            forced = await ledger.force()
            await ledger.append_many([b"%d" % number for number in range(10, 20)])
            for bookie in bookies:
                await bookie.crash(power_loss=True)
            for bookie in bookies:
                await bookie.start()
            with pytest.raises((AppendOutcomeUnknown, LedgerClosed)):
                await ledger.append(b"20")
        async with ledgers.open(ledger.id) as reader:
            assert reader.last_add_confirmed >= forced == 9
            payloads = [entry.payload async for entry in reader.read()]
            assert payloads == [b"%d" % number for number in range(len(payloads))]

    on_cluster(check, seeds=6)


def test_one_bookie_that_is_down_fails_a_force_and_ends_the_ledger_there() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(deferred_sync=True) as ledger:
            await ledger.append(b"forced")
            await ledger.force()
            await ledger.append(b"not forced")
            lost = ledger.metadata.metadata.fragments[0].bookies[1]
            await next(bookie for bookie in bookies if bookie.host.name == lost).crash()
            with pytest.raises((AppendOutcomeUnknown, LedgerClosed)):
                await ledger.force()
            with pytest.raises(LedgerClosed):
                await ledger.append(b"too late")
        assert (await ledgers.ledgers_metadata.read(ledger.id)).metadata.last_entry_id == 0

    on_cluster(check, bookies=4, seeds=4)


def test_readers_hear_of_the_last_entry_of_a_writer_that_pauses() -> None:
    """Entries carry what was confirmed when they were sent, so the last one is told of separately, or not at all."""

    def lac_after_a_pause(settings: LedgerSettings) -> set[int]:
        found: set[int] = set()

        async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
            async with ledgers.create() as ledger:
                await ledger.append(b"first")
                await ledger.append(b"last")
                await sim.host("client").clock.sleep(3)
                async with ledgers.open(ledger.id, recover=False) as reader:
                    found.add(await reader.read_last_add_confirmed())

        on_cluster(check, settings=settings)
        return found

    assert lac_after_a_pause(LedgerSettings()) == {0}
    assert lac_after_a_pause(LedgerSettings(explicit_lac_interval_s=0.5)) == {1}


def test_what_could_not_be_told_is_told_when_bookies_are_back() -> None:
    settings = LedgerSettings(explicit_lac_interval_s=0.5, read_timeout_s=1.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        clock = sim.host("client").clock
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            await ledger.append(b"last")
            for bookie in bookies:
                sim.network.partition("client", bookie.host.name)
            await clock.sleep(4)
            sim.network.heal()
            await clock.sleep(20)
            async with ledgers.open(ledger.id, recover=False) as reader:
                assert await reader.read_last_add_confirmed() == 1

    on_cluster(check, settings=settings)
