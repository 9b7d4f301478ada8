"""The pool in a simulation: lists that are followed, single connections, lost ones, back-offs, TLS."""

import asyncio
import ssl
from collections.abc import Callable

import pytest
from tests.support.scripted_bookie import Sink, add_frame
from tests.unit.ledger.bookies.pool_world import B1, B2, B3, VERSIONS, World, in_world, refusal

from quire.codec.wire import v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import Operation, StartTlsResponse
from quire.errors import BookieUnavailable, DamagedMetadata, QuireError, StoreClosed
from quire.ledger.bookies.pool import PoolSettings, Version
from quire.metadata import ANY_VERSION
from quire.rpc import BookieChannel, ChannelSettings
from quire.types import BookieId, EntryId, LedgerId

# --- Which bookies there are


@pytest.mark.parametrize("seed", range(5))
def test_the_lists_follow_the_cluster(seed: int) -> None:
    async def check(world: World) -> None:
        first = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            assert pool.writable == {B1}
            assert pool.readonly == frozenset()
            second = await world.bookie("b2").start()
            await world.until(lambda: pool.writable == {B1, B2})
            assert second.registration is not None
            await second.registration.set_readonly(True)
            await world.until(lambda: pool.writable == {B1} and pool.readonly == {B2})
            assert pool.health.read_order([B3, B2, B1], world.now) == [B1, B2, B3]
            await first.stop()
            await world.until(lambda: pool.writable == frozenset())
        await second.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_store_out_of_reach_leaves_the_last_known_lists_and_is_asked_again(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            world.cut_off()
            other = await world.bookie("b2").start()
            await bookie.stop()
            await world.pass_time(60.0)
            assert pool.writable == {B1}
            world.bring_back()
            await world.until(lambda: pool.writable == {B2})
            await other.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_listing_is_waited_for_however_long_the_store_is_away(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        world.cut_off()
        async with world.pool() as pool:
            waiting = asyncio.create_task(pool.wait_listed())
            await world.pass_time(200.0)
            assert not waiting.done()
            assert pool.writable == frozenset()
            world.bring_back()
            await waiting
            assert pool.writable == {B1}
        await bookie.stop()

    in_world(check, seed=seed)


def test_a_damaged_list_is_told_to_who_waits_for_it_and_read_again_when_it_is_mended() -> None:
    async def check(world: World) -> None:
        stray = f"{world.cluster.paths.writable}/not a bookie"
        await world.cluster.store.create(stray)
        async with world.pool() as pool:
            with pytest.raises(DamagedMetadata):
                await pool.wait_listed()
            bookie = await world.bookie("b1").start()
            await world.cluster.store.delete(stray, expected=ANY_VERSION)
            await world.until(lambda: pool.writable == {B1})
            await pool.wait_listed()
            await world.cluster.store.create(stray)
            await world.pass_time(30.0)
            assert pool.writable == {B1}
            await pool.wait_listed()
        await bookie.stop()

    in_world(check)


def test_nobody_waits_for_a_list_that_cannot_come() -> None:
    async def check(world: World) -> None:
        world.cut_off()
        async with world.pool() as pool:
            waiting = asyncio.create_task(pool.wait_listed())
            await world.pass_time(1.0)
        with pytest.raises(BookieUnavailable, match="was closed"):
            await waiting
        await world.client.store.aclose()
        async with world.pool() as pool:
            with pytest.raises(StoreClosed):
                await pool.wait_listed()

    in_world(check)


# --- One connection


def test_a_channel_is_there_once_connected_and_each_version_has_its_own() -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            assert pool.channel(B1, 2) is None
            second = await pool.connect(B1, 2, timeout_s=5.0)
            assert pool.channel(B1, 2) is second
            assert pool.channel(B1, 3) is None
            third = await pool.connect(B1, 3, timeout_s=5.0)
            assert third is not second
            began = world.now
            assert await pool.connect(B1, 2, timeout_s=5.0) is second
            assert await pool.connect(B1, 3, timeout_s=5.0) is third
            assert world.now == began
            assert len(bookie.accepted) == 2
            assert pool.statistics().open_channels == 2
        assert second.closed
        assert third.closed
        await bookie.stop()

    in_world(check)


@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_who_connect_at_once_share_one_connection(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            channels = await asyncio.gather(*(pool.connect(B1, 2, timeout_s=5.0) for _ in range(100)))
            assert set(channels) == {pool.channel(B1, 2)}
            assert len(bookie.accepted) == 1
        await bookie.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_to_cancel_some_at_any_moment_leaves_the_others_their_connection(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        rng = world.sim.rng
        async with world.pool() as pool:
            waiters = [asyncio.create_task(pool.connect(B1, 2, timeout_s=5.0)) for _ in range(10)]
            doomed = rng.sample(waiters, rng.randrange(1, 10))
            for waiter in doomed:
                await world.pass_time(rng.random() * 0.002)
                waiter.cancel()
            results = await asyncio.gather(*waiters, return_exceptions=True)
            for waiter, result in zip(waiters, results, strict=True):
                if waiter not in doomed:
                    assert result is pool.channel(B1, 2)
            assert len(bookie.accepted) == 1
        await bookie.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_the_connection_is_made_even_if_all_who_wanted_it_have_gone(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        sim = world.sim
        async with world.pool() as pool:
            waiter = asyncio.create_task(pool.connect(B1, 2, timeout_s=5.0))
            await world.pass_time(0.000_01)
            waiter.cancel()
            await world.until(lambda: pool.channel(B1, 2) is not None)
            sim.host("nobody")
            for _ in range(3):  # A failure that nobody asks about is no unhandled error either.
                waiter = asyncio.create_task(pool.connect(BookieId("nobody:1"), 2, timeout_s=5.0))
                await world.pass_time(0.000_01)
                waiter.cancel()
                await world.pass_time(1.0)
            assert pool.statistics().failures == {"nobody:1": 3}
        await bookie.stop()

    in_world(check, seed=seed)


def test_who_has_no_more_patience_leaves_and_the_next_one_joins_the_same_attempt() -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool(PoolSettings(channel=ChannelSettings(connect_timeout_s=60.0))) as pool:
            world.sim.network.partition("client", "b1")
            began = world.now
            error = await refusal(pool.connect(B1, 2, timeout_s=2.0))
            assert "within 2 s" in str(error)
            assert world.now - began == pytest.approx(2.0)
            joined = asyncio.create_task(pool.connect(B1, 2, timeout_s=60.0))
            await world.pass_time(10.0)
            world.sim.network.heal()
            assert await joined is pool.channel(B1, 2)
            assert len(bookie.accepted) == 1
        await bookie.stop()

    in_world(check)


# --- Lost channels


@pytest.mark.parametrize("seed", range(20))
def test_a_closed_channel_is_never_handed_out(seed: int) -> None:
    """ClosedIsGone. Whatever closes it, and whoever notices first."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            ends: list[Callable[[], None]] = [
                lambda: world.sim.network.reset_all("b1"),
                lambda: bookie.connected[0].transport.close(),
                lambda: bookie.connected[0].say(bytes(4)),  # A violation of the protocol.
            ]
            for end in ends:
                channel = await pool.connect(B1, 2, timeout_s=5.0)
                await world.until(lambda: bool(bookie.connected))
                await world.pass_time(2.0)
                end()
                while not channel.closed:
                    assert pool.channel(B1, 2) is channel
                    await world.pass_time(0.000_01)
                assert pool.channel(B1, 2) is None
                assert pool.statistics().open_channels == 0
                again = await pool.connect(B1, 2, timeout_s=5.0)
                assert again is not channel
                assert not again.closed
            assert len(bookie.accepted) == 4
        await bookie.stop()

    in_world(check, seed=seed)


def test_who_hears_of_lost_adds_finds_the_channel_gone_already() -> None:
    """A writer asks for a channel in the very call that tells it of the loss."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        found: list[BookieChannel | None] = []
        async with world.pool() as pool:

            class AskingSink(Sink):
                def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
                    super().on_add_lost(entry_ids, error)
                    found.append(pool.channel(B1, 2))

            sink = AskingSink()
            channel = await pool.connect(B1, 2, timeout_s=5.0)
            channel.send_adds(LedgerId(1), [add_frame(1)], [EntryId(1)], sink)
            await bookie.accepted[0].hear(1)
            bookie.accepted[0].say(bytes(4))
            await sink.until(lambda: bool(sink.lost))
            assert found == [None]
        await bookie.stop()

    in_world(check)


def test_an_attempt_that_somebody_else_ends_keeps_nobody_waiting() -> None:
    """As the end of a program does, which cancels all tasks."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            waiter = asyncio.create_task(pool.connect(B1, 2, timeout_s=5.0))
            await world.pass_time(0.000_01)
            (attempt,) = (task for task in world.sim.loop.pending_tasks() if task.get_name() == "bookie b1 version 2")
            attempt.cancel()
            assert "given up" in str(await refusal(waiter))
            await pool.connect(B1, 2, timeout_s=5.0)
        await bookie.stop()

    in_world(check)


@pytest.mark.parametrize("latency_s", [0.001, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_a_bookie_that_closes_every_connection_is_not_hammered(seed: int, latency_s: float) -> None:
    """However long it takes to make one."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        world.sim.network.latency_s = (latency_s, latency_s)
        bookie.closes_at_once = True
        async with world.pool() as pool:
            began = world.now
            while world.now < began + 60.0:
                try:
                    await pool.connect(B1, 2, timeout_s=5.0)
                except BookieUnavailable:
                    pass
                await world.pass_time(0.01)
            assert 8 <= len(bookie.accepted) <= 26
            bookie.closes_at_once = False
            async with asyncio.timeout(8.0):
                while pool.channel(B1, 2) is None:
                    try:
                        await pool.connect(B1, 2, timeout_s=5.0)
                    except BookieUnavailable:
                        await world.pass_time(0.01)
        await bookie.stop()

    in_world(check, seed=seed)


# --- Back-off


@pytest.mark.parametrize("seed", range(10))
def test_after_a_failure_callers_fail_at_once_until_the_next_try_is_due(seed: int) -> None:
    """TriedInTurn: a refusal that takes no time was no try."""

    async def check(world: World) -> None:
        nowhere = BookieId("host:1")
        world.sim.host("host")
        async with world.pool() as pool:
            waits = []
            for _ in range(10):
                began = world.now
                error = await refusal(pool.connect(nowhere, 2, timeout_s=5.0))
                assert world.now > began, "this one was a try"
                assert "cannot be reached" in str(error)
                began = world.now
                told_s = error.facts["retry_in_s"]
                assert isinstance(told_s, float)
                waits.append(told_s)
                for version in VERSIONS:
                    fast = await refusal(pool.connect(nowhere, version, timeout_s=5.0))
                    assert world.now == began
                    assert fast.facts["retry_in_s"] == pytest.approx(told_s)
                    assert "cannot be reached" in str(fast)
                    assert "next try" in str(fast)
                await world.pass_time(told_s + 1e-6)
            assert 0.1 <= waits[0] <= 0.2
            assert all(2.5 <= wait_s <= 5.0 for wait_s in waits[6:])
            assert pool.statistics().failures == {nowhere: 10}
            assert pool.health.read_order([nowhere, B1], world.now)[-1] == nowhere

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_everyone_who_waits_for_a_failure_gets_an_error_of_their_own(seed: int) -> None:
    async def check(world: World) -> None:
        world.sim.host("host")
        async with world.pool() as pool:
            waiters = (pool.connect(BookieId("host:1"), version, timeout_s=5.0) for version in VERSIONS * 20)
            errors = await asyncio.gather(*waiters, return_exceptions=True)
            assert all(isinstance(error, BookieUnavailable) for error in errors)
            assert len({id(error) for error in errors}) == 40
            error = await refusal(pool.connect(BookieId("host:1"), 2, timeout_s=5.0))
            waited_s = error.facts["retry_in_s"]
            assert isinstance(waited_s, float)
            assert waited_s <= 0.2, "the two versions failed once"

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_bookie_that_registers_anew_is_tried_at_once(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            await bookie.stop()
            await world.until(lambda: pool.writable == frozenset())
            for _ in range(8):
                error = await refusal(pool.connect(B1, 2, timeout_s=5.0))
                waited_s = error.facts["retry_in_s"]
                assert isinstance(waited_s, float)
                await world.pass_time(waited_s + 1e-6)
            await refusal(pool.connect(B1, 2, timeout_s=5.0))
            bookie = await world.bookie("b1").start()
            await world.until(lambda: pool.writable == {B1})
            await pool.connect(B1, 2, timeout_s=5.0)
        await bookie.stop()

    in_world(check, seed=seed)


# --- TLS


@pytest.mark.parametrize("version", VERSIONS)
def test_with_tls_every_channel_asks_for_it_first(version: Version) -> None:
    """In clear a pool with TLS says nothing else. (The handshake itself is for real sockets.)"""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool(tls=ssl.create_default_context()) as pool:
            connecting = asyncio.create_task(pool.connect(B1, version, timeout_s=5.0))
            await world.until(lambda: bool(bookie.connected))
            request = await bookie.accepted[0].hear_v3()
            assert request.operation is Operation.START_TLS
            assert pool.channel(B1, version) is None
            bookie.accepted[0].say(v3.encode_response(request.txn_id, Status.EBADREQ, StartTlsResponse()))
            assert "did not agree to TLS" in str(await refusal(connecting))
            assert bookie.accepted[0].heard == []
        await bookie.stop()

    in_world(check)
