"""Readers at the end of a stream that grows: live appends, rolls, recoveries, and segments that come and go."""

from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.raw import RawSegment, with_ledger
from tests.support.streams.reading import READER, ReaderWorld, eventually, is_silent, on_stream, take

from quire.codec.stream_metadata.segment import encode_segment, segment_name
from quire.errors import NoSuchLedger, NoSuchStream
from quire.metadata import ANY_VERSION
from quire.stream.start import Start, Txid
from quire.types import DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


async def append_some(world: ReaderWorld, segment: RawSegment, count: int) -> None:
    for number in range(count):
        await segment.append(b"%d/%d" % (segment.segment.lssn, number), b"second")
        await world.pass_time(world.sim.rng.random() * 0.02)


def test_records_come_while_they_are_written_and_segments_roll() -> None:
    """Method: the next segment is begun before the last one is sealed and completed, as in a roll, at any pace."""

    async def check(world: ReaderWorld) -> None:
        async def write() -> None:
            segment = await world.stream.begin()
            for _ in range(5):
                await append_some(world, segment, 6)
                following = await world.stream.begin()
                await world.pass_time(world.sim.rng.random() * 0.5)
                await segment.complete()
                segment = following
            await segment.end_of_stream()
            await segment.control()

        world.spawn(write())
        readers = [world.spawn(world.read_sealed(settings=replace(SETTINGS, idle_s=1e6))) for _ in range(3)]
        for reader in readers:
            assert await reader == world.stream.records

    on_stream(check, seeds=5)


def test_a_stream_without_segments_is_waited_for() -> None:
    async def check(world: ReaderWorld) -> None:
        for start in ("earliest", "latest", INITIAL_DLSN):
            async with world.open(start=start) as reader:
                assert await is_silent(reader, for_s=1.0)
                assert reader.statistics().at_tail
        reading = world.spawn(world.read(1, start="latest"))
        await world.pass_time(1.0)
        segment = await world.stream.begin()
        await segment.append(b"first of all")
        await segment.control()
        assert [record.payload for record in await reading] == [b"first of all"]

    on_stream(check)


def test_a_segment_that_another_client_recovers_is_read_to_its_end() -> None:
    """The writer is gone, its last entries are unconfirmed. A recovery seals the ledger; what it keeps is read."""

    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        async with world.open() as reader:
            await segment.append(b"a")
            await segment.append(b"b")
            assert [record.payload for record in await take(reader, 1)] == [b"a"]
            assert await is_silent(reader, for_s=5.0), "b is not confirmed"
            await world.context.ledgers.recover(segment.ledger.id)
            assert (await anext(reader)).payload == b"b"
            assert await is_silent(reader, for_s=5.0)
            await segment.complete_node()
            following = await world.stream.begin()
            await following.append(b"c")
            await following.control()
            assert (await anext(reader)).payload == b"c"

    on_stream(check, seeds=3)


def test_the_next_segment_is_read_though_this_one_is_not_completed_yet() -> None:
    """Two segments are in progress; the ledger of the first is sealed, its node comes later."""

    async def check(world: ReaderWorld) -> None:
        first = await world.stream.begin()
        await first.append(b"a")
        second = await world.stream.begin()
        await second.append(b"b")
        await second.control()
        async with world.open() as reader:
            assert await is_silent(reader, for_s=5.0), "the writer may still append to the first one"
            await first.ledger.close()
            assert [record.payload for record in await take(reader, 2)] == [b"a", b"b"]
            await first.complete_node()
            await second.append(b"c")
            await second.control()
            assert (await anext(reader)).payload == b"c"

    on_stream(check)


