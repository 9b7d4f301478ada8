"""Distributed locks over any store."""

import asyncio

import pytest

from quire.errors import LockLost, NoSuchNode
from quire.metadata import ANY_VERSION, MetadataStore, Set, hold_lock, lock_owners
from quire.runtime import SystemRng
from tests.contract.metadata.backends import Backend, expire
from tests.support.waiting import eventually

RNG = SystemRng()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


@pytest.fixture
def path(backend: Backend) -> str:
    return f"{backend.root}/lock"


async def test_one_holder_at_a_time_in_order_of_arrival(backend: Backend, store: MetadataStore, path: str) -> None:
    clients = [store, await backend.open(), await backend.open()]
    order: list[int] = []
    inside = 0

    async def contend(number: int) -> None:
        nonlocal inside
        async with hold_lock(clients[number % 3], path, RNG, owner=b"%d" % number):
            inside += 1
            assert inside == 1
            order.append(number)
            await store.get(backend.root)  # Give the others a chance to be wrong.
            inside -= 1

    tasks = []
    async with hold_lock(store, path, RNG, owner=b"first"):
        for number in range(6):
            tasks.append(asyncio.create_task(contend(number)))

            async def queued(expected: int = number + 2) -> bool:
                return len(await lock_owners(store, path)) == expected

            await eventually(queued)
        assert await lock_owners(store, path) == [b"first", *(b"%d" % number for number in range(6))]
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert order == list(range(6))
    assert await lock_owners(store, path) == []


async def test_a_waiter_that_gives_up_leaves_the_queue(backend: Backend, store: MetadataStore, path: str) -> None:
    other = await backend.open()
    async with hold_lock(store, path, RNG, owner=b"holder"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), hold_lock(other, path, RNG, owner=b"impatient"):
                raise AssertionError("two holders")
        assert await lock_owners(store, path) == [b"holder"]


@pytest.mark.parametrize("steps", range(8))
async def test_a_wait_cancelled_at_any_moment_blocks_nobody(
    backend: Backend, store: MetadataStore, path: str, steps: int
) -> None:
    waiting = asyncio.create_task(_hold_for_ever(await backend.open(), path))
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10), hold_lock(store, path, RNG):
        pass


async def _hold_for_ever(store: MetadataStore, path: str) -> None:
    async with hold_lock(store, path, RNG):
        await asyncio.Event().wait()


async def test_the_next_one_takes_over_from_a_dead_holder(backend: Backend, store: MetadataStore, path: str) -> None:
    await store.create(path)
    async with backend.dying_client(f"{path}/lock-dead-", sequential=True):
        await store.create(f"{path}/other")  # Does not belong to the queue.
    async with asyncio.timeout(30), hold_lock(store, path, RNG, owner=b"heir"):
        assert await lock_owners(store, path) == [b"heir"]


async def test_a_lost_session_loses_the_lock_and_the_guard_refuses(backend: Backend, path: str) -> None:
    holder, other = await backend.open(), await backend.open()
    target = f"{backend.root}/protected"
    await other.create(target, b"before")
    async with hold_lock(holder, path, RNG) as lock:
        await holder.transaction(lock.guard(), Set(target, b"guarded", ANY_VERSION))
        assert not lock.lost
        lock.check()
        await expire(backend, holder)
        async with asyncio.timeout(20):
            await lock.wait_lost()
        with pytest.raises(LockLost):
            lock.check()
        with pytest.raises(NoSuchNode):
            await holder.transaction(lock.guard(), Set(target, b"too late", ANY_VERSION))
        async with asyncio.timeout(10), hold_lock(other, path, RNG):
            assert (await other.get(target)).data == b"guarded"


async def test_closing_the_store_loses_the_lock(backend: Backend, path: str) -> None:
    store = await backend.open()
    async with hold_lock(store, path, RNG) as lock:
        await store.aclose()
        async with asyncio.timeout(10):
            await lock.wait_lost()


async def test_a_lock_released_while_cut_off_is_free_when_the_link_is_mended(backend: Backend, path: str) -> None:
    """The session lives on, so the node would stay for as long as it does, if nobody went on trying to delete it."""
    holder = await backend.open(session_timeout_s=60, operation_timeout_s=1)
    other = await backend.open()
    async with hold_lock(holder, path, RNG, owner=b"holder"):
        session = holder.session
        await backend.cut(holder)
    assert await lock_owners(other, path) == [b"holder"]
    await backend.mend(holder)
    async with asyncio.timeout(20), hold_lock(other, path, RNG):
        assert holder.session == session


async def test_a_wait_cancelled_twice_blocks_nobody(backend: Backend, store: MetadataStore, path: str) -> None:
    waiting = asyncio.create_task(_hold_for_ever(await backend.open(), path))
    await asyncio.sleep(0)
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10), hold_lock(store, path, RNG):
        pass
