"""When ledgers are marked, by whom, and what the checks count. Time is simulated, by `quire.testing`."""

import asyncio
from collections.abc import AsyncIterator

from tests.support.simulation.faults import damage_logs
from tests.support.simulation.repair_scene import QUIET, RepairScene, on_world
from tests.support.simulation.world import name_of

from quire.codec.wire.availability import EntryAvailability
from quire.metadata import StoredLedger, Version
from quire.protocol.auditing import LostBookies
from quire.replication.autorecovery import Roles
from quire.replication.checks import Checks
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

AUDITS = Roles(audits=True, repairs=False)


def test_the_ledgers_of_a_lost_bookie_are_marked() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS):
            on_it, victim = await world.ledger(ledgers), None
            victim = await world.member(on_it)
            await asyncio.sleep(1.0)
            await victim.stop()
            await asyncio.sleep(1.0)
            assert on_it in await world.marked()
            mark = await world.marks.read_mark(on_it)
            assert mark is not None
            assert mark.replicas == (name_of(victim),)

    on_world(check)


def test_a_single_lost_bookie_is_waited_for() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS, lost_bookie_delay_s=60):
            ledger_id = await world.ledger(ledgers)
            victim = await world.member(ledger_id)
            await asyncio.sleep(1.0)
            await victim.stop()
            await asyncio.sleep(20.0)
            await victim.start()
            await asyncio.sleep(100.0)
            assert await world.marked() == []
            await victim.stop()
            await asyncio.sleep(50.0)
            assert await world.marked() == []
            await asyncio.sleep(20.0)
            assert await world.marked() == [ledger_id]

    on_world(check)


def test_nobody_waits_for_two_lost_bookies() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS, lost_bookie_delay_s=60):
            ledger_id = await world.ledger(ledgers)
            await asyncio.sleep(1.0)
            await (await world.member(ledger_id, 0)).stop()
            await (await world.member(ledger_id, 1)).stop()
            await asyncio.sleep(1.0)
            mark = await world.marks.read_mark(ledger_id)
            assert mark is not None
            assert len(mark.replicas) == 2

    on_world(check)


def test_writing_the_delay_that_is_there_asks_for_an_audit() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS, lost_bookie_delay_s=600):
            ledger_id = await world.ledger(ledgers)
            await asyncio.sleep(1.0)
            await (await world.member(ledger_id)).stop()
            await asyncio.sleep(1.0)
            await world.marks.set_delay(300)
            await asyncio.sleep(1.0)
            assert await world.marked() == [], "another number is only another number"
            await world.marks.set_delay(300)
            await asyncio.sleep(1.0)
            assert await world.marked() == [ledger_id]

    on_world(check)


def test_nothing_is_marked_while_repairs_are_off() -> None:
    async def check(world: RepairScene) -> None:
        await world.marks.disable()
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS):
            ledger_id = await world.ledger(ledgers)
            await asyncio.sleep(1.0)
            await (await world.member(ledger_id)).stop()
            await asyncio.sleep(10.0)
            assert await world.marked() == []
            await world.marks.enable()
            await asyncio.sleep(1.0)
            assert await world.marked() == [ledger_id]

    on_world(check)


def test_an_audit_is_discarded_if_repairs_were_turned_off_while_it_read_the_metadata() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS) as autorecovery:
            ledger_id = await world.ledger(ledgers)
            checks = Checks(
                autorecovery.client,
                autorecovery.cluster,
                autorecovery.marks,
                world.sim.host("autorecovery0").runtime.clock,
                world.settings,
                autorecovery.metrics,
            )
            await world.marks.disable()
            await (await world.member(ledger_id)).stop()
            await checks.audit_bookies(lambda _: None)
            assert await world.marked() == []
            await world.marks.enable()
            await checks.audit_bookies(lambda _: None)
            assert await world.marked() == [ledger_id]

    on_world(check)


def test_a_bookie_is_lost_again_that_an_audit_saw_alive_when_it_began() -> None:
    """A ledger that is made while an audit reads metadata is not in what it read. So bookies that are lost meanwhile
    call for another audit. Method: the bookie of a new ledger dies when all others were read."""

    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers, world.autorecovery(roles=AUDITS) as autorecovery:
            await world.ledger(ledgers)
            lost = LostBookies(await world.cluster.bookies.known(), 0)

            class Reading(Checks):
                async def _ledgers(self) -> AsyncIterator[StoredLedger]:
                    async for stored in super()._ledgers():
                        yield stored
                    behind = await world.ledger(ledgers)
                    victim = await world.member(behind)
                    await world.lose(victim)
                    listing = await world.cluster.bookies.listing()
                    lost.on_listing(listing.writable, 5.0)

            checks = Reading(
                autorecovery.client,
                autorecovery.cluster,
                autorecovery.marks,
                world.sim.host("autorecovery0").runtime.clock,
                world.settings,
                autorecovery.metrics,
            )
            assert await checks.audit_bookies(lost.on_audit)
            assert lost.audit_at_s == 5.0

    on_world(check)


