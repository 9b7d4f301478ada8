"""Where the pool looks for a bookie: as published, as its id says, and never where it used to be."""

import asyncio
from typing import Any

import pytest
from tests.unit.ledger.bookies.pool_world import B1, B2, DEADLINE_S, VERSIONS, World, at, in_world, refusal

from quire.codec.registration import BookieServiceInfo, Endpoint, encode_service_info
from quire.errors import BookieUnavailable
from quire.metadata import ANY_VERSION
from quire.metadata.bookies import Bookies
from quire.testing import SimHostNetwork
from quire.types import BookieId

# --- Addresses


@pytest.mark.parametrize("seed", range(20))
def test_a_restarted_bookie_is_found_at_its_new_port_though_another_one_has_the_old(seed: int) -> None:
    """The pool never talks to whoever listens where a bookie used to be."""

    async def check(world: World) -> None:
        first = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            for version in VERSIONS:
                await pool.connect(B1, version, timeout_s=5.0)
            old_port = first.port
            await first.stop()
            impostor = world.bookie("b2", host="b1")
            await impostor.listen(old_port)
            second = await world.bookie("b1").start()
            assert second.port != old_port
            async with asyncio.timeout(DEADLINE_S):
                while len(second.connected) < 2:
                    for version in VERSIONS:
                        try:
                            await pool.connect(B1, version, timeout_s=5.0)
                        except BookieUnavailable:
                            pass
                    await world.pass_time(world.sim.rng.random() * 0.01)
            assert impostor.accepted == []
        for bookie in (second, impostor):
            await bookie.stop()

    in_world(check, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_bookie_that_moved_is_not_sought_on_a_machine_that_has_fallen_silent(seed: int) -> None:
    """Method: the old machine is cut off, so that its connections never break; the bookie registers elsewhere."""

    async def check(world: World) -> None:
        old = await world.bookie("b1", host="old").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            channel = await pool.connect(B1, 2, timeout_s=5.0)
            world.sim.network.partition("client", "old")
            await old.stop()
            await world.until(lambda: pool.writable == frozenset())
            assert pool.channel(B1, 2) is channel
            new = await world.bookie("b1", host="new").start()
            await world.until(lambda: pool.channel(B1, 2) is not channel)
            await world.until(lambda: channel.closed)
            await pool.connect(B1, 2, timeout_s=5.0)
            assert len(new.accepted) == 1
            world.sim.network.heal()
        await new.stop()

    in_world(check, seed=seed)


def test_an_address_that_failed_is_looked_up_again() -> None:
    """Method: the bookie publishes another port while it stays listed, as after a restart that nobody saw."""

    async def check(world: World) -> None:
        path = f"{world.cluster.paths.writable}/b1"
        world.sim.host("b1")
        await world.cluster.store.create(path, encode_service_info(at("b1", 9)))
        bookie = world.bookie("b1")
        async with world.pool() as pool:
            await pool.wait_listed()
            error = await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert "b1:9 cannot be reached" in str(error)
            await bookie.listen()
            await world.cluster.store.set(path, encode_service_info(at("b1", bookie.port)), expected=ANY_VERSION)
            await world.pass_time(0.2)
            await pool.connect(B1, 2, timeout_s=5.0)
        await bookie.stop()

    in_world(check)


def test_a_bookie_that_is_down_for_certain_is_not_sought_where_it_was() -> None:
    """Even when the store cannot be asked afterwards: another bookie may be there by now."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            await pool.connect(B1, 2, timeout_s=5.0)
            port = bookie.port
            await bookie.stop()
            impostor = world.bookie("b2", host="b1")
            await impostor.listen(port)
            await world.until(lambda: pool.channel(B1, 2) is None)
            for _ in range(5):
                await refusal(pool.connect(B1, 2, timeout_s=5.0))
                await world.pass_time(5.0)
            world.cut_off()
            await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert impostor.accepted == []
            world.bring_back()
        await impostor.stop()

    in_world(check)


def test_an_answer_that_is_older_than_a_doubt_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the store's answers take a second. While one is on its way the bookie moves, and stays listed."""
    read = Bookies.service_info

    async def read_slowly(bookies: Bookies, bookie: BookieId) -> BookieServiceInfo:
        info = await read(bookies, bookie)
        await asyncio.sleep(1.0)
        return info

    monkeypatch.setattr(Bookies, "service_info", read_slowly)

    async def check(world: World) -> None:
        old, new = world.bookie("b1", host="old"), world.bookie("b1", host="new")
        for bookie in (old, new):
            await bookie.listen()
        path, store = f"{world.cluster.paths.writable}/b1", world.cluster.store
        await store.create(path, encode_service_info(at("old", old.port)))
        async with world.pool() as pool:
            await pool.connect(B1, 2, timeout_s=5.0)
            await store.delete(path, expected=ANY_VERSION)
            await world.until(lambda: pool.writable == frozenset())
            await store.create(path, encode_service_info(at("old", old.port)))
            await world.until(lambda: pool.writable == {B1})
            await world.pass_time(0.1)  # The pool has asked where the bookie is now.
            await store.set(path, encode_service_info(at("new", new.port)), expected=ANY_VERSION)
            old.connected[0].transport.close()
            await world.pass_time(5.0)
            await pool.connect(B1, 2, timeout_s=5.0)
            assert len(old.accepted) == 1
            assert len(new.accepted) == 1
        for bookie in (old, new):
            await bookie.stop()

    in_world(check)


def test_a_bookie_that_registers_again_where_it_was_keeps_its_channels() -> None:
    async def check(world: World) -> None:
        bookie = world.bookie("b1")
        await bookie.listen()
        async with world.pool() as pool:
            async with world.cluster.bookies.register(B1, at("b1", bookie.port)):
                await world.until(lambda: B1 in pool.writable)
                channel = await pool.connect(B1, 2, timeout_s=5.0)
            await world.until(lambda: B1 not in pool.writable)
            async with world.cluster.bookies.register(B1, at("b1", bookie.port)):
                await world.until(lambda: B1 in pool.writable)
                await world.pass_time(60.0)
                assert pool.channel(B1, 2) is channel
        await bookie.stop()

    in_world(check)


def test_a_bookie_that_published_nothing_is_at_its_id() -> None:
    """As Apache's old bookies are; and so is one that is not registered now."""

    async def check(world: World) -> None:
        old, absent = BookieId("b1:3181"), BookieId("b2:3181")
        await world.cluster.store.create(f"{world.cluster.paths.writable}/{old}")
        first, second = world.bookie("b1"), world.bookie("b2")
        await first.listen(3181)
        await second.listen(3181)
        async with world.pool() as pool:
            await pool.connect(old, 2, timeout_s=5.0)
            await pool.connect(absent, 2, timeout_s=5.0)
        assert len(first.accepted) == len(second.accepted) == 1
        for bookie in (first, second):
            await bookie.stop()

    in_world(check)


@pytest.mark.parametrize(
    ("published", "problem"),
    [
        (encode_service_info(BookieServiceInfo((Endpoint("web", "b1", 80, "http"),))), None),
        (b"\xff\xff", None),
        (encode_service_info(at("b1", 0)), "no address of bookie"),
        (encode_service_info(at("b1", 70_000)), "no address of bookie"),
        (encode_service_info(at("", 3181)), "no address of bookie"),
        (encode_service_info(at("elsewhere", 3181)), "elsewhere:3181 cannot be reached"),
    ],
)
def test_addresses_that_are_none(published: bytes, problem: str | None) -> None:
    """Without an endpoint for clients the id has to do. An endpoint that is wrong is an error, whatever the id says."""

    async def check(world: World) -> None:
        old = BookieId("b1:3181")
        await world.cluster.store.create(f"{world.cluster.paths.writable}/{old}", published)
        bookie = world.bookie("b1")
        await bookie.listen(3181)
        async with world.pool() as pool:
            if problem is None:
                await pool.connect(old, 2, timeout_s=5.0)
            else:
                error = await refusal(pool.connect(old, 2, timeout_s=5.0))
                assert error.facts["bookie"] == old
                assert problem in str(error)
        await bookie.stop()

    in_world(check)


def test_a_host_that_no_name_service_can_be_asked_for_is_an_unreachable_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()

        async def refuse(*_: object, **__: object) -> Any:
            raise UnicodeError("label too long")

        monkeypatch.setattr(SimHostNetwork, "connect", refuse)
        async with world.pool() as pool:
            error = await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert "is no address" in str(error)
        await bookie.stop()

    in_world(check)


def test_a_bookie_that_is_not_registered_and_whose_id_is_no_address_is_unavailable() -> None:
    async def check(world: World) -> None:
        async with world.pool() as pool:
            error = await refusal(pool.connect(B1, 2, timeout_s=5.0))
            assert "no address" in str(error)
            assert "not registered" in str(error)

    in_world(check)


@pytest.mark.parametrize("seed", range(5))
def test_while_the_store_is_out_of_reach_the_last_known_address_has_to_do(seed: int) -> None:
    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            await pool.connect(B1, 2, timeout_s=5.0)
            await world.pass_time(5.0)
            world.cut_off()
            world.sim.network.reset_all("b1")
            await world.until(lambda: pool.channel(B1, 2) is None)
            await pool.connect(B1, 2, timeout_s=5.0)
            assert len(bookie.accepted) == 2
            error = await refusal(pool.connect(B2, 2, timeout_s=5.0))
            assert "no address of bookie b2 is known" in str(error)
            world.bring_back()
        await bookie.stop()

    in_world(check, seed=seed)


def test_an_address_is_looked_up_once_while_it_serves() -> None:
    """Method: the store is out of reach, so that a second look would take time."""

    async def check(world: World) -> None:
        bookie = await world.bookie("b1").start()
        async with world.pool() as pool:
            await pool.wait_listed()
            await pool.connect(B1, 2, timeout_s=5.0)
            world.cut_off()
            began = world.now
            await pool.connect(B1, 3, timeout_s=5.0)
            assert world.now - began < 0.1
            world.bring_back()
        await bookie.stop()

    in_world(check)
