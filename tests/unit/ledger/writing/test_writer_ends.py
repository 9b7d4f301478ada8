"""A writer that ends, is given nonsense, or meets bookies that stand still: everybody is told the truth, in time."""

import asyncio
from typing import Any

import pytest
from tests.unit.ledger.writing.test_writer import on_cluster

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.settings import ServerSettings
from quire.bookie.space import SpaceSettings
from quire.errors import (
    AppendOutcomeUnknown,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    Outcome,
    QuireError,
    RecoveryFailed,
)
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.rpc import ChannelSettings
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import EntryId, LedgerId, LedgerState

SETTINGS = LedgerSettings(window_entries_max=20, append_timeout_s=8.0, read_timeout_s=2.0, change_timeout_s=5.0)


def test_nobody_waits_for_the_connection_of_a_bookie_that_was_replaced() -> None:
    """It stands still with a full connection, and all bookies are needed: the others go on once it is replaced."""
    channel = ChannelSettings(unsent_bytes_high=50_000, request_timeout_s=2.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append(b"first")
            sim.network.partition("client", ledger.metadata.metadata.fragments[0].bookies[0])
            async with asyncio.timeout(60):
                assert len(await ledger.append_many([bytes(20_000)] * 100)) == 100
            sim.network.heal()

    on_cluster(check, bookies=4, pool_settings=PoolSettings(channel=channel))


def test_closed_means_that_nothing_was_sent() -> None:
    """Whoever had entries on their way when the ledger ended is told that nobody knows; others that it is closed."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            many = asyncio.create_task(ledger.append_many([b"%d" % number for number in range(100)]))
            await ledger.wait_acknowledged(EntryId(5), EntryId(5))
            await ledger.close()
            with pytest.raises(AppendOutcomeUnknown) as told:
                await many
            assert told.value.outcome is Outcome.UNKNOWN
            with pytest.raises(LedgerClosed):
                await ledger.append(b"late")

    on_cluster(check, settings=SETTINGS)


def test_an_entry_that_a_recovery_took_in_was_not_refused() -> None:
    """Neither when the ensemble change finds the ledger closed, nor when the writer gives up meanwhile."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async def write() -> None:
            async with ledgers.create() as ledger:
                await ledger.append(b"first")
                deaf, *dumb = ledger.metadata.metadata.fragments[0].bookies
                sim.network.partition("client", deaf, one_way=True)
                for bookie in dumb:
                    sim.network.partition(bookie, "client", one_way=True)
                second = asyncio.create_task(ledger.append(b"second"))
                await asyncio.sleep(0.5)
                async with open_ledgers("memory:simulated", runtime=sim.host("other").runtime) as other:
                    assert (await other.recover(ledger.id)).metadata.last_entry_id == 1
                [told] = await asyncio.gather(second, return_exceptions=True)
                assert isinstance(told, QuireError)
                assert told.outcome is Outcome.UNKNOWN
                sim.network.heal()

        with pytest.raises(LedgerFenced):
            await write()

    on_cluster(check, bookies=8, settings=SETTINGS)


def test_refusals_keep_nothing_of_what_was_refused() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            pass
        for _ in range(50):
            with pytest.raises(LedgerClosed) as told:
                await ledger.append(bytes(1000))
        depth, traceback = 0, told.value.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        assert depth < 20, "one error that is raised again and again grows"

    on_cluster(check, seeds=1)


def test_an_append_is_given_up_in_time_also_if_lacs_are_told_seldom() -> None:
    settings = LedgerSettings(append_timeout_s=8.0, read_timeout_s=2.0, explicit_lac_interval_s=3600.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            for bookie in bookies:
                sim.network.partition(bookie.host.name, "client", one_way=True)
            began_s = ledgers.clock.monotonic()
            with pytest.raises(AppendOutcomeUnknown):
                await ledger.append(b"second")
            assert ledgers.clock.monotonic() - began_s < 30
            sim.network.heal()

    on_cluster(check, bookies=5, settings=settings)


def test_what_is_not_bytes_is_refused_and_costs_nothing() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            for wrong in ["text", 5, None] * 20:
                with pytest.raises(InvalidArgument):
                    await ledger.append(wrong)  # type: ignore[arg-type]
            views: list[Any] = [bytearray(b"a"), memoryview(b"bc")[1:]]
            assert await ledger.append_many(views) == [0, 1]
            assert ledger.statistics().in_flight_bytes == 0
        async with ledgers.open(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"a", b"c"]
        async with ledgers.create_advanced() as advanced:
            good = asyncio.create_task(advanced.append(1, b"good"))
            await asyncio.sleep(0.1)
            with pytest.raises(InvalidArgument):
                await advanced.append(0, "wrong")  # type: ignore[arg-type]
            assert await advanced.append(0, b"right") == 0
            assert await good == 1

    on_cluster(check, settings=SETTINGS)


def test_a_ledger_is_sealed_although_its_last_entries_found_no_quorum() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async def write() -> None:
            async with ledgers.create(ledger_id=7) as ledger:
                await ledger.append(b"first")
                for bookie in bookies:
                    sim.network.partition(bookie.host.name, "client", one_way=True)
                await ledger.enqueue([b"x"] * 5)

        with pytest.raises(AppendOutcomeUnknown):
            await write()
        sim.network.heal()
        assert (await ledgers.ledgers_metadata.read(LedgerId(7))).metadata.state is LedgerState.CLOSED

    on_cluster(check, settings=SETTINGS)


def test_the_window_holds_for_chosen_ids_too() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create_advanced() as ledger:
            appending = asyncio.create_task(ledger.append_many([(number, bytes(100)) for number in range(500)]))
            most = 0
            while not appending.done():
                most = max(most, ledger.statistics().in_flight_entries)
                await asyncio.sleep(0.0005)
            assert await appending == list(range(500))
            assert 10 < most <= 21

    on_cluster(check, settings=SETTINGS)


def test_deferred_sync_needs_all_bookies_from_the_beginning() -> None:
    """Nobody could take the place of one that is missing: no ledger is better than one that ends with its first."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        sim.network.partition("client", bookies[0].host.name)
        with pytest.raises(NotEnoughBookies):
            async with ledgers.create(deferred_sync=True):
                pass
        async with ledgers.create() as ledger:
            await ledger.append(b"an ack quorum is there")
        sim.network.heal()

    on_cluster(check, settings=SETTINGS)


def test_whoever_may_write_large_entries_may_read_them() -> None:
    """The connections' limit follows the writer's. Beyond the bookies' own, the writer is told before it sends."""
    settings = LedgerSettings(frame_bytes_max=6 << 20)

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            folders = BookieFolders("/data", ("/journal0",))
            bookie = SimBookie(
                sim,
                "b0",
                cluster,
                settings=BookieSettings(
                    folders,
                    space=SpaceSettings(reserve_bytes=0),
                    server=ServerSettings(frame_bytes_max=8 << 20),
                ),
            )
            await bookie.start()
            runtime = sim.host("client").runtime
            async with open_ledgers(cluster.uri.text, settings=settings, runtime=runtime) as ledgers:
                async with ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                    await ledger.append(bytes(5 << 20) + b"end")
                async with ledgers.open(ledger.id) as reader:
                    assert [entry.payload[-3:] async for entry in reader.read()] == [b"end"]
            await bookie.stop()

    simulate(1, main, time_limit_s=300)


def test_a_recovery_that_failed_does_not_claim_that_nothing_happened() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            for bookie in ledger.metadata.metadata.fragments[0].bookies[:2]:
                sim.network.partition("other", bookie)
            async with open_ledgers("memory:simulated", settings=SETTINGS, runtime=sim.host("other").runtime) as other:
                with pytest.raises(RecoveryFailed) as told:
                    await other.recover(ledger.id)
            assert told.value.outcome is Outcome.UNKNOWN
            assert (await ledgers.ledgers_metadata.read(ledger.id)).metadata.state is LedgerState.IN_RECOVERY
            sim.network.heal()

    on_cluster(check, settings=SETTINGS)
