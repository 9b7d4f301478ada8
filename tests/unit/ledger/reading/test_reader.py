"""Entries from their replicas: order, runs, slow and dead bookies, damaged copies, and bookies that know no batches."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.unit.ledger.reading.reader_world import (
    READER,
    SETTINGS,
    World,
    damaged,
    eventually,
    on_cluster,
    payload,
    read_all,
    stored,
)

from quire.errors import (
    BookieFailed,
    BookieUnavailable,
    DamagedEntry,
    EntriesUnknown,
    InvalidArgument,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
)
from quire.ledger.damage import is_lost
from quire.ledger.reading.entries import entry_error, more_telling
from quire.ledger.reading.reader import LedgerReader
from quire.rpc import BookieChannel, ReadRun
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata

DAMAGED = (0, 7, 8, 30, 59)
NO_BATCHES = replace(SETTINGS, batch_reads=False)


def test_an_entry_is_asked_for_in_the_order_of_its_write_set() -> None:
    """Scenario 3: of five bookies entry 7 is on places 2, 3, 4 and entry 9 on 4, 0, 1.

    Method: all who have them are crashed one by one, and the reader names whom it asks.
    """

    async def check(world: World) -> None:
        writer = await world.write(10, (5, 3, 2))
        places = writer.metadata.metadata.fragments[0].bookies
        async with world.readers.open(writer.id) as reader:
            for entry_id, order in ((7, (2, 3, 4)), (9, (4, 0, 1))):
                assert reader.replicas_of(EntryId(entry_id)) == [places[place] for place in order]
                requests = world.taps()
                assert (await reader.read_entry(EntryId(entry_id))).payload == payload(entry_id)
                assert requests.reads == [(places[order[0]], entry_id)]

    on_cluster(check, bookies=5)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2), (5, 3, 2), (1, 1, 1), (4, 1, 1)])
def test_entries_come_in_order_and_in_few_requests(quorum: tuple[int, int, int]) -> None:
    async def check(world: World) -> None:
        writer = await world.write(400, quorum)
        async with world.readers.open(writer.id) as reader:
            assert await read_all(reader) == list(range(400))
            assert await read_all(reader, 123) == list(range(123, 400))
            statistics = reader.statistics()
        assert statistics.entries == 400 + 277
        assert statistics.requests <= 2 * 5 * quorum[0], "windows of 16, 64, 256 and so on, a run to each bookie"
        assert statistics.failures == {}
        assert statistics.speculative_reads == 0

    on_cluster(check, bookies=5, seeds=1)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2)])
def test_a_bookie_that_crashes_while_it_is_read_costs_nothing_but_time(quorum: tuple[int, int, int]) -> None:
    async def check(world: World) -> None:
        writer = await world.write(300, quorum)
        async with world.readers.open(writer.id) as reader:
            found = []
            async for entry in reader.read():
                found.append(entry.entry_id)
                if entry.entry_id == 20:
                    await world.bookies[writer.metadata.metadata.fragments[0].bookies[0]].crash()
            assert found == list(range(300))

    on_cluster(check, settings=replace(SETTINGS, read_ahead_entries_max=32, read_ahead_bytes=1000), seeds=5)


def test_a_connection_that_breaks_under_a_run_costs_nothing_but_time() -> None:
    """Whatever was asked of it is asked of others."""

    async def check(world: World) -> None:
        writer = await world.write(400, (3, 2, 2))
        unlucky = writer.metadata.metadata.fragments[0].bookies[1]
        async with world.readers.open(writer.id) as reader:
            requests = world.taps()

            def cut_now_and_then(bookie: str) -> None:
                if bookie == unlucky and len(requests.reads) % 7 == 0:
                    world.sim.network.reset_all(bookie)

            requests.on_read = cut_now_and_then
            assert await read_all(reader) == list(range(400))
            assert reader.statistics().failures["BookieUnavailable"] >= 1

    on_cluster(check, seeds=5)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2)])
def test_when_a_bookie_is_slow_another_one_is_asked_too(quorum: tuple[int, int, int]) -> None:
    """The slow one is asked last for a while: one wait for all entries, not one for each window."""

    async def check(world: World) -> None:
        writer = await world.write(200, quorum)
        slow = writer.metadata.metadata.fragments[0].bookies[0]
        async with world.readers.open(writer.id) as reader:
            await reader.read_entry(EntryId(0))  # Be connected.
            world.sim.network.partition("reader", slow)
            began_s = world.now_s
            assert await read_all(reader) == list(range(200))
            took_s, statistics = world.now_s - began_s, reader.statistics()
            assert 1.0 <= took_s < 2.0
            assert 1 <= statistics.speculative_reads <= 2
            assert reader.replicas_of(EntryId(0))[-1] == slow
            world.sim.network.heal()

    on_cluster(check)


def test_a_bookie_that_becomes_slow_later_is_noticed_as_soon() -> None:
    """What it answered before says nothing of now."""

    async def check(world: World) -> None:
        writer = await world.write(300, (3, 2, 2))
        slow = writer.metadata.metadata.fragments[0].bookies[0]
        async with world.readers.open(writer.id) as reader:
            found, began_s = [], world.now_s
            async for entry in reader.read():
                found.append(entry.entry_id)
                if entry.entry_id == 100:
                    world.sim.network.partition("reader", slow)
            assert found == list(range(300))
            assert world.now_s - began_s < 2.0
            assert reader.statistics().speculative_reads >= 1
            world.sim.network.heal()

    on_cluster(check, settings=replace(SETTINGS, read_ahead_entries_max=32))


def test_the_next_window_is_on_its_way_before_the_first_is_used() -> None:
    """Also if whoever reads never waits for anything else: the bookies work meanwhile."""

    async def check(world: World) -> None:
        writer = await world.write(300, (3, 2, 2))
        async with world.readers.open(writer.id) as reader:
            await read_all(reader)  # Be connected.
            requests, entries = world.taps(), reader.read()
            await anext(entries)
            assert sorted(entry_id for _, entry_id in requests.reads) == list(range(16 + 64))
            await entries.aclose()

    on_cluster(check)


def test_a_bookie_that_is_only_busy_is_not_hurried() -> None:
    """Of two entries asked of one bookie one is answered at once: no second bookie is asked before the first times out.

    Method: the answer that has entry 3 in it is held back for ever.
    """

    async def check(world: World) -> None:
        writer = await world.write(6, (3, 2, 2))
        places = writer.metadata.metadata.fragments[0].bookies
        async with world.readers.open(writer.id) as reader:
            await reader.read_entry(EntryId(0))
            held: list[object] = []
            world.sim.network.tap(
                places[0], "reader", lambda frame, send: held.append(send) if b"entry 3" in frame else send()
            )
            requests, began_s = world.taps(), world.now_s
            assert await read_all(reader) == list(range(6))
            assert 4.0 <= world.now_s - began_s < 4.5
            assert len(held) == 1
            assert reader.statistics().speculative_reads == 0
            assert [bookie for bookie, entry_id in requests.reads if entry_id == 3] == [places[0], places[1]]

    on_cluster(check)


def test_a_bookie_that_is_busy_with_other_entries_is_not_hurried() -> None:
    """The same for entries that have other replicas, and the same first one, since theirs is away."""

    async def check(world: World) -> None:
        writer = await world.write(4, (4, 3, 2))
        places = writer.metadata.metadata.fragments[0].bookies
        async with world.readers.open(writer.id) as reader:
            await read_all(reader)
            await world.bookies[places[3]].crash()
            await eventually(lambda: reader.replicas_of(EntryId(3))[0] == places[0])
            held: list[object] = []
            world.sim.network.tap(
                places[0], "reader", lambda frame, send: held.append(send) if b"entry 3" in frame else send()
            )
            began_s = world.now_s
            assert await read_all(reader) == list(range(4))
            assert 4.0 <= world.now_s - began_s < 4.5
            assert len(held) == 1
            assert reader.statistics().speculative_reads == 0

    on_cluster(check, bookies=4)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2)])
def test_a_damaged_copy_is_never_shown_and_another_replica_is(
    quorum: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Who noticed is told: each bookie with such a copy once, by the first entry that was met."""

    async def check(world: World) -> None:
        writer = await world.write(60, quorum)
        places = writer.metadata.metadata.fragments[0].bookies
        for entry_id in DAMAGED:
            body = stored(writer.id, entry_id, payload(entry_id), lac=entry_id - 1)
            await world.put(places[entry_id % 3], writer.id, entry_id, damaged(body))
        async with world.readers.open(writer.id) as reader:
            assert await read_all(reader) == list(range(60))
            assert reader.statistics().failures.keys() == {"DamagedEntry"}
            told = [record.facts for record in caplog.records if "damaged_copy" in record.message]  # type: ignore[attr-defined]
            caplog.clear()
            assert 1 <= len(told) == len({facts["bookie"] for facts in told})
            for facts in told:
                assert facts["ledger_id"] == writer.id
                assert facts["entry_id"] in DAMAGED
                assert facts["bookie"] == places[facts["entry_id"] % 3]
                assert facts["error"].endswith("does not match its digest")
            assert world.readers.statistics().damaged_copies >= len(told)

    caplog.set_level(logging.WARNING, logger="quire")
    on_cluster(check)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2)])
