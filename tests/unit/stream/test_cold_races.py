"""Cold segments while others purge, drop and restore them: what is there is found, and what was purged stays gone."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.streams.archive import ROOT, ColdWorld, on_cold_stream
from tests.support.streams.reading import take

from quire.codec.stream_metadata.segment import encode_segment
from quire.errors import MetadataUnavailable, PositionTruncated
from quire.metadata import ANY_VERSION
from quire.protocol.segments import truncate
from quire.stream import cold_moves
from quire.stream.archiving import archive_segment, publish_archived
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.cold_nodes import ColdNodes, StoredCold
from quire.stream.nodes import StreamNodes
from quire.stream.retention import Retention
from quire.types import DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId


async def purge_as_apache(world: ColdWorld, count: int) -> None:
    """The first segments lose their ledgers and nodes; what is recorded of their files stays."""
    for raw in world.stream.segments[:count]:
        await world.stream.purge(raw)


async def sweep(world: ColdWorld) -> None:
    await Retention(world.context, StreamNodes(world.context.store, world.stream.paths)).purge_truncated()


async def leave_purged(world: ColdWorld, *, archived: int, purged: int) -> None:
    """Of six segments the first ones are archived and then purged by Apache's programs; the others are archived."""
    await world.stream.fill(3, 3, 3, 3, 3, 3)
    for raw in world.stream.segments[:archived]:
        await publish_archived(world.context, "s", await archive_segment(world.context, "s", raw.segment, ROOT))
    await purge_as_apache(world, purged)
    await world.archive()


# --- Segments that others purged


@pytest.mark.parametrize("purged", [2, 3], ids=["all that is purged is archived", "the last of them is not"])
def test_dropping_after_a_purge_does_not_bring_back_what_was_purged(purged: int) -> None:
    async def check(world: ColdWorld) -> None:
        await leave_purged(world, archived=2, purged=purged)
        assert await world.drop(before=5) == [*range(purged + 1, 5)]
        assert await world.where() == {lssn: "cold" if lssn < 5 else "both" for lssn in range(purged + 1, 7)}
        assert len(world.objects) == 6 - purged
        assert await world.read(len(world.stream.records)) == world.stream.records
        with pytest.raises(PositionTruncated):
            await world.read(1, start=INITIAL_DLSN)

    on_cold_stream(check)


@pytest.mark.parametrize("purged", [2, 3], ids=["all that is purged is archived", "the last of them is not"])
def test_what_is_left_of_purged_segments_before_cold_ones_counts_for_nothing(purged: int) -> None:
    async def nothing(*_: object) -> None:
        pass

    async def check(world: ColdWorld) -> None:
        await leave_purged(world, archived=2, purged=purged)
        with patch("quire.stream.cold_moves.sweep_purged", nothing):
            await world.drop(before=5)
        assert min(await world.where()) == purged + 1
        assert await world.read(len(world.stream.records)) == world.stream.records
        with pytest.raises(PositionTruncated):
            await world.read(1, start=INITIAL_DLSN)
        await sweep(world)
        assert len(world.objects) == 6 - purged
        assert await world.read(len(world.stream.records)) == world.stream.records

    on_cold_stream(check)


# --- Segments that move there and back


@pytest.mark.parametrize("first", [3, 2, 1])
def test_segments_that_are_restored_and_dropped_during_a_look_are_not_taken_for_purged(first: int) -> None:
    """What is hot was listed before; the newest of them was perhaps read before, too."""

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3, 3)
        await world.archive_and_drop(before=4)
        where, names = await world.where(), set(world.objects)
        read, looks = ColdNodes.read, []

        async def slow_read(self: ColdNodes, wanted: Iterable[str]) -> dict[Lssn, StoredCold]:
            looks.append(sorted(wanted))
            if len(looks) > 1:
                return await read(self, looks[-1])
            newest = await read(self, looks[0][first:])
            await restore_segments(world.context, "s", first=Lssn(first), settings=world.settings)
            rest = await read(self, looks[0][:first])
            await world.drop(before=4)
            return dict(sorted((rest | newest).items()))

        with patch.object(ColdNodes, "read", slow_read):
            assert await world.where() == where
        assert len(looks) > 1
        looks.clear()
        with patch.object(ColdNodes, "read", slow_read):
            await sweep(world)
        assert await world.where() == where
        assert set(world.objects) == names

    on_cold_stream(check)


