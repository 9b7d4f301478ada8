"""The pool's statistics, its end at any moment, and everything at once with real bookies."""

import asyncio
import os

import pytest
from tests.support.scripted_bookie import Sink
from tests.unit.ledger.bookies.pool_world import B1, B2, B3, VERSIONS, World, in_world, refusal

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.space import SpaceSettings
from quire.codec.wire import v2
from quire.errors import BookieFailed, BookieUnavailable, InvalidArgument, NoSuchLedger, QuireError
from quire.ledger.bookies.pool import BookiePool, PoolSettings
from quire.metadata import open_cluster
from quire.rpc import BookieChannel
from quire.runtime import Runtime
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.testing.sim_bookie import SMALL_STORAGE
from quire.types import BookieId, EntryId, LedgerId

# --- Statistics and endings


def test_statistics_tell_what_waits_and_who_fails() -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            assert pool.statistics().open_channels == 0
            channel = await pool.connect(B1, 2, timeout_s=5.0)
            frame = v2.encode_read_request(LedgerId(1), EntryId(1), flags=0, master_key=None)
            channel.send_adds(LedgerId(1), [frame], [EntryId(1)], Sink())
            assert pool.statistics().unsent_bytes == channel.unsent_bytes > 0
            for _ in range(100):
                pool.health.on_error(B1, BookieFailed("a disk is sick"), world.now)
            statistics = pool.statistics()
            assert statistics.failures == {B1: 100}
            assert statistics.quarantined == {B1}
        await bookie.stop()

    in_world(check)


@pytest.mark.parametrize("seed", range(10))
def test_closing_a_bookie_ends_its_channels_and_attempts_and_forgets_its_failures(seed: int) -> None:
    async def check(world: World) -> None:
        bookie, other = await world.bookie("b1").start(), await world.bookie("b2").start()
        async with world.pool() as pool:
            channel = await pool.connect(B1, 2, timeout_s=5.0)
            kept = await pool.connect(B2, 2, timeout_s=5.0)
            connecting = asyncio.create_task(pool.connect(B1, 3, timeout_s=5.0))
            await world.pass_time(world.sim.rng.random() * 0.005)
            await pool.close_bookie(B1)
            assert channel.closed
            assert pool.channel(B1, 2) is None
            assert pool.channel(B1, 3) is None
            assert pool.channel(B2, 2) is kept
            assert not kept.closed
            (result,) = await asyncio.gather(connecting, return_exceptions=True)
            if isinstance(result, BookieChannel):
                assert result.closed
            else:
                assert isinstance(result, BookieUnavailable)
            await world.until(lambda: bookie.connected == [])
            await pool.connect(B1, 2, timeout_s=5.0)
            await bookie.stop()
            await world.until(lambda: pool.channel(B1, 2) is None)
            for _ in range(2):
                await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert pool.statistics().failures == {B1: 1}, "the second was in the back-off"
            await pool.close_bookie(B1)
            await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert pool.statistics().failures == {B1: 2}, "this was a try"
        await other.stop()

    in_world(check, seed=seed)


def test_what_was_sent_before_the_end_still_arrives() -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            channel = await pool.connect(B1, 2, timeout_s=5.0)
            frame = v2.encode_read_request(LedgerId(1), EntryId(1), flags=0, master_key=None)
            channel.send_adds(LedgerId(1), [frame] * 100, [EntryId(number) for number in range(100)], Sink())
        await bookie.accepted[0].hear(100)
        await bookie.stop()

    in_world(check)


@pytest.mark.parametrize("seed", range(60))
def test_the_block_may_end_at_any_moment_of_a_connection(seed: int) -> None:
    """NothingStays: `in_world` looks for tasks and connections; here all who waited come back."""

    async def check(world: World) -> None:
        rng = world.sim.rng
        bookies = [await world.bookie(name).start() for name in ("b1", "b2")]
        if rng.random() < 0.3:
            world.sim.network.partition("client", "b1", one_way=rng.random() < 0.5)
        if rng.random() < 0.2:
            world.cut_off()
        async with world.pool() as pool:
            ids = [B1, B2, B3, BookieId("b1:1")]
            waiters = [
                asyncio.create_task(pool.connect(bookie, version, timeout_s=60.0))
                for bookie in ids
                for version in VERSIONS
            ]
            await world.pass_time(rng.random() * 0.03)
        ended = world.now
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert world.now == ended, "nobody waits once the block is over"
        for result in results:
            assert isinstance(result, BookieUnavailable) or (isinstance(result, BookieChannel) and result.closed)
        error = await refusal(pool.connect(B1, 2, timeout_s=5.0))
        assert "closed" in str(error)
        assert pool.channel(B1, 2) is None
        world.sim.network.heal()
        for bookie in bookies:
            await bookie.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(60))
