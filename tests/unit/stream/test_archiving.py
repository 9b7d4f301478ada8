"""Archiving a stream: what becomes of segments, ledgers, files and nodes, whatever goes wrong on the way."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, BinaryIO
from unittest.mock import patch

import pytest
from tests.support.streams.archive import ROOT, ColdWorld, on_cold_stream
from tests.support.streams.reading import take

from quire.cold.memory_store import MemoryStore
from quire.errors import (
    ColdUnavailable,
    DamagedColdFile,
    DamagedMetadata,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MissingExtra,
    NoSuchLedger,
    NoSuchStream,
    PositionTruncated,
    QuireError,
    RequestDenied,
)
from quire.metadata import ANY_VERSION
from quire.stream.archiving import archivable_segments, archive_segment, object_segment, publish_archived
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.cold_nodes import ColdNodes
from quire.stream.info import read_info
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.removal import delete_stream
from quire.stream.renaming import rename_stream
from quire.stream.retention import Retention, truncate_before
from quire.types import DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId


def nodes(world: ColdWorld) -> StreamNodes:
    return StreamNodes(world.context.store, world.stream.paths)


async def ledgers(world: ColdWorld) -> set[int]:
    return {ledger async for ledger in world.context.ledgers.scan()}


@contextmanager
def unreachable(*methods: str, after: bool = False) -> Iterator[None]:
    """Cold storage does not answer; with `after` it does what it is asked to, all the same."""
    with ExitStack() as stack:
        for name in methods:
            stack.enter_context(patch.object(MemoryStore, name, _failing(getattr(MemoryStore, name), after)))
        yield


def _failing(call: Callable[..., Any], after: bool) -> Callable[..., Any]:
    async def fail(self: MemoryStore, *args: Any) -> None:
        if after:
            await call(self, *args)
        raise ColdUnavailable("nobody answers (simulated)")

    return fail


# --- The file


def test_segments_that_are_completed_can_be_archived_once() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.stream.begin()
        await world.stream.truncate(DLSN(Lssn(2), EntryId(0), SlotId(0)))
        assert [each.lssn for each in await archivable_segments(world.context, "s")] == [2, 3]
        assert [each.lssn for each in await world.archive()] == [2, 3]
        assert await archivable_segments(world.context, "s") == []
        assert await world.archive() == []
        assert sorted(name.rpartition("/")[0] for name in world.objects) == [
            "ns/s/seg-000000000002",
            "ns/s/seg-000000000003",
        ]
        with pytest.raises(NoSuchStream):
            await archivable_segments(world.context, "nobody")
        with pytest.raises(InvalidArgument, match="completed"):
            await archive_segment(world.context, "s", world.stream.segments[-1].segment, ROOT)

    on_cold_stream(check)


def test_what_goes_from_process_to_process_can_be_pickled() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        (first, _) = await archivable_segments(world.context, "s")
        cold = await archive_segment(world.context, "s", pickle.loads(pickle.dumps(first)), ROOT)
        assert await world.where() == {1: "hot", 2: "hot"}, "until it is published it means nothing"
        assert await publish_archived(world.context, "s", pickle.loads(pickle.dumps(cold)))
        assert await world.where() == {1: "both", 2: "hot"}

    on_cold_stream(check)


@pytest.mark.parametrize("method", ["create", "size", "read"])
def test_if_the_file_cannot_be_stored_nothing_is_left(method: str) -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        with unreachable(method, after=True), pytest.raises(ColdUnavailable):
            await world.archive()
        assert world.objects == {}
        assert await world.where() == {1: "hot", 2: "hot"}
        assert len(await world.archive()) == 2

    on_cold_stream(check)


def test_a_file_that_does_not_arrive_as_it_was_sent_is_not_archived() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        create = MemoryStore.create

        async def cut_short(self: MemoryStore, name: str, content: BinaryIO, size_bytes: int) -> None:
            await create(self, name, content, size_bytes)
            self.objects[name] = self.objects[name][:-1]

        with patch.object(MemoryStore, "create", cut_short), pytest.raises(DamagedColdFile):
            await world.archive()
        assert world.objects == {}
        assert await world.where() == {1: "hot", 2: "hot"}

    on_cold_stream(check)


def test_a_segment_that_says_something_else_than_its_ledger_is_not_archived() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        segment = world.stream.segments[0].segment
        assert segment.completion is not None
        wrong = replace(segment, completion=replace(segment.completion, record_count=4))
        with pytest.raises(DamagedMetadata, match="says that it has 4 records, but its ledger has 3"):
            await archive_segment(world.context, "s", wrong, ROOT)
        assert world.objects == {}
        await world.context.ledgers.delete(segment.ledger_id)
        with pytest.raises(NoSuchLedger):
            await archive_segment(world.context, "s", segment, ROOT)

    on_cold_stream(check)


def test_nothing_is_archived_to_a_place_that_lost_what_was_archived_to_it() -> None:
    """Another folder is mounted there, or none."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        await world.archive_and_drop()
        kept = dict(world.objects)
        world.objects.clear()
        await world.stream.fill(3)
        with pytest.raises(ColdUnavailable, match="archived to before"):
            await world.archive()
        assert world.objects == {}
        world.objects.update(kept)
        assert [each.lssn for each in await world.archive()] == [3]
        assert await world.read(9) == world.stream.records

    on_cold_stream(check)


