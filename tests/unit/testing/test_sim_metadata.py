"""`SimTree`: what can go wrong between metadata in memory and the clients of a simulation."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.errors import InvariantBroken, MetadataOutcomeUnknown, MetadataUnavailable
from quire.metadata import ANY_VERSION, MetadataStore, StoreSettings, init_cluster, open_store, parse_uri
from quire.testing import SimTree, Simulation, sim_cluster, sim_tree, simulate

URI = "memory:simulated"
SETTINGS = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)


def with_client(work: Callable[[Simulation, SimTree, MetadataStore], Awaitable[None]]) -> None:
    """Run `work` on the host "client", with a store handle of its own."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:

            async def client() -> None:
                async with open_store(URI, settings=SETTINGS, runtime=sim.host("client").runtime) as store:
                    await work(sim, sim_tree(cluster), store)

            await sim.host("client").spawn(client())

    simulate(1, main)


def test_a_write_whose_answer_is_lost_has_happened() -> None:
    async def work(sim: Simulation, tree: SimTree, store: MetadataStore) -> None:
        tree.lose_answers("somebody else", 1)
        await store.create("/one")
        tree.lose_answers("client", 1)
        with pytest.raises(MetadataOutcomeUnknown):
            await store.create("/two")
        assert await store.exists("/two") is not None
        await store.delete("/two", expected=ANY_VERSION)

    with_client(work)


def test_a_stalled_client_waits_and_goes_on() -> None:
    async def work(sim: Simulation, tree: SimTree, store: MetadataStore) -> None:
        session = store.session
        tree.stall("client", 2.0)
        await store.create("/one")
        assert sim.loop.time() >= 2.0
        tree.stall("client", 60.0)
        with pytest.raises(MetadataUnavailable):
            await store.create("/two")
        tree.repair()
        assert await store.exists("/two") is None
        assert store.session == session

    with_client(work)


def test_a_session_ends_when_it_is_told_to_or_stalled_for_too_long() -> None:
    async def work(sim: Simulation, tree: SimTree, store: MetadataStore) -> None:
        await store.create("/mine", ephemeral=True)
        tree.expire_host("client")
        assert await store.exists("/mine") is None
        await store.create("/mine", ephemeral=True)
        tree.stall("client", 5.0)
        await asyncio.sleep(6.0)
        assert await store.exists("/mine") is None

    with_client(work)


def test_a_dead_host_reaches_nothing_and_its_session_outlives_it() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            tree, created, host = sim_tree(cluster), asyncio.Event(), sim.host("client")
            said_goodbye = False

            async def client() -> None:
                nonlocal said_goodbye
                async with open_store(URI, settings=SETTINGS, runtime=host.runtime) as store:
                    await store.create("/mine", ephemeral=True)
                    created.set()
                    try:
                        await asyncio.Event().wait()
                    finally:
                        said_goodbye = True
                        with pytest.raises(MetadataUnavailable):
                            await store.create("/goodbye")

            host.spawn(client())
            await created.wait()
            tree.abandon("client")
            await host.crash()
            assert said_goodbye
            assert await cluster.store.exists("/goodbye") is None
            await asyncio.sleep(3.9)
            assert await cluster.store.exists("/mine") is not None
            await asyncio.sleep(0.2)
            assert await cluster.store.exists("/mine") is None

    simulate(1, main)


def test_only_a_simulated_cluster_has_such_a_tree() -> None:
    async def main(sim: Simulation) -> None:
        uri, runtime = parse_uri("memory:plain"), sim.host("client").runtime
        async with open_store(uri, runtime=runtime) as store:
            cluster = await init_cluster(store, uri, runtime)
            with pytest.raises(InvariantBroken, match="not the metadata of a simulation"):
                sim_tree(cluster)

    simulate(1, main)
