"""Which proxies are alive: joining, leaving, sessions that end, and nodes that make no sense."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.metadata import MetadataStore, StoreSettings, open_store
from quire.proxy.membership import LiveSet, Member, decode_member, encode_member
from quire.runtime import Clock
from quire.testing import Simulation, sim_cluster, sim_tree, simulate

PATH = "/ns/.write_proxy"
SETTINGS = StoreSettings(operation_timeout_s=1.0, session_timeout_s=2.0)
ONE, TWO = Member("h1", 4100, 0, "i1", "east"), Member("h2", 4100, 1, "i2")


def store_of(sim: Simulation, host: str) -> AbstractAsyncContextManager[MetadataStore]:
    return open_store("memory:simulated", settings=SETTINGS, runtime=sim.host(host).runtime)


def test_members_are_stored_as_server_sets_are() -> None:
    assert encode_member(ONE) == (
        b'{"serviceEndpoint": {"host": "h1", "port": 4100}, "additionalEndpoints": {}, "status": "ALIVE", "shard": 0, '
        b'"instance": "i1", "region": "east"}'
    )
    assert decode_member(encode_member(ONE)) == ONE
    theirs = b'{"serviceEndpoint":{"host":"j","port":1},"additionalEndpoints":{},"status":"ALIVE","shard":7}'
    assert decode_member(theirs) == Member("j", 1, 7)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"7", b"\xff", b'{"serviceEndpoint":{"host":"h","port":"1"}}', b'{"serviceEndpoint":7}'],
)
def test_what_is_no_member_is_nobody(data: bytes) -> None:
    assert decode_member(data) is None


def test_one_that_is_dying_is_nobody() -> None:
    assert decode_member(encode_member(ONE).replace(b"ALIVE", b"DEAD")) is None


@given(st.binary())
def test_no_bytes_make_it_fail(data: bytes) -> None:
    decode_member(data)


def test_members_come_and_go_and_whoever_watches_is_told() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim):
            clock = sim.host("a").runtime.clock
            async with (
                store_of(sim, "a") as store,
                store_of(sim, "b") as their_store,
                LiveSet(store, clock, PATH) as live,
            ):
                assert (live.is_loaded, live.current) == (True, frozenset())
                watching = live.watch()
                assert await anext(watching) == frozenset()
                async with live.join(ONE):
                    assert await anext(watching) == {ONE}
                    async with LiveSet(their_store, clock, PATH).join(TWO):
                        assert await anext(watching) == {ONE, TWO}
                        assert live.addresses == {"h1:4100", "h2:4100"}
                    assert await anext(watching) == {ONE}
                assert await anext(watching) == frozenset()
                await watching.aclose()  # type: ignore[attr-defined]

    for seed in range(3):
        simulate(seed, main)


def test_a_member_comes_back_after_its_session_ended_and_goes_when_it_leaves() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            host = sim.host("a")
            left = asyncio.Event()

            async def live() -> None:
                async with store_of(sim, "a") as store, LiveSet(store, host.runtime.clock, PATH).join(ONE):
                    await left.wait()

            life = host.spawn(live())
            clock: Clock = sim.host("b").runtime.clock
            async with LiveSet(cluster.store, clock, PATH) as seen:
                watching = seen.watch()
                while await anext(watching) != {ONE}:
                    pass
                sim_tree(cluster).expire_host("a")
                while await anext(watching) != frozenset():
                    pass
                while await anext(watching) != {ONE}:
                    pass
                left.set()
                await life
                assert (await cluster.store.children(PATH)).names == ()
                await watching.aclose()  # type: ignore[attr-defined]

    for seed in range(3):
        simulate(seed, main)


def test_a_creation_whose_answer_is_lost_leaves_one_node_and_it_is_deleted() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            host = sim.host("a")
            await cluster.store.create(PATH, parents=True)

            async def live() -> None:
                async with store_of(sim, "a") as store:
                    sim_tree(cluster).lose_answers("a", 1)
                    async with LiveSet(store, host.runtime.clock, PATH).join(ONE):
                        assert len((await cluster.store.children(PATH)).names) == 1
                    assert (await cluster.store.children(PATH)).names == ()

            await host.spawn(live())

    simulate(1, main)


def test_while_the_store_is_out_of_reach_the_last_known_members_count() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            await cluster.store.create(f"{PATH}/member_0000000001", encode_member(ONE), parents=True)
            await cluster.store.create(f"{PATH}/nonsense", b"?")
            host = sim.host("a")

            async def live() -> None:
                async with store_of(sim, "a") as store, LiveSet(store, host.runtime.clock, PATH) as seen:
                    sim_tree(cluster).stall("a", 6.0)
                    await asyncio.sleep(5)
                    assert seen.current == {ONE}
                    await cluster.store.create(f"{PATH}/member_0000000002", encode_member(TWO))
                    await asyncio.sleep(5)
                    assert seen.current == {ONE, TWO}

            await host.spawn(live())

    simulate(1, main)


@pytest.mark.parametrize("instances", [("i1", "i2"), ("i2", "i1")])
def test_a_proxy_that_was_started_again_is_listed_in_its_newest_life(instances: tuple[str, str]) -> None:
    """The session of the one before is not over yet: both nodes are there, and which counts is not left to chance."""

    async def main(sim: Simulation) -> None:
        before, now = (Member("h1", 4100, 0, instance) for instance in instances)
        async with sim_cluster(sim):
            clock = sim.host("a").runtime.clock
            async with (
                store_of(sim, "a") as store,
                store_of(sim, "b") as their_store,
                LiveSet(store, clock, PATH).join(before),
                LiveSet(their_store, clock, PATH).join(now),
                LiveSet(store, clock, PATH) as live,
            ):
                assert live.current == {now}

    simulate(1, main)