def test_a_segment_whose_writer_did_not_count_records_is_archived() -> None:
    """Apache's writers can be told not to: then positions, and the number in the segment's node, are 0."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        segment = world.stream.segments[0].segment
        assert segment.completion is not None
        uncounted = replace(segment, completion=replace(segment.completion, record_count=0))
        await world.stream.replace_node(world.stream.segments[0], uncounted)
        await world.archive_and_drop()
        assert await world.where() == {1: "cold", 2: "both"}
        assert await world.read(6) == world.stream.records

    on_cold_stream(check)


# --- Publishing


def test_of_two_who_archive_a_segment_one_wins_and_the_other_cleans_up() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        segment = world.stream.segments[0].segment
        first, second = [await archive_segment(world.context, "s", segment, ROOT) for _ in range(2)]
        assert len(world.objects) == 2
        assert await publish_archived(world.context, "s", first)
        assert not await publish_archived(world.context, "s", second)
        assert list(world.objects) == [first.file.name]
        assert await publish_archived(world.context, "s", first), "once more does no harm"
        await world.drop()
        assert await publish_archived(world.context, "s", first), "nor does it later"
        assert await world.read(6) == world.stream.records

    on_cold_stream(check)


def test_a_segment_that_was_purged_or_begun_anew_meanwhile_is_not_published() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        cold = [await archive_segment(world.context, "s", raw.segment, ROOT) for raw in world.stream.segments]
        await world.stream.purge(world.stream.segments[0])
        assert not await publish_archived(world.context, "s", cold[0])
        other = replace(cold[1], segment=replace(cold[1].segment, ledger_id=cold[2].segment.ledger_id))
        assert not await publish_archived(world.context, "s", other)
        assert list(world.objects) == [cold[2].file.name]

    on_cold_stream(check)


def test_a_lost_answer_changes_nothing() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        wanted = list(world.stream.records)
        world.tree.lose_answers("reader", 1)
        assert [each.lssn for each in await world.archive()] == [1, 2, 3]
        world.tree.lose_answers("reader", 1)
        assert await world.drop() == [1, 2]
        assert await world.read(9) == wanted
        world.tree.lose_answers("reader", 1)
        try:
            await restore_segments(world.context, "s", settings=world.settings)
        except QuireError:
            await restore_segments(world.context, "s", settings=world.settings)
        assert await world.where() == {1: "both", 2: "both", 3: "both"}
        assert await world.read(9) == wanted

    on_cold_stream(check, seeds=3)


def test_a_segment_that_is_truncated_meanwhile_stays_truncated() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 6, 6, per_entry=2)
        segment = world.stream.segments[0].segment
        cold = await archive_segment(world.context, "s", segment, ROOT)
        cut = DLSN(Lssn(1), EntryId(1), SlotId(0))
        await truncate_before(nodes(world), cut)
        assert await publish_archived(world.context, "s", cold)
        await world.drop()
        assert (await world.read(1))[0].dlsn == cut
        await restore_segments(world.context, "s", settings=world.settings)
        assert (await world.read(1))[0].dlsn == cut

    on_cold_stream(check)


@pytest.mark.parametrize("answer", ["kept", "lost"])
def test_if_the_stream_is_deleted_before_a_segment_is_published_its_file_goes(answer: str) -> None:
    """Unless an answer was lost: then it may have been published, and the stream renamed after that."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        cold = await archive_segment(world.context, "s", world.stream.segments[0].segment, ROOT)
        publish = ColdNodes.publish

        async def publish_and_lose_it(self: ColdNodes, *args: Any) -> None:
            await publish(self, *args)
            await rename_stream(world.context.store, world.stream.paths, world.context.paths("t"))
            raise MetadataOutcomeUnknown("no answer (simulated)")

        if answer == "lost":
            with patch.object(ColdNodes, "publish", publish_and_lose_it), pytest.raises(NoSuchStream):
                await publish_archived(world.context, "s", cold)
            assert list(world.objects) == [cold.file.name]
        else:
            await delete_stream(world.context, "s", lock_timeout_s=5)
            with pytest.raises(NoSuchStream):
                await publish_archived(world.context, "s", cold)
            assert world.objects == {}

    on_cold_stream(check)


