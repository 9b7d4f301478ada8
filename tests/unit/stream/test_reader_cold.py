"""Readers go on across hot and cold segments without noticing."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from unittest.mock import patch

import pytest
from tests.support.streams.archive import ColdWorld, on_cold_stream
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.reading import take

from quire.codec.entry import Entry
from quire.codec.stream.compression import Compression
from quire.codec.stream_metadata.segment import VERSION_WITH_MIN_ACTIVE
from quire.errors import NoSuchEntry, PositionInFuture, PositionTruncated
from quire.ledger.reading.reader import LedgerReader
from quire.stream.cold_moves import restore_segments
from quire.stream.nodes import StreamNodes
from quire.stream.retention import truncate_before
from quire.stream.start import Time, Txid
from quire.types import DLSN, INITIAL_DLSN, EntryId, LedgerId, Lssn, SlotId

NARROW = replace(SETTINGS, read_ahead_bytes_max=100)  # Hardly an entry is ready before it is asked for.


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def test_a_reader_gets_the_same_records_whether_they_are_hot_or_cold() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 7, 0, 5, per_entry=2)
        assert await world.archive_and_drop(before=4) == [1, 2, 3]
        assert await world.where() == {1: "cold", 2: "cold", 3: "cold", 4: "both"}
        assert await world.read(18) == world.stream.records

    on_cold_stream(check)


def test_every_record_has_the_place_that_it_had() -> None:
    """Also behind control records, in record sets, in entries that were compressed, and without envelopes."""

    async def check(world: ColdWorld) -> None:
        stream = world.stream
        for version, compression in ((5, Compression.NONE), (5, Compression.LZ4), (VERSION_WITH_MIN_ACTIVE, None)):
            raw = await stream.begin(version=version, compression=compression or Compression.NONE)
            await raw.control()
            await raw.append(b"a", b"", b"c" * 1000)
            await raw.append_mixed(b"1", [b"2", b"3", b""], b"4", codec=Compression.LZ4)
            await raw.control()
            await raw.append_with_control_inside(b"before", b"after")
            await raw.complete()
        await stream.fill(1)
        wanted = list(stream.records)
        await world.archive_and_drop()
        assert list((await world.where()).values()) == ["cold"] * 3 + ["both"]
        assert await world.read(len(wanted)) == wanted
        for start in range(len(wanted)):
            assert await world.read(len(wanted) - start, start=wanted[start].dlsn) == wanted[start:]
        await restore_segments(world.context, world.name)
        assert list((await world.where()).values()) == ["both"] * 4
        world.objects.clear()
        assert await world.read(len(wanted)) == wanted

    on_cold_stream(check)


def test_txids_and_times_are_found_in_cold_segments() -> None:
    async def check(world: ColdWorld) -> None:
        stream = world.stream
        for at_ms in (100, 200, 300, 400):
            raw = await stream.begin()
            for number in range(8):
                await raw.append(b"%d of %d" % (number, at_ms))
            await raw.complete(at_ms=at_ms)
        wanted = list(stream.records)
        hot = [await world.read(1, start=start) for start in _starts(wanted[-1].txid)]
        await world.archive_and_drop()
        assert [await world.read(1, start=start) for start in _starts(wanted[-1].txid)] == hot

    on_cold_stream(check)


def _starts(last_txid: int) -> list[Txid | Time]:
    return [*map(Txid, range(last_txid + 1)), *map(Time, (0, 99, 100, 101, 250, 300, 301))]


def test_a_place_behind_the_end_of_a_cold_segment_is_refused() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4, per_entry=2)
        entries = world.stream.segments[0].entries
        await world.archive_and_drop()
        assert await world.read(4, start=place(1, entries)) == world.stream.records[4:]
        with pytest.raises(PositionInFuture):
            await world.read(1, start=place(1, entries + 1))

    on_cold_stream(check)


def test_a_reader_goes_on_where_it_was_when_its_segment_is_dropped_under_it() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(40, 4, per_entry=2)
        wanted = list(world.stream.records)
        async with world.open(settings=NARROW) as reader:
            got = await take(reader, 3)
            await world.archive_and_drop()
            got += await take(reader, len(wanted) - 3)
            assert got == wanted

    on_cold_stream(check, seeds=5)


def test_a_reader_goes_on_where_it_was_when_its_segment_is_restored_under_it() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(40, 4, per_entry=2)
        wanted = list(world.stream.records)
        await world.archive_and_drop()
        async with world.open(settings=NARROW) as reader:
            got = await take(reader, 3)
            await restore_segments(world.context, world.name)
            world.objects.clear()  # Nothing of it is needed any more.
            got += await take(reader, len(wanted) - 3)
            assert got == wanted

    on_cold_stream(check, seeds=5)


@pytest.mark.parametrize("collect", [False, True], ids=["at once", "after bookies let go of it"])
def test_a_reader_goes_on_where_it_was_when_its_segment_is_dropped_and_restored_under_it(collect: bool) -> None:
    async def check(world: ColdWorld) -> None:
        raw = await world.stream.begin()
        for number in range(60):
            await raw.append(b"%d" % number * 500)
        await raw.complete()
        await world.stream.fill(3, 3)
        wanted = list(world.stream.records)
        await world.archive()
        async with world.open(settings=replace(SETTINGS, read_ahead_bytes_max=4096)) as reader:
            got = await take(reader, 1)
            assert await world.drop() == [1, 2]
            if collect:
                await world.pass_time(1400)
            await restore_segments(world.context, world.name, settings=world.settings)
            got += await take(reader, len(wanted) - 1)
            assert got == wanted

    on_cold_stream(check)


def test_entries_that_no_bookie_has_any_more_are_no_damage_if_the_segment_was_restored() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(40, 4, per_entry=2)
        wanted, gone = list(world.stream.records), set[LedgerId]()
        follow = LedgerReader.follow_windows

        async def follow_until_gone(self: LedgerReader, first: int = 0) -> AsyncGenerator[list[Entry]]:
            async with aclosing(follow(self, first)) as windows:
                async for window in windows:
                    if self.id in gone:
                        raise NoSuchEntry("a bookie has let go of it (simulated)")
                    yield window

        await world.archive()
        with patch.object(LedgerReader, "follow_windows", follow_until_gone):
            async with world.open(settings=NARROW) as reader:
                got = await take(reader, 3)
                await world.drop()
                await restore_segments(world.context, world.name, settings=world.settings)
                gone.add(world.stream.segments[0].segment.ledger_id)
                got += await take(reader, len(wanted) - 3)
        assert got == wanted

    on_cold_stream(check)


def test_truncation_hides_cold_records() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 6, 6, 6, per_entry=2)
        wanted = list(world.stream.records)
        await world.archive_and_drop(before=3)
        cut = place(2, 1, 1)
        assert await truncate_before(StreamNodes(world.context.store, world.stream.paths), cut) == 2
        left = [record for record in wanted if record.dlsn >= cut]
        for start in (INITIAL_DLSN, place(1, 2), place(2, 0), place(2, 1)):
            with pytest.raises(PositionTruncated) as error:
                await world.read(1, start=start)
            assert error.value.facts["left"] == cut
            assert await world.read(len(left), start=start, skip_truncated=True) == left
        assert await world.read(len(left)) == left

    on_cold_stream(check)