def test_an_entry_without_an_intact_copy_is_an_error_behind_those_before_it(quorum: tuple[int, int, int]) -> None:
    async def check(world: World) -> None:
        writer = await world.write(60, quorum)
        body = damaged(stored(writer.id, 33, payload(33), lac=32))
        for bookie in world.bookies:
            await world.put(bookie, writer.id, 33, body)
        async with world.readers.open(writer.id) as reader:
            entries, found = reader.read(), []
            with suppress(DamagedEntry):
                while True:
                    found.append((await anext(entries)).entry_id)
            assert found == list(range(33))
            assert await read_all(reader, 34) == list(range(34, 60))
            with pytest.raises(DamagedEntry):
                await reader.read_entry(EntryId(33))

    on_cluster(check)


@pytest.mark.parametrize("quorum", [(3, 2, 2), (3, 3, 2)])
def test_who_follows_a_ledger_is_told_at_once_that_no_copy_of_an_entry_is_left(quorum: tuple[int, int, int]) -> None:
    async def check(world: World) -> None:
        writer = await world.write(60, quorum)
        body = damaged(stored(writer.id, 33, payload(33), lac=32))
        for bookie in world.bookies:
            await world.put(bookie, writer.id, 33, body)
        async with world.readers.open(writer.id) as reader:
            found, began_s = list[int](), world.now_s
            with pytest.raises(DamagedEntry, match="no copy of entry 33 of ledger 0 is left") as damage:
                await follow(reader, found)
            assert world.now_s - began_s < 1.0
            assert is_lost(damage.value)
            assert found == list(range(33))

    on_cluster(check)


