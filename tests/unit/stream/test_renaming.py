"""Renaming streams: all of one at once, or nothing."""

import asyncio

import pytest
from tests.support.streams.namespace_world import ROOT, World, in_namespace
from tests.unit.stream.test_removal import hold

from quire.errors import MetadataOutcomeUnknown, NoSuchStream, RequestTooLarge, StreamExists, StreamOwned
from quire.metadata import ANY_VERSION


async def tree_of(world: World, stream: str) -> dict[str, bytes]:
    """What belongs to a stream, but not what is nested in it."""
    nodes = await world.nodes(f"{ROOT}/{stream}")
    return {path: data for path, data in nodes.items() if path.startswith("/<default>")}


async def make(world: World, stream: str) -> dict[str, bytes]:
    await world.namespace.create_stream(stream)
    await world.fill(stream, completed=3, in_progress=1, allocated=True)
    paths = world.namespace.context.paths(stream)
    await world.store.create(paths.subscriber_lock("reader"), parents=True)
    await world.store.set(paths.subscriber("reader"), b"position", expected=ANY_VERSION)
    await world.store.set(paths.max_txid, b"3", expected=ANY_VERSION)
    await world.namespace.set_stream_metadata(stream, b"mine")
    return await tree_of(world, stream)


@pytest.mark.parametrize("new", ["new", "deep/er/new", "old/new", "o"])
def test_everything_of_a_stream_moves(new: str) -> None:
    async def check(world: World) -> None:
        before = await make(world, "old")
        ledgers = await world.ledgers()
        await world.namespace.rename_stream("old", f"/{new}")
        assert await world.namespace.list_streams() == [new]
        assert await tree_of(world, new) == before
        assert (await world.namespace.stream_metadata(new))[0] == b"mine"
        assert await world.ledgers() == ledgers
        left = {path for path in await world.nodes() if "<default>" not in path}
        assert left == {f"/{'/'.join(new.split('/')[: end + 1])}" for end in range(new.count("/") + 1)}
        if new == "old/new":
            assert (await world.store.get(f"{ROOT}/old")).data == b""
        await world.namespace.rename_stream(new, "old")
        assert await tree_of(world, "old") == before

    in_namespace(check)


def test_what_is_nested_stays_where_it_is() -> None:
    async def check(world: World) -> None:
        before = await make(world, "a")
        nested = await make(world, "a/b")
        await world.namespace.rename_stream("a", "c")
        assert await world.namespace.list_streams() == ["a/b", "c"]
        assert (await world.store.get(f"{ROOT}/a")).data == b""
        await world.namespace.rename_stream("a/b", "a")
        assert await world.namespace.list_streams() == ["a", "c"]
        assert (await tree_of(world, "a"), await tree_of(world, "c")) == (nested, before)

    in_namespace(check)


def test_there_has_to_be_a_stream_and_room_for_it() -> None:
    async def check(world: World) -> None:
        before = await make(world, "a")
        await world.namespace.create_stream("b/c")
        with pytest.raises(StreamExists):
            await world.namespace.rename_stream("a", "b/c")
        with pytest.raises(StreamExists):
            await world.namespace.rename_stream("a", "a")
        for missing in ("d", "b"):
            with pytest.raises(NoSuchStream):
                await world.namespace.rename_stream(missing, "e")
        await world.store.delete(f"{ROOT}/b/c/<default>/version", expected=ANY_VERSION)
        with pytest.raises(NoSuchStream, match="version"):
            await world.namespace.rename_stream("b/c", "e")
        assert await world.namespace.list_streams() == ["a", "b/c"]
        assert await tree_of(world, "a") == before

    in_namespace(check)


@pytest.mark.parametrize("read", [False, True])
def test_a_stream_that_somebody_holds_stays(read: bool) -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a")
        other = await world.open("other")
        async with hold(other, "a", read=read):
            with pytest.raises(StreamOwned) as refused:
                await world.namespace.rename_stream("a", "b")
            assert str(refused.value.facts["owner"]).startswith("other-")
            assert await world.namespace.list_streams() == ["a"]
        await world.namespace.rename_stream("a", "b")

    in_namespace(check)


def test_a_stream_with_too_many_segments_for_one_step_stays() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a")
        await world.fill("a", completed=2000)
        with pytest.raises(RequestTooLarge):
            await world.namespace.rename_stream("a", "b")
        assert await world.namespace.list_streams() == ["a"]

    in_namespace(check, seeds=1)


def test_of_many_who_rename_one_stream_one_does() -> None:
    async def check(world: World) -> None:
        before = await make(world, "a")
        namespaces = [await world.open(f"h{number}") for number in range(4)]
        renames = (each.rename_stream("a", f"b{number}") for number, each in enumerate(namespaces))
        done = await asyncio.gather(*renames, return_exceptions=True)
        assert sorted(type(each).__name__ for each in done) == ["NoSuchStream"] * 3 + ["NoneType"]
        (name,) = await world.namespace.list_streams()
        assert name == f"b{done.index(None)}"
        assert await tree_of(world, name) == before

    in_namespace(check, seeds=10)


def test_a_change_between_the_look_and_the_move_is_not_lost() -> None:
    async def check(world: World) -> None:
        await make(world, "a")
        store = world.namespace.context.store
        transaction, changes = store.transaction, [b"8", b"9"]

        async def change_and_move(*ops: object) -> object:
            if changes:
                await world.store.set(f"{ROOT}/a/<default>/maxtxid", changes.pop(0), expected=ANY_VERSION)
            return await transaction(*ops)  # type: ignore[arg-type]

        store.transaction = change_and_move  # type: ignore[method-assign, assignment]
        await world.namespace.rename_stream("a", "b")
        assert (await tree_of(world, "b"))["/<default>/maxtxid"] == b"9"

    in_namespace(check)


def test_a_lost_answer_is_found_out() -> None:
    async def check(world: World) -> None:
        before = await make(world, "a")
        world.lose_answer(0)
        await world.namespace.rename_stream("a", "b")
        assert await world.namespace.list_streams() == ["b"]
        assert await tree_of(world, "b") == before

    in_namespace(check)


def test_a_lost_answer_that_nothing_tells_of_any_more_stays_unknown() -> None:
    """Somebody deletes the stream under its new name before we can look."""

    async def check(world: World) -> None:
        await make(world, "a")
        world.lose_answer(0)
        store, other = world.namespace.context.store, await world.open("other")
        sync, syncs = store.sync, 0

        async def sync_late() -> None:
            nonlocal syncs
            syncs += 1
            if syncs == 2:
                await other.delete_stream("b")
            await sync()

        store.sync = sync_late  # type: ignore[method-assign]
        with pytest.raises(MetadataOutcomeUnknown):
            await world.namespace.rename_stream("a", "b")

    in_namespace(check)
