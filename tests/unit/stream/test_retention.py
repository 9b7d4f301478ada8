"""Purging segments of the oldest format, which have no LSSN: the oldest go, and no others."""

from dataclasses import replace

from tests.support.streams.archive import ColdWorld, on_cold_stream

from quire.codec.stream_metadata.segment import UNASSIGNED_LSSN, Segment, encode_segment
from quire.stream.nodes import StreamNodes
from quire.stream.retention import Retention
from quire.types import DLSN, EntryId, LedgerId, SlotId

NOWHERE = DLSN(UNASSIGNED_LSSN, EntryId(-1), SlotId(-1))


async def unnumbered_stream(world: ColdWorld, *sizes: int) -> Retention:
    """A segment of one record for each size, as the first programs of Apache wrote them."""
    nodes = StreamNodes(world.context.store, world.stream.paths)
    for size in sizes:
        raw = await world.stream.begin()
        await raw.append(b"x" * size)
        await raw.complete()
    for stored in await nodes.all_segments():
        segment, done = stored.segment, stored.segment.completion
        assert done is not None
        first, last = 10 * segment.lssn, 10 * segment.lssn + 5
        begin = DLSN(UNASSIGNED_LSSN, EntryId(0), SlotId(0))
        completion = replace(done, last_txid=last, last_dlsn=NOWHERE)
        old = Segment(UNASSIGNED_LSSN, segment.ledger_id, first, begin, completion, version=1)
        await world.context.store.create(world.stream.paths.segment(f"logrecs_{first}_{last}"), encode_segment(old))
        await nodes.remove(stored)
    return Retention(world.context, nodes)


async def left(world: ColdWorld) -> list[tuple[int, LedgerId]]:
    """The first txids of the segments, and their ledgers."""
    nodes = StreamNodes(world.context.store, world.stream.paths)
    found = [(stored.segment.first_txid, stored.segment.ledger_id) for stored in await nodes.all_segments()]
    assert {ledger async for ledger in world.context.ledgers.scan()} == {ledger for _, ledger in found}
    return found


def test_of_segments_without_a_number_the_oldest_is_purged() -> None:
    async def check(world: ColdWorld) -> None:
        retention = await unnumbered_stream(world, 100, 100, 100)
        before = await left(world)
        assert await retention.purge_below(17) == 1
        assert await left(world) == before[1:]
        assert await retention.purge_below(99) == 1
        assert await left(world) == before[2:]

    on_cold_stream(check)


def test_of_segments_without_a_number_each_has_its_own_length() -> None:
    async def check(world: ColdWorld) -> None:
        retention = await unnumbered_stream(world, 5000, 100, 100)
        before = await left(world)
        assert await retention.purge_expired(replace(world.settings, retention_bytes=10_000)) == 0
        assert await retention.purge_expired(replace(world.settings, retention_bytes=4000)) == 1
        assert await left(world) == before[1:]

    on_cold_stream(check)
