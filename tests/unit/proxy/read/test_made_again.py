"""A stream that is deleted and made again, at a read proxy: nothing of the old one counts for the new one."""

import asyncio

import pytest
from tests.support.proxies.read_world import CALLER, EARLIEST, STREAM, World, at, on_proxy

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import LockLost, NoSuchStream
from quire.metadata import ANY_VERSION
from quire.rpc.serving.results import dlsn_of
from quire.types import DLSN


async def make_again(world: World) -> None:
    await world.writers.delete_stream(STREAM)
    await world.writers.create_stream(STREAM)


async def incarnation(world: World) -> str:
    reading = world.read()
    await world.until(lambda: bool(reading.events))
    await reading.stop()
    return reading.events[0].opened.incarnation


async def commit(world: World, entry_id: int, incarnation: str, *, reset: bool = False) -> DLSN:
    request = pb.CommitPositionRequest(
        stream=STREAM, subscription="mine", position=at(1, entry_id).dlsn, reset=reset, incarnation=incarnation
    )
    return dlsn_of((await world.proxy.commit_position(request, CALLER)).position)


async def stored(world: World) -> DLSN | None:
    return (await world.writers.subscriptions(STREAM)).get("mine")


def test_a_reader_of_the_old_stream_stores_no_position() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        old = await incarnation(world)
        assert await commit(world, 2, old) == (1, 2, 0)
        await make_again(world)
        for reset in (False, True):
            with pytest.raises(NoSuchStream, match="is gone"):
                await commit(world, 3, old, reset=reset)
        assert await stored(world) is None
        assert await commit(world, 1, await incarnation(world)) == (1, 1, 0) == await stored(world)

    on_proxy(check, seeds=1)


def test_positions_of_both_streams_that_are_committed_at_the_same_time_are_kept_apart() -> None:
    """Each is written once in a while: what is further in the old stream is no reason to store it for the new one."""

    async def check(world: World) -> None:
        await world.write(3)
        old = await incarnation(world)
        await make_again(world)
        new = await incarnation(world)
        late, fresh = await asyncio.gather(commit(world, 9, old), commit(world, 1, new), return_exceptions=True)
        assert isinstance(late, NoSuchStream)
        assert fresh == (1, 1, 0) == await stored(world)

    on_proxy(check)


def test_reading_does_not_go_on_in_the_new_stream_whether_that_has_come_so_far_or_not() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        old = await incarnation(world)
        for count in (0, 3, 9):
            await make_again(world)
            await world.write(count)
            for subscription in ("", "mine"):
                again = world.read(at(1, 2), incarnation=old, subscription=subscription)
                await world.until(lambda again=again: again.error is not None)  # type: ignore[misc]
                assert isinstance(again.error, NoSuchStream), again.error
                assert not again.events
            with pytest.raises(NoSuchStream, match="is gone"):
                await world.fetch(at(1, 2), incarnation=old)

    on_proxy(check, seeds=1)


def test_a_client_that_fetches_is_told_which_stream_it_reads() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        first = await world.fetch(EARLIEST, format=pb.RECORDS, max_records=1, max_wait_ms=5000)
        told = first.event.opened.incarnation
        assert told == await incarnation(world)
        start = pb.Position(dlsn=first.next)
        rest = await world.fetch(start, format=pb.RECORDS, max_wait_ms=5000, incarnation=told)
        assert rest.event.records[0].payload == b"1"

    on_proxy(check, seeds=1)


def test_a_reader_that_lost_its_lock_takes_no_other_readers_lock_along() -> None:
    """Method: both are exclusive, under one name; the old one leaves after the new one came."""

    async def check(world: World) -> None:
        await world.write(3)
        old = world.read(exclusive=True, subscription="mine")
        await world.until(lambda: len(old.records) == 3)
        old.may_go.clear()
        store, lock = world.cluster.store, world.writers.context.paths(STREAM).subscriber_lock("mine")

        async def lose() -> None:
            for name in (await store.children(lock)).names:
                await store.delete(f"{lock}/{name}", expected=ANY_VERSION)

        await lose()
        new = world.read(exclusive=True, subscription="mine")
        await world.until(lambda: len(new.records) == 3)
        await old.stop()
        assert await commit(world, 1, "") == (1, 1, 0)
        await lose()
        with pytest.raises(LockLost):
            await commit(world, 2, "")
        await new.stop()
        assert new.error is None or isinstance(new.error, LockLost)

    on_proxy(check, seeds=1)
