"""DistributedLog's lock: names and order as Apache's clients know them, waits that end, nodes that do not stay."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

import pytest
from tests.support.flaky_driver import FlakyDriver

from quire.codec.stream_metadata.lock import LockOwner, member_owner, member_sequence
from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchNode, NoSuchStream, Outcome, StreamOwned
from quire.metadata import ANY_VERSION, Delete, HeldLock, MetadataStore, SessionId, StoreSettings, open_store
from quire.metadata.drivers.memory import MemoryTree
from quire.metadata.paths import name_of
from quire.runtime import SystemRng
from quire.stream.lock import StreamMembers, hold_lock_as, unique_client_id
from quire.testing import SimTree, Simulation, simulate

LOCK = "/ns/orders/<default>/lock"
JAVA = "member_host%2F10.0.0.1_s72057672225390599_"
SETTINGS = StoreSettings(operation_timeout_s=5.0, session_timeout_s=4.0)


@dataclass
class World:
    sim: Simulation
    tree: SimTree
    stack: AsyncExitStack
    store: MetadataStore  # Of nobody who contends.

    async def open(self, host: str) -> MetadataStore:
        """A client on a host of its own."""
        opening = self.stack.enter_async_context(
            open_store("memory:locks", settings=SETTINGS, runtime=self.sim.host(host).runtime)
        )
        return await self.sim.host(host).spawn(opening)

    def hold(
        self, store: MetadataStore, host: str = "h", *, timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[HeldLock]:
        return hold_lock_as(store, self.sim.rng, LOCK, client_id=host, timeout_s=timeout_s, shown="stream 'orders'")

    async def names(self) -> list[str]:
        return list((await self.store.children(LOCK)).names)

    async def queued(self, count: int) -> None:
        """Return once so many wait for the lock, or have it."""
        async with self.store.watch_children(LOCK) as watch:
            while len(await self.names()) < count:
                await watch.wait_changed()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()


def in_world(check: Callable[[World], Awaitable[None]], *, seeds: int = 5) -> None:
    async def main(sim: Simulation) -> None:
        tree = SimTree("locks")
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(open_store("memory:locks", runtime=sim.host("observer").runtime))
            await store.create(LOCK, parents=True)
            await check(World(sim, tree, stack, store))

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=600)


async def refusal(holding: AbstractAsyncContextManager[HeldLock]) -> StreamOwned:
    with pytest.raises(StreamOwned) as refused:
        async with holding:
            raise AssertionError("two holders")
    return refused.value


# --- Names


def test_members_are_called_as_apaches_clients_call_them() -> None:
    """Vector L of the specification."""
    members = StreamMembers("host/10.0.0.1")
    assert members.name(SessionId(0x100001234560007)) == JAVA
    assert members.mark == "member_host%2F10.0.0.1_s"


@pytest.mark.parametrize("client_id", ["host/10.0.0.1", "my_host_s1/7", "ünï cödé", "_s", "a~*b"])
@pytest.mark.parametrize("session", [1, 123456789, 2**63 - 1, -(2**63)])
def test_a_name_tells_its_owner_in_every_store(client_id: str, session: int) -> None:
    unique = unique_client_id(client_id, SystemRng())
    members = StreamMembers(unique)
    name = members.name(SessionId(session)) + "0000000003"
    assert member_owner(name) == LockOwner(unique, session)
    assert member_sequence(name) == 3
    assert name.startswith(members.mark)
    assert not name.startswith(StreamMembers(unique_client_id(client_id, SystemRng())).mark)


def test_those_without_a_number_are_in_nobodys_way() -> None:
    names = ["member_a_s1_0000000010", "junk", "member_b_s1_0000000009", "member_c_s1_none", "member_-1", "member_7"]
    assert StreamMembers("x").queue(names) == [
        "member_-1",
        "member_7",
        "member_b_s1_0000000009",
        "member_a_s1_0000000010",
    ]


# --- Holding and waiting


def test_the_holder_has_a_member_with_its_client_id_as_data() -> None:
    async def check(world: World) -> None:
        store = await world.open("a")
        async with world.hold(store, "my_host") as held:
            (name,) = await world.names()
            owner = member_owner(name)
            assert owner is not None
            assert owner.client_id.startswith("my-host-")
            assert owner.session_id == store.session
            node = await world.store.get(f"{LOCK}/{name}")
            assert (node.data, node.stat.owner) == (owner.client_id.encode(), store.session)
            await store.transaction(held.guard())
            held.check()
        assert await world.names() == []

    in_world(check)


def test_one_holder_at_a_time_in_order_of_arrival_and_never_twice_the_same() -> None:
    """Also for locks of one client in one session: Apache's clients would let the second one in."""

    async def check(world: World) -> None:
        stores = [await world.open("a"), await world.open("b")]
        order: list[int] = []
        inside = 0

        async def contend(number: int) -> None:
            nonlocal inside
            async with world.hold(stores[number % 2], "same"):
                inside += 1
                assert inside == 1
                order.append(number)
                await world.pass_time(1)
                inside -= 1

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(contend(number)))
            await world.queued(number + 1)
        await asyncio.gather(*tasks)
        assert order == list(range(6))
        assert await world.names() == []

    in_world(check)


