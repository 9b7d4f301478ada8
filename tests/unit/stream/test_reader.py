"""A reader gives all records of a stream in order, each once, whatever place it begins at."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.raw import RawStream
from tests.support.streams.reading import ReaderWorld, is_silent, on_stream, take

from quire.codec.stream.compression import Compression
from quire.codec.stream.record_sets import decode_record_set
from quire.codec.stream.records import LogRecord
from quire.errors import (
    HandleClosed,
    InvalidArgument,
    InvalidName,
    NoSuchStream,
    PositionInFuture,
    ReaderIdle,
    StreamSealed,
)
from quire.stream.reader import open_stream_reader
from quire.types import BEFORE_INITIAL_DLSN, DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


async def seal(stream: RawStream) -> None:
    """End the stream behind what it has."""
    last = await stream.begin()
    await last.end_of_stream()
    await last.complete()


async def varied(stream: RawStream) -> None:
    """Segments of all sizes, none included; control records alone and among others; sets; LZ4; and the end."""
    await stream.fill(7, 0, 1)
    fourth = await stream.begin(compression=Compression.LZ4)
    await fourth.append(b"compressible " * 50, b"b")
    await fourth.control()
    await fourth.append_with_control_inside(b"before", b"behind")
    await fourth.append_mixed(b"single", [b"m1", b"m2", b"m3"], b"last", codec=Compression.LZ4)
    await fourth.append_mixed([b"only set"])
    await fourth.complete()
    fifth = await stream.begin()
    await fifth.control()
    await fifth.complete()
    await stream.fill(5, per_entry=1)
    await seal(stream)


def test_all_records_come_in_order_until_the_stream_ends() -> None:
    async def check(world: ReaderWorld) -> None:
        await varied(world.stream)
        assert await world.read_sealed() == world.stream.records
        async with world.open() as reader:
            batches = [batch async for batch in reader.batches()]
            assert all(batches)
            assert [record for batch in batches for record in batch] == world.stream.records
            for _ in range(2):  # The end stays the end.
                with pytest.raises(StopAsyncIteration):
                    await anext(reader)
                assert [batch async for batch in reader.batches()] == []
                with pytest.raises(StreamSealed):
                    await reader.read_many(5)
            told = reader.statistics()
            assert (told.records, told.segments) == (len(world.stream.records), 7)

    on_stream(check, seeds=3)


def test_each_record_comes_once_whatever_position_one_resumes_at() -> None:
    """Method: after each single record of a varied stream the position is stored, and another reader goes on there."""

    async def check(world: ReaderWorld) -> None:
        await varied(world.stream)
        wanted = world.stream.records
        async with world.open() as reader:
            positions = [reader.position, *[reader.position async for _ in reader], reader.position]
        for read, position in enumerate(positions):
            rest = await world.read_sealed(start=position)
            assert rest == wanted[read:], f"a reader at {position}, after {read} records"

    on_stream(check, seeds=1)


def test_reading_begins_at_any_place_whether_a_record_is_there_or_not() -> None:
    async def check(world: ReaderWorld) -> None:
        await varied(world.stream)
        wanted = world.stream.records
        places = [place(lssn, entry, slot) for lssn in range(1, 8) for entry in range(3) for slot in (-1, 0, 1, 3)]
        ends = {raw.segment.lssn: raw.entries for raw in world.stream.segments}
        for start in [BEFORE_INITIAL_DLSN, *places]:
            if start.entry_id > ends[start.lssn]:
                with pytest.raises(PositionInFuture):
                    await world.read_sealed(start=start)
                continue
            assert await world.read_sealed(start=start) == [record for record in wanted if record.dlsn >= start], start

    on_stream(check, seeds=1)


def test_a_batch_half_taken_one_by_one_is_finished_by_other_means() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(30, per_entry=10)
        await seal(world.stream)
        wanted = world.stream.records
        async with world.open() as reader:
            got = await take(reader, 3)
            got += await reader.read_many(4)
            assert len(got) == 7
            assert reader.position == wanted[6].dlsn.next_slot()
            async for batch in reader.batches():
                assert reader.position == batch[-1].dlsn.next_slot()
                got += batch
                break
            got += [record async for record in reader]
            assert got == wanted

    on_stream(check)


def test_record_sets_that_stay_whole_have_all_their_places() -> None:
    """Each set comes once from a stored position, and whole to whoever begins in its middle."""

    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        await segment.append_mixed(b"first", [b"a", b"b", b"c"], b"between", [b"d", b"e"])
        await segment.append_mixed([b"f"])
        await segment.complete()
        await seal(world.stream)
        whole = replace(world.settings, expand_sets=False)
        async with world.open(settings=whole) as reader:
            records, positions = [], [reader.position]
            async for record in reader:
                records.append(record)
                positions.append(reader.position)
        sets = [decode_record_set(record.payload) if record.is_record_set else record.payload for record in records]
        assert sets == [b"first", [b"a", b"b", b"c"], b"between", [b"d", b"e"], [b"f"]]
        assert [record.dlsn.slot_id for record in records] == [0, 1, 4, 5, 0]
        for read, position in enumerate(positions):
            assert await world.read_sealed(settings=whole, start=position) == records[read:]
        assert (await world.read_sealed(settings=whole, start=place(1, 0, 2)))[0] == records[1]
        assert (await world.read_sealed(start=place(1, 0, 2)))[0].payload == b"b"

    on_stream(check, seeds=1)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_segments_of_every_version_are_read(version: int) -> None:
    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin(version=version)
        await segment.append(b"a", b"b")
        await segment.append(b"c")
        await segment.complete()
        running = await world.stream.begin(version=version)
        await running.append(b"d")
        await running.end_of_stream()
        await running.control()
        assert await world.read_sealed() == world.stream.records

    on_stream(check, seeds=1)


def test_names_of_old_writers_are_read() -> None:
    async def check(world: ReaderWorld) -> None:
        first = await world.stream.begin(version=2, name="inprogress_1f")
        await first.append(b"a")
        await first.ledger.close()
        second = await world.stream.begin(version=2, name="inprogress_20")
        await second.append(b"b")
        await second.end_of_stream()
        await second.control()
        assert await world.read_sealed() == world.stream.records

    on_stream(check, seeds=1)


# --- What is asked for in vain


def test_positions_in_the_future_are_refused() -> None:
    async def check(world: ReaderWorld) -> None:
        with pytest.raises(PositionInFuture):
            async with world.open(start=place(2, 0)):
                pass
        async with world.open(start=INITIAL_DLSN) as reader:
            assert reader.position == INITIAL_DLSN
        await world.stream.fill(3, 3)
        for far in (place(4, 0), place(9, 9)):
            with pytest.raises(PositionInFuture) as refused:
                async with world.open(start=far):
                    pass
            assert refused.value.facts["position"] == far
        async with world.open(start=place(3, 0)) as reader:
            assert await is_silent(reader)
        for far in (place(1, 5), place(2, 100)):
            async with world.open(start=far) as reader:
                with pytest.raises(PositionInFuture):
                    await anext(reader)

    on_stream(check, seeds=1)


def test_streams_that_are_not_there_and_names_that_cannot_be() -> None:
    async def check(world: ReaderWorld) -> None:
        for name, error in (
            ("nobody", NoSuchStream),
            ("a//b", InvalidName),
            ("", InvalidName),
            ("<default>", InvalidName),
        ):
            with pytest.raises(error):
                async with open_stream_reader(world.context, name, SETTINGS):
                    pass
        for start in ("newest", 17, None):
            with pytest.raises(InvalidArgument):
                async with world.open(start=start):
                    pass
        async with world.open() as reader:
            with pytest.raises(InvalidArgument):
                await reader.read_many(0)
            with pytest.raises(InvalidArgument):
                await reader.commit()
        with pytest.raises(HandleClosed):
            await anext(reader)
        with pytest.raises(HandleClosed):
            await reader.read_many(1)

    on_stream(check, seeds=1)


# --- How it waits


def test_reading_many_takes_what_is_there_and_no_longer_than_told() -> None:
    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        async with world.open() as reader:
            before_s = world.now_s
            assert await reader.read_many(10, timeout_s=5.0) == []
            assert world.now_s - before_s == pytest.approx(5.0)
            await segment.append(b"a", b"b", b"c")
            await segment.control()
            assert [each.payload for each in await reader.read_many(2, timeout_s=60.0)] == [b"a", b"b"]
            assert [each.payload for each in await reader.read_many(2, timeout_s=0)] == [b"c"]
            assert await reader.read_many(2, timeout_s=0) == []

    on_stream(check)


def test_whoever_waits_for_too_long_is_told_and_may_go_on() -> None:
    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        async with world.open(settings=replace(SETTINGS, idle_error_s=20.0)) as reader:
            for _ in range(2):
                before_s = world.now_s
                with pytest.raises(ReaderIdle) as idle:
                    await anext(reader)
                assert world.now_s - before_s == pytest.approx(20.0)
                assert idle.value.facts["position"] == reader.position == INITIAL_DLSN
            assert await reader.read_many(1, timeout_s=1.0) == []
            await segment.append(b"late")
            await segment.control()
            assert (await anext(reader)).payload == b"late"

    on_stream(check)


def test_a_cancelled_read_loses_nothing() -> None:
    """Method: reads are given up at all moments while records come."""

    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()

        async def write() -> None:
            for number in range(40):
                await segment.append(b"%d" % number)
                await world.pass_time(0.01)
            await segment.end_of_stream()
            await segment.control()

        world.spawn(write())
        got = []
        async with world.open() as reader:
            while True:
                try:
                    async with asyncio.timeout(world.sim.rng.random() * 0.02):
                        got.append(await anext(reader))
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    break
        assert got == world.stream.records

    on_stream(check, seeds=4)


def test_a_slow_reader_keeps_no_more_ready_than_its_bound() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(300, 300, per_entry=10)
        await seal(world.stream)
        bytes_max = 4000
        total = sum(20 + len(record.payload) for record in world.stream.records)
        assert total > 4 * bytes_max
        got, most = [], 0
        async with world.open(settings=replace(SETTINGS, read_ahead_bytes_max=bytes_max)) as reader:
            async for record in reader:
                got.append(record)
                if len(got) % 50 == 0:
                    await world.pass_time(5.0)
                    most = max(most, reader.statistics().buffered_bytes)
        assert got == world.stream.records
        assert 0 < most <= bytes_max

    on_stream(check, seeds=1)


def test_nothing_runs_any_more_when_the_block_ends() -> None:
    async def check(world: ReaderWorld) -> None:
        def running() -> set[str]:
            """But for the connections, which belong to the client."""
            return {task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("bookie")}

        await world.stream.fill(50)
        before = running()
        for reads in (0, 1, 40, 50):
            async with world.open() as reader:
                await take(reader, reads)
                if reads == 50:
                    assert await is_silent(reader)
            assert running() <= before

    on_stream(check)


def test_whoever_still_waits_when_the_block_ends_is_told() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(2)
        async with world.open() as reader:
            await take(reader, 2)
            waiting = asyncio.ensure_future(reader.read_many(1))
            await world.pass_time(1.0)
        with pytest.raises(HandleClosed):
            await waiting

    on_stream(check)


def test_several_tasks_that_read_share_the_records() -> None:
    """Nobody should do that, as nobody knows who gets what; but nothing is lost or given twice."""

    async def check(world: ReaderWorld) -> None:
        got: list[LogRecord] = []
        async with world.open() as reader:

            async def read() -> None:
                async for record in reader:
                    got.append(record)
                    await world.pass_time(world.sim.rng.random() * 0.01)

            tasks = [asyncio.ensure_future(read()) for _ in range(4)]
            await world.pass_time(1.0)
            await world.stream.fill(40, 40, per_entry=7)
            await seal(world.stream)
            await asyncio.gather(*tasks)
        assert sorted(got) == world.stream.records

    on_stream(check, seeds=5)


def test_readers_are_counted_for_the_client() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(30)
        metrics = world.context.metrics
        async with world.open() as reader, world.open():
            await take(reader, 30)
            assert metrics.readers.current() == 2
            assert metrics.read_records.value == 30
            assert metrics.read_bytes.value >= 30 * 20
        assert metrics.readers.current() == 0

    on_stream(check, seeds=1)
