"""Sessions: ephemeral nodes live exactly as long as their owner, and the owner learns when it lost its session."""

import asyncio

import pytest

from quire.errors import MetadataOutcomeUnknown, ParentIsEphemeral, SessionExpired, StoreClosed
from quire.metadata import ANY_VERSION, MetadataStore, SessionEvent, SessionWatch
from tests.contract.metadata.backends import Backend, expire
from tests.support.waiting import eventually


async def wait_for(session: SessionWatch, event: SessionEvent) -> None:
    async with asyncio.timeout(30):
        while await session.wait_event() is not event:
            pass


async def test_an_ephemeral_node_names_its_owner_and_goes_with_it(backend: Backend) -> None:
    owner, other = await backend.open(), await backend.open()
    path = f"{backend.root}/mine"
    await owner.create(path, b"here", ephemeral=True)
    stat = await other.exists(path)
    assert stat is not None
    assert stat.owner == owner.session != other.session
    await owner.aclose()
    assert await other.exists(path) is None, "closing a session removes its nodes before it returns"


async def test_other_sessions_keep_their_nodes(backend: Backend) -> None:
    first, second = await backend.open(), await backend.open()
    await first.create(f"{backend.root}/first", ephemeral=True)
    await second.create(f"{backend.root}/second", ephemeral=True)
    await second.create(f"{backend.root}/persistent")
    await second.aclose()
    assert (await first.children(backend.root)).names == ("first", "persistent")


async def test_an_ephemeral_node_has_no_children(backend: Backend) -> None:
    store = await backend.open()
    await store.create(f"{backend.root}/mine", ephemeral=True)
    with pytest.raises(ParentIsEphemeral):
        await store.create(f"{backend.root}/mine/child")


async def test_an_ephemeral_node_outlives_its_session_timeout_while_its_owner_lives(backend: Backend) -> None:
    """Sessions are renewed. The marker of a silent client measures the time: when it is gone, one timeout is over."""
    owner, observer = await backend.open(), await backend.open()
    await owner.create(f"{backend.root}/mine", ephemeral=True)
    for _ in range(2):
        marker = f"{backend.root}/silent"
        async with backend.dying_client(marker):
            pass
        await eventually(lambda: _is_gone(observer, f"{backend.root}/silent"), what="the silent client's node goes")
    stat = await observer.exists(f"{backend.root}/mine")
    assert stat is not None
    assert stat.owner == owner.session


async def _is_gone(store: MetadataStore, path: str) -> bool:
    return await store.exists(path) is None


async def test_the_nodes_of_a_killed_process_go_by_themselves(backend: Backend) -> None:
    store, path = await backend.open(), f"{backend.root}/orphan"
    async with store.watch(path) as watch:
        async with backend.dying_client(path), asyncio.timeout(20):
            while await store.exists(path) is None:
                await watch.wait_changed()
        async with asyncio.timeout(20):
            while await store.exists(path) is not None:
                await watch.wait_changed()
    await store.create(path, b"taken over", ephemeral=True)


async def test_the_owner_sees_the_end_of_its_session(backend: Backend) -> None:
    store = await backend.open()
    path, before = f"{backend.root}/mine", store.session
    await store.create(path, ephemeral=True)
    with store.watch_session() as session:
        await expire(backend, store)
        await wait_for(session, SessionEvent.EXPIRED)
        await wait_for(session, SessionEvent.RESUMED)
    assert store.session != before
    assert await store.exists(path) is None
    await store.create(path, b"again", ephemeral=True)
    stat = await store.exists(path)
    assert stat is not None
    assert stat.owner == store.session


async def test_a_write_decided_under_an_expired_session_is_refused(backend: Backend) -> None:
    """The call is made while the client does not know yet that the store gave it up."""
    store, other = await backend.open(), await backend.open()
    path, marker = f"{backend.root}/a", f"{backend.root}/marker"
    await store.create(path, b"before")
    await store.create(marker, ephemeral=True)
    await backend.cut(store)
    write = asyncio.create_task(_set_until_answered(store, path, b"after"))
    await eventually(lambda: _is_gone(other, marker), what="the store gives up the session")
    await backend.mend(store)
    with pytest.raises(SessionExpired):
        await write
    assert (await other.get(path)).data == b"before"
    await store.set(path, b"again", expected=ANY_VERSION)


async def _set_until_answered(store: MetadataStore, path: str, data: bytes) -> None:
    """A write that goes out on a link which the client still believes in is honestly of unknown outcome: once more."""
    while True:
        try:
            await store.set(path, data, expected=ANY_VERSION)
        except MetadataOutcomeUnknown:
            continue
        else:
            return


async def test_settling_what_is_in_doubt_costs_neither_the_session_nor_writes_that_are_under_way(
    backend: Backend,
) -> None:
    store = await backend.open()
    session, paths = store.session, [f"{backend.root}/{number}" for number in range(20)]
    await store.create(f"{backend.root}/mine", ephemeral=True)
    await asyncio.gather(
        *(store.create(path) for path in paths[:10]),
        store._driver.settle(),
        *(store.create(path, ephemeral=True) for path in paths[10:]),
        store._driver.settle(),
    )
    stats = await asyncio.gather(*map(store.exists, paths))
    assert [stat.owner for stat in stats if stat is not None] == [None] * 10 + [session] * 10
    mine = await store.exists(f"{backend.root}/mine")
    assert mine is not None
    assert store.session == mine.owner == session


async def test_a_short_interruption_does_not_cost_the_session(backend: Backend) -> None:
    store = await backend.open(session_timeout_s=15)
    path, before = f"{backend.root}/mine", store.session
    await store.create(path, ephemeral=True)
    await backend.cut(store)
    reading = asyncio.create_task(store.get(path))
    other = await backend.open()
    await other.create(f"{backend.root}/b")
    await backend.mend(store)
    async with asyncio.timeout(20):
        assert (await reading).stat.owner == before
    assert store.session == before
    await store.set(path, b"still mine", expected=ANY_VERSION)


async def test_closing_the_store_wakes_who_waits_for_session_events(backend: Backend) -> None:
    store = await backend.open()
    with store.watch_session() as session:
        waiting = asyncio.create_task(session.wait_event())
        await store.exists(backend.root)
        await store.aclose()
        with pytest.raises(StoreClosed):
            await waiting