# --- Dropping


def test_the_ledgers_of_dropped_segments_go_and_the_last_completed_one_stays() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.stream.begin()
        first = [raw.segment.ledger_id for raw in world.stream.segments[:2]]
        await world.archive()
        assert await world.drop() == [1, 2]
        assert await ledgers(world) == {raw.segment.ledger_id for raw in world.stream.segments[2:]}
        assert await world.where() == {1: "cold", 2: "cold", 3: "both", 4: "hot"}
        assert not {each.cold.cold.ledger_left for each in await world.chain() if each.cold} & set(first)
        assert await world.drop() == []

    on_cold_stream(check)


def test_only_archived_segments_are_dropped_and_only_from_the_front() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        for raw in (world.stream.segments[0], world.stream.segments[2]):
            await publish_archived(world.context, "s", await archive_segment(world.context, "s", raw.segment, ROOT))
        assert await world.drop() == [1]
        assert await world.where() == {1: "cold", 2: "hot", 3: "both", 4: "hot"}

    on_cold_stream(check)


def test_segments_are_dropped_as_the_policy_says() -> None:
    async def check(world: ColdWorld) -> None:
        now_ms = world.context.runtime.clock.wall_ms()
        for age_s in (300, 200, 100, 0):
            raw = await world.stream.begin()
            await raw.append(b"x" * 1000)
            await raw.complete(at_ms=now_ms - age_s * 1000)
        await world.archive()

        async def drop(**policy: Any) -> list[int]:
            return [int(lssn) for lssn in await drop_hot(world.context, "s", DropPolicy(**policy))]

        assert await drop(older_than_s=1000) == []
        assert await drop(older_than_s=250) == [1]
        assert await drop(keep_bytes=4000) == []
        assert await drop(keep_bytes=2000, before=Lssn(2)) == []
        assert await drop(keep_bytes=2000) == [2]
        assert await drop(before=Lssn(3), older_than_s=0) == []
        assert await drop() == [3]
        for policy in ({"older_than_s": -1}, {"keep_bytes": -1}, {"older_than_s": float("nan")}):
            with pytest.raises(InvalidArgument):
                DropPolicy(**policy)

    on_cold_stream(check)


def test_segments_that_tell_of_producers_stay_for_as_long_as_those_may_come_again() -> None:
    """A write proxy that takes the stream over reads control records from them, which files do not have."""

    async def check(world: ColdWorld) -> None:
        now_ms, hour_ms = world.context.runtime.clock.wall_ms(), 3600 * 1000
        for age_hours in (50, 40, 20, 0):
            raw = await world.stream.begin()
            await raw.append(b"x")
            await raw.complete(at_ms=now_ms - age_hours * hour_ms)
        await world.context.store.create(world.stream.paths.producers, b"2")
        await world.archive()
        assert await world.drop() == [1, 2]
        await world.context.store.set(world.stream.paths.producers, b"4", expected=ANY_VERSION)
        assert await world.drop() == [3]

    on_cold_stream(check)