@pytest.mark.parametrize("comes_back", [True, False])
def test_an_entry_is_not_given_up_while_a_bookie_is_away_that_may_have_it(comes_back: bool) -> None:
    """One copy is damaged, and the others cannot be reached: that may be over in a moment."""

    async def check(world: World) -> None:
        writer = await world.write(10, (3, 3, 2))
        near, *far = writer.metadata.metadata.fragments[0].bookies
        await world.put(near, writer.id, 5, damaged(stored(writer.id, 5, payload(5), lac=4)))
        async with world.readers.open(writer.id) as reader:
            for bookie in far:
                world.sim.network.partition(READER, bookie)
            found, began_s = list[int](), world.now_s
            following = asyncio.create_task(follow(reader, found))
            await world.pass_time(20.0)
            assert found == list(range(5))
            assert not following.done()
            if comes_back:
                world.sim.network.heal()
                await following
                assert found == list(range(10))
                return
            with pytest.raises(DamagedEntry) as damage:
                await following
            assert not is_lost(damage.value)
            assert 30.0 <= world.now_s - began_s < 60.0
        world.sim.network.heal()

    on_cluster(check)


async def follow(reader: LedgerReader, found: list[int]) -> None:
    async for entry in reader.follow():
        found.append(entry.entry_id)  # noqa: PERF401 - what was found before an error counts