def test_ours_and_apaches_wait_in_one_queue() -> None:
    async def check(world: World) -> None:
        java, ours = await world.open("java"), await world.open("ours")
        first = (await java.create(f"{LOCK}/{JAVA}", b"host/10.0.0.1", ephemeral=True, sequential=True)).path
        second = (await java.create(f"{LOCK}/member_old_", b"old", ephemeral=True, sequential=True)).path
        async with AsyncExitStack() as stack:
            waiting = asyncio.create_task(stack.enter_async_context(world.hold(ours)))
            await world.queued(3)
            third = (await java.create(f"{LOCK}/{JAVA}", b"host/10.0.0.1", ephemeral=True, sequential=True)).path
            await java.delete(first, expected=ANY_VERSION)
            await world.pass_time(10)
            assert not waiting.done(), "the first has gone, the second has not"
            await java.delete(second, expected=ANY_VERSION)
            held = await waiting
            assert member_sequence(name_of(held.path)) == 2
            assert member_sequence(name_of(third)) == 3
        assert await world.names() == [name_of(third)]

    in_world(check)


def test_each_one_watches_only_whom_it_follows() -> None:
    """Otherwise every release would wake all who wait."""

    async def check(world: World) -> None:
        stores = [await world.open(f"h{number}") for number in range(5)]
        tasks = []
        for number, store in enumerate(stores, start=1):
            tasks.append(asyncio.create_task(_hold_for_ever(world, store)))
            await world.queued(number)
        await world.pass_time(1)
        watchers: Counter[str] = Counter()
        for (path, _), members in world.tree._watches.items():
            watchers[path] += len({driver for driver, _ in members})
        queue = StreamMembers("x").queue(await world.names())
        assert [watchers[f"{LOCK}/{name}"] for name in queue] == [1, 2, 2, 2, 1], "its follower and, waiting, itself"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    in_world(check)


async def _hold_for_ever(world: World, store: MetadataStore) -> None:
    async with world.hold(store):
        await asyncio.Event().wait()


def test_a_wait_that_is_too_long_names_the_owner_and_leaves_the_queue() -> None:
    async def check(world: World) -> None:
        holder, other = await world.open("a"), await world.open("b")
        async with world.hold(holder, "first") as held:
            began_s = world.now_s
            error = await refusal(world.hold(other, "second", timeout_s=7))
            assert world.now_s - began_s == pytest.approx(7, abs=0.1)
            assert str(error.facts["owner"]).startswith("first-")
            assert "stream 'orders'" in str(error)
            assert error.retryable
            assert error.outcome is Outcome.NOT_APPLIED
            assert await world.names() == [name_of(held.path)]

    in_world(check)


def test_an_owner_that_its_name_does_not_tell_is_read_from_its_node() -> None:
    async def check(world: World) -> None:
        java, ours = await world.open("java"), await world.open("ours")
        await java.create(f"{LOCK}/member_my_host_s123_", b"my_host", ephemeral=True, sequential=True)
        for timeout_s in (0, 1):
            error = await refusal(world.hold(ours, timeout_s=timeout_s))
            assert error.facts["owner"] == "my_host"

    in_world(check)


def test_a_member_without_a_number_holds_nothing() -> None:
    async def check(world: World) -> None:
        await world.store.create(f"{LOCK}/junk")
        async with world.hold(await world.open("a"), timeout_s=0):
            pass

    in_world(check)


def test_a_cancelled_wait_leaves_the_queue() -> None:
    async def check(world: World) -> None:
        holder, other = await world.open("a"), await world.open("b")
        async with world.hold(holder) as held:
            waiting = asyncio.create_task(refusal(world.hold(other)))
            await world.pass_time(world.sim.rng.random() / 10)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await world.names() == [name_of(held.path)]

    in_world(check)


# --- Not waiting at all


def test_without_patience_nothing_is_created() -> None:
    async def check(world: World) -> None:
        holder, other = await world.open("a"), await world.open("b")
        async with world.hold(holder, "first"):
            before, began_s = await world.store.children(LOCK), world.now_s
            error = await refusal(world.hold(other, timeout_s=0))
            assert str(error.facts["owner"]).startswith("first-")
            assert await world.store.children(LOCK) == before, "not even for a moment"
            assert world.now_s - began_s < 0.1
        async with world.hold(other, timeout_s=0):
            pass

    in_world(check)


