"""Named positions and reader locks: readers go on where their name was left, one at a time if they want."""

from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.reading import READER, ReaderWorld, on_stream, take

from quire.codec.stream_metadata.tree import decode_subscription, encode_subscription
from quire.errors import (
    DamagedMetadata,
    InvalidName,
    LockLost,
    NodeNotEmpty,
    NoSuchStream,
    PositionTruncated,
    StreamOwned,
)
from quire.metadata import ANY_VERSION, HeldLock
from quire.stream.subscriptions import Subscriptions
from quire.types import BEFORE_INITIAL_DLSN, DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def subscriptions(world: ReaderWorld) -> Subscriptions:
    return Subscriptions(world.context.store, world.stream.paths)


# --- Positions


def test_a_reader_goes_on_where_its_name_was_left() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4, 5)
        records = world.stream.records
        async with world.open(subscription="billing") as reader:
            assert await take(reader, 3) == records[:3], "the first time it begins with the oldest record"
            assert await reader.commit() == records[2].dlsn.next_slot()
            await take(reader, 2)  # Not committed.
        async with world.open(subscription="billing") as reader:
            assert await take(reader, 6) == records[3:]
            assert await reader.commit(records[5].dlsn) == records[5].dlsn
        assert await world.read(4, subscription="billing") == records[5:], "what was committed comes again, inclusive"
        async with world.open(subscription="another", start="latest") as reader:
            assert reader.position == place(3, 0), "where a name that was never committed begins may be chosen"
        assert await subscriptions(world).names() == ["billing"]

    on_stream(check, seeds=1)


@pytest.mark.parametrize("name", ["x" * 5000, "ö" * 257, "a\u202eb"], ids=lambda name: f"{name[:6]!a}")
def test_a_name_that_cannot_be_told_from_others_is_used_but_not_created(name: str) -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4)
        named = subscriptions(world)
        with pytest.raises(InvalidName, match="cannot name a new subscription"):
            await named.commit(name, place(1, 0))
        with pytest.raises(InvalidName, match="cannot name a new subscription"):
            await named.prepare_lock(name)
        assert await named.names() == []
        await world.context.store.create(
            world.stream.paths.subscriber(name), encode_subscription(place(1, 0)), parents=True
        )
        assert await named.commit(name, place(1, 2)) == await named.read(name) == place(1, 2)

    on_stream(check, seeds=1)


def test_positions_do_not_move_back_unless_told() -> None:
    async def check(world: ReaderWorld) -> None:
        names = subscriptions(world)
        assert await names.read("a") is None
        assert await names.names() == []
        assert await names.commit("a", place(2, 3)) == place(2, 3)
        assert await names.commit("a", place(1, 9)) == place(2, 3)
        assert await names.read("a") == place(2, 3)
        assert await names.commit("a", place(1, 9), may_go_back=True) == place(1, 9)
        assert await names.read("a") == place(1, 9)
        node = await world.context.store.get(world.stream.paths.subscriber("a"))
        assert decode_subscription(node.data) == place(1, 9)
        await names.delete("a")
        await names.delete("a")
        assert await names.read("a") is None

    on_stream(check, seeds=1)


def test_positions_of_apaches_readers_are_understood() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        path = world.stream.paths.subscriber("a")
        await world.context.store.create(path, b"AQAAAAAAAAABAAAAAAAAAAD//////////w==", parents=True)
        assert await subscriptions(world).read("a") == BEFORE_INITIAL_DLSN
        assert await world.read(3, subscription="a") == world.stream.records
        await world.context.store.set(path, b"", expected=ANY_VERSION)
        assert await world.read(3, subscription="a") == world.stream.records, "only a lock was ever taken"

    on_stream(check, seeds=1)


def test_a_damaged_position_is_no_beginning() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        names, path = subscriptions(world), world.stream.paths.subscriber("a")
        await world.context.store.create(path, b"nonsense", parents=True)
        with pytest.raises(DamagedMetadata, match="subscribers/a"):
            async with world.open(subscription="a"):
                pass
        with pytest.raises(DamagedMetadata):
            await names.commit("a", place(1, 0))
        await names.commit("a", place(1, 0, 1), may_go_back=True)
        assert await world.read(2, subscription="a") == world.stream.records[1:]

    on_stream(check, seeds=1)