def test_a_bookie_that_lacks_an_entry_of_an_open_ledger_may_get_it_yet() -> None:
    """Two copies are damaged, and the third may be on its way. When the ledger is closed none is."""

    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            late, *others = writer.metadata.metadata.fragments[0].bookies
            await writer.append_many([payload(number) for number in range(5)])
            await world.bookies[late].crash()
            await writer.append_many([payload(5), payload(6)])
            await world.bookies[late].start()
            for bookie in others:
                await world.put(bookie, writer.id, 5, damaged(stored(writer.id, 5, payload(5), lac=4)))
            async with world.readers.open(writer.id, recover=False) as reader:
                with pytest.raises(DamagedEntry) as damage:
                    await reader.read_entry(EntryId(5))
                assert not is_lost(damage.value)
        async with world.readers.open(writer.id) as reader:
            with pytest.raises(DamagedEntry) as damage:
                await reader.read_entry(EntryId(5))
            assert is_lost(damage.value)

    on_cluster(check)


def test_a_disk_that_cannot_be_read_means_another_replica() -> None:
    """Scenario 24: the bookie says that it failed, not that there is no entry; the reader goes on elsewhere."""

    async def check(world: World) -> None:
        writer = await world.write(400, (2, 2, 2), size=500)  # Far more than its caches hold.
        world.break_disk(writer.metadata.metadata.fragments[0].bookies[0])
        async with world.readers.open(writer.id) as reader:
            assert await read_all(reader) == list(range(400))
            assert reader.statistics().failures.keys() == {"BookieFailed"}
            assert world.readers.statistics().damaged_copies > 0

    on_cluster(check, bookies=2)


def test_an_entry_is_missing_only_if_every_replica_says_so() -> None:
    async def check(world: World) -> None:
        writer = await world.write(10, (3, 2, 2))
        places = writer.metadata.metadata.fragments[0].bookies
        async with world.readers.open(writer.id) as reader:
            with pytest.raises(NoSuchEntry):
                await reader.read_entry(EntryId(12))
            await world.bookies[places[1]].crash()
            with pytest.raises(BookieUnavailable):
                await reader.read_entry(EntryId(12))

    on_cluster(check)


def test_the_error_is_kept_that_says_most() -> None:
    """Every order of two errors, as section 5.1 of the protocol has it."""
    denied, unknown_ledger, away = NoSuchEntry("1"), NoSuchLedger("2"), BookieUnavailable("3")
    damage, failed, lost = DamagedEntry("4"), BookieFailed("5"), EntriesUnknown("6")
    rows: list[tuple[QuireError | None, QuireError, QuireError]] = [
        (None, denied, denied),
        (None, away, away),
        (denied, unknown_ledger, unknown_ledger),
        (denied, away, away),
        (denied, damage, damage),
        (unknown_ledger, denied, denied),
        (away, denied, away),
        (away, unknown_ledger, away),
        (away, failed, failed),
        (damage, failed, damage),
        (failed, lost, failed),
        (lost, away, lost),
        (lost, denied, lost),
    ]
    for known, newer, kept in rows:
        assert more_telling(known, newer) is kept, f"{known!r} then {newer!r}"
    a, b = BookieId("a"), BookieId("b")
    assert isinstance(entry_error({a: unknown_ledger}, LedgerId(1), EntryId(2)), NoSuchEntry)
    assert entry_error({a: away, b: damage}, LedgerId(1), EntryId(2)) is damage


def test_a_bookie_that_knows_no_batches_is_asked_for_one_once() -> None:
    """Bookies before 4.17 close the connection over a batch: the reader goes on entry by entry, in runs."""

    async def check(world: World) -> None:
        writer = await world.write(100, (3, 3, 2))
        async with world.readers.open(writer.id) as reader:
            requests = world.taps()
            requests.on_batch = world.sim.network.reset_all
            assert await read_all(reader) == list(range(100))
            assert await read_all(reader) == list(range(100))
            assert requests.batches.total() == 1
            assert len(requests.reads) >= 200

    on_cluster(check)