def test_of_many_without_patience_at_most_one_gets_the_lock() -> None:
    async def check(world: World) -> None:
        stores = [await world.open(f"h{number}") for number in range(4)]
        inside = held = 0

        async def snatch(store: MetadataStore) -> None:
            nonlocal inside, held
            try:
                async with world.hold(store, timeout_s=0):
                    held, inside = held + 1, inside + 1
                    assert inside == 1
                    await world.pass_time(1)
                    inside -= 1
            except StreamOwned:
                pass

        await asyncio.gather(*map(snatch, stores))
        assert held <= 1
        assert await world.names() == []

    in_world(check, seeds=20)


# --- When things go wrong


def test_without_a_stream_there_is_no_lock_and_none_is_made() -> None:
    async def check(world: World) -> None:
        await world.store.delete_tree("/ns/orders")
        for timeout_s in (0, 5, None):
            with pytest.raises(NoSuchStream, match="orders"):
                async with world.hold(await world.open("a"), timeout_s=timeout_s):
                    raise AssertionError("held")
        assert await world.store.exists("/ns/orders") is None

    in_world(check)


def test_a_stream_that_is_deleted_ends_the_wait_for_it() -> None:
    async def check(world: World) -> None:
        holder, other = await world.open("a"), await world.open("b")
        async with world.hold(holder):
            waiting = asyncio.create_task(refusal(world.hold(other, timeout_s=60)))
            await world.queued(2)
            doomed = [*(f"{LOCK}/{name}" for name in await world.names()), LOCK]
            await world.store.transaction(*(Delete(path, ANY_VERSION) for path in doomed))
            with pytest.raises(NoSuchStream):
                await waiting

    in_world(check)


def test_a_store_that_does_not_answer_is_not_taken_for_an_owner() -> None:
    async def check(world: World) -> None:
        store = await world.open("a")
        world.tree.stall("a", 3.5)
        with pytest.raises(MetadataUnavailable):
            async with world.hold(store, timeout_s=2):
                raise AssertionError("held")
        async with world.hold(store, timeout_s=60):
            assert len(await world.names()) == 1, "the first attempt has left nothing"

    in_world(check)


def test_a_session_that_ends_while_waiting_costs_the_place_and_nothing_else() -> None:
    async def check(world: World) -> None:
        holder, other, third = await world.open("a"), await world.open("b"), await world.open("c")
        order: list[str] = []

        async def wait(store: MetadataStore, host: str) -> None:
            async with world.hold(store, host, timeout_s=60) as held:
                await store.transaction(held.guard())
                order.append(host)

        async with world.hold(holder):
            tasks = []
            for number, (host, store) in enumerate([("b", other), ("c", third)], start=2):
                tasks.append(asyncio.create_task(wait(store, host)))
                await world.queued(number)
            world.tree.expire_host("b")
            await world.pass_time(1)
            assert len(await world.names()) == 3, "back in the queue"
        await asyncio.gather(*tasks)
        assert order == ["c", "b"]

    in_world(check)


def test_a_session_that_ends_loses_the_lock_to_the_next() -> None:
    async def check(world: World) -> None:
        holder, other = await world.open("a"), await world.open("b")
        async with world.hold(holder) as lost:
            world.tree.stall("a", 60)
            async with world.hold(other, timeout_s=20) as held:
                held.check()
                world.tree.repair()
                await lost.wait_lost()
                assert lost.lost
                with pytest.raises(NoSuchNode):
                    await holder.transaction(lost.guard())

    in_world(check)


def test_a_member_that_was_not_confirmed_is_found_again() -> None:
    async def check(world: World) -> None:
        store = await world.open("a")
        world.tree.lose_answers("a", 1)
        async with world.hold(store) as held:
            assert await world.names() == [name_of(held.path)]
        assert await world.names() == []

    in_world(check)


async def test_a_member_that_cannot_be_looked_for_is_left_to_the_clean_up() -> None:
    tree = MemoryTree()
    driver = FlakyDriver(tree)
    async with MetadataStore(driver) as store:
        await store.create("/lock")
        driver.plan = ["lost", "unavailable"]
        with pytest.raises(MetadataOutcomeUnknown):
            async with hold_lock_as(store, SystemRng(), "/lock", client_id="a", timeout_s=None, shown="it"):
                raise AssertionError("held")
        async with asyncio.timeout(10):
            async with hold_lock_as(store, SystemRng(), "/lock", client_id="b", timeout_s=None, shown="it"):
                pass
        assert (await store.children("/lock")).names == ()