def test_a_name_whose_position_was_purged_is_told() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await subscriptions(world).commit("a", place(1, 0, 1))
        await world.stream.purge(world.stream.segments[0])
        with pytest.raises(PositionTruncated):
            async with world.open(subscription="a"):
                pass
        assert await world.read(6, subscription="a", skip_truncated=True) == world.stream.records

    on_stream(check, seeds=1)


def test_many_may_commit_at_once_and_the_furthest_stays() -> None:
    async def check(world: ReaderWorld) -> None:
        names = subscriptions(world)
        places = [place(1, number) for number in range(20)]
        world.sim.rng.shuffle(places)
        tasks = [world.spawn(names.commit("a", each)) for each in places]
        for task in tasks:
            await task
        assert await names.read("a") == place(1, 19)

    on_stream(check, seeds=5)


def test_a_deleted_stream_is_not_brought_back_by_a_commit() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(1)
        async with world.open(subscription="a") as reader:
            await take(reader, 1)
            await world.stream.delete()
            with pytest.raises(NoSuchStream):
                await reader.commit()
        assert await world.context.store.exists(world.stream.paths.top) is None

    on_stream(check, seeds=1)


@pytest.mark.parametrize("name", ["", "a/b", "..", "."])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    async def check(world: ReaderWorld) -> None:
        with pytest.raises(InvalidName):
            async with world.open(subscription=name):
                pass

    on_stream(check, seeds=1)


# --- Locks


@pytest.mark.parametrize("name", [None, "billing"])
def test_of_exclusive_readers_one_reads_at_a_time(name: str | None) -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        at_once = replace(SETTINGS, lock_timeout_s=0.0)
        async with world.open(exclusive=True, subscription=name) as reader:
            await take(reader, 2)
            with pytest.raises(StreamOwned):
                async with world.open(exclusive=True, subscription=name, settings=at_once):
                    pass
            assert await world.read(3) == world.stream.records, "others do not ask for the lock"
            if name is not None:
                await reader.commit()
                with pytest.raises(NodeNotEmpty):
                    await subscriptions(world).delete(name)
            waiting = world.spawn(world.read(1, exclusive=True, subscription=name))
            await world.pass_time(1.0)
            assert not waiting.done()
        wanted = world.stream.records[2 if name else 0]
        assert await waiting == [wanted], "it begins where the other one left, when that has left"
        if name is not None:
            await subscriptions(world).delete(name)

    on_stream(check)


def test_an_exclusive_reader_begins_when_it_has_the_lock_and_not_when_it_asked() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)

        async def begun_at_latest() -> DLSN:
            async with world.open(exclusive=True, start="latest") as reader:
                return reader.position

        async with world.open(exclusive=True):
            waiting = world.spawn(begun_at_latest())
            await world.pass_time(1.0)
            await world.stream.fill(3, 3)
        assert await waiting == place(4, 0)

    on_stream(check, seeds=1)


def test_a_reader_whose_lock_is_lost_gives_nothing_and_commits_nothing() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(30, per_entry=10)
        async with world.open(exclusive=True, subscription="a") as reader:
            assert await take(reader, 3) == world.stream.records[:3]
            await reader.commit()
            world.tree.expire_host(READER)
            await world.pass_time(1.0)
            for _ in range(2):
                with pytest.raises(LockLost):
                    await anext(reader)
                with pytest.raises(LockLost):
                    await reader.read_many(5)
            with pytest.raises(LockLost):
                await reader.commit(place(1, 9))
            assert reader.position == world.stream.records[2].dlsn.next_slot()
        assert await subscriptions(world).read("a") == reader.position

    on_stream(check)


def test_whoever_waits_hears_that_its_lock_is_lost() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(1)
        async with world.open(exclusive=True) as reader:
            await take(reader, 1)
            waiting = world.spawn(reader.read_many(1, timeout_s=100.0))
            await world.pass_time(1.0)
            world.tree.expire_host(READER)
            with pytest.raises(LockLost):
                await waiting
            world.tasks.clear()

    on_stream(check)


def test_a_commit_is_refused_once_somebody_else_has_the_lock() -> None:
    """The store says so, whether or not we know yet that the lock is lost."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        async with world.open(exclusive=True, subscription="a") as reader:
            await take(reader, 2)
            lock = reader._lock
            assert isinstance(lock, HeldLock)
            await world.stream.context.store.delete(lock.path, expected=ANY_VERSION)
            with pytest.raises(LockLost):
                await reader.commit()
        assert await subscriptions(world).read("a") is None

    on_stream(check, seeds=1)
