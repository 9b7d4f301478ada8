"""Truncating, purging and sealing streams by name, and what is told about them."""

from collections.abc import Awaitable

import pytest
from tests.support.streams.namespace_world import World, in_namespace

from quire.codec.stream_metadata.segment import Truncation
from quire.errors import (
    InvalidArgument,
    InvalidName,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchStream,
    PositionInFuture,
    StreamOwned,
    StreamSealed,
)
from quire.metadata import StoreSettings
from quire.stream.namespace import Namespace
from quire.stream.start import Txid
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int = 0, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


async def write(namespace: Namespace, txids: range, stream: str = "orders") -> list[DLSN]:
    """One segment, one entry a record."""
    async with namespace.open_writer(stream) as writer:
        return [await writer.append(b"%d" % txid, txid=txid) for txid in txids]


async def left(namespace: Namespace, stream: str = "orders") -> list[int]:
    """The txids that a reader sees of a stream that is sealed."""
    async with namespace.open_reader(stream) as reader:
        return [record.txid async for record in reader]


# --- Truncating


def test_records_below_a_txid_are_hidden() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        for begin in (10, 20, 30):
            await write(namespace, range(begin, begin + 5))
        await namespace.seal_stream("orders")
        middle = await namespace.truncate_stream("orders", before=Txid(22))
        assert (await left(namespace))[0] == 22
        assert middle.lssn == 2
        assert await namespace.truncate_stream("orders", before=Txid(11)) == middle, "truncation only grows"
        assert await namespace.truncate_stream("orders", before=Txid(25)) == place(3)
        assert (await left(namespace))[0] == 30
        info = await namespace.stream_info("orders")
        assert [segment.truncation for segment in info.segments[:3]] == [
            Truncation.TRUNCATED,
            Truncation.TRUNCATED,
            Truncation.ACTIVE,
        ]
        assert (info.first_dlsn, info.first_txid) == (place(3), 30)

    in_namespace(check, bookies=3)


def test_records_before_a_place_are_hidden_and_open_segments_stay() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        dlsns = await write(namespace, range(1, 6))
        async with namespace.open_writer("orders") as writer:
            open_dlsn = await writer.append(b"6", txid=6)
            assert await namespace.truncate_stream("orders", before=dlsns[3]) == dlsns[3]
            assert await namespace.truncate_stream("orders", before=open_dlsn.next_slot()) == place(2)
            info = await namespace.stream_info("orders")
            assert [segment.is_completed for segment in info.segments] == [True, False]
            assert (info.record_count, info.last_dlsn, info.first_dlsn) == (0, None, place(2))
        await namespace.seal_stream("orders")
        assert await left(namespace) == [6]

    in_namespace(check, bookies=3)


def test_a_place_that_cannot_be_of_this_stream_truncates_nothing() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        await write(namespace, range(1, 4))
        with pytest.raises(PositionInFuture):
            await namespace.truncate_stream("orders", before=place(7))
        with pytest.raises(InvalidArgument):
            await namespace.truncate_stream("orders", before=5)  # type: ignore[arg-type]
        with pytest.raises(NoSuchStream):
            await namespace.truncate_stream("missing", before=place(1))
        with pytest.raises(InvalidName):
            await namespace.truncate_stream("/", before=place(1))
        assert (await namespace.stream_info("orders")).first_dlsn == place(1)

    in_namespace(check, bookies=3)


@pytest.mark.parametrize("lost", range(3))
def test_a_lost_answer_does_not_keep_a_stream_from_being_truncated_and_purged(lost: int) -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        await namespace.create_stream("orders")
        await world.fill("orders", completed=4)
        world.lose_answer(lost)
        assert await namespace.truncate_stream("orders", before=place(3)) == place(3)
        assert await namespace.purge_stream("orders") == 2
        assert [segment.lssn for segment in (await namespace.stream_info("orders")).segments] == [3, 4]

    in_namespace(check)


# --- Purging


def test_segments_below_a_txid_are_deleted_with_their_ledgers() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        await namespace.create_stream("orders")
        await world.fill("orders", completed=100)
        assert await namespace.purge_stream("orders") == 0, "nothing is truncated"
        assert await namespace.purge_stream("orders", before=Txid(81)) == 80
        assert len(await world.ledgers()) == 20
        assert await namespace.purge_stream("orders", before=Txid(10**6)) == 19, "the last one stays"
        assert [segment.lssn for segment in (await namespace.stream_info("orders")).segments] == [100]
        with pytest.raises(NoSuchStream):
            await namespace.purge_stream("missing")
        with pytest.raises(InvalidArgument):
            await namespace.purge_stream("orders", before=81)  # type: ignore[arg-type]

    in_namespace(check)


# --- Sealing