def test_a_segment_whose_file_cannot_be_seen_is_not_dropped() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive()
        with unreachable("read"), pytest.raises(ColdUnavailable):
            await world.drop()
        name = min(world.objects)
        data = world.objects.pop(name)
        with pytest.raises(DamagedColdFile, match="missing"):
            await world.drop()
        world.objects[name] = data[:-1] + b"x"
        with pytest.raises(DamagedColdFile, match=r"stream 's'.*segment 1.*footer"):
            await world.drop()
        assert await world.where() == {1: "both", 2: "both", 3: "both"}
        world.objects[name] = data
        assert await world.drop() == [1, 2]

    on_cold_stream(check)


def test_a_ledger_that_a_crash_left_is_deleted_by_the_next_one() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive()
        with patch.object(type(world.context.ledgers), "delete", _refuse), pytest.raises(ColdUnavailable):
            await world.drop()
        assert await world.where() == {1: "cold", 2: "both", 3: "both"}
        left = world.stream.segments[0].segment.ledger_id
        assert left in await ledgers(world)
        assert await world.drop() == [2]
        assert left not in await ledgers(world)

    on_cold_stream(check)


async def _refuse(*_: object) -> None:
    raise ColdUnavailable("cut off (simulated)")


# --- Restoring


def test_segments_are_restored_newest_first_so_that_what_is_hot_has_no_gap() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        wanted = list(world.stream.records)
        await world.archive_and_drop()
        assert await restore_segments(world.context, "s", first=Lssn(2), settings=world.settings) == [3, 2]
        assert await world.where() == {1: "cold", 2: "both", 3: "both", 4: "both"}
        assert await world.read(12) == wanted
        assert await world.drop() == [2, 3]
        assert await restore_segments(world.context, "s", settings=world.settings) == [3, 2, 1]
        assert [each.segment.lssn for each in await nodes(world).all_segments()] == [1, 2, 3, 4]
        assert await world.read(12) == wanted
        assert await restore_segments(world.context, "s") == []
        assert len(await ledgers(world)) == 4

    on_cold_stream(check)


def test_a_restore_that_was_cut_off_leaves_nothing_for_ever() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3)
        await world.archive_and_drop()
        before = await ledgers(world)
        with patch("quire.stream.cold_moves._fill", _refuse), pytest.raises(ColdUnavailable):
            await restore_segments(world.context, "s", settings=world.settings)
        assert len(await ledgers(world)) == len(before) + 1
        assert await world.where() == {1: "cold", 2: "both"}
        await world.drop()
        assert await ledgers(world) == before
        assert await restore_segments(world.context, "s", settings=world.settings) == [1]

    on_cold_stream(check)


# --- Old segments


def test_purging_deletes_files_too_from_the_oldest_on() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4, 4, 4)
        await world.archive_and_drop(before=3)
        await truncate_before(nodes(world), DLSN(Lssn(4), EntryId(0), SlotId(0)))
        retention = Retention(world.context, nodes(world))
        with unreachable("delete"), pytest.raises(ColdUnavailable):
            await retention.purge_truncated()
        assert list(await world.where()) == [1, 2, 3, 4]
        assert await retention.purge_truncated() == 3
        assert await world.where() == {4: "both"}
        assert len(world.objects) == 1
        assert await ledgers(world) == {world.stream.segments[3].segment.ledger_id}
        with pytest.raises(PositionTruncated):
            await world.read(1, start=INITIAL_DLSN)

    on_cold_stream(check)


def test_retention_counts_cold_segments_too() -> None:
    async def check(world: ColdWorld) -> None:
        now_ms = world.context.runtime.clock.wall_ms()
        for age_s in (3000, 2000, 1000, 0):
            raw = await world.stream.begin()
            await raw.append(b"%d" % age_s * 100)
            await raw.complete(at_ms=now_ms - age_s * 1000)
        await world.archive_and_drop(before=3)
        retention = Retention(world.context, nodes(world))
        assert await retention.purge_expired(replace(world.settings, retention_s=2500.0)) == 1
        assert await world.where() == {2: "cold", 3: "both", 4: "both"}
        assert await retention.purge_expired(replace(world.settings, retention_bytes=1200)) == 1
        assert await world.where() == {3: "both", 4: "both"}

    on_cold_stream(check)


