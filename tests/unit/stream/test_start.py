"""Where reading begins: txids, times and the ends of a stream, compared with a look at every record."""

from collections import Counter
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.streams.reading import ReaderWorld, is_silent, on_stream, take

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import encode_records
from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.errors import InvalidArgument
from quire.metadata import Create
from quire.stream.reader import open_stream_reader
from quire.stream.start import Start, Time, Txid
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


async def several_segments(world: ReaderWorld) -> None:
    """Neighbouring records share txids, across entries and segments too; two segments are in progress at the end."""
    await world.stream.fill(7, 0, 5, 1, per_entry=3)
    only_control = await world.stream.begin()
    await only_control.control()
    await only_control.complete()
    await world.stream.fill(9, per_entry=2)
    rolled = await world.stream.begin()
    await rolled.append(b"rolled", txid=world.stream.txid)
    await rolled.control()
    await rolled.ledger.close()
    running = await world.stream.begin()
    await running.append(b"running", b"running", b"running")
    await running.control()
    await running.control()


def test_a_txid_begins_with_the_first_record_that_is_not_below() -> None:
    async def check(world: ReaderWorld) -> None:
        await several_segments(world)
        records = world.stream.records
        for txid in range(-1, world.stream.txid + 1):
            wanted = [record for record in records if record.txid >= txid]
            assert await world.read(len(wanted), start=Txid(txid)) == wanted, f"txid {txid}"

    on_stream(check, seeds=1)


def test_a_txid_that_is_still_to_come_is_waited_for() -> None:
    async def check(world: ReaderWorld) -> None:
        await several_segments(world)
        running = world.stream.segments[-1]
        async with world.open(start=Txid(1000)) as reader:
            await running.append(b"below", txid=999)
            await running.append(b"there", b"there", txid=1000)
            await running.control()
            assert [record.payload for record in await take(reader, 2)] == [b"there", b"there"]
        assert await world.read(2, start=Txid(1000)) == world.stream.records[-2:]

    on_stream(check)


def test_a_time_begins_in_the_segment_that_was_written_then() -> None:
    """Method: txids are times in the first stream, and small numbers in the second one."""

    async def check(world: ReaderWorld) -> None:
        stream = world.stream
        for completed_ms in (1_000, 2_000, 3_000):
            raw = await stream.begin()
            for ms in (completed_ms - 900, completed_ms - 500, completed_ms - 100):
                await raw.append(b"at %d" % ms, txid=ms)
                stream._txids = 2 * ms  # The next segment begins with a txid that is no lower.
            await raw.complete(at_ms=completed_ms)
        running = await stream.begin()
        await running.append(b"at 3500", txid=3_500)
        await running.control()
        records = stream.records
        for ms, first in ((0, 100), (100, 100), (101, 500), (950, 1100), (1_000, 1100), (1_500, 1500), (2_950, 3_500)):
            start = Time(datetime.fromtimestamp(ms / 1000, UTC)) if ms % 2 else Time(ms)
            wanted = [record for record in records if record.txid >= first]
            assert await world.read(len(wanted), start=start) == wanted, f"{ms} ms"
        assert await world.read(1, start=Time(9_999)) == [records[-1]], "nothing is so late: all of the last segment"

    on_stream(check, seeds=1)

    async def check_small(world: ReaderWorld) -> None:
        stream = world.stream
        for completed_ms in (1_000_000, 2_000_000, 3_000_000):
            raw = await stream.begin()
            await raw.append(b"a", b"b")
            await raw.complete(at_ms=completed_ms)
        for ms, skipped in ((0, 0), (1_000_000, 0), (1_000_001, 2), (2_000_001, 4)):
            wanted = stream.records[skipped:]
            got = await world.read(len(wanted), start=Time(ms))
            assert got == wanted, f"{ms} ms"
        async with world.open(start=Time(3_000_001)) as reader:
            assert reader.position == place(4, 0)

    on_stream(check_small, seeds=1)


def test_a_time_behind_all_records_begins_behind_them_where_txids_are_times() -> None:
    """As documents say: nothing there is not older. Method: while the last segment is written, and when it is done."""

    async def check(world: ReaderWorld) -> None:
        stream, now_ms = world.stream, 1_767_225_600_000
        stream._txids = 2 * now_ms
        raw = await stream.begin()
        await raw.append(b"old", txid=now_ms)
        await raw.control()
        async with world.open(start=Time(now_ms + 60_000)) as reader:
            assert reader.position == place(1, 1)
            await raw.append(b"new", txid=now_ms + 70_000)
            await raw.control()
            assert [record.payload for record in await take(reader, 1)] == [b"new"]
        await raw.complete(at_ms=now_ms + 90_000)
        async with world.open(start=Time(now_ms + 80_000)) as reader:
            assert reader.position == place(2, 0), "completed after that time, but all of its records are older"

    on_stream(check, seeds=1)


