"""Namespaces on real stores: what is stored, who sees it, and what one client keeps another from."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from quire.codec.stream_metadata.lock import LockOwner, member_owner
from quire.errors import (
    AlreadyInitialised,
    LockLost,
    MetadataUnavailable,
    NoSuchStream,
    NotBound,
    NotInitialised,
    RequestTooLarge,
    StreamExists,
    StreamOwned,
)
from quire.metadata import HeldLock, StoreSettings
from quire.metadata.paths import name_of
from quire.stream.binding import bind_namespace, create_namespace, unbind_namespace
from quire.stream.lock import hold_stream_lock
from quire.stream.namespace import Namespace, open_namespace
from tests.integration.stream.namespaces import SETTINGS, STORE, Place, fill, ledgers_of, tree_below
from tests.support.waiting import eventually

# What the other process runs: take a stream's lock, say so, and wait to be killed.
_OWNER_PROGRAM = """
import asyncio, sys
from quire.metadata import StoreSettings
from quire.stream.lock import hold_stream_lock
from quire.stream.namespace import open_namespace

async def main(uri, stream):
    async with open_namespace(uri, store_settings=StoreSettings(session_timeout_s=2.0), client_id="other") as namespace:
        paths = namespace.context.paths(stream)
        async with hold_stream_lock(namespace.context, paths.lock, timeout_s=10, shown=stream):
            print("held", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def opened(
    place: Place, namespace: str = "ns", *, create: bool = False, client_id: str | None = None
) -> AbstractAsyncContextManager[Namespace]:
    return open_namespace(
        place.uri(namespace), settings=SETTINGS, store_settings=STORE, create=create, client_id=client_id
    )


@pytest.fixture
async def namespace(place: Place) -> AsyncIterator[Namespace]:
    await create_namespace(place.uri(), ledgers_root=place.ledgers_root)
    async with opened(place) as namespace:
        yield namespace


def hold(namespace: Namespace, stream: str, *, timeout_s: float = 10) -> AbstractAsyncContextManager[HeldLock]:
    path = namespace.context.paths(stream).lock
    return hold_stream_lock(namespace.context, path, timeout_s=timeout_s, shown=f"stream {stream!r}")


# --- Binding


async def test_a_namespace_is_opened_once_it_is_bound_to_a_cluster(place: Place) -> None:
    with pytest.raises(NotBound):
        async with opened(place):
            raise AssertionError("open")
    await bind_namespace(place.uri(), ledgers=place.ledgers_root)
    with pytest.raises(NotInitialised):
        async with opened(place):
            raise AssertionError("open")
    await create_namespace(place.uri(), ledgers_root=place.ledgers_root)
    await create_namespace(place.uri(), ledgers_root=place.ledgers_root)
    async with opened(place) as namespace:
        assert namespace.context.binding.ledgers_path == place.ledgers_root
    with pytest.raises(AlreadyInitialised):
        await bind_namespace(place.uri(), ledgers="/elsewhere")
    await unbind_namespace(place.uri())
    with pytest.raises(NotBound):
        async with opened(place):
            raise AssertionError("open")


async def test_namespaces_share_a_cluster_and_a_binding_above_them(place: Place, namespace: Namespace) -> None:
    async with opened(place, "ns/inner", create=True) as inner:
        await namespace.create_stream("orders")
        await inner.create_stream("orders")
        await fill(inner, "orders", completed=2)
        assert len(await ledgers_of(namespace)) == 2
        assert await inner.list_streams() == ["orders"]
        await inner.delete_stream("orders")
        assert await ledgers_of(namespace) == set()
        assert await namespace.list_streams() == ["orders"]


async def test_nobody_hangs_without_a_store() -> None:
    impatient = StoreSettings(operation_timeout_s=0.5)
    for uri in ("distributedlog://127.0.0.1:1/ns", "distributedlog+etcd://127.0.0.1:1/ns"):
        with pytest.raises(MetadataUnavailable):
            async with asyncio.timeout(20), open_namespace(uri, store_settings=impatient):
                raise AssertionError("open")


# --- Streams


async def test_a_stream_is_stored_as_the_specification_says(place: Place, namespace: Namespace) -> None:
    """Section 2.1, and step 1 of vector M."""
    await namespace.create_stream("a/orders")
    await namespace.create_stream("a/orders")
    nodes = await tree_below(namespace, f"{place.root}/ns")
    identity = next(path for path in nodes if "/identity-" in path)
    assert re.fullmatch("/a/orders/<default>/identity-[0-9a-f]{32}", identity)
    assert nodes == {
        identity: b"",
        "/a": b"",
        "/a/orders": b"",
        "/a/orders/<default>": b"",
        "/a/orders/<default>/maxtxid": b"0",
        "/a/orders/<default>/version": b"\xff\xff\xff\xff",
        "/a/orders/<default>/lock": b"",
        "/a/orders/<default>/readLock": b"",
        "/a/orders/<default>/ledgers": b"0",
        "/a/orders/<default>/allocation": b"",
    }
    stats = [(await namespace.context.store.get(f"{place.root}/ns{path}")).stat for path in nodes]
    assert {stat.writes for stat in stats} == {1}
    if place.backend == "zk":
        assert {stat.version for stat in stats} == {0}


async def test_clients_see_each_others_streams_at_once(place: Place, namespace: Namespace) -> None:
    async with opened(place) as other:
        told = other.watch_streams()
        assert await anext(told) == frozenset()
        names = [f"s{number:02d}" for number in range(20)]
        await asyncio.gather(*(each.create_stream(name) for name in names for each in (namespace, other)))
        assert await namespace.list_streams() == await other.list_streams() == names
        async with asyncio.timeout(20):
            while await anext(told) != frozenset(names):
                pass
        await namespace.delete_stream("s07")
        assert not await other.stream_exists("s07")
        async with asyncio.timeout(20):
            assert await anext(told) == frozenset(names) - {"s07"}
        await other.set_stream_metadata("s08", b"mine")
        assert (await namespace.stream_metadata("s08"))[0] == b"mine"


async def test_a_deleted_stream_leaves_nothing_but_what_is_nested_in_it(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("a")
    await namespace.create_stream("a/b")
    await fill(namespace, "a", completed=40)
    await fill(namespace, "a/b", completed=1)
    await namespace.context.store.create(namespace.context.paths("a").subscriber_lock("reader"), parents=True)
    await namespace.delete_stream("a")
    assert await namespace.list_streams() == ["a/b"]
    assert len(await ledgers_of(namespace)) == 1
    await namespace.delete_stream("a/b")
    assert await tree_below(namespace, f"{place.root}/ns") == {"/a": b""}
    with pytest.raises(NoSuchStream):
        await namespace.delete_stream("a")


async def test_a_stream_is_renamed_in_one_step(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("old")
    await fill(namespace, "old", completed=20)
    await namespace.create_stream("taken")
    before = await tree_below(namespace, f"{place.root}/ns/old")
    with pytest.raises(StreamExists):
        await namespace.rename_stream("old", "taken")
    await namespace.rename_stream("old", "deep/new")
    assert await namespace.list_streams() == ["deep/new", "taken"]
    assert await tree_below(namespace, f"{place.root}/ns/deep/new") == before
    with pytest.raises(NoSuchStream):
        await namespace.rename_stream("old", "newer")


async def test_a_stream_that_is_too_large_for_one_step_stays_as_it_is(place: Place, namespace: Namespace) -> None:
    """Only etcd takes so few operations at once. The other stores move it."""
    await namespace.create_stream("old")
    await fill(namespace, "old", completed=100)
    before = await tree_below(namespace, f"{place.root}/ns/old")
    if place.backend == "etcd":
        with pytest.raises(RequestTooLarge):
            await namespace.rename_stream("old", "new")
        assert await tree_below(namespace, f"{place.root}/ns/old") == before
    else:
        await namespace.rename_stream("old", "new")
        assert await tree_below(namespace, f"{place.root}/ns/new") == before


# --- Locks


async def test_a_lock_has_a_member_that_apaches_clients_understand(namespace: Namespace) -> None:
    await namespace.create_stream("orders")
    store, path = namespace.context.store, namespace.context.paths("orders").lock
    async with hold(namespace, "orders") as held:
        (name,) = (await store.children(path)).names
        node = await store.get(held.path)
        assert name == name_of(held.path)
        assert member_owner(name) == LockOwner(node.data.decode(), store.session)
        assert node.stat.owner == store.session
        assert name.endswith("_0000000000"), "the first member of this lock"
        assert len(name.split("_")) == 4
    assert (await store.children(path)).names == ()


async def test_what_one_client_holds_no_other_gets(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("orders")
    async with opened(place, client_id="other/one_two") as other:
        async with hold(other, "orders"):
            for attempt in (
                namespace.delete_stream("orders"),
                namespace.rename_stream("orders", "new"),
                _hold(namespace, timeout_s=0),
                _hold(namespace, timeout_s=0.3),
            ):
                with pytest.raises(StreamOwned) as refused:
                    await attempt
                assert str(refused.value.facts["owner"]).startswith("other/one-two-")
        await _hold(namespace, timeout_s=0)


async def _hold(namespace: Namespace, *, timeout_s: float) -> None:
    async with hold(namespace, "orders", timeout_s=timeout_s):
        pass


async def test_contenders_take_turns(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("orders")
    inside = turns = 0

    async def contend(client: Namespace) -> None:
        nonlocal inside, turns
        for _ in range(5):
            async with hold(client, "orders", timeout_s=60):
                inside += 1
                assert inside == 1
                await client.context.store.get(client.context.path)
                inside, turns = inside - 1, turns + 1

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(opened(place)) for _ in range(3)]
        await asyncio.gather(*map(contend, [namespace, *clients]))
    assert turns == 20


async def test_a_dead_process_holds_nothing_for_long(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("orders")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER_PROGRAM, place.uri(), "orders", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"held\n"
    with pytest.raises(StreamOwned):
        await _hold(namespace, timeout_s=0)
    process.kill()
    await process.wait()
    async with hold(namespace, "orders", timeout_s=30):
        pass


async def test_a_closed_store_loses_its_lock(place: Place, namespace: Namespace) -> None:
    await namespace.create_stream("orders")
    async with opened(place) as other, hold(other, "orders") as held:
        await other.context.store.aclose()

        async def lost() -> bool:
            return held.lost

        await eventually(lost)
        with pytest.raises(LockLost):
            held.check()
        await _hold(namespace, timeout_s=10)