def test_what_others_purged_is_gone_also_if_it_was_archived() -> None:
    """Apache's programs delete a segment's ledger and node, and know of nothing else."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        await world.archive_and_drop(before=2)
        await world.stream.purge(world.stream.segments[1])
        assert await world.where() == {3: "both", 4: "both"}
        with pytest.raises(PositionTruncated):
            await world.read(1, start=INITIAL_DLSN)
        assert [record.dlsn.lssn for record in await world.read(6)] == [3, 3, 3, 4, 4, 4]
        assert len(world.objects) == 4
        await Retention(world.context, nodes(world)).purge_truncated()
        assert len(world.objects) == 2
        assert len((await world.context.store.children(world.stream.paths.cold)).names) == 2

    on_cold_stream(check)


def test_what_others_purged_is_gone_also_if_it_was_not_archived() -> None:
    """A segment behind the cold ones is purged: so is all before it."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        first = world.stream.segments[0].segment
        await publish_archived(world.context, "s", await archive_segment(world.context, "s", first, ROOT))
        assert await world.drop() == [1]
        await world.stream.purge(world.stream.segments[1])
        assert await world.where() == {3: "hot", 4: "hot"}
        assert [record.dlsn.lssn for record in await world.read(6)] == [3, 3, 3, 4, 4, 4]
        await Retention(world.context, nodes(world)).purge_truncated()
        assert world.objects == {}

    on_cold_stream(check)


@pytest.mark.parametrize("left", [2, 0], ids=["some are left", "none is left"])
def test_files_of_what_others_purged_go_also_if_there_is_a_limit_of_bytes_only(left: int) -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        await world.archive_and_drop(before=2)
        for raw in world.stream.segments[1 : 4 - left]:
            await world.stream.purge(raw)
        settings = replace(world.settings, retention_bytes=1 << 30)
        assert await Retention(world.context, nodes(world)).purge_expired(settings) == 0
        assert len(world.objects) == left

    on_cold_stream(check)


# --- The stream as a whole


