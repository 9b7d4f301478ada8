"""Readers of a stream whose oldest records go away: before they begin, and under them."""

from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.reading import ReaderWorld, is_silent, on_stream, take

from quire.errors import PositionTruncated
from quire.stream.start import Time, Txid
from quire.types import DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId

NARROW = replace(SETTINGS, read_ahead_bytes_max=100)  # Hardly an entry is ready before it is asked for.


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


async def refused(world: ReaderWorld, start: DLSN, *, left: DLSN) -> None:
    with pytest.raises(PositionTruncated) as error:
        async with world.open(start=start):
            pass
    assert (error.value.facts["position"], error.value.facts["left"]) == (start, left)


def test_a_place_that_is_truncated_is_refused_unless_gaps_are_allowed() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(6, 6, 6, per_entry=2)
        cut = place(2, 1, 1)
        await world.stream.truncate(cut)
        records = world.stream.records
        assert records[0].dlsn == cut
        for start in (INITIAL_DLSN, place(1, 2), place(2, 0), place(2, 1)):
            await refused(world, start, left=cut)
            assert await world.read(len(records), start=start, skip_truncated=True) == records
        for start in (cut, place(2, 2), place(3, 0), place(3, 1)):
            wanted = [record for record in records if record.dlsn >= start]
            assert await world.read(len(wanted), start=start) == wanted

    on_stream(check, seeds=1)


def test_whoever_read_all_of_a_truncated_segment_goes_on() -> None:
    """A reader commits its position, and the stream is truncated there: nothing that it needs is gone."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(6, 0, 6, per_entry=2)
        async with world.open() as reader:
            await take(reader, 6)
            position = reader.position
        assert position == place(1, 2, 2)
        await world.stream.truncate(place(3, 0))
        assert [raw.segment.is_truncated for raw in world.stream.segments] == [True, True, False]
        assert await world.read(6, start=position) == world.stream.records
        await refused(world, place(1, 2, 1), left=place(3, 0))

    on_stream(check, seeds=1)


def test_a_place_that_is_purged_is_refused_unless_gaps_are_allowed() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.stream.purge(world.stream.segments[0])
        for start in (INITIAL_DLSN, place(1, 0, 2)):
            await refused(world, start, left=place(2, 0))
            assert await world.read(6, start=start, skip_truncated=True) == world.stream.records
        assert await world.read(6, start="earliest") == world.stream.records
        assert await world.read(6, start=place(2, 0)) == world.stream.records

    on_stream(check, seeds=1)


def test_a_reader_in_the_middle_of_a_segment_reads_on_when_that_is_truncated() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(20, 3, per_entry=2)
        wanted = list(world.stream.records)
        async with world.open(settings=NARROW) as reader:
            got = await take(reader, 3)
            await world.stream.truncate(place(2, 0))
            got += await take(reader, 20)
            assert got == wanted

    on_stream(check)


@pytest.mark.parametrize("how", ["truncated", "purged"])
@pytest.mark.parametrize("skip", [False, True])
def test_a_reader_that_is_overtaken_is_told_after_what_it_can_still_have(how: str, skip: bool) -> None:
    """Method: it is in the first segment while the second one goes away, and asks for nothing meanwhile. It looked at
    the second one before, when it searched for its beginning: that must not count any more.
    """

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(20, 6, 6, per_entry=2)
        wanted = list(world.stream.records)
        async with world.open(settings=NARROW, start=Txid(0), skip_truncated=skip) as reader:
            got = await take(reader, 3)
            if how == "truncated":
                await world.stream.truncate(place(3, 1))
            else:
                for raw in world.stream.segments[:2]:
                    await world.stream.purge(raw)
            got += await take(reader, 17)
            if skip:
                got += await take(reader, len(world.stream.records))
                assert got == wanted[:20] + world.stream.records
            else:
                for _ in range(2):
                    with pytest.raises(PositionTruncated) as error:
                        await anext(reader)
                assert error.value.facts["left"] == world.stream.records[0].dlsn
                assert got == wanted[:20]
                assert reader.position == place(2, 0)

    on_stream(check)


def test_a_reader_whose_segment_is_purged_is_told() -> None:
    """The bookies collect the entries of a ledger that is gone: the middle of the segment is lost for the reader."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(200, 6, 6, per_entry=2)
        wanted = list(world.stream.records)
        async with world.open(settings=NARROW) as reader:
            got = await take(reader, 3)
            await world.stream.purge(world.stream.segments[0])
            for bookie in world.cluster.bookies:
                assert bookie.bookie.garbage is not None
                await bookie.bookie.garbage.collect()
            with pytest.raises(PositionTruncated) as error:
                got += await take(reader, 300)
            assert len(got) < 200
            assert error.value.facts["left"] == place(2, 0)
            assert got == wanted[: len(got)]
            assert reader.position <= got[-1].dlsn.next_entry()

    on_stream(check, seeds=1)


def test_a_purge_that_is_half_done_is_no_gap_for_whoever_did_not_ask_for_the_place() -> None:
    """'earliest' and the like mean what is left. Method: the ledger is deleted, and the node only a second later."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3, 3)
        first = world.stream.segments[0]
        await world.stream.context.ledgers.delete(first.segment.ledger_id)
        readings = [world.spawn(world.read(6, start=start)) for start in ("earliest", Txid(0), Txid(1), Time(0))]
        async with world.open(start=place(1, 0, 1)) as strict:
            await world.pass_time(1.0)
            await world.stream.forget(first)
            for reading in readings:
                assert await reading == world.stream.records
            with pytest.raises(PositionTruncated):
                await anext(strict)

    on_stream(check)


def test_a_truncated_stream_is_followed_as_any_other() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3)
        async with world.open(start="latest") as reader:
            await world.stream.truncate(place(3, 0))
            assert await is_silent(reader, for_s=5.0)
            segment = await world.stream.begin()
            await segment.append(b"a")
            await segment.control()
            assert (await anext(reader)).payload == b"a"

    on_stream(check)