def test_an_empty_segment_may_be_begun_again_with_another_ledger() -> None:
    """As Apache's recovery leaves it: it deletes the ledger, then the node; the next writer takes the same number."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        async with world.open() as reader:
            got = await take(reader, 3)
            for pause_s in (0.0, 3.0):
                empty = await world.stream.begin(lssn=2)
                await eventually(lambda: reader.statistics().segments >= 2)
                await world.context.ledgers.delete(empty.segment.ledger_id)
                await world.pass_time(pause_s)
                await world.stream.forget(empty)
            again = await world.stream.begin(lssn=2)
            await again.append(b"a")
            await again.control()
            got += await take(reader, 1)
            assert got == world.stream.records

    on_stream(check, seeds=3)


def test_an_empty_segment_that_a_recovery_closed_is_not_over_yet() -> None:
    """Apache's recovery closes the ledger before it deletes it. Whoever took that for the end of the segment would wait
    for the next one, and never see what the next writer puts into one of the same number.
    """

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3)
        empty = await world.stream.begin()
        async with world.open() as reader:
            await take(reader, 3)
            await world.context.ledgers.recover(empty.ledger.id)
            assert await is_silent(reader, for_s=5.0)
            assert reader.statistics().at_tail
            starts = [await begun_at(world, start) for start in ("latest", Txid(1000))]
            assert starts == [reader.position, reader.position] == [place(2, 0), place(2, 0)]
            await world.context.ledgers.delete(empty.ledger.id)
            await world.pass_time(world.sim.rng.random() * 3)
            await world.stream.forget(empty)
            assert await is_silent(reader, for_s=5.0)
            again = await world.stream.begin(lssn=2)
            await again.append(b"a")
            await again.control()
            assert (await anext(reader)).dlsn == place(2, 0)

    on_stream(check, seeds=3)


async def begun_at(world: ReaderWorld, start: Start) -> DLSN:
    async with world.open(start=start) as reader:
        return reader.position


@pytest.mark.parametrize("how", ["completed", "rolled"])
def test_an_empty_segment_that_is_closed_is_over_when_it_is_completed_or_followed(how: str) -> None:
    async def check(world: ReaderWorld) -> None:
        empty = await world.stream.begin()
        async with world.open() as reader:
            await world.context.ledgers.recover(empty.ledger.id)
            await world.pass_time(1.0)
            if how == "completed":
                await empty.complete_node()
                await eventually(lambda: reader.statistics().at_tail)
                assert await is_silent(reader, for_s=1.0)
                assert reader.position == place(2, 0)
            following = await world.stream.begin()
            await following.append(b"a")
            await following.control()
            assert (await anext(reader)).dlsn == place(2, 0)

    on_stream(check)


def test_a_node_that_changes_its_ledger_at_once_is_followed() -> None:
    async def check(world: ReaderWorld) -> None:
        empty = await world.stream.begin()
        async with world.open() as reader:
            await eventually(lambda: reader.statistics().segments == 1)
            other = await world.stream.ledger()
            path = world.stream.paths.segment(segment_name(empty.segment))
            segment = with_ledger(empty.segment, other.id)
            await world.stream.context.store.set(path, encode_segment(segment), expected=ANY_VERSION)
            await world.stream.context.ledgers.delete(empty.segment.ledger_id)
            empty.ledger, empty.segment = other, segment
            await empty.append(b"a")
            await empty.control()
            assert await take(reader, 1) == world.stream.records

    on_stream(check)


def test_a_ledger_that_is_lost_is_an_error_and_no_gap() -> None:
    """Its segment is still there, so nobody purged it."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3)
        running = await world.stream.begin()
        await running.append(b"a")
        await running.control()
        async with world.open() as reader:
            await take(reader, 7)
            await world.context.ledgers.delete(running.segment.ledger_id)
            for _ in range(2):
                with pytest.raises(NoSuchLedger):
                    await anext(reader)
            assert reader.position == place(3, 0, 1)

    on_stream(check)


@pytest.mark.parametrize("state", ["empty", "in progress", "between segments"])
def test_the_end_of_a_deleted_stream_is_told(state: str) -> None:
    async def check(world: ReaderWorld) -> None:
        if state != "empty":
            await world.stream.fill(3)
        if state == "in progress":
            segment = await world.stream.begin()
            await segment.append(b"a")
            await segment.control()
        count = len(world.stream.records)
        async with world.open() as reader:
            await take(reader, count)
            await world.pass_time(1.0)
            deleting = world.spawn(world.stream.delete())
            with pytest.raises(NoSuchStream):
                await anext(reader)
            await deleting
            with pytest.raises(NoSuchStream):
                await anext(reader)

    on_stream(check)


def test_latest_begins_behind_what_is_confirmed() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4)
        async with world.open(start="latest") as reader:
            assert reader.position == place(2, 0)
        segment = await world.stream.begin()
        await segment.append(b"old")
        await segment.control()
        async with world.open(start="latest") as reader:
            assert reader.position == place(2, 1), "bookies have not heard that the control record is confirmed"
            await segment.append(b"new")
            await segment.control()
            assert [record.payload for record in await take(reader, 1)] == [b"new"]

    on_stream(check)


