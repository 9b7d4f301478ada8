"""What the source plans of streams in a simulated cluster, and what it makes of streams that change meanwhile."""

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Literal

import pytest
from tests.support.streams.reading import ReaderWorld, on_stream

from quire.errors import NoSuchStream, PositionInFuture, PositionTruncated
from quire.metadata import ANY_VERSION
from quire.spark.admission import Limit, _Backlog
from quire.spark.batch import _plan
from quire.spark.filters import Bounds
from quire.spark.followed_streams import FollowedStreams
from quire.spark.offsets import Offset
from quire.spark.options import SourceOptions
from quire.spark.planning import Piece, StreamPlan
from quire.spark.reading import _windows
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import drop_hot
from quire.stream.dynamic_settings import DynamicSettings
from quire.stream.namespace import Namespace
from quire.stream.removal import delete_stream
from quire.stream.start import Start, Txid
from quire.stream.uri import parse_stream_uri
from quire.types import DLSN, EntryId, Lssn, SlotId

URI = "distributedlog://zk1:2181/ns"
NOW_MS = 1_767_225_600_000


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def offset(lssn: int, entry_id: int) -> Offset:
    return Offset(place(lssn, entry_id))


def namespace_of(world: ReaderWorld) -> Namespace:
    return Namespace(world.context, parse_stream_uri(URI), DynamicSettings(world.settings))


def options_of(**options: str) -> SourceOptions:
    return SourceOptions.parse({"uri": URI, "stream": "s", **options})


async def planned(world: ReaderWorld, **options: str) -> list[Piece]:
    return await _plan(namespace_of(world), options_of(**options), Bounds())


def followed_by(world: ReaderWorld, **options: str) -> FollowedStreams:
    options_ = SourceOptions.parse({"uri": URI, "stream": "s", **options}, is_streaming=True)
    return FollowedStreams(namespace_of(world), options_, lambda: world.now_s)


def ranges(pieces: list[Piece]) -> list[tuple[DLSN, DLSN]]:
    return [(piece.begin, piece.end) for piece in pieces]


def moment(ms: int) -> str:
    return f"t:{datetime.fromtimestamp(ms / 1000, UTC).isoformat()}"


def test_a_time_as_the_end_cuts_off_nothing_that_is_older() -> None:
    """Method: times behind the last record, while its segment is written and when it is done; and one between two."""

    async def check(world: ReaderWorld) -> None:
        stream = world.stream
        stream._txids = 2 * NOW_MS
        raw = await stream.begin()
        await raw.append(b"a", txid=NOW_MS)
        await raw.append(b"b", txid=NOW_MS + 10_000)
        await raw.control()
        everything = [(place(1, 0), place(1, 2))]  # What is confirmed: the control record is not.
        assert ranges(await planned(world, end=moment(NOW_MS + 3600_000))) == everything
        await raw.complete(at_ms=NOW_MS + 60_000)
        for seconds in (30, 3600):
            (whole,) = ranges(await planned(world, end=moment(NOW_MS + seconds * 1000)))
            assert whole == (place(1, 0), place(1, 4)), f"{seconds} s"
        assert ranges(await planned(world, end=moment(NOW_MS + 5000))) == [(place(1, 0), place(1, 1))]
        assert ranges(await planned(world, end=moment(NOW_MS - 1))) == []

    on_stream(check, seeds=1)


def test_a_place_that_a_completed_segment_never_had_belongs_to_a_stream_that_was_deleted() -> None:
    """Method: a query was at entry 24 of a stream; its namesake has five records, and is done. A query that is right
    behind the last entry, or further than is confirmed of a segment that is being written, is no such case.
    """

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(5, per_entry=1)
        running = await world.stream.begin()
        await running.append(b"x")
        strict, lenient = followed_by(world), followed_by(world, failOnDataLoss="false")
        ends = await strict.latest()
        with pytest.raises(PositionInFuture, match="deleted since the query read it, and made again"):
            await strict.admitted({"s": offset(1, 24)}, ends, None)
        with pytest.raises(PositionInFuture, match="deleted since"):
            await strict.pieces({"s": offset(1, 24)}, ends)
        assert ranges(await lenient.pieces({"s": offset(1, 24)}, {"s": offset(2, 0)})) == [(place(1, 0), place(1, 6))]
        for at in (place(1, 5), place(1, 6), place(2, 9)):
            end = {"s": Offset(max(at, place(2, 0)))}
            assert await strict.admitted({"s": Offset(at)}, end, None) == end
        for each in (strict, lenient):
            await each.aclose()

    on_stream(check, seeds=1)