def test_what_goes_on_right_before_the_first_segment_is_not_outdated() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3, 3)
        await world.archive_and_drop(before=3)
        nodes = ColdNodes(world.context.store, world.stream.paths)
        assert await nodes.outdated(Lssn(3)) == []

    on_cold_stream(check)


def test_a_drop_that_comes_late_does_not_delete_the_ledger_of_a_restore() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive()
        ledgers = type(world.context.ledgers)
        check_file, publish, delete = cold_moves._check_file, cold_moves._publish, ledgers.delete
        at_publish, go_on = asyncio.Event(), asyncio.Event()
        restoring: list[asyncio.Task[Any]] = []
        files: list[object] = []

        async def drop_and_restore_meanwhile(*args: Any) -> None:
            await check_file(*args)
            files.append(args)
            if len(files) == 1:
                assert await world.drop(before=2) == [1]
                restoring.append(world.spawn(restore_segments(world.context, "s", settings=world.settings)))
                await at_publish.wait()

        async def publish_later(*args: Any) -> bool:
            at_publish.set()
            await go_on.wait()
            return await publish(*args)

        async def delete_and_answer_late(self: Any, ledger: Any) -> None:
            await delete(self, ledger)
            if at_publish.is_set() and not go_on.is_set():
                go_on.set()
                await asyncio.wait(restoring)

        with (
            patch("quire.stream.cold_moves._check_file", drop_and_restore_meanwhile),
            patch("quire.stream.cold_moves._publish", publish_later),
            patch.object(ledgers, "delete", delete_and_answer_late),
        ):
            assert await world.drop(before=2) == [1]
            go_on.set()
            assert await restoring[0] == [1]
        assert await world.where() == {1: "both", 2: "both", 3: "both"}
        assert await world.read(9) == world.stream.records

    on_cold_stream(check)


# --- Segments that others truncate


def place(lssn: int, entry_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(0))


async def truncate_as_apache(world: ColdWorld, before: DLSN) -> None:
    """Only what is hot is changed, each node by deleting it and creating it anew."""
    nodes, store, paths = StreamNodes(world.context.store, world.stream.paths), world.context.store, world.stream.paths
    names = {stored.segment.lssn: stored.name for stored in await nodes.all_segments()}
    for step in truncate([stored.segment for stored in await nodes.all_segments()], before):
        changed = step.segment.truncated() if step.before is None else step.segment.truncated_before(step.before)
        path = paths.segment(names[step.segment.lssn])
        await store.delete(path, expected=ANY_VERSION)
        await store.create(path, encode_segment(changed))
    world.stream.records = [record for record in world.stream.records if record.dlsn >= before]


@pytest.mark.parametrize("before", [place(5), place(3, 1)], ids=["as a whole", "in part"])
def test_what_is_cold_is_hidden_if_others_truncate_what_is_hot_behind_it(before: DLSN) -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 6, 6, 6, 6)
        await world.archive_and_drop(before=3)
        async with world.open(settings=replace(world.settings, read_ahead_bytes_max=100)) as in_the_middle:
            await take(in_the_middle, 1)
            await truncate_as_apache(world, before)
            wanted = world.stream.records
            with pytest.raises(PositionTruncated) as late:
                await take(in_the_middle, 30)
        assert late.value.facts["earliest"] == before
        assert await world.read(len(wanted)) == wanted
        assert await world.read(len(wanted), start=INITIAL_DLSN, skip_truncated=True) == wanted
        with pytest.raises(PositionTruncated) as told:
            await world.read(1, start=INITIAL_DLSN)
        assert told.value.facts["earliest"] == before
        assert [each.stored.segment.is_truncated for each in await world.chain()] == [
            lssn < before.lssn for lssn in range(1, 6)
        ]
        await sweep(world)
        assert len(world.objects) == 6 - before.lssn, "purging deletes the files as well"
        assert await world.read(len(wanted)) == wanted

    on_cold_stream(check)