def test_the_auditor_that_lost_its_session_gives_way_and_votes_again() -> None:
    async def check(world: RepairScene) -> None:
        async with world.autorecovery("autorecovery0", AUDITS) as first:
            await asyncio.sleep(1.0)
            async with world.autorecovery("autorecovery1", AUDITS) as second:
                both = (first.metrics.is_auditor, second.metrics.is_auditor)
                await asyncio.sleep(1.0)
                assert [each.value for each in both] == [1, 0]
                world.tree.expire_host("autorecovery0")
                await asyncio.sleep(5.0)
                assert [each.value for each in both] == [0, 1]
                assert await world.marks.auditor() == "autorecovery1"
                world.tree.expire_host("autorecovery1")
                await asyncio.sleep(5.0)
                assert [each.value for each in both] == [1, 0]

    on_world(check)


def test_the_check_of_all_ledgers_finds_an_entry_that_a_live_bookie_has_lost() -> None:
    async def check(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            ledger_id = await world.ledger(ledgers, 10, size=4000)
            victim = await world.member(ledger_id)
            await asyncio.sleep(2.0)  # Until all is in the logs.
            for path, size in victim.host.disk.sizes("/data/entries").items():
                if size > 10_000:
                    victim.host.disk.flip_bit(path, size // 2)
            async with world.autorecovery(
                roles=AUDITS, ledger_check_interval_s=1000.0, verification_percentage=100.0
            ) as autorecovery:
                await asyncio.sleep(5.0)
                assert await world.marked() == [ledger_id]
                assert autorecovery.metrics.ledgers_checked.value == 1
            assert await world.marks.check_time_ms("checkallledgersctime") is not None
            async with world.autorecovery(roles=AUDITS, ledger_check_interval_s=1000.0) as again:
                await asyncio.sleep(5.0)
                assert again.metrics.ledgers_checked.value == 0, "the next auditor does not begin the interval anew"

    on_world(check)


def test_a_ledger_is_marked_if_too_few_of_its_bookies_tell_how_far_it_goes() -> None:
    async def check(world: RepairScene) -> None:
        ledger_id = await world.abandoned()
        damaged = [await world.member(ledger_id, place) for place in (0, 1)]
        for bookie in damaged:
            damage_logs(world, bookie)
        async with world.autorecovery(roles=AUDITS, ledger_check_interval_s=1000.0, verification_percentage=100.0):
            await asyncio.sleep(20.0)
            mark = await world.marks.read_mark(ledger_id)
            assert mark is not None
            assert mark.replicas == tuple(sorted(map(name_of, damaged)))

    on_world(check)


def test_copies_are_counted() -> None:
    async def check(world: RepairScene) -> None:
        async with (
            world.ledgers("writer") as ledgers,
            world.autorecovery(roles=AUDITS, replicas_check_interval_s=5.0) as autorecovery,
        ):
            ledger_id = await world.ledger(ledgers)
            metrics = autorecovery.metrics
            await asyncio.sleep(12.0)
            assert (metrics.below_write_quorum.value, metrics.below_ack_quorum.value) == (0, 0)
            await (await world.member(ledger_id, 0)).stop()
            await asyncio.sleep(12.0)
            assert (metrics.below_write_quorum.value, metrics.below_ack_quorum.value) == (1, 0)
            await (await world.member(ledger_id, 1)).stop()
            await asyncio.sleep(12.0)
            assert (metrics.below_write_quorum.value, metrics.below_ack_quorum.value) == (0, 1)
            await (await world.member(ledger_id, 2)).stop()
            await asyncio.sleep(12.0)
            assert (metrics.below_ack_quorum.value, metrics.without_copy.value) == (0, 1)

    on_world(check)


def test_others_have_their_turn_while_copies_are_counted() -> None:
    """Method: a ledger of which everybody has everything, and nobody has to be waited for."""

    class Everywhere(Checks):
        async def _listed(self, bookie: BookieId, stored: StoredLedger) -> EntryAvailability:
            return EntryAvailability.of(map(EntryId, range(20_000)))

    async def check(world: RepairScene) -> None:
        runtime = world.sim.host("autorecovery0").runtime
        async with world.autorecovery(roles=AUDITS) as running:
            checks = Everywhere(running.client, running.cluster, running.marks, runtime.clock, QUIET, running.metrics)
            fragments = (Fragment(EntryId(0), (BookieId("a"), BookieId("b"), BookieId("c"))),)
            metadata = LedgerMetadata(
                Quorum(3, 2, 2), fragments, state=LedgerState.CLOSED, last_entry_id=EntryId(20_000)
            )
            counting = asyncio.create_task(checks._fewest_copies(StoredLedger(LedgerId(7), metadata, Version(0), None)))
            turns = 0
            while not counting.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 10, "it gives way 20 times, and the seed says to whom"
            assert counting.result() == (0, (2, 2)), "the last one is nowhere"

    on_world(check)


def test_where_ledgers_stand_is_looked_at() -> None:
    """Without racks every place is as good as any other."""

    async def check(world: RepairScene) -> None:
        async with (
            world.ledgers("writer") as ledgers,
            world.autorecovery(roles=AUDITS, placement_check_interval_s=5.0) as autorecovery,
        ):
            await world.ledger(ledgers)
            await asyncio.sleep(12.0)
            assert await world.marks.check_time_ms("placementpolicycheckctime") is not None
            assert await world.marked() == []
            assert autorecovery.metrics.placement_checks.ok.count >= 2
            assert autorecovery.metrics.misplaced.value == 0

    on_world(check, quorum=Quorum(3, 3, 2))