@pytest.mark.parametrize("reachable", [True, False])
def test_deleting_a_stream_deletes_what_is_cold(reachable: bool) -> None:
    """Its nodes in any case, its files if cold storage can be reached."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive_and_drop()
        with unreachable(*([] if reachable else ["delete"])):
            await delete_stream(world.context, "s", lock_timeout_s=5)
        assert len(world.objects) == (0 if reachable else 3)
        assert await world.context.store.exists(world.stream.paths.top) is None
        assert await ledgers(world) == set()

    on_cold_stream(check)


@pytest.mark.parametrize(("error", "asked"), [(ColdUnavailable, 1), (RequestDenied, 5)], ids=["it hangs", "it refuses"])
def test_deleting_a_stream_asks_a_root_that_does_not_answer_once(error: type[QuireError], asked: int) -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3, 3)
        await world.archive_and_drop()
        calls: list[str] = []

        async def fail(self: MemoryStore, name: str) -> None:
            calls.append(name)
            raise error("it is out of reach (simulated)")

        with patch.object(MemoryStore, "delete", fail):
            await delete_stream(world.context, "s", lock_timeout_s=5)
        assert len(calls) == asked
        assert await world.context.store.exists(world.stream.paths.top) is None

    on_cold_stream(check)


def test_a_renamed_stream_keeps_its_cold_segments() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive_and_drop()
        await rename_stream(world.context.store, world.stream.paths, world.context.paths("t"))
        wanted, world.stream.name = list(world.stream.records), "t"
        assert await world.read(9) == wanted
        await restore_segments(world.context, "t", settings=world.settings)
        assert await world.read(9) == wanted

    on_cold_stream(check)


def test_what_is_told_of_a_stream_says_where_its_segments_are() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        before = await read_info(nodes(world))
        await world.archive_and_drop(before=2)
        info = await read_info(nodes(world))
        assert [segment.is_hot for segment in info.segments] == [False, True, True]
        assert [segment.cold_file is not None for segment in info.segments] == [True, True, True]
        assert str(info.segments[0].cold_file).startswith(f"{ROOT}/ns/s/seg-000000000001/")
        plain = [replace(each, is_hot=True, cold_file=None) for each in info.segments]
        assert replace(info, segments=tuple(plain)) == before

    on_cold_stream(check)


def test_a_writer_goes_on_where_the_stream_ended_when_its_front_is_cold() -> None:
    async def check(world: ColdWorld) -> None:
        async def write(count: int) -> None:
            async with open_stream_writer(world.context, "s", world.settings) as writer:
                await writer.append_many([b"%d" % number for number in range(count)])

        for count in (3, 4, 5):
            await write(count)
        assert await world.archive_and_drop() == [1, 2]
        await write(2)
        segments = [placed.stored.segment for placed in await world.chain()]
        assert [segment.lssn for segment in segments] == [1, 2, 3, 4]
        assert [segment.start_sequence_id for segment in segments] == [0, 3, 7, 12]
        async with world.open() as reader:
            assert len(await take(reader, 14)) == 14

    on_cold_stream(check)


# --- Reading what is not as it should be


def test_a_reader_names_the_file_that_is_damaged_after_what_comes_before_it() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4, 4, per_entry=2)
        await world.archive_and_drop()
        name = next(name for name in world.objects if "seg-000000000002" in name)
        good = world.objects[name]
        for bad in (good[:50] + bytes([good[50] ^ 1]) + good[51:], good[:-1] + b"x"):
            world.objects[name] = bad
            async with world.open() as reader:
                assert await take(reader, 4) == world.stream.records[:4]
                with pytest.raises(DamagedColdFile, match=r"stream 's'.*segment 2"):
                    await take(reader, 1)
        del world.objects[name]
        async with world.open() as reader:
            await take(reader, 4)
            with pytest.raises(DamagedColdFile, match="missing"):
                await take(reader, 1)
        world.objects[name] = good
        assert await world.read(12) == world.stream.records

    on_cold_stream(check)


def test_a_reader_waits_for_cold_storage_that_cannot_be_reached_and_then_says_so() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4)
        await world.archive_and_drop()
        with unreachable("read"):
            async with world.open() as reader:
                began_s = world.now_s
                with pytest.raises(ColdUnavailable):
                    await take(reader, 1)
                assert 0 < world.now_s - began_s <= world.settings.call_timeout_s
        assert await world.read(8) == world.stream.records

    on_cold_stream(check)


def test_a_reader_without_pyarrow_names_the_extra() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4)
        await world.archive_and_drop()
        with patch.dict("sys.modules", {"pyarrow": None, "pyarrow.parquet": None}):
            with pytest.raises(MissingExtra) as error:
                await world.read(1)
            assert "quirelog[cold]" in error.value.hint
            assert await world.read(4, start=DLSN(Lssn(2), EntryId(0), SlotId(0))) == world.stream.records[4:]

    on_cold_stream(check)


def test_a_node_that_is_damaged_is_named() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(4, 4, 4, 4)
        await world.archive_and_drop()
        path = world.stream.paths.cold_segment("logrecs_000000000000000001")
        node = await world.context.store.get(path)
        other = (await world.context.store.get(world.stream.paths.cold_segment("logrecs_000000000000000002"))).data
        for data in (b"{}", other):
            await world.context.store.set(path, data, expected=ANY_VERSION)
            with pytest.raises(DamagedMetadata, match=path):
                await world.read(1)
            with pytest.raises(DamagedMetadata, match=path):
                await world.chain()
        await world.context.store.set(path, node.data, expected=ANY_VERSION)
        await world.context.store.delete(
            world.stream.paths.cold_segment("logrecs_000000000000000002"), expected=ANY_VERSION
        )
        with pytest.raises(DamagedMetadata, match="chain"):
            await world.read(1)

    on_cold_stream(check)


def test_the_name_of_a_file_tells_its_segment_and_other_names_tell_nothing() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3)
        (cold,) = await world.archive()
        path = world.context.path
        assert object_segment(path, cold.file.name) == (world.name, cold.lssn)
        assert object_segment("/another/namespace", cold.file.name) is None
        for name in (f"x{cold.file.name}", f"{cold.file.name}x", f"{path.strip('/')}/notes.parquet"):
            assert object_segment(path, name) is None

    on_cold_stream(check)
