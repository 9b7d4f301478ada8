"""The door of the ledger layer: what may be asked for, what calls do when nobody answers, and what is counted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from quire.errors import (
    BookieUnavailable,
    InvalidArgument,
    LedgerExists,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    Outcome,
    QuireError,
    RecoveryFailed,
    WrongPassword,
)
from quire.ledger.bookies.health import HealthSettings
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.metadata.drivers import memory
from quire.rpc import ChannelSettings
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import BookieId, DigestType, LedgerState

Check = Callable[[Simulation, LedgerClient, list[SimBookie]], Awaitable[None]]
PATIENT = StoreSettings(operation_timeout_s=30.0, session_timeout_s=1000.0)  # The client's own deadline comes first.
TIMEOUT_S = 3.0
SOON_TIRED = PoolSettings(channel=ChannelSettings(connect_timeout_s=1.0))
SETTINGS = LedgerSettings(call_timeout_s=TIMEOUT_S, read_timeout_s=2.0)


def on_cluster(
    check: Check,
    *,
    bookies: int = 3,
    settings: LedgerSettings = SETTINGS,
    pool_settings: PoolSettings = SOON_TIRED,
    seeds: int = 2,
) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            async with open_ledgers(
                cluster.uri.text,
                settings=settings,
                pool_settings=pool_settings,
                store_settings=PATIENT,
                runtime=sim.host("client").runtime,
            ) as ledgers:
                await check(sim, ledgers, started)
            for bookie in started:
                if bookie.is_running:
                    await bookie.stop()

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=600)


def cut_off(ledgers: LedgerClient) -> Callable[[], None]:
    """The metadata store does not answer this client any more. Returns how to end that."""
    tree, session = memory._shared["simulated"], ledgers.ledgers_metadata._store.session
    tree.disconnect(session)
    return lambda: tree.reconnect(session)


async def failure(sim: Simulation, call: Awaitable[object]) -> tuple[QuireError, float]:
    """How a call ends, and after how long."""
    began_s = sim.loop.time()
    with pytest.raises(QuireError) as raised:
        await call
    return raised.value, sim.loop.time() - began_s


async def create(ledgers: LedgerClient, **options: int) -> None:
    async with ledgers.create(**options):  # type: ignore[arg-type]
        pass


async def read_all(ledgers: LedgerClient, ledger_id: int, *, recover: bool = True) -> list[bytes]:
    async with ledgers.open(ledger_id, recover=recover) as reader:
        return [entry.payload async for entry in reader.read()]


# --- What may be asked for


def test_a_chosen_id_is_kept_and_used_once() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(ledger_id=77, custom={"who": b"me"}, digest="crc32") as ledger:
            assert ledger.id == 77
            await ledger.append(b"entry")
        error, waited_s = await failure(sim, create(ledgers, ledger_id=77))
        assert isinstance(error, LedgerExists)
        assert waited_s < 1
        assert error.outcome is Outcome.NOT_APPLIED
        assert await read_all(ledgers, 77) == [b"entry"], "the older one is untouched"
        metadata = (await ledgers.ledgers_metadata.read(ledger.id)).metadata
        assert (metadata.digest, metadata.custom["who"]) == (DigestType.CRC32, b"me")

    on_cluster(check)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ledger_id": -1},
        {"ledger_id": 2**63},
        {"ack_quorum": 0},
        {"ack_quorum": 4},
        {"write_quorum": 4},
        {"digest": "md5"},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_stored(wrong: dict[str, int]) -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        error, waited_s = await failure(sim, create(ledgers, **wrong))
        assert isinstance(error, InvalidArgument)
        assert waited_s == 0
        assert [found async for found in ledgers.scan()] == []

    on_cluster(check, seeds=1)


@pytest.mark.parametrize(("ack_quorum", "warnings"), [(1, 1), (2, 0)])
def test_an_ack_quorum_of_one_is_warned_of(ack_quorum: int, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        await create(ledgers, ack_quorum=ack_quorum)

    with caplog.at_level(logging.WARNING, "quire.ledger"):
        on_cluster(check, seeds=1)
    assert [record.__dict__["event"] for record in caplog.records].count("ledger.single_ack") == warnings


def test_the_digest_is_the_one_in_the_metadata_and_the_password_is_checked() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(digest="mac", password=b"secret") as ledger:
            await ledger.append(b"entry")
        async with ledgers.open(ledger.id, password=b"secret") as reader:
            assert [entry.payload async for entry in reader.read()] == [b"entry"]
        error, _ = await failure(sim, read_all(ledgers, ledger.id))
        assert isinstance(error, WrongPassword)
        error, _ = await failure(sim, read_all(ledgers, 1234))
        assert isinstance(error, NoSuchLedger)
        await ledgers.delete(1234)  # As Apache's clients: gone is gone.

    on_cluster(check)


def test_entry_ids_may_be_chosen_too() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create_advanced(ledger_id=9, password=b"pw", custom={"a": b"b"}) as ledger:
            assert ledger.id == 9
            assert await ledger.append_many([(1, b"second"), (0, b"first")]) == [1, 0]
            assert ledgers.statistics().writers == 1
        async with ledgers.open(9, password=b"pw") as reader:
            assert [entry.payload async for entry in reader.read()] == [b"first", b"second"]
            assert reader.metadata.metadata.custom == {"a": b"b"}
        assert ledgers.statistics().writers == 0

    on_cluster(check)


@pytest.mark.parametrize("advanced", [False, True])
def test_deferred_entries_are_in_the_ledger_once_they_are_forced(advanced: bool) -> None:
    """Bookies are connected for the version that this needs before the first append."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        create = ledgers.create_advanced if advanced else ledgers.create
        async with create(deferred_sync=True) as ledger:
            assert all(ledgers.pool.channel(bookie, 3) for bookie in ledgers.pool.writable)
            for number in range(4):
                await ledger.append(*((number, b"entry") if advanced else (b"entry",)))
                if number == 2:
                    await ledger.force()
        assert await read_all(ledgers, ledger.id) == [b"entry"] * 3

    on_cluster(check)


