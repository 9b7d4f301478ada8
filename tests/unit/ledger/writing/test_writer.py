"""One writer, real bookies, a simulated network: windows, order, slow replicas, and how a ledger ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.errors import (
    AppendOutcomeUnknown,
    InvalidArgument,
    LedgerClosed,
    NotEnoughBookies,
    QuireError,
    RequestTooLarge,
    WrongPassword,
)
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.ensemble_change import EnsembleChange
from quire.metadata import StoredLedger
from quire.rpc import ChannelSettings
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import LedgerState

Check = Callable[[Simulation, LedgerClient, list[SimBookie]], Awaitable[None]]
SETTINGS = LedgerSettings(window_entries_max=20, read_timeout_s=2.0, change_timeout_s=5.0)


def on_cluster(
    check: Check,
    *,
    bookies: int = 3,
    settings: LedgerSettings = SETTINGS,
    seeds: int = 2,
    pool_settings: PoolSettings | None = None,
) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            runtime = sim.host("client").runtime
            async with open_ledgers(
                cluster.uri.text, settings=settings, pool_settings=pool_settings, runtime=runtime
            ) as ledgers:
                await check(sim, ledgers, started)
            for bookie in started:
                if bookie.is_running:
                    await bookie.stop()

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=300)


def test_more_than_the_window_waits_and_keeps_its_order() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            assert await ledger.append_many([b"%d" % number for number in range(100)]) == list(range(100))
            calls = [ledger.append_many([b"%d/%d" % (call, step) for step in range(7)]) for call in range(10)]
            given = await asyncio.gather(*calls)
            assert sorted(each for ids in given for each in ids) == list(range(100, 170))
            assert all(ids == sorted(ids) for ids in given)
        async with ledgers.open(ledger.id) as reader:
            found = {entry.entry_id: entry.payload async for entry in reader.read()}
        for call, ids in enumerate(given):
            assert [found[each] for each in ids] == [b"%d/%d" % (call, step) for step in range(7)]

    on_cluster(check)


def test_what_does_not_fit_is_refused_before_anything_is_sent() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            with pytest.raises(RequestTooLarge):
                await ledger.append_many([b"small", bytes(6 << 20)])
            assert ledger.last_add_pushed == -1
            assert await ledger.append(b"still alive") == 0

    on_cluster(check)


def test_a_closed_ledger_takes_nothing_and_says_where_it_ends() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(digest="mac", password=b"secret", custom={"a": b"b"}) as ledger:
            await ledger.enqueue([b"x" * 10] * 15)
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")
        await ledger.close()
        metadata = (await ledgers.ledgers_metadata.read(ledger.id)).metadata
        assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 14, 150)
        with pytest.raises(WrongPassword):
            async with ledgers.open(ledger.id, password=b"wrong"):
                pass
        async with ledgers.open(ledger.id, password=b"secret") as reader:
            with pytest.raises(InvalidArgument):
                [entry async for entry in reader.read(0, 15)]

    on_cluster(check)


def test_a_stalled_replica_costs_a_bounded_amount_of_memory_and_is_replaced() -> None:
    """Nothing reaches one bookie any more, though its connection stands: the others go on, and it is replaced."""
    settings = LedgerSettings(window_entries_max=50, replica_bytes_max=100_000, change_timeout_s=5.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            stalled = ledger.metadata.metadata.fragments[0].bookies[0]
            sim.network.partition("client", stalled)
            most = 0
            for _ in range(100):
                await ledger.append_many([bytes(1000)] * 20)
                most = max(most, ledgers.pool.statistics().unsent_bytes)
            assert most < 400_000
            assert stalled not in ledger.metadata.metadata.fragments[-1].bookies
        async with ledgers.open(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == 2001

    on_cluster(check, bookies=4, settings=settings)


def test_a_burst_as_large_as_the_window_harms_nobody() -> None:
    """More than a bookie's channel takes at once, and than one bookie may be behind: all are equally behind."""
    settings = LedgerSettings(replica_bytes_max=100_000)
    channel = ChannelSettings(unsent_bytes_high=50_000, unsent_bytes_max=400_000)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            assert len(await ledger.append_many([bytes(20_000)] * 100)) == 100
            assert len(ledger.metadata.metadata.fragments) == 1

    on_cluster(check, settings=settings, pool_settings=PoolSettings(channel=channel))


def test_an_entry_without_a_quorum_is_given_up_in_the_end() -> None:
    """Bookies that take and never answer, one after the other: a writer does not go on like that for ever."""
    settings = LedgerSettings(append_timeout_s=8.0, read_timeout_s=2.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"kept")
            for bookie in bookies:
                sim.network.partition(bookie.host.name, "client", one_way=True)
            began = sim.host("client").clock.monotonic()
            with pytest.raises(AppendOutcomeUnknown):
                await ledger.append(b"nobody can tell")
            assert sim.host("client").clock.monotonic() - began < 30
        sim.network.heal()
        assert (await ledgers.ledgers_metadata.read(ledger.id)).metadata.last_entry_id == 0

    on_cluster(check, bookies=5, settings=settings)


def test_without_enough_bookies_there_is_no_ledger_and_no_end_without_a_word() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        with pytest.raises(NotEnoughBookies):
            async with ledgers.create(ensemble=4, write_quorum=3, ack_quorum=2):
                pass
        async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append(b"kept")
            await bookies[0].crash()
            with pytest.raises(AppendOutcomeUnknown):
                await ledger.append(b"nobody can tell")
            with pytest.raises(LedgerClosed):
                await ledger.append(b"nothing more")
        assert (await ledgers.ledgers_metadata.read(ledger.id)).metadata.last_entry_id == 0

    on_cluster(check)


def test_a_bug_in_an_ensemble_change_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever appends is told what became of it; the bug itself still comes to light."""
    told, unhandled = list[QuireError](), list[BaseException | None]()

    async def broken(self: EnsembleChange, stored: StoredLedger) -> StoredLedger:
        raise ZeroDivisionError("planted")

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        monkeypatch.setattr(EnsembleChange, "publish", broken)
        # The bug would end the run at once, in some orders of steps before the append is told.
        monkeypatch.setattr(sim.loop, "record_failure", lambda problem, error: unhandled.append(error))
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            await bookies[0].crash()
            try:
                while True:
                    await ledger.append(b"more")
            except (AppendOutcomeUnknown, LedgerClosed) as error:  # The latter if it broke between two appends.
                told.append(error)

    on_cluster(check, seeds=5)
    assert len(told) == 5
    assert all("planted" in str(error) for error in told)
    assert any(isinstance(error, AppendOutcomeUnknown) for error in told)
    assert [type(error) for error in unhandled] == [ZeroDivisionError] * 5


def test_a_bookie_that_is_not_needed_for_the_quorum_may_be_gone_for_good() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"first")
            await bookies[1].crash()
            for number in range(30):
                await ledger.append(b"%d" % number)
        async with ledgers.open(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == 31

    on_cluster(check)
