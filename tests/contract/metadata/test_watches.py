"""Watches: whoever waits is woken after every change, also one made while the client could not be reached."""

import asyncio
from collections.abc import Awaitable

import pytest

from quire.errors import StoreClosed
from quire.metadata import ANY_VERSION, MetadataStore, Watch
from tests.contract.metadata.backends import Backend, expire
from tests.support.waiting import eventually


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


async def woken_by(watch: Watch, change: Awaitable[object]) -> None:
    await change
    async with asyncio.timeout(10):
        await watch.wait_changed()


async def test_a_watch_wakes_on_creation_write_and_deletion(backend: Backend, store: MetadataStore) -> None:
    other, path = await backend.open(), f"{backend.root}/a"
    async with store.watch(path) as watch:
        await woken_by(watch, other.create(path, b"1"))
        await woken_by(watch, other.set(path, b"2", expected=ANY_VERSION))
        await woken_by(watch, other.delete(path, expected=ANY_VERSION))
        await woken_by(watch, other.create(path, b"3"))


async def test_a_watch_wakes_on_the_clients_own_writes(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/a"
    async with store.watch(path) as watch:
        await woken_by(watch, store.create(path))
        await woken_by(watch, store.set(path, b"2", expected=ANY_VERSION))


async def test_a_watch_of_children_wakes_when_names_come_and_go(backend: Backend, store: MetadataStore) -> None:
    other = await backend.open()
    async with store.watch_children(backend.root) as watch:
        await woken_by(watch, other.create(f"{backend.root}/a"))
        await woken_by(watch, other.create(f"{backend.root}/b", ephemeral=True))
        await woken_by(watch, other.delete(f"{backend.root}/a", expected=ANY_VERSION))
        await woken_by(watch, other.aclose())  # Takes its ephemeral node along.
    assert (await store.children(backend.root)).names == ()


async def test_children_of_a_node_that_does_not_exist_yet_can_be_watched(
    backend: Backend, store: MetadataStore
) -> None:
    other, path = await backend.open(), f"{backend.root}/later"
    async with store.watch_children(path) as watch:
        await woken_by(watch, other.create(path))
        await woken_by(watch, other.create(f"{path}/child"))
        await woken_by(watch, other.delete_tree(path))


async def test_no_write_is_missed_between_waking_and_reading(backend: Backend, store: MetadataStore) -> None:
    """A follower that reads after each wake-up always ends at the last value, however fast the writer is."""
    other, path = await backend.open(), f"{backend.root}/a"
    await store.create(path, b"0")
    async with store.watch(path) as watch, asyncio.timeout(30):
        writer = asyncio.create_task(_count_to(other, path, 100))
        while (await store.get(path)).data != b"100":
            await watch.wait_changed()
        await writer


async def _count_to(store: MetadataStore, path: str, end: int) -> None:
    for number in range(1, end + 1):
        await store.set(path, b"%d" % number, expected=ANY_VERSION)


async def test_many_watches_of_one_node_all_wake_and_end_alone(backend: Backend, store: MetadataStore) -> None:
    other, path = await backend.open(), f"{backend.root}/a"
    async with store.watch(path) as first:
        async with store.watch(path) as second, store.watch_children(path) as third:
            await other.create(path)
            async with asyncio.timeout(10):
                await asyncio.gather(*(watch.wait_changed() for watch in (first, second, third)))
        await woken_by(first, other.set(path, b"2", expected=ANY_VERSION))


async def test_a_watch_survives_a_broken_connection(backend: Backend) -> None:
    """The change is made while the watcher is cut off; after the link is mended it must learn of it."""
    watcher, other = await backend.open(session_timeout_s=10), await backend.open()
    path = f"{backend.root}/a"
    await other.create(path, b"before")
    async with watcher.watch(path) as watch, watcher.watch_children(backend.root) as children:
        await watcher.get(path)
        await backend.cut(watcher)
        await other.set(path, b"after", expected=ANY_VERSION)
        await other.create(f"{backend.root}/b")
        await backend.mend(watcher)
        async with asyncio.timeout(20):
            await watch.wait_changed()
            await children.wait_changed()
        assert (await watcher.get(path)).data == b"after"
        assert (await watcher.children(backend.root)).names == ("a", "b")

        async with asyncio.timeout(20):  # And it goes on after that.
            await other.set(path, b"later", expected=ANY_VERSION)
            while (await watcher.get(path)).data != b"later":
                await watch.wait_changed()


async def test_a_watch_survives_the_end_of_its_session(backend: Backend) -> None:
    watcher, other = await backend.open(), await backend.open()
    path = f"{backend.root}/a"
    await other.create(path, b"before")
    async with watcher.watch(path) as watch:
        await expire(backend, watcher)
        await other.set(path, b"after", expected=ANY_VERSION)
        async with asyncio.timeout(20):
            while (await watcher.get(path)).data != b"after":
                await watch.wait_changed()


async def test_closing_the_store_wakes_who_waits(backend: Backend) -> None:
    store = await backend.open()
    async with store.watch(f"{backend.root}/a") as watch:
        waiting = asyncio.create_task(watch.wait_changed())
        await store.exists(f"{backend.root}/a")
        await store.aclose()
        with pytest.raises(StoreClosed):
            await waiting


async def test_a_watch_that_ended_is_forgotten(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/a"
    for _ in range(20):
        async with store.watch(path), store.watch_children(path):
            pass
    async with store.watch(path) as watch:
        await woken_by(watch, store.create(path))

    async def readable() -> bool:
        return (await store.get(path)).data == b""

    await eventually(readable)


async def test_a_watch_begun_while_the_store_closes_does_not_wait_for_ever(backend: Backend) -> None:
    store = await backend.open()

    async def wait() -> None:
        async with store.watch(f"{backend.root}/a") as watch:
            await watch.wait_changed()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await store.aclose()
    with pytest.raises(StoreClosed):
        async with asyncio.timeout(10):
            await waiting
    with pytest.raises(StoreClosed):
        store.watch_session()