def test_a_user_cancelled_at_any_moment_leaves_nothing_behind(seed: int) -> None:
    """Also in the middle of the end, which then takes no grace any more."""

    async def check(world: World) -> None:
        rng = world.sim.rng
        bookie = await world.bookie("b1").start()

        async def use() -> None:
            async with world.pool() as pool:
                channel = await pool.connect(B1, 2, timeout_s=60.0)
                frame = v2.encode_read_request(LedgerId(1), EntryId(1), flags=0, master_key=None)
                channel.send_adds(LedgerId(1), [frame] * 9000, [EntryId(number) for number in range(9000)], Sink())
                if rng.random() < 0.5:
                    world.sim.network.partition("client", "b1")  # So that closing has to wait.
                await pool.connect(B1, 3, timeout_s=0.01)

        task = asyncio.create_task(use())
        await world.pass_time(rng.random() * 0.05)
        task.cancel()
        if rng.random() < 0.5:
            await world.pass_time(rng.random() * 0.5)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert result is None or isinstance(result, (asyncio.CancelledError, QuireError))
        world.sim.network.heal()
        await bookie.stop()

    in_world(check, seed=seed)


# --- Everything at once, with real bookies


@pytest.mark.parametrize("seed", range(1000 if os.environ.get("QUIRE_TEST_LONG") else 15))
def test_among_crashes_partitions_and_moves_every_answer_is_that_of_the_right_bookie(seed: int) -> None:
    """Bookies come back at other ports. When all is well again, everybody is reached in both versions.

    OneConnection is checked all the while: no bookie ever sees a third connection that the client still uses.
    """

    async def main(sim: Simulation) -> int:
        answers = 0
        network = sim.network

        def in_use(name: str) -> int:
            ends = (end for end in network._connections if end.host == "client" and end.peer.host == name)
            return sum(not end.is_closing() for end in ends)

        async def use(pool: BookiePool, runtime: Runtime) -> None:
            nonlocal answers
            while True:
                name, version = runtime.rng.choice(list(bookies)), runtime.rng.choice(VERSIONS)
                bookie = BookieId(name)
                assert in_use(name) <= 2
                try:
                    channel = pool.channel(bookie, version)
                    if channel is None:
                        channel = await pool.connect(bookie, version, timeout_s=runtime.rng.random() * 2)
                    assert not channel.closed
                    assert channel.bookie.startswith(f"{name}:")
                    if version == 2:
                        await channel.read(LedgerId(7), EntryId(0), timeout_s=1.0)
                    else:
                        await channel.bookie_info(timeout_s=1.0)
                        pool.health.on_success(bookie)
                        answers += 1
                except NoSuchLedger:
                    pool.health.on_success(bookie)
                    answers += 1
                except QuireError as error:
                    assert isinstance(error, BookieUnavailable), repr(error)
                    pool.health.on_error(bookie, error, runtime.clock.monotonic())
                await asyncio.sleep(runtime.rng.random() * 0.3)

        async def trouble() -> None:
            for _ in range(8):
                await asyncio.sleep(sim.rng.random() * 2)
                name, kind = sim.rng.choice(list(bookies)), sim.rng.random()
                if kind < 0.4:
                    await bookies[name].crash(power_loss=kind < 0.2)
                    await asyncio.sleep(sim.rng.random())
                    await bookies[name].start()
                elif kind < 0.6:
                    network.partition("client", name, one_way=kind < 0.5, reset_after_s=None if kind < 0.45 else 0.5)
                elif kind < 0.8:
                    network.heal()
                else:
                    network.reset_all(name)
            network.heal()

        async with sim_cluster(sim) as cluster:
            settings = BookieSettings(
                BookieFolders("/data", ("/journal",)),
                port=0,
                storage=SMALL_STORAGE,
                space=SpaceSettings(reserve_bytes=0),
            )
            bookies = {name: SimBookie(sim, name, cluster, settings=settings) for name in ("b1", "b2", "b3")}
            for bookie in bookies.values():
                await bookie.start()
            runtime = sim.host("client").runtime
            async with open_cluster(cluster.uri, runtime=runtime) as client:
                async with BookiePool(runtime, client.bookies, PoolSettings()) as pool:
                    await pool.wait_listed()
                    users = [asyncio.create_task(use(pool, runtime)) for _ in range(6)]
                    await trouble()
                    before = answers
                    await asyncio.sleep(8.0)
                    for user in users:
                        user.cancel()
                    ended = await asyncio.gather(*users, return_exceptions=True)
                    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
                    assert answers > before
                    assert pool.writable == set(bookies)
                    for name, bookie in bookies.items():
                        for version in VERSIONS:
                            channel = await pool.connect(BookieId(name), version, timeout_s=5.0)
                            assert channel.bookie == f"{name}:{bookie.port}"
                assert sum(map(in_use, bookies)) == 0
            for bookie in bookies.values():
                await bookie.stop()
        return answers

    assert simulate(seed, main) > 100


@pytest.mark.parametrize("wrong", [{"retry_s_min": 0.0}, {"retry_s_min": 6.0}, {"lookup_timeout_s": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        PoolSettings(**wrong)  # type: ignore[arg-type]
