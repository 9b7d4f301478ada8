"""What an audit makes of segments without ledgers: lost if they should have them, and passed by only if not."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.streams.namespace_world import World, in_namespace

from quire.cold import ColdStores
from quire.cold.blocking import at_once
from quire.metadata import ANY_VERSION
from quire.spark.audit import LostSegment, lost_among, make_plan
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.info import SegmentInfo
from quire.stream.namespace import Namespace
from quire.types import DLSN, EntryId, Lssn, SlotId

ROOT = "memory:archive"


def on_segments(check: Callable[[Namespace, World], Awaitable[None]]) -> None:
    """Run `check` with a stream `orders` of three segments."""

    async def run(world: World) -> None:
        namespace = await world.open("auditor", cold=ColdStores(run=at_once, memory={}))
        for number in range(3):
            async with namespace.open_writer("orders") as writer:
                await writer.append(b"%d" % number)
        await check(namespace, world)

    in_namespace(run, bookies=3, seeds=1)


async def segments(namespace: Namespace) -> tuple[SegmentInfo, ...]:
    return (await namespace.stream_info("orders")).segments


async def lose(namespace: Namespace, lssn: int) -> tuple[str, int, int]:
    """Delete the ledger of a segment, and nothing else."""
    ledger = next(each.ledger_id for each in await segments(namespace) if each.lssn == lssn)
    await namespace.context.ledgers.delete(ledger)
    return "orders", lssn, ledger


def test_a_hot_segment_without_a_ledger_is_missed_by_the_plan_and_lost() -> None:
    async def check(namespace: Namespace, world: World) -> None:
        gone = await lose(namespace, 2)
        plan = await make_plan(namespace, ["orders"])
        assert {piece["lssn"] for piece in plan.pieces} == {1, 3}
        assert plan.missed == [gone]
        assert await lost_among(namespace, plan.missed) == [LostSegment(*gone)]

    on_segments(check)


def test_the_file_of_a_lost_segment_that_is_archived_is_named() -> None:
    async def check(namespace: Namespace, world: World) -> None:
        await archive_stream(namespace.context, "orders", ROOT)
        gone = await lose(namespace, 2)
        (lost,) = await lost_among(namespace, {gone})
        assert lost.cold_file == (await segments(namespace))[1].cold_file
        assert lost.cold_file is not None

    on_segments(check)


def test_segments_that_were_dropped_after_archiving_are_passed_by() -> None:
    async def check(namespace: Namespace, world: World) -> None:
        await archive_stream(namespace.context, "orders", ROOT)
        before = {("orders", each.lssn, each.ledger_id) for each in await segments(namespace)}
        await drop_hot(namespace.context, "orders", DropPolicy(before=Lssn(3)))
        plan = await make_plan(namespace, None)
        assert ({piece["lssn"] for piece in plan.pieces}, plan.missed) == ({3}, [])
        assert [each.lssn for each in await lost_among(namespace, before)] == [3], "those that moved meanwhile are not"
        await restore_segments(namespace.context, "orders")
        assert [each.lssn for each in await lost_among(namespace, before)] == [3], "they have other ledgers now"

    on_segments(check)


def test_what_is_deleted_truncated_or_purged_is_not_lost() -> None:
    """A purge deletes the ledger, and after that the node. One is cut off here, another is only slow."""

    async def check(namespace: Namespace, world: World) -> None:
        cut_off = await lose(namespace, 1)
        await namespace.truncate_stream("orders", before=DLSN(Lssn(2), EntryId(0), SlotId(0)))
        assert await lost_among(namespace, {cut_off}) == []
        slow = await lose(namespace, 2)
        paths = namespace.context.paths("orders")

        async def finish() -> None:
            await world.pass_time(1.0)
            (name,) = (each for each in (await world.store.children(paths.segments)).names if each.endswith("2"))
            await world.store.delete(paths.segment(name), expected=ANY_VERSION)
            (name,) = (each for each in (await world.store.children(paths.segments)).names if each.endswith("1"))
            await world.store.delete(paths.segment(name), expected=ANY_VERSION)

        finishing = asyncio.create_task(finish())
        assert await lost_among(namespace, {slow}) == []
        await finishing
        await lose(namespace, 3)
        assert [each.lssn for each in await lost_among(namespace, (await make_plan(namespace, None)).missed)] == [3]
        await namespace.delete_stream("orders")
        assert await lost_among(namespace, {cut_off, slow}) == []

    on_segments(check)