def test_batches_can_be_forbidden() -> None:
    async def check(world: World) -> None:
        writer = await world.write(100, (3, 3, 2))
        async with world.readers.open(writer.id) as reader:
            requests = world.taps()
            assert await read_all(reader) == list(range(100))
            assert not requests.batches
            assert sorted(entry_id for _, entry_id in requests.reads) == list(range(100))

    on_cluster(check, settings=NO_BATCHES)


def test_sticky_reads_stay_with_one_bookie_until_it_fails() -> None:
    async def check(world: World) -> None:
        writer = await world.write(200, (3, 3, 2))
        async with world.readers.open(writer.id) as reader:
            requests = world.taps()
            assert await read_all(reader) == list(range(200))
            (first,) = {bookie for bookie, _ in requests.reads}
            await world.bookies[first].crash()
            requests.reads.clear()
            assert await read_all(reader) == list(range(200))
            assert await read_all(reader) == list(range(200))
            places = writer.metadata.metadata.fragments[0].bookies
            following = places[(places.index(first) + 1) % 3]
            assert {bookie for bookie, _ in requests.reads} == {following}

    on_cluster(check, settings=replace(NO_BATCHES, sticky_reads=True), seeds=4)


def test_windows_shrink_when_entries_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    send_reads = BookieChannel.send_reads

    def counting(
        self: BookieChannel, ledger_id: LedgerId, entries: Sequence[EntryId], *, timeout_s: float | None = None
    ) -> ReadRun:
        asked.append(len(entries))
        return send_reads(self, ledger_id, entries, timeout_s=timeout_s)

    monkeypatch.setattr(BookieChannel, "send_reads", counting)

    async def check(world: World) -> None:
        writer = await world.write(200, (3, 2, 2), size=1000)
        async with world.readers.open(writer.id) as reader:
            assert await read_all(reader) == list(range(200))

    on_cluster(check, settings=replace(SETTINGS, read_ahead_bytes=9000), seeds=1)
    assert sorted(asked[:3]) == [5, 5, 6], "the first window, of whose entries nothing is known"
    assert max(asked[3:]) == 3


def test_who_stops_half_way_leaves_nothing_behind() -> None:
    async def check(world: World) -> None:
        writer = await world.write(300, (3, 2, 2))
        async with world.readers.open(writer.id) as reader:
            before = asyncio.all_tasks()
            entries = reader.read()
            async for entry in entries:
                if entry.entry_id == 17:
                    break
            await entries.aclose()
            assert {task for task in asyncio.all_tasks() - before if "read ahead" in task.get_name()} == set()
            assert (await reader.read_entry(EntryId(299))).payload == payload(299)

    on_cluster(check)


def test_only_confirmed_entries_may_be_asked_for() -> None:
    async def check(world: World) -> None:
        writer = await world.write(3)
        async with world.readers.open(writer.id) as reader:
            for first, last in ((0, 3), (-1, 2)):
                with pytest.raises(InvalidArgument):
                    reader.read(first, last)
            assert [entry.entry_id async for entry in reader.read(2, 1)] == []

    on_cluster(check, seeds=1)


def test_entries_that_were_moved_are_found_where_they_are_now() -> None:
    """Re-replication puts other bookies into the metadata of a closed ledger. A reader from before looks it up."""

    async def check(world: World) -> None:
        writer = await world.write(30, (1, 1, 1))
        (old,) = writer.metadata.metadata.fragments[0].bookies
        new = next(bookie for bookie in world.ledgers.pool.writable if bookie != old)
        async with world.readers.open(writer.id) as reader:
            assert await read_all(reader, 20) == list(range(20, 30))
            for entry_id in range(30):
                await world.put(new, writer.id, entry_id, stored(writer.id, entry_id, payload(entry_id), lac=-1))

            def move(metadata: LedgerMetadata) -> LedgerMetadata | None:
                moved = (Fragment(EntryId(0), (new,)),)
                return None if metadata.fragments == moved else replace(metadata, fragments=moved)

            await world.ledgers.ledgers_metadata.update(reader.metadata, move)
            await world.bookies[old].crash()
            assert await read_all(reader) == list(range(30))
            assert reader.statistics().metadata_updates == 1

    on_cluster(check)