def test_values_that_name_no_moment_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        Time(datetime(2024, 1, 1))  # noqa: DTZ001 - that is what is refused
    with pytest.raises(InvalidArgument):
        Txid(TXID_MAX + 1)
    assert Time(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).ms == Time(1000).ms == 1000


def test_searches_begin_behind_what_is_truncated() -> None:
    async def check(world: ReaderWorld) -> None:
        await several_segments(world)
        await world.stream.truncate(place(3, 1, 1))
        records = world.stream.records
        assert records[0].dlsn == place(3, 1, 1)
        for start in ("earliest", Txid(0), Txid(records[0].txid), Time(0)):
            assert await world.read(len(records), start=start) == records, start
        later = [record for record in records if record.txid >= records[3].txid]
        assert await world.read(len(later), start=Txid(records[3].txid)) == later

    on_stream(check, seeds=1)


def test_a_stream_that_is_truncated_as_a_whole_begins_with_what_comes() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(3, 3)
        await world.stream.truncate(place(9, 0))
        for start in ("earliest", Txid(0), Time(0), "latest"):
            async with world.open(start=start) as reader:
                assert reader.position == place(3, 0), start
                assert await is_silent(reader, for_s=1.0)

    on_stream(check, seeds=1)


def test_a_namespace_may_number_its_first_segment_otherwise() -> None:
    """What is before the first segment that there ever was is not truncated: nothing was there."""

    async def check(world: ReaderWorld) -> None:
        context = copy(world.context)  # With the same metrics: a client has them once.
        object.__setattr__(context, "binding", replace(world.context.binding, first_lssn=Lssn(7)))
        starts: list[Start] = ["earliest", "latest", place(1, 0)]
        for start in starts:
            async with open_stream_reader(context, "s", world.settings, start=start) as reader:
                assert reader.position in (place(7, 0), place(1, 0))
        raw = await world.stream.begin(lssn=7)
        await raw.append(b"a")
        await raw.control()
        for start in [*starts[::2], place(0, -1, -1), place(7, 0)]:
            async with open_stream_reader(context, "s", world.settings, start=start) as reader:
                assert await take(reader, 1) == world.stream.records

    on_stream(check, seeds=1)


@pytest.mark.parametrize("truncated", [0, 6_000])
def test_ten_thousand_segments_take_a_few_reads_to_open(truncated: int) -> None:
    """All have the same ledger, of one record. What counts is how many nodes are looked at."""

    async def check(world: ReaderWorld) -> None:
        count = 10_000
        store, paths = world.stream.context.store, world.context.paths("s")
        ledger = await world.stream.ledger()
        await ledger.append(encode_entry([encode_records([b"x"], [70_005], position=1)]))
        await ledger.close()
        for first in range(1, count + 1, 500):
            ops = []
            for lssn in range(first, first + 500):
                done = Completion(10 * lssn + 9, 1000 * lssn, 1, place(lssn, 0))
                whole = Segment.begun(Lssn(lssn), ledger.id, 10 * lssn).completed(done, start_sequence_id=lssn)
                whole = whole.truncated() if lssn <= truncated else whole
                ops.append(Create(paths.segment(segment_name(whole)), encode_segment(whole)))
            await store.transaction(*ops)
        calls: Counter[str] = Counter()
        driver: Any = world.context.store._driver
        for name in ("get", "children", "stat"):
            setattr(driver, name, _counted(calls, name, getattr(driver, name)))
        for start, wanted in (
            ("earliest", place(truncated + 1, 0)),
            ("latest", place(count + 1, 0)),
            (place(count + 1, 0), place(count + 1, 0)),
            (place(7_000, 0), place(7_000, 0)),
            (Time(7_000_000), place(7_000, 0)),
            (Txid(70_005), place(7_000, 0)),
            (Txid(5), place(truncated + 1, 0)),
        ):
            calls.clear()
            async with world.open(start=start) as reader:
                assert reader.position == wanted, start
            assert calls["children"] <= 4, "one listing, and whether it is the same stream"
            assert calls["get"] <= 45, f"{start}: {calls}"

    on_stream(check, seeds=1)


def _counted(calls: Counter[str], name: str, call: Any) -> Any:
    async def counted(*args: Any) -> Any:
        calls[name] += 1
        return await call(*args)

    return counted
