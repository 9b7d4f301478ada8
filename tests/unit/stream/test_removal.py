"""Deleting streams: everything of them goes, nothing of others does, and an interrupted deletion is gone on with."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.streams.namespace_world import CLIENT, ROOT, World, in_namespace

from quire.errors import (
    DamagedMetadata,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchStream,
    Outcome,
    StreamOwned,
)
from quire.metadata import ANY_VERSION, Check, Children, HeldLock
from quire.stream.lock import hold_stream_lock
from quire.stream.namespace import Namespace


def hold(namespace: Namespace, stream: str, *, read: bool = False) -> AbstractAsyncContextManager[HeldLock]:
    paths = namespace.context.paths(stream)
    path = paths.read_lock if read else paths.lock
    return hold_stream_lock(namespace.context, path, timeout_s=60, shown=f"stream {stream!r}")


def test_a_deleted_stream_leaves_neither_nodes_nor_ledgers() -> None:
    async def check(world: World) -> None:
        kept = await world.new_ledger()
        await world.namespace.create_stream("a/orders")
        await world.fill("a/orders", completed=40, in_progress=2, allocated=True)
        paths = world.namespace.context.paths("a/orders")
        await world.store.create(paths.subscriber_lock("reader"), parents=True)
        await world.store.create(f"{paths.root}/unheard-of", b"x")
        await world.namespace.set_stream_metadata("a/orders", b"mine")
        assert len(await world.ledgers()) == 44
        await world.namespace.delete_stream("a/orders")
        assert await world.ledgers() == {kept}
        assert await world.nodes() == {"/a": b""}
        assert not await world.namespace.stream_exists("a/orders")
        with pytest.raises(NoSuchStream):
            await world.namespace.delete_stream("a/orders")
        await world.namespace.create_stream("a/orders")

    in_namespace(check)


def test_what_is_nested_in_a_deleted_stream_stays() -> None:
    async def check(world: World) -> None:
        for name in ("a", "a/b"):
            await world.namespace.create_stream(name)
            await world.fill(name, completed=2)
            await world.namespace.set_stream_metadata(name, name.encode())
        await world.namespace.delete_stream("a")
        assert await world.namespace.list_streams() == ["a/b"]
        assert len(await world.ledgers()) == 2
        assert (await world.store.get(f"{ROOT}/a")).data == b"", "it only leads to the other one now"
        assert (await world.namespace.stream_metadata("a/b"))[0] == b"a/b"
        await world.namespace.create_stream("a")
        assert (await world.namespace.stream_metadata("a"))[0] == b""

    in_namespace(check)


def test_a_stream_that_is_written_is_not_deleted() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=1)
        other = await world.open("writer")
        async with hold(other, "orders"):
            before = await world.nodes()
            began_s = world.now_s
            with pytest.raises(StreamOwned) as refused:
                await world.namespace.delete_stream("orders")
            assert str(refused.value.facts["owner"]).startswith("writer-")
            assert world.now_s - began_s == pytest.approx(5, abs=0.1)
            assert await world.nodes() == before
            assert len(await world.ledgers()) == 1
        await world.namespace.delete_stream("orders")

    in_namespace(check)


def test_whoever_waits_for_a_lock_of_a_deleted_stream_is_told() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        other = await world.open("writer")
        async with hold(other, "orders", read=True), hold(other, "orders"):
            deleting = asyncio.create_task(world.namespace.delete_stream("orders"))
            await world.pass_time(1)
            waiting = asyncio.create_task(_hold(other, "orders"))
            await world.pass_time(1)
        await deleting
        with pytest.raises(NoSuchStream):
            await waiting
        assert await world.nodes() == {}

    in_namespace(check, seeds=10)


async def _hold(namespace: Namespace, stream: str) -> None:
    async with hold(namespace, stream):
        pass


def test_what_another_program_left_half_deleted_can_be_deleted() -> None:
    async def check(world: World) -> None:
        for missing in (["lock"], ["ledgers"], ["allocation", "version", "readLock"], ["lock", "ledgers", "maxtxid"]):
            await world.namespace.create_stream("orders")
            await world.fill("orders", completed=0, allocated="allocation" not in missing)
            for name in missing:
                await world.store.delete(f"{ROOT}/orders/<default>/{name}", expected=ANY_VERSION)
            await world.namespace.delete_stream("orders")
            assert await world.nodes() == {}
            assert await world.ledgers() == set()

    in_namespace(check)


def test_a_segment_that_cannot_be_read_keeps_its_stream() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.store.create(f"{ROOT}/orders/<default>/ledgers/logrecs_000000000000000001", b"junk")
        with pytest.raises(DamagedMetadata, match="logrecs_000000000000000001"):
            await world.namespace.delete_stream("orders")
        assert await world.namespace.stream_exists("orders")

    in_namespace(check)


def test_a_segment_that_is_begun_meanwhile_is_deleted_too() -> None:
    """By a writer that does not ask for locks, right before the last step."""

    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=1)
        delete_tree = world.namespace.context.store.delete_tree

        async def begin_and_delete(path: str, *, guard: Check | None = None) -> None:
            world.namespace.context.store.delete_tree = delete_tree  # type: ignore[method-assign]
            await world.fill("orders", completed=0, in_progress=1)
            await delete_tree(path, guard=guard)

        world.namespace.context.store.delete_tree = begin_and_delete  # type: ignore[method-assign]
        await world.namespace.delete_stream("orders")
        assert await world.nodes() == {}
        assert await world.ledgers() == set()

    in_namespace(check)


@pytest.mark.parametrize("number", range(16))
def test_a_lost_answer_does_not_matter_or_is_told(number: int) -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=2, in_progress=1, allocated=True)
        writes = world.lose_answer(number)
        try:
            await world.namespace.delete_stream("orders")
        except MetadataOutcomeUnknown:
            if await world.namespace.stream_exists("orders"):
                await world.namespace.delete_stream("orders")
        assert writes() > 8
        assert await world.nodes() == {}
        assert await world.ledgers() == set()

    in_namespace(check, seeds=1)


def test_a_deletion_that_is_cut_off_says_so_and_is_gone_on_with() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=40)
        deleting = asyncio.create_task(world.namespace.delete_stream("orders"))
        await world.fewer_ledgers(40 - 17)
        world.tree.stall(CLIENT, 30)
        with pytest.raises(MetadataOutcomeUnknown) as caught:
            await deleting
        assert caught.value.outcome is Outcome.UNKNOWN
        assert "again" in caught.value.hint
        left = sorted((await world.store.children(f"{ROOT}/orders/<default>/ledgers")).names)
        assert 0 < len(left) < 40
        assert left == [f"logrecs_{number:018d}" for number in range(41 - len(left), 41)], "the end of the stream"
        world.tree.repair()
        await world.namespace.delete_stream("orders")
        assert await world.nodes() == {}
        assert await world.ledgers() == set()

    in_namespace(check)


def test_a_deletion_that_never_began_says_that() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        world.tree.stall(CLIENT, 30)
        with pytest.raises(MetadataUnavailable) as caught:
            await world.namespace.delete_stream("orders")
        assert caught.value.outcome is Outcome.NOT_APPLIED

    in_namespace(check)


def test_a_deletion_that_got_no_further_than_the_lock_says_that_nothing_happened() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        store, paths = world.namespace.context.store, world.namespace.context.paths("orders")
        children = store.children

        async def unavailable(path: str) -> Children:
            if path == paths.segments:
                raise MetadataUnavailable("injected")
            return await children(path)

        store.children = unavailable  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable) as caught:
            await world.namespace.delete_stream("orders")
        assert caught.value.outcome is Outcome.NOT_APPLIED

    in_namespace(check)


def test_whoever_loses_the_lock_on_the_way_stops() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=100)
        deleting = asyncio.create_task(world.namespace.delete_stream("orders"))
        await world.fewer_ledgers(100)
        world.tree.expire_host(CLIENT)
        with pytest.raises(MetadataOutcomeUnknown):
            await deleting
        assert await world.namespace.stream_exists("orders")
        assert await world.ledgers()
        await world.namespace.delete_stream("orders")

    in_namespace(check)
