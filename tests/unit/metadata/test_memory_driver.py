"""The in-memory tree as simulations use it: cut off, brought back, expired, in virtual time."""

import asyncio

import pytest

from quire.errors import MetadataUnavailable, SessionExpired
from quire.metadata import ANY_VERSION, MetadataStore, SessionEvent, StoreSettings, open_store
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.testing import Simulation, simulate


async def test_named_trees_are_shared_while_open_and_nameless_ones_never() -> None:
    async with open_store("memory:shared") as first, open_store("memory:shared") as second:
        await first.create("/a")
        assert await second.exists("/a") is not None
    async with open_store("memory:shared") as third:
        assert await third.exists("/a") is None
    async with open_store("memory:") as first, open_store("memory:") as second:
        await first.create("/a")
        assert await second.exists("/a") is None


def client(tree: MemoryTree, sim: Simulation, name: str) -> MetadataStore:
    settings = StoreSettings(operation_timeout_s=5, session_timeout_s=10)
    return MetadataStore(MemoryDriver(tree, settings, sim.host(name).runtime))


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_is_cut_off_for_too_long_gets_an_error_and_loses_its_session(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        tree = MemoryTree()
        async with client(tree, sim, "a") as store:
            await store.create("/mine", ephemeral=True)
            before = store.session
            with store.watch_session() as session:
                tree.disconnect(before)
                assert await session.wait_event() is SessionEvent.SUSPENDED
                with pytest.raises(MetadataUnavailable):
                    await store.get("/mine")
                assert tree.is_alive(before)
                await asyncio.sleep(10)
                assert not tree.is_alive(before)
                tree.reconnect(before)
                assert await session.wait_event() is SessionEvent.EXPIRED
                assert await session.wait_event() is SessionEvent.RESUMED
            assert store.session != before
            assert await store.exists("/mine") is None

    simulate(seed, main)


@pytest.mark.parametrize("seed", range(20))
def test_a_write_under_way_when_the_session_ends_is_done_or_refused_but_never_both(seed: int) -> None:
    async def main(sim: Simulation) -> bool:
        tree = MemoryTree()
        async with client(tree, sim, "a") as store, client(tree, sim, "b") as other:
            await store.create("/a", b"before")
            write = asyncio.create_task(store.set("/a", b"after", expected=ANY_VERSION))
            for _ in range(sim.host("a").runtime.rng.randrange(3)):
                await asyncio.sleep(0)
            tree.expire(store.session)
            (result,) = await asyncio.gather(write, return_exceptions=True)
            refused = isinstance(result, SessionExpired)
            assert (await other.get("/a")).data == (b"before" if refused else b"after")
            return refused

    outcomes = {simulate(seed * 100 + step, main) for step in range(10)}
    assert outcomes == {True, False}, "the moments were all alike: this test proved nothing"