def test_what_others_hid_stays_hidden_when_the_segment_that_tells_so_moves() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 6, 6, 6, 6)
        await world.archive_and_drop(before=3)
        await truncate_as_apache(world, place(3, 1))
        assert await world.drop() == [3, 4]
        assert await world.read(15) == world.stream.records
        assert [each.stored.segment.is_truncated for each in await world.chain()] == [True, True, False, False, False]
        assert await restore_segments(world.context, "s", settings=world.settings) == [4, 3]
        assert await world.read(15) == world.stream.records
        hot = await StreamNodes(world.context.store, world.stream.paths).all_segments()
        assert [each.segment.is_truncated for each in hot] == [False, False, False], "what is hidden stays cold"

    on_cold_stream(check)


def test_what_others_hide_while_it_is_restored_is_hidden_then() -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(6, 6, 6)
        await world.archive_and_drop(before=2)
        restore = ColdNodes.restore

        async def truncate_first(self: ColdNodes, cold: StoredCold, *args: Any, **options: Any) -> None:
            if world.stream.records[0].dlsn == INITIAL_DLSN:
                await truncate_as_apache(world, place(2, 1))
            await restore(self, cold, *args, **options)

        with patch.object(ColdNodes, "restore", truncate_first):
            assert await restore_segments(world.context, "s", settings=world.settings) == [1]
        assert await world.read(9) == world.stream.records

    on_cold_stream(check)


# --- Dropping while others purge


@pytest.mark.parametrize("keep_bytes", [0, 1], ids=["its file is missing", "its ledger is missing"])
def test_a_segment_that_is_purged_while_it_is_dropped_is_no_damage(keep_bytes: int) -> None:
    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive()
        retention = Retention(world.context, StreamNodes(world.context.store, world.stream.paths))
        step = "_finish_leftovers" if keep_bytes else "_producers_from"
        plain = getattr(cold_moves, step)

        async def purge_meanwhile(*args: Any) -> Any:
            await retention.purge_below(world.stream.records[5].txid)
            return await plain(*args)

        with patch.object(cold_moves, step, purge_meanwhile):
            assert await drop_hot(world.context, "s", DropPolicy(keep_bytes=keep_bytes)) in ([], [2])
        assert min(await world.where()) == 2
        await world.drop()
        assert await world.where() == {2: "cold", 3: "both"}
        assert await world.read(6) == world.stream.records[3:]

    on_cold_stream(check)


# --- A purge that is stopped


def test_a_purge_that_was_stopped_behind_a_file_keeps_nobody_from_going_on() -> None:
    async def stop(*_: object) -> None:
        raise MetadataUnavailable("stopped")

    async def check(world: ColdWorld) -> None:
        await world.stream.fill(3, 3, 3)
        await world.archive_and_drop(before=3)
        written = list(world.stream.records)
        purge = Retention(world.context, StreamNodes(world.context.store, world.stream.paths))
        with patch.object(ColdNodes, "forget", stop), pytest.raises(MetadataUnavailable):
            await purge.purge_below(written[3].txid + 1)
        assert len(world.objects) == 2
        with pytest.raises(PositionTruncated):
            await world.read(1, start=INITIAL_DLSN)
        assert await world.read(6, skip_truncated=True) == written[3:]
        await world.stream.fill(3)
        await world.archive()
        assert await restore_segments(world.context, "s", settings=world.settings) == [2]
        assert await world.drop(before=4) == [2, 3]
        await purge.purge_truncated()
        assert min(await world.where()) == 2

    on_cold_stream(check)