def test_a_stream_that_was_made_again_is_not_taken_for_the_one_that_was_read() -> None:
    """Method: a query has read all of a stream; its namesake has just as many segments and records, then more."""

    async def check(world: ReaderWorld) -> None:
        paths, store = world.context.paths("s"), world.context.store
        await store.create(paths.identity("first"))
        await world.stream.fill(5, per_entry=1)
        strict, lenient = followed_by(world), followed_by(world, failOnDataLoss="false")
        began = await strict.latest()
        assert began["s"].identity == "first"
        pieces = await planned(world)
        await store.delete(paths.identity("first"), expected=ANY_VERSION)
        await store.create(paths.identity("second"))
        for _ in range(2):
            before_s = world.now_s
            ends = await strict.latest_behind(began, 60.0)
            assert world.now_s - before_s < 1, "that it is another one is news"
            for call in (strict.admitted(began, ends, None), strict.pieces(began, ends)):
                with pytest.raises(PositionInFuture, match="deleted since the query read it, and made again"):
                    await call
            again = await lenient.admitted(began, ends, None)
            assert again == ends
            assert ranges(await lenient.pieces(began, ends))[0][0] == place(1, 0)
            # A batch in which the stream was met for the first time, and which is planned again after a restart.
            with pytest.raises(NoSuchStream, match="was deleted"):
                await strict.pieces({}, began)
            assert await lenient.pieces({}, began) == []
            await world.stream.fill(5, per_entry=1)
        strict_options = SourceOptions.parse({"uri": "file:x", "stream": "s"})
        async with aclosing(_windows(namespace_of(world), pieces, strict_options)) as windows:
            with pytest.raises(NoSuchStream, match="was deleted after the query was planned"):
                await anext(windows)
        for each in (strict, lenient):
            await each.aclose()

    on_stream(check, seeds=1)


def test_a_task_that_has_read_a_segment_does_not_go_on_in_a_stream_that_was_made_again() -> None:
    async def check(world: ReaderWorld) -> None:
        paths, store = world.context.paths("s"), world.context.store
        await store.create(paths.identity("first"))
        await world.stream.fill(5, 5, per_entry=1)
        pieces = await planned(world)
        options = SourceOptions.parse({"uri": "file:x", "stream": "s"})
        async with aclosing(_windows(namespace_of(world), pieces, options)) as windows:
            assert (await anext(windows))[0] == pieces[0]
            await store.delete(paths.identity("first"), expected=ANY_VERSION)
            await store.create(paths.identity("second"))
            with pytest.raises(NoSuchStream, match="was deleted after the query was planned"):
                await anext(windows)

    on_stream(check, seeds=1)


# --- Limits


def test_a_limit_of_bytes_is_kept_in_a_part_of_a_segment() -> None:
    """What is left of a segment may be larger than its average tells. Method: many small records, which are read, then
    large ones.
    """

    async def check(world: ReaderWorld) -> None:
        running = await world.stream.begin()
        for _ in range(100):
            await running.append(b"s")
        for _ in range(8):
            await running.append(bytes(10_000))
        await running.control()
        followed = followed_by(world)
        at = {"s": offset(1, 100)}
        for limit, entries in ((25_000, 2), (5_000, 1), (80_000, 7), (1_000_000, 8)):
            reached = await followed.admitted(at, {"s": offset(1, 108)}, Limit("bytes", limit))
            assert reached == {"s": offset(1, 100 + entries)}, f"{limit} bytes"
        await followed.aclose()

    on_stream(check, seeds=1)


@pytest.mark.parametrize("unit", ["records", "bytes"])
def test_a_segment_may_lose_its_ledger_while_a_batch_is_admitted(
    unit: Literal["records", "bytes"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: all segments but the last one are dropped when the first of them is looked at."""
    size = _Backlog._size

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(5, 5, 5, per_entry=1)
        await archive_stream(world.context, "s", "memory:cold", settings=world.settings)
        dropped: list[int] = []

        async def size_later(self: _Backlog, piece: Piece) -> int:
            if not dropped:
                dropped.extend(await drop_hot(world.context, "s"))
            return await size(self, piece)

        followed = followed_by(world)
        with monkeypatch.context() as patch:
            patch.setattr(_Backlog, "_size", size_later)
            reached = await followed.admitted({"s": offset(1, 2)}, {"s": offset(4, 0)}, Limit(unit, 1))
        assert (reached, dropped) == ({"s": offset(1, 3)}, [1, 2])
        await followed.aclose()

    on_stream(check, seeds=1)


# --- What is gone


def test_what_is_purged_while_a_batch_is_planned_is_not_left_out_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the first segment is purged when the beginning was found, and before the end is."""
    find = StreamPlan.find

    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4, 4, 4, per_entry=1)
        txid = world.stream.records[3].txid  # To look for it is to notice that its segment is gone.

        async def find_later(self: StreamPlan, start: Start, *, skip_truncated: bool) -> DLSN:
            if isinstance(start, Txid) and len(world.stream.segments) == 3:
                await world.stream.purge(world.stream.segments[0])
            return await find(self, start, skip_truncated=skip_truncated)

        monkeypatch.setattr(StreamPlan, "find", find_later)
        with pytest.raises(PositionTruncated, match="were truncated or purged"):
            await planned(world, start="1:0:0", end=f"tx:{txid}")
        assert len(world.stream.segments) == 2

    on_stream(check, seeds=1)


def test_a_stream_that_is_deleted_before_a_batch_is_read_is_an_error_unless_losses_are_none() -> None:
    async def check(world: ReaderWorld) -> None:
        await world.stream.fill(4, 4, per_entry=2)
        pieces, namespace = await planned(world), namespace_of(world)
        assert len(pieces) == 2
        await delete_stream(world.context, "s", lock_timeout_s=0)
        strict = SourceOptions.parse({"uri": "file:x", "stream": "s"})
        careless = SourceOptions.parse({"uri": "file:x", "stream": "s", "failOnDataLoss": "false"})
        async with aclosing(_windows(namespace, pieces, careless)) as windows:
            assert [window async for window in windows] == []
        async with aclosing(_windows(namespace, pieces, strict)) as windows:
            with pytest.raises(NoSuchStream, match="was deleted after the query was planned") as deleted:
                await anext(windows)
        assert "failOnDataLoss" in deleted.value.hint

    on_stream(check, seeds=1)