def test_settings_that_deferred_sync_cannot_keep_are_refused_before_anything_is_stored() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        with pytest.raises(InvalidArgument):
            async with ledgers.create(deferred_sync=True):
                pass
        assert [found async for found in ledgers.scan()] == []

    on_cluster(check, settings=LedgerSettings(delay_ensemble_change=True), seeds=1)


# --- Bookies that are listed and out of reach


def test_a_new_ledger_gets_bookies_that_can_be_reached() -> None:
    """One of four is listed and out of reach. No ledger begins with it, so none has to change its first ensemble."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        sim.network.partition("client", "b1")
        for _ in range(10):
            async with ledgers.create() as ledger:
                await ledger.append(b"entry")
            fragments = ledger.metadata.metadata.fragments
            assert len(fragments) == 1
            assert "b1" not in fragments[0].bookies
        assert ledgers.statistics().created == 10

    on_cluster(check, bookies=4)


def test_a_place_may_stay_vacant_as_long_as_quorums_are_reached() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        sim.network.partition("client", "b1")
        async with ledgers.create() as ledger:
            await ledger.append(b"two of three have it")
        error, waited_s = await failure(sim, create(ledgers, ack_quorum=3))
        assert isinstance(error, NotEnoughBookies)
        assert waited_s < TIMEOUT_S
        assert "bookie b1" in str(error)
        assert error.facts["unreachable"] == ["b1"]
        assert [found async for found in ledgers.scan()] == [ledger.id], "nothing was stored"

    on_cluster(check)


def test_one_failure_to_connect_is_one_however_many_wait_for_it() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        sim.network.partition("client", "b1")
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(create(ledgers))
        assert ledgers.statistics().pool.failures == {"b1": 1}
        with pytest.raises(BookieUnavailable) as raised:
            await ledgers.pool.connect(BookieId("b1"), 2, timeout_s=2.0)
        for _ in range(20):  # As readers and writers do with whatever kept them from an answer.
            ledgers.on_bookie_error(BookieId("b1"), raised.value)
        assert ledgers.statistics().pool.failures[BookieId("b1")] <= 2
        assert ledgers.statistics().pool.quarantined == frozenset()

    on_cluster(
        check,
        bookies=4,
        pool_settings=PoolSettings(
            channel=SOON_TIRED.channel, health=HealthSettings(errors_max=10, unreachable_counts=True)
        ),
    )


def test_reads_that_time_out_bring_a_bookie_into_quarantine_and_new_ledgers_elsewhere() -> None:
    settings = LedgerSettings(read_timeout_s=1.0, speculative_read_s=0.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(ensemble=3, write_quorum=1, ack_quorum=1) as ledger:
            await ledger.append_many([b"entry"] * 9)
        async with ledgers.open(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == 9
            silent = reader.metadata.metadata.fragments[0].bookies[0]
            sim.network.partition("client", silent)
            for entry_id in (0, 3, 6):
                assert ledgers.statistics().pool.quarantined == frozenset()
                with pytest.raises(BookieUnavailable):
                    [entry async for entry in reader.read(entry_id, entry_id)]
            assert ledgers.statistics().pool.quarantined == {silent}
        sim.network.heal()
        for _ in range(10):
            async with ledgers.create() as ledger:
                assert silent not in ledger.metadata.metadata.fragments[0].bookies

    on_cluster(
        check, bookies=4, settings=settings, pool_settings=PoolSettings(health=HealthSettings(errors_max=3)), seeds=1
    )


# --- Every call ends


def test_without_a_list_of_bookies_no_ledger_is_created() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        bring_back = cut_off(ledgers)
        error, waited_s = await failure(sim, create(ledgers))
        assert isinstance(error, MetadataUnavailable)
        assert waited_s == pytest.approx(TIMEOUT_S)
        assert "no ledger was created" in str(error)
        bring_back()
        await create(ledgers)

    on_cluster(check)


def test_calls_end_while_the_metadata_store_is_away_and_work_when_it_is_back() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        await create(ledgers, ledger_id=5)
        bring_back = cut_off(ledgers)
        for call, kind in (
            (create(ledgers, ledger_id=6), MetadataOutcomeUnknown),
            (read_all(ledgers, 5), MetadataUnavailable),
            (ledgers.recover(5), MetadataUnavailable),
            (ledgers.delete(5), MetadataOutcomeUnknown),
        ):
            error, waited_s = await failure(sim, call)
            assert type(error) is kind
            assert waited_s == pytest.approx(TIMEOUT_S)
            assert error.retryable
            assert error.hint
        bring_back()
        assert await read_all(ledgers, 5) == []
        await ledgers.delete(5)
        assert ledgers.statistics().failed_calls == 3, "reading metadata for a recovery is not yet one"

    on_cluster(check)


def test_recovery_and_tailing_end_while_bookies_are_silent() -> None:
    settings = LedgerSettings(call_timeout_s=TIMEOUT_S, read_timeout_s=10.0)

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.append(b"entry")
            for bookie in bookies:
                sim.network.partition("client", bookie.host.name)
            error, waited_s = await failure(sim, read_all(ledgers, ledger.id, recover=False))
            assert isinstance(error, BookieUnavailable)
            assert waited_s == pytest.approx(TIMEOUT_S)
            error, waited_s = await failure(sim, ledgers.recover(ledger.id))
            assert isinstance(error, RecoveryFailed)
            assert waited_s == pytest.approx(TIMEOUT_S)
            sim.network.heal()
            stored = await ledgers.recover(ledger.id)
            assert (stored.metadata.state, stored.metadata.last_entry_id) == (LedgerState.CLOSED, 0)

    on_cluster(check, settings=settings, pool_settings=PoolSettings())


def test_a_call_that_is_cancelled_is_cancelled() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        await ledgers.pool.wait_listed()
        cut_off(ledgers)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await create(ledgers)

    on_cluster(check, seeds=1)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_is_a_time(wrong: float) -> None:
    with pytest.raises(InvalidArgument):
        LedgerSettings(call_timeout_s=wrong)


# --- What is counted


def test_statistics_tell_what_the_client_did_and_does() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create() as ledger:
            await ledger.enqueue([b"entry"] * 3)
            during = ledgers.statistics()
            assert (during.created, during.writers, during.in_flight_entries) == (1, 1, 3)
            assert during.pool.open_channels == 3
            await ledger.flush()
            assert ledgers.statistics().in_flight_entries == 0
        assert await read_all(ledgers, ledger.id) == [b"entry"] * 3
        await ledgers.delete(ledger.id)
        after = ledgers.statistics()
        assert (after.writers, after.opened, after.deleted, after.failed_calls) == (0, 1, 1, 0)
        assert BookieId("b0") in ledgers.pool.writable

    on_cluster(check)