def test_latest_during_a_roll_does_not_miss_what_is_on_its_way_to_the_older_segment() -> None:
    async def check(world: ReaderWorld) -> None:
        first = await world.stream.begin()
        await first.append(b"old")
        await first.control()
        second = await world.stream.begin()
        async with world.open(start="latest") as reader:
            await first.append(b"last of the first")
            await first.ledger.close()
            await second.append(b"first of the second")
            await second.control()
            got = [record.payload for record in await take(reader, 2)]
            assert got == [b"last of the first", b"first of the second"]
        async with world.open(start="latest") as reader:
            assert reader.position.lssn == 2

    on_stream(check)


def test_a_sealed_stream_has_ended_for_whoever_comes_late() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4)
        last = await world.stream.begin()
        await last.end_of_stream()
        await last.complete()
        for start in ("latest", place(2, 1), place(2, 2), place(3, 0)):
            assert await world.read_sealed(start=start) == []

    on_stream(check, seeds=1)


def test_a_reader_that_waits_hears_of_the_end() -> None:
    """It began behind the record that ends the stream, so only the segment's node can tell it."""

    async def check(world: ReaderWorld) -> None:
        last = await world.stream.begin()
        await last.append(b"a")
        await last.end_of_stream()
        await last.control()
        reading = world.spawn(world.read_sealed(start=place(1, 2)))
        await world.pass_time(5.0)
        assert not reading.done()
        await last.complete()
        assert await reading == []

    on_stream(check)


# --- When the metadata, or the watch of it, is out of reach


def test_an_outage_of_the_metadata_store_is_outlived() -> None:
    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        await segment.append(b"a")
        async with world.open() as reader:
            await world.pass_time(0.5)
            world.tree.stall(READER, 10.0)  # Longer than a session.
            following = await world.stream.begin()
            await segment.complete()
            await following.append(b"b")
            await following.control()
            assert [record.payload for record in await take(reader, 2)] == [b"a", b"b"]

    on_stream(check, seeds=3)


def test_whoever_waits_for_long_looks_at_the_metadata_again() -> None:
    """Method: the driver loses all watches. Only the look after `idle_s` can find the next segment."""

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(2)

        async def deaf(*_: object) -> object:
            return lambda: None

        for store in (world.context.store, world.context.ledgers.ledgers_metadata._store):
            store._driver.watch = deaf  # type: ignore[method-assign, assignment]
        async with world.open(settings=replace(SETTINGS, idle_s=30.0)) as reader:
            await take(reader, 2)
            for _ in range(3):
                segment = await world.stream.begin()
                await segment.append(b"a")
                await segment.control()
                before_s = world.now_s
                await take(reader, 1)
                assert world.now_s - before_s <= 31.0
                await segment.complete()
                await world.pass_time(1.0)
            told = reader.statistics()
            assert (told.records, told.segments, told.at_tail) == (5, 4, True)

    on_stream(check)


def test_what_is_told_of_a_reader_is_true() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(9, per_entry=3)
        segment = await world.stream.begin()
        await segment.append(b"a")
        await segment.control()
        async with world.open() as reader:
            assert not reader.statistics().at_tail
            await take(reader, 10)
            await eventually(lambda: reader.statistics().at_tail)
            told = reader.statistics()
            assert (told.records, told.segments, told.buffered_entries, told.damaged_entries) == (10, 2, 0, 0)
            assert told.position == reader.position
            assert told.entries == 5, "three of records, one of control records, one of the next segment"

    on_stream(check)


def test_a_reader_stops_at_the_end_as_of_now_and_goes_on_behind_it() -> None:
    """Method: the end is behind a control record, in a segment that grows while it is read; then again, and again in
    an empty rest; then the stream is sealed.
    """

    async def check(world: ReaderWorld) -> None:
        first = await world.stream.begin()
        await first.append(b"a", b"b")
        await first.complete()
        second = await world.stream.begin()
        await second.append(b"c")
        await second.control()
        async with world.open() as reader:
            found = []
            async for record in reader.read_to_end():
                found.append(record.payload)
                if record.payload == b"a":
                    await second.append(b"d")
                    await second.control()
            assert found == [b"a", b"b", b"c"], "d came later"
            assert [record.payload async for record in reader.read_to_end()] == [b"d"]
            assert [record.payload async for record in reader.read_to_end()] == []
            await second.append(b"e")
            await second.end_of_stream()
            await second.complete()
            assert [record.payload async for record in reader.read_to_end()] == [b"e"]
            assert [record.payload async for record in reader] == []

    on_stream(check, seeds=5)


def test_a_stream_without_records_is_read_to_its_end_at_once() -> None:
    async def check(world: ReaderWorld) -> None:
        async with world.open() as reader:
            assert [record async for record in reader.read_to_end()] == []

    on_stream(check)
