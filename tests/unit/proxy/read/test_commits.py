"""Positions of subscribers, stored by a proxy."""

import asyncio

import pytest
from tests.support.proxies.read_world import CALLER, STREAM, World, on_proxy

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, LockLost, NoSuchStream
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(entry_id: int) -> DLSN:
    return DLSN(Lssn(1), EntryId(entry_id), SlotId(0))


async def commit(world: World, entry_id: int, *, reset: bool = False, stream: str = STREAM) -> DLSN:
    request = pb.CommitPositionRequest(
        stream=stream, subscription="mine", position=dlsn_message(place(entry_id)), reset=reset
    )
    return dlsn_of((await world.proxy.commit_position(request, CALLER)).position)


async def stored(world: World) -> DLSN | None:
    """As it is in the metadata."""
    return (await world.writers.subscriptions(STREAM)).get("mine")


def test_an_answered_commit_is_stored() -> None:
    async def check(world: World) -> None:
        for entry_id in (3, 5, 4, 9):
            answer = await commit(world, entry_id)
            assert answer == await stored(world)
            assert answer >= place(entry_id)
        assert await commit(world, 2, reset=True) == place(2) == await stored(world)

    on_proxy(check)


def test_many_commits_are_few_writes() -> None:
    """Method: 100 commits a second for five seconds."""

    async def check(world: World) -> None:
        commits = []
        for number in range(500):
            commits.append(asyncio.create_task(commit(world, number)))
            await world.pass_time(0.01)
        answers = await asyncio.gather(*commits)
        assert all(answer >= place(number) for number, answer in enumerate(answers))
        assert answers[-1] == place(499) == await stored(world)
        metrics = world.proxy._service.metrics
        assert metrics.commits.value == 500
        assert metrics.commit_writes.value <= 8

    on_proxy(check)


def test_positions_are_told_and_forgotten() -> None:
    async def check(world: World) -> None:
        request = pb.GetPositionRequest(stream=STREAM, subscription="mine")
        assert not (await world.proxy.get_position(request, CALLER)).HasField("position")
        await commit(world, 3)
        assert dlsn_of((await world.proxy.get_position(request, CALLER)).position) == place(3)
        await world.proxy.delete_subscription(request, CALLER)
        assert not (await world.proxy.get_position(request, CALLER)).HasField("position")
        with pytest.raises(NoSuchStream):
            await world.proxy.get_position(pb.GetPositionRequest(stream="missing", subscription="mine"), CALLER)

    on_proxy(check, seeds=1)


def test_a_commit_that_cannot_be_stored_fails() -> None:
    async def check(world: World) -> None:
        with pytest.raises(NoSuchStream):
            await commit(world, 1, stream="missing")
        with pytest.raises(InvalidArgument):
            await world.proxy.commit_position(pb.CommitPositionRequest(stream=STREAM, subscription="x"), CALLER)
        assert await commit(world, 1) == place(1)

    on_proxy(check, seeds=1)


def test_an_exclusive_subscriber_that_lost_its_lock_commits_nothing() -> None:
    """The reader has not noticed yet: its lock's node is gone, and another one may be reading."""

    async def check(world: World) -> None:
        await world.write(3)
        client = world.read(exclusive=True, subscription="mine")
        await world.until(lambda: len(client.records) == 3)
        await commit(world, 1)
        paths = world.writers.context.paths(STREAM)
        lock = paths.subscriber_lock("mine")
        for name in (await world.cluster.store.children(lock)).names:
            await world.cluster.store.delete(f"{lock}/{name}", expected=-1)  # type: ignore[arg-type]
        with pytest.raises(LockLost):
            await commit(world, 2)
        assert await stored(world) == place(1)

    on_proxy(check, seeds=1)
