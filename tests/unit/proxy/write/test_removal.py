"""Streams that are deleted and renamed while proxies have them."""

import asyncio

from tests.support.proxies.write_world import World, in_world, once

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendOutcomeUnknown, NoSuchStream, NotOwner, QuireError, StreamUnavailable
from quire.proxy.write.answers import not_ready
from quire.rpc.serving import methods


def test_the_owner_gives_a_stream_up_before_it_is_deleted() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        assert isinstance(await two.refused(methods.DELETE_STREAM, pb.StreamRequest(stream="s")), NotOwner)
        await one.call(methods.DELETE_STREAM, pb.StreamRequest(stream="s"))
        missing = await one.refused(methods.WRITE_ONCE, once("s", b"b", create_if_missing=False))
        assert isinstance(missing, NoSuchStream)
        await one.write("s", b"anew")
        assert [record.payload for record in await world.read("s", 1)] == [b"anew"]

    in_world(check)


def test_writes_that_come_while_a_stream_is_renamed_do_not_bring_it_back() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("old", b"a")

        async def try_to_write() -> bool:
            try:
                await one.write("old", b"b", create_if_missing=False)
            except QuireError as error:
                return error.outcome.name != "NOT_APPLIED"
            return True

        renaming = asyncio.create_task(
            one.call(methods.RENAME_STREAM, pb.RenameStreamRequest(stream="old", new_name="new"))
        )
        stored = 1
        while not renaming.done():
            stored += await try_to_write()
            await asyncio.sleep(0)
        await renaming
        assert not await try_to_write()
        await one.write("new", b"c")
        found = [record.payload for record in await world.read("new", stored + 1)]
        assert (found[0], found[-1]) == (b"a", b"c")

    in_world(check, seeds=3)


def test_what_keeps_a_stream_away_outlasts_its_deletion() -> None:
    """A proxy that could not write a stream does not take it again because somebody tried to delete it."""

    async def check(world: World) -> None:
        one = await world.proxy("p1")
        one.proxy._refusals.on_probation("s", AppendOutcomeUnknown("storage said nothing"))
        assert isinstance(await one.refused(methods.DELETE_STREAM, pb.StreamRequest(stream="s")), NoSuchStream)
        error = await one.refused(methods.WRITE_ONCE, once("s", b"a"))
        assert isinstance(error, StreamUnavailable)
        assert "could not be written from here" in str(error)

    in_world(check, seeds=1)


def test_a_stream_that_is_removed_twice_at_once_is_not_taken_in_between() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        refusals = one.proxy._refusals
        first, second = (lambda _: not_ready("s", "first", retry_after_ms=1)), (lambda _: StreamUnavailable("second"))
        with refusals.blocked("s", first):
            with refusals.blocked("s", second):
                assert refusals.held("s") is first
            assert refusals.held("s") is first
        assert refusals.held("s") is None

    in_world(check, seeds=1)