def test_a_stream_is_sealed_once_and_for_all() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        await write(namespace, range(1, 4))
        await namespace.seal_stream("orders")
        await namespace.seal_stream("orders")
        assert await left(namespace) == [1, 2, 3]
        with pytest.raises(StreamSealed):
            await write(namespace, range(5, 6))
        info = await namespace.stream_info("orders")
        assert (info.is_sealed, info.record_count, info.last_txid) == (True, 3, 3)
        await namespace.create_stream("empty")
        await namespace.seal_stream("empty")
        assert await left(namespace, "empty") == []
        with pytest.raises(NoSuchStream):
            await namespace.seal_stream("missing")
        assert not await namespace.stream_exists("missing")

    in_namespace(check, bookies=3)


def test_a_stream_with_a_writer_is_not_sealed() -> None:
    async def check(world: World) -> None:
        other = await world.open("other")
        async with other.open_writer("orders") as writer:
            await writer.append(b"1", txid=1)
            with pytest.raises(StreamOwned, match="other"):
                await world.namespace.seal_stream("orders")
            info = await world.namespace.stream_info("orders")
            assert not info.is_sealed
            assert info.owner is not None
            assert info.owner.startswith("other")
            await writer.append(b"2", txid=2)
        assert (await world.namespace.stream_info("orders")).owner is None

    in_namespace(check, bookies=3)


# --- What is known


def test_a_stream_is_described_as_far_as_it_is_known() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        await namespace.create_stream("orders")
        new = await namespace.stream_info("orders")
        assert (new.segments, new.first_dlsn, new.last_dlsn, new.last_txid, new.record_count) == (
            (),
            None,
            None,
            None,
            0,
        )
        assert not new.is_sealed
        dlsns = await write(namespace, range(10, 15))
        info = await namespace.stream_info("orders")
        (segment,) = info.segments
        assert (segment.lssn, segment.first_txid, segment.last_txid) == (1, 10, 14)
        assert (segment.record_count, segment.is_completed, segment.truncation) == (5, True, Truncation.ACTIVE)
        assert segment.ledger_id in await world.ledgers()
        assert segment.completed_at_ms is not None
        assert (segment.first_dlsn, segment.last_dlsn) == (dlsns[0], dlsns[-1])
        assert (info.first_dlsn, info.first_txid, info.last_dlsn, info.last_txid) == (dlsns[0], 10, dlsns[-1], 14)
        with pytest.raises(NoSuchStream):
            await namespace.stream_info("missing")

    in_namespace(check, bookies=3)


# --- Named readers


def test_named_readers_are_listed_and_forgotten() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        dlsns = await write(namespace, range(1, 4))
        async with namespace.open_reader("orders", subscription="billing") as reader:
            await anext(reader)
            await reader.commit()
        async with namespace.open_reader("orders", subscription="audit", exclusive=True):
            assert await namespace.subscriptions("orders") == {"audit": None, "billing": dlsns[0].next_slot()}
            with pytest.raises(StreamOwned, match="audit"):
                await namespace.delete_subscription("orders", "audit")
        info = await namespace.stream_info("orders")
        assert info.subscriptions == {"audit": None, "billing": dlsns[0].next_slot()}
        await namespace.delete_subscription("orders", "audit")
        await namespace.delete_subscription("orders", "audit")
        await namespace.delete_subscription("orders", "billing")
        assert await namespace.subscriptions("orders") == {}
        with pytest.raises(NoSuchStream):
            await namespace.subscriptions("missing")
        with pytest.raises(NoSuchStream):
            await namespace.delete_subscription("missing", "audit")
        with pytest.raises(InvalidName):
            await namespace.delete_subscription("orders", "a/b")

    in_namespace(check, bookies=3)


def test_every_call_ends_in_time_and_says_what_may_have_happened() -> None:
    """The store's own patience is longer than the caller's here."""

    async def check(world: World) -> None:
        patient = StoreSettings(operation_timeout_s=500.0, session_timeout_s=500.0)
        namespace = await world.open("slow", store_settings=patient)
        await namespace.create_stream("orders")
        world.tree.stall("slow", 400)
        writes: list[tuple[Awaitable[object], float]] = [
            (namespace.truncate_stream("orders", before=place(1)), 20),
            (namespace.purge_stream("orders"), 20),
            (namespace.delete_subscription("orders", "a"), 20),
        ]
        for call, limit_s in writes:
            began_s = world.now_s
            with pytest.raises(MetadataOutcomeUnknown) as unknown:
                await call
            assert unknown.value.hint != MetadataOutcomeUnknown.hint
            assert world.now_s - began_s <= limit_s + 0.1
        unavailable: list[Awaitable[object]] = [namespace.stream_info("orders"), namespace.subscriptions("orders")]
        for reading in unavailable:
            began_s = world.now_s
            with pytest.raises(MetadataUnavailable):
                await reading
            assert world.now_s - began_s <= 20.1
        began_s = world.now_s
        with pytest.raises(MetadataUnavailable):  # Opening the writer knows that nothing was sealed.
            await namespace.seal_stream("orders")
        assert world.now_s - began_s <= 45.1
        world.tree.repair()

    in_namespace(check, seeds=1)
