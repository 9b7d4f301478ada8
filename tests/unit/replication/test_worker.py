"""What a worker copies, when it waits, and what it leaves alone. Time is simulated, by `quire.testing`."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.support.simulation.copies import check_whole
from tests.support.simulation.faults import damage_logs
from tests.support.simulation.repair_scene import QUIET, RepairScene, on_world
from tests.support.simulation.world import name_of

from quire.errors import BookieUnavailable, QuireError
from quire.ledger.bookies.placing import PlacementSettings
from quire.ledger.client import LedgerClient
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata.driver import Children
from quire.replication.autorecovery import Roles
from quire.replication.worker import Worker
from quire.testing import SimBookie
from quire.types import EntryId, LedgerId, LedgerState, Quorum

REPAIRS = Roles(audits=False, repairs=True)


async def is_whole(world: RepairScene, ledger_id: int) -> bool:
    async with world.ledgers("prover") as ledgers:
        await ledgers.pool.wait_listed()
        listing = await world.cluster.bookies.listing()
        stored = await world.cluster.ledgers.read(ledgers.id_of(ledger_id))
        return await check_whole(ledgers, stored, listing.writable | listing.readonly) is None


async def marked_ledger(
    world: RepairScene, ledgers: LedgerClient, entries: int, *, size: int
) -> tuple[LedgerId, SimBookie]:
    """One that lacks the copies of a bookie, which is lost, and is marked for that."""
    ledger_id = await world.ledger(ledgers, entries, size=size)
    victim = await world.member(ledger_id)
    await world.lose(victim)
    await world.marks.mark(ledger_id, [name_of(victim)])
    return ledger_id, victim


def test_a_lost_bookie_is_replaced_and_the_new_one_has_everything() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery() as autorecovery:
            ledger_id = await world.ledger(ledgers, 30)
            victim = await world.member(ledger_id)
            await world.lose(victim)
            await asyncio.sleep(10.0)
            assert not await world.names(ledger_id, victim)
            assert await world.marked() == []
            assert await is_whole(world, ledger_id)
            assert autorecovery.metrics.entries_written.value == 30
            assert autorecovery.metrics.repairs.ok.count >= 1

    on_world(check)


def test_with_no_other_bookie_one_that_lives_gets_back_what_it_lacks() -> None:
    """Three bookies, three copies: nobody else could take over. The metadata stay as they are."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id = await world.ledger(ledgers, 10, size=4000)
            victim = await world.member(ledger_id)
            await asyncio.sleep(2.0)
            for path, size in victim.host.disk.sizes("/data/entries").items():
                if size > 10_000:
                    victim.host.disk.flip_bit(path, size // 2)
            before = await world.metadata(ledger_id)
            assert not await is_whole(world, ledger_id)
            async with world.autorecovery(ledger_check_interval_s=100.0, verification_percentage=100.0):
                await asyncio.sleep(10.0)
                assert await is_whole(world, ledger_id)
                assert await world.marked() == []
            assert await world.metadata(ledger_id) == before

    on_world(check, bookies=3)


def test_copies_go_no_faster_than_they_may() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id, victim = await marked_ledger(world, ledgers, 20, size=10_000)
            async with world.autorecovery(roles=REPAIRS, bytes_per_s=10_000.0):
                await asyncio.sleep(10.0)
                assert await world.names(ledger_id, victim)
                await asyncio.sleep(30.0)
                assert not await world.names(ledger_id, victim)

    on_world(check)


def test_a_ledger_that_was_deleted_needs_nothing_any_more() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id = await world.ledger(ledgers)
            await world.marks.mark(ledger_id, ["b0"])
            await ledgers.delete(ledger_id)
            async with world.autorecovery(roles=REPAIRS):
                await asyncio.sleep(2.0)
            assert await world.marked() == []

    on_world(check)


def test_entries_of_a_ledger_that_is_deleted_while_it_is_copied_are_not_missed() -> None:
    """Else an alert would tell of lost copies whenever somebody deletes a ledger at the wrong moment."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id, _ = await marked_ledger(world, ledgers, 60, size=100_000)
            async with world.autorecovery(roles=REPAIRS, bytes_per_s=200_000.0) as autorecovery:
                await asyncio.sleep(5.0)
                assert autorecovery.metrics.entries_written.value > 0, "it has begun"
                await ledgers.delete(ledger_id)
                await world.collect_garbage()
                await asyncio.sleep(60.0)
                assert await world.marked() == []
                assert autorecovery.metrics.entries_written.value < 60
                assert autorecovery.metrics.unreadable.value == 0

    on_world(check)


def test_a_writer_that_replaces_the_bookie_in_time_is_not_disturbed() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery() as autorecovery:
            async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                await writer.append(b"before")
                victim = await world.member(writer.id)
                await world.lose(victim)
                await asyncio.sleep(3.0)
                await writer.append(b"after")
                await asyncio.sleep(30.0)
                await writer.append(b"and on")
            assert autorecovery.metrics.shut_out.value == 0
            await asyncio.sleep(30.0)
            assert await is_whole(world, writer.id)

    on_world(check, bookies=5)


def test_a_writer_that_does_nothing_is_shut_out_after_its_time_of_grace() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery() as autorecovery:
            try:
                async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                    await writer.append(b"before")
                    victim = await world.member(writer.id)
                    await world.lose(victim)
                    await asyncio.sleep(3.0)
                    assert (await world.metadata(writer.id)).state is LedgerState.OPEN
                    assert await world.marks.lock_holder(writer.id) == "autorecovery0"
                    await asyncio.sleep(30.0)
                    metadata = await world.metadata(writer.id)
                    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)
                    assert autorecovery.metrics.shut_out.value == 1
                    assert await is_whole(world, writer.id)
            except QuireError as error:
                world.note("writer", error)

    on_world(check, bookies=5)


def test_a_worker_for_some_ledgers_leaves_all_others_alone() -> None:
    async def check(world: RepairScene) -> None:
        audits = Roles(audits=True, repairs=False)
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=audits) as autorecovery:
            wanted = await world.ledger(ledgers)
            victim = await world.member(wanted)
            written = [await world.ledger(ledgers) for _ in range(5)]
            others = [each for each in written if await world.names(each, victim)]
            assert len(others) > 0
            await asyncio.sleep(1.0)
            await world.lose(victim)
            await asyncio.sleep(1.0)
            assert await world.marked() == [wanted, *others]
            worker = Worker(
                autorecovery.client,
                autorecovery.cluster,
                autorecovery.marks,
                world.sim.host("autorecovery0").runtime.clock,
                QUIET,
                autorecovery.metrics,
                among={wanted},
            )
            working = asyncio.create_task(worker.run())
            await asyncio.sleep(30.0)
            working.cancel()
            await asyncio.wait([working])
            assert await world.marked() == others
            assert not await world.names(wanted, victim)

    on_world(check)


def test_a_writer_is_not_shut_out_where_nobody_could_take_over() -> None:
    async def check(world: RepairScene) -> None:
        async with (
            world.ledgers("writer") as ledgers,
            world.autorecovery() as autorecovery,
            ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer,
        ):
            await writer.append(b"before")
            victim = await world.member(writer.id)
            await victim.stop()
            await asyncio.sleep(60.0)
            await writer.append(b"after")
            assert autorecovery.metrics.shut_out.value == 0
            assert await world.marked() == [writer.id]
            await victim.start()

    on_world(check, bookies=3)


def test_a_ledger_that_cannot_be_repaired_is_left_alone_and_kept_from_others() -> None:
    """Both copies of an entry are gone. The lock is kept for longer each time."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery() as autorecovery:
            ledger_id = await world.ledger(ledgers)
            for place in (0, 1):
                victim = await world.member(ledger_id, place)
                await world.lose(victim)
            await asyncio.sleep(20.0)
            assert await world.marks.lock_holder(ledger_id) is not None
            assert autorecovery.metrics.deferred.value >= 2
            assert autorecovery.metrics.unreadable.value >= 1
            await asyncio.sleep(60.0)
            assert autorecovery.metrics.deferred.value <= 8
            assert await world.marked() == [ledger_id]

    on_world(check, bookies=5, quorum=Quorum(2, 2, 2))


def test_a_worker_with_enough_ledgers_that_have_to_wait_leaves_the_store_alone() -> None:
    """Nobody could take a lost bookie's place, so all ledgers have to wait, and only one may."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_ids = [await world.ledger(ledgers, 3) for _ in range(3)]
            victim = await world.member(ledger_ids[0])
            await world.lose(victim)
            for ledger_id in ledger_ids:
                await world.marks.mark(ledger_id, [name_of(victim)])
            async with world.autorecovery(roles=REPAIRS, deferred_max=1, failed_ledger_backoff_s=640.0) as autorecovery:
                store, listed = autorecovery.cluster.store, Counter[str]()
                children = store.children

                async def counted(path: str) -> Children:
                    listed["times"] += 1
                    assert listed["times"] < 1000, "it asks without end"
                    return await children(path)

                store.children = counted  # type: ignore[method-assign]
                await asyncio.sleep(15.0)
                assert autorecovery.metrics.deferred.value == 1
                assert listed["times"] < 20
                await asyncio.sleep(30.0)
                assert autorecovery.metrics.deferred.value >= 2, "others have their turn when the first one had its"

    on_world(check, bookies=3)


def test_a_worker_that_dies_half_way_leaves_nothing_that_hurts_the_next_one() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id, victim = await marked_ledger(world, ledgers, 20, size=10_000)
            async with world.autorecovery("autorecovery0", REPAIRS, bytes_per_s=20_000.0):
                await asyncio.sleep(5.0)
                await world.crash_client("autorecovery0")
            assert await world.names(ledger_id, victim)
            async with world.autorecovery("autorecovery1", REPAIRS):
                await asyncio.sleep(10.0)
                assert not await world.names(ledger_id, victim)
                assert await is_whole(world, ledger_id)
                assert await world.marked() == []

    on_world(check, bookies=5)


def test_old_fragments_of_an_open_ledger_are_repaired_while_it_is_written() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery() as autorecovery:
            async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                await writer.append_many([b"%d" % number for number in range(5)])
                victim = await world.member(writer.id)
                await world.lose(victim)
                await writer.append(b"on other bookies")
                await asyncio.sleep(20.0)
                metadata = await world.metadata(writer.id)
                assert metadata.state is LedgerState.OPEN
                assert [each.first_entry_id for each in metadata.fragments] == [0, EntryId(5)]
                assert not await world.names(writer.id, victim)
                assert await world.marked() == []
            assert autorecovery.metrics.shut_out.value == 0
            assert await is_whole(world, writer.id)

    on_world(check, bookies=5)


RACKS = "racks"
RACKED = PlacementSettings(racks_node=f"/{RACKS}")


async def in_racks(world: RepairScene, *racks: str) -> None:
    """The map of racks, for the bookies in their order."""
    found = {name_of(bookie): f"/{rack}" for bookie, rack in zip(world.bookies, racks, strict=True)}
    await world.cluster.store.create(f"/{RACKS}", json.dumps(found).encode())


async def racks_of(world: RepairScene, ledger_id: LedgerId, racks: tuple[str, ...]) -> list[str]:
    named = {name_of(bookie): rack for bookie, rack in zip(world.bookies, racks, strict=True)}
    (fragment,) = (await world.metadata(ledger_id)).fragments
    return sorted(named[bookie] for bookie in fragment.bookies)


def test_copies_that_stand_in_one_rack_are_moved_until_they_stand_in_two() -> None:
    """Method: three bookies of one rack hold everything, then two of another come. The check marks, the worker moves
    one copy of each ledger, and nothing else; the next check finds nothing."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            written = [await world.ledger(ledgers, 10) for _ in range(3)]
        for _ in range(2):
            await world.add_bookie()
        racks = ("a", "a", "a", "b", "b")
        await in_racks(world, *racks)
        changed: dict[str, Any] = {"placement": RACKED, "placement_check_interval_s": 5.0}
        async with world.autorecovery(**changed) as only_counting:
            await asyncio.sleep(12.0)
            assert only_counting.metrics.misplaced.value == 3
            assert [await racks_of(world, each, racks) for each in written] == [["a", "a", "a"]] * 3
        async with world.autorecovery(mark_misplaced=True, **changed) as autorecovery:
            await asyncio.sleep(20.0)
            assert [await racks_of(world, each, racks) for each in written] == [["a", "a", "b"]] * 3
            assert autorecovery.metrics.entries_written.value == 30
            assert autorecovery.metrics.misplaced.value == 0
            assert await world.marked() == []
        for each in written:
            assert await is_whole(world, each)

    on_world(check, bookies=3)


def test_where_there_is_no_better_place_copies_stay_and_the_mark_goes() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id = await world.ledger(ledgers, 10)
        await in_racks(world, "a", "a", "a", "a")
        before = await world.metadata(ledger_id)
        async with world.autorecovery(
            placement=RACKED, placement_check_interval_s=5.0, mark_misplaced=True
        ) as autorecovery:
            await asyncio.sleep(12.0)
            assert autorecovery.metrics.misplaced.value == 1
            assert autorecovery.metrics.entries_written.value == 0
        assert await world.metadata(ledger_id) == before
        assert await world.marked() == []

    on_world(check)


def test_a_ledger_of_which_nobody_can_tell_how_far_it_goes_is_not_taken_for_whole() -> None:
    """Two of three copies are damaged, so that the LAC cannot be read, and the last fragment looks empty."""

    async def check(world: RepairScene) -> None:
        ledger_id = await world.abandoned()
        members = [await world.member(ledger_id, place) for place in (0, 1)]
        for bookie in members:
            damage_logs(world, bookie)
        async with world.ledgers("reader") as ledgers:
            with pytest.raises(BookieUnavailable):
                async with ledgers.open(ledger_id, recover=False) as reader:
                    await reader.read_last_add_confirmed()
        await world.marks.prepare()
        await world.marks.mark(ledger_id, [name_of(members[0])])
        async with world.autorecovery(roles=REPAIRS, verification_percentage=100.0) as autorecovery:
            await asyncio.sleep(30.0)
            assert await world.marked() == [ledger_id]
            assert autorecovery.metrics.deferred.value >= 1

    on_world(check, bookies=6)


def test_a_copy_that_went_bad_in_an_open_ledger_is_made_anew_while_its_bookie_lives() -> None:
    """Method: when that is done, the other copy is lost with its bookie, and everything acknowledged is still there."""

    async def check(world: RepairScene) -> None:
        ledger_id = await world.abandoned()
        bad, good = [await world.member(ledger_id, place) for place in (0, 1)]
        damage_logs(world, bad)
        async with world.autorecovery(ledger_check_interval_s=10.0, verification_percentage=100.0) as autorecovery:
            await asyncio.sleep(60.0)
            metadata = await world.metadata(ledger_id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 9)
            assert autorecovery.metrics.shut_out.value == 1
            assert not await world.names(ledger_id, bad)
            await world.lose(good)
            await asyncio.sleep(60.0)
            assert await is_whole(world, ledger_id)
            assert await world.marked() == []

    on_world(check, bookies=5, quorum=Quorum(2, 2, 2))


def test_a_writer_that_gets_on_is_not_shut_out_because_a_bookie_is_behind() -> None:
    """Whenever somebody looks, one of three bookies lacks what the other two have confirmed."""

    async def check(world: RepairScene) -> None:
        async with (
            world.ledgers("slow-writer") as ledgers,
            ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer,
        ):
            await writer.append(b"first")
            behind = await world.member(writer.id)
            world.sim.network.link_latency_s["slow-writer", behind.host.name] = (1.5, 1.5)
            appending = asyncio.create_task(_append_on(writer))
            await asyncio.sleep(3.0)
            await world.marks.prepare()
            await world.marks.mark(writer.id, [name_of(behind)])
            async with world.autorecovery(roles=REPAIRS) as autorecovery:
                await asyncio.sleep(4.0)
                assert await world.marks.lock_holder(writer.id) == "autorecovery0", "it waits for the writer"
                await asyncio.sleep(20.0)
                assert autorecovery.metrics.shut_out.value == 0
                assert autorecovery.metrics.repairs.ok.count >= 2
            assert not appending.done()
            appending.cancel()
            await asyncio.wait([appending])
            assert await world.names(writer.id, behind)
            assert len((await world.metadata(writer.id)).fragments) == 1

    on_world(check, bookies=5)


async def _append_on(writer: LedgerWriter) -> None:
    while True:
        await writer.append(b"and on")
        await asyncio.sleep(0.1)
