"""Garbage collection: which ledgers go, which stay whatever happens, and what a report says of it.

Days pass here in the virtual time of `quire.testing`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest
from tests.unit.bookie.garbage_samples import FOLDER, KEY, METADATA, ROLLER, Bookie, body, on_bookie, until

from quire.bookie.garbage import GarbageCollector, GarbageReport, GarbageSettings
from quire.bookie.index import TOMBSTONE_KEPT_MS
from quire.bookie.moved_ledgers import MovedLedgers
from quire.codec.entry_log import log_name
from quire.errors import InvalidArgument, MetadataUnavailable, WrongDisk
from quire.metadata import ANY_VERSION, Cluster, MetadataStore, init_cluster
from quire.metadata.drivers.memory import MemoryDriver
from quire.protocol.fencing import Refusal
from quire.runtime import Runtime, replace_file
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerState


async def ledgers_of(bookie: Bookie) -> list[int]:
    return [each for each in await bookie.storage.ledger_ids() if each != ROLLER]


def reasons(report: GarbageReport) -> dict[int, str]:
    return {log.log_id: log.reason for log in report.logs}


# --- Ledgers --------------------------------------------------------------------------------------------------------


def test_a_ledger_without_metadata_goes_and_its_log_with_it() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2, 3)
        dead, mixed = await bookie.fill_log(1, 2), await bookie.fill_log(1, 3, first=5)
        await bookie.remove(1, 2)
        collector = bookie.collector()
        report = await collector.collect()
        assert (report.outcome, report.ledgers_local, report.ledgers_deleted) == ("done", 4, 2)
        assert await ledgers_of(bookie) == [3]
        assert dead not in bookie.log_ids()
        assert mixed in bookie.log_ids()
        assert collector.counters.deleted_ledgers == 2
        assert collector.counters.deleted_logs == 1
        await bookie.reboot()
        assert await ledgers_of(bookie) == [3]
        await bookie.check(3, 6)

    on_bookie(main, seeds=range(10))


MOVED = METADATA.updated(
    fragments=(Fragment(EntryId(0), (BookieId("other"),)),), state=LedgerState.CLOSED, last_entry_id=EntryId(9)
)
SEARCHING = GarbageSettings(moved_interval_s=100.0)


def searching(bookie: Bookie, check_cluster: Callable[[], Awaitable[None]] | None = None) -> GarbageCollector:
    return GarbageCollector(
        bookie.storage,
        bookie.cluster.ledgers,
        bookie.host.runtime,
        SEARCHING,
        check_cluster=check_cluster,
        moved=MovedLedgers(bookie.cluster, bookie.host.runtime, BookieId("b1:3181")),
        on_failure=bookie.failures.append,
    )


def test_a_moved_ledger_goes_when_two_searches_in_a_row_found_it_so_and_nothing_came_in_between() -> None:
    """What is copied here is named in the metadata only at the end, and looks like one that was moved until then."""

    async def main(bookie: Bookie) -> None:
        for number in (1, 2):
            await bookie.cluster.ledgers.create(MOVED, with_id=number)
            bookie.add(number, 0)
        await bookie.flush()
        collector = searching(bookie)
        left = []
        for _ in range(4):
            await bookie.host.clock.sleep(SEARCHING.moved_interval_s)
            report = await collector.collect()
            assert report.outcome == "done", report.error
            left.append(await ledgers_of(bookie))
            if len(left) == 1:
                bookie.add(2, 1)  # Somebody copies it here.
                await bookie.flush()
        assert left == [[1, 2], [2], [], []]

    on_bookie(main)


def test_a_moved_ledger_stays_if_the_metadata_is_that_of_another_cluster() -> None:
    async def main(bookie: Bookie) -> None:
        async def check_cluster() -> None:
            raise WrongDisk("the metadata store knows no such bookie")

        await bookie.cluster.ledgers.create(MOVED, with_id=1)
        bookie.add(1, 0)
        await bookie.flush()
        collector = searching(bookie, check_cluster)
        for outcome in ("done", "failed", "failed"):
            await bookie.host.clock.sleep(SEARCHING.moved_interval_s)
            assert (await collector.collect()).outcome == outcome
            assert await ledgers_of(bookie) == [1]

    on_bookie(main)


class NewLedgerMeanwhile(GarbageCollector):
    bookie: Bookie

    async def _listed(self, here: Collection[LedgerId]) -> set[LedgerId]:
        listed = await super()._listed(here)
        await self.bookie.create(7)  # After the list was read: it is not in there.
        self.bookie.add(7, 0)
        return listed


def test_a_ledger_that_is_created_meanwhile_stays() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1)
        await bookie.fill_log(1)
        collector = bookie.collector(kind=NewLedgerMeanwhile)
        assert isinstance(collector, NewLedgerMeanwhile)
        collector.bookie = bookie
        assert (await collector.collect()).outcome == "done"
        assert await ledgers_of(bookie) == [1, 7]

    on_bookie(main)


class CreatedAgain(GarbageCollector):
    bookie: Bookie

    async def _check_gone(self, ledger_id: LedgerId) -> None:
        await super()._check_gone(ledger_id)
        if ledger_id == 1:  # The store has just said that there is none.
            await self.bookie.create(1)
            self.bookie.add(1, 5)


def test_an_id_that_is_created_again_after_the_check_keeps_its_entries() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        await bookie.fill_log(1, 2)
        await bookie.remove(1, 2)
        collector = bookie.collector(kind=CreatedAgain)
        assert isinstance(collector, CreatedAgain)
        collector.bookie = bookie
        report = await collector.collect()
        assert (report.outcome, report.ledgers_deleted) == ("done", 1)
        assert await ledgers_of(bookie) == [1]
        await bookie.check(1, 5)
        await bookie.flush()
        await bookie.reboot()
        await bookie.check(1, 5)

    on_bookie(main, seeds=range(3))


# --- The metadata store is another one ------------------------------------------------------------------------------


async def wipe(store: MetadataStore, path: str = "/") -> None:
    for name in (await store.children(path)).names:
        await wipe(store, f"{path.rstrip('/')}/{name}")
    if path != "/":
        await store.delete(path, expected=ANY_VERSION)


async def set_up_anew(cluster: Cluster, runtime: Runtime) -> None:
    await wipe(cluster.store)
    await init_cluster(cluster.store, cluster.uri, runtime)


async def set_up_anew_with_the_old_cookies(cluster: Cluster, runtime: Runtime) -> None:
    stored = await cluster.bookies.cookie(BookieId("b1"))
    assert stored is not None
    await set_up_anew(cluster, runtime)
    await cluster.bookies.create_cookie(stored.cookie)


async def forget_the_cookie(cluster: Cluster, _: Runtime) -> None:
    await cluster.bookies.delete_cookie(BookieId("b1"), expected=ANY_VERSION)
    await cluster.ledgers.remove(LedgerId(1))


@pytest.mark.parametrize("deed", [set_up_anew, set_up_anew_with_the_old_cookies, forget_the_cookie])
def test_a_metadata_store_that_does_not_know_the_bookie_deletes_nothing(
    deed: Callable[[Cluster, Runtime], Awaitable[None]],
) -> None:
    """To a store that was set up anew, or restored without its ledgers, every ledger of the bookie is gone."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            await cluster.ledgers.create(METADATA, with_id=1)
            bookie = SimBookie(sim, "b1", cluster)
            storage = (await bookie.start()).service.storage
            storage.add(LedgerId(1), EntryId(0), NO_ENTRY, body(1, 0), KEY, recovery=False)
            await storage.checkpoint()
            await deed(cluster, bookie.host.runtime)
            assert bookie.bookie.garbage is not None
            report = await bookie.bookie.garbage.collect()
            assert (report.outcome, report.ledgers_deleted) == ("failed", 0)
            assert "no longer knows bookie 'b1'" in str(report.error)
            assert await storage.read(LedgerId(1), EntryId(0)) == body(1, 0)
            assert bookie.bookie.failure is None, "it goes on serving what it has"
            await bookie.crash()

    simulate(1, main)


# --- Errors of the metadata store -----------------------------------------------------------------------------------


class Broken(MemoryDriver):
    """Answers so many reads, and then none."""

    answers = 10**9

    async def _reach(self) -> None:
        if self.answers <= 0:
            raise MetadataUnavailable("the store is away")
        self.answers -= 1
        await super()._reach()


def breakable(bookie: Bookie) -> Broken:
    driver = bookie.cluster.store._driver
    driver.__class__ = Broken
    assert isinstance(driver, Broken)
    return driver


@pytest.mark.parametrize("answers", range(5))
def test_an_error_of_the_metadata_store_ends_the_pass_and_nothing_is_deleted(answers: int) -> None:
    """Ledger 1 is gone, 40000 and 80000 lie in folders that a list which broke off would not have reached."""

    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 40_000, 80_000)
        log_id = await bookie.fill_log(1, 40_000, 80_000)
        await bookie.remove(1)
        driver = breakable(bookie)
        driver.answers = answers
        collector = bookie.collector()
        report = await collector.collect(minor=True, major=True)
        assert (report.outcome, report.ledgers_deleted) == ("failed", 0)
        assert await ledgers_of(bookie) == [1, 40_000, 80_000]
        assert reasons(report)[log_id] == "metadata listing failed: the store is away"
        assert (collector.counters.passes_failed, bookie.failures) == (1, [])
        driver.answers = 10**9
        assert (await collector.collect()).outcome == "done"
        assert await ledgers_of(bookie) == [40_000, 80_000]

    on_bookie(main)


class ShortList(GarbageCollector):
    async def _listed(self, here: Collection[LedgerId]) -> set[LedgerId]:
        return {each for each in await super()._listed(here) if each != 2}


def test_a_list_that_leaves_out_what_exists_is_not_believed() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2, 3)
        await bookie.fill_log(1, 2, 3)
        await bookie.remove(3)
        report = await bookie.collector(kind=ShortList).collect()
        assert report.outcome == "failed"
        assert "left out ledger 2, which exists" in str(report.error)
        assert await ledgers_of(bookie) == [1, 2, 3]

    on_bookie(main)


def test_a_ledger_whose_metadata_does_not_parse_stays() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1)
        await bookie.fill_log(1)
        path = bookie.cluster.ledgers.path(LedgerId(1))
        stored = await bookie.cluster.store.get(path)
        await bookie.cluster.store.set(path, b"nonsense", expected=stored.stat.version)
        assert (await bookie.collector().collect()).outcome == "done"
        assert "left out" in str((await bookie.collector(kind=ShortListOfOne).collect()).error)
        assert await ledgers_of(bookie) == [1]

    on_bookie(main)


class ShortListOfOne(GarbageCollector):
    async def _listed(self, here: Collection[LedgerId]) -> set[LedgerId]:
        return {each for each in await super()._listed(here) if each != 1}


def test_a_ledger_in_limbo_stays_until_its_metadata_is_gone() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1)
        bookie.storage.table.put_in_limbo(LedgerId(1), KEY, fenced=True)
        bookie.storage.table.settle_damage()
        await bookie.storage.checkpoint()
        await bookie.collector().collect()
        assert await ledgers_of(bookie) == [1]
        await bookie.remove(1)
        await bookie.collector().collect()
        assert await ledgers_of(bookie) == []

    on_bookie(main)


def test_a_fenced_ledger_leaves_a_tombstone_for_a_week() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1)
        await bookie.fill_log(1)
        bookie.storage.fence(LedgerId(1), KEY)
        await bookie.remove(1)
        collector = bookie.collector()

        def late() -> int | Refusal:
            return bookie.storage.add(LedgerId(1), EntryId(9), NO_ENTRY, body(1, 9), KEY, recovery=False)

        assert (await collector.collect()).tombstones == 1
        assert late() is Refusal.FENCED
        await asyncio.sleep(TOMBSTONE_KEPT_MS / 1000 - 1)
        assert (await collector.collect()).tombstones == 1
        assert late() is Refusal.FENCED
        await asyncio.sleep(1)
        assert (await collector.collect()).tombstones == 0
        assert isinstance(late(), int)

    on_bookie(main)


def test_the_metadata_store_is_not_asked_faster_than_allowed() -> None:
    async def main(bookie: Bookie) -> None:
        for ledger_id in range(1, 31):
            bookie.add(ledger_id, 0)
        began = bookie.host.clock.monotonic()
        await bookie.collector(GarbageSettings(metadata_reads_per_s=10)).collect()
        assert await ledgers_of(bookie) == []
        assert 2.9 < bookie.host.clock.monotonic() - began < 3.5

    on_bookie(main)


# --- Logs -----------------------------------------------------------------------------------------------------------


def test_every_log_that_stays_has_a_reason() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2, 3)
        full, half = await bookie.fill_log(1, 2, 3), await bookie.fill_log(1, 2, first=5)
        await bookie.remove(2)
        strange = bookie.log_ids()[-1] + 1
        await replace_file(bookie.host.disk, f"{FOLDER}/entries/{log_name(strange)}", b"no log at all")  # type: ignore[arg-type]
        await bookie.reboot(power_loss=False)
        await bookie.fill_log(3, first=50)
        collector = bookie.collector(GarbageSettings(major_live_ratio_max=0.5))
        report = await collector.collect()
        told = reasons(report)
        assert set(told) == {*bookie.log_ids(), strange}
        assert told[full].endswith("is above 0.50")
        assert "major compaction is due at 2020-09-14T" in told[half]
        assert "refused: " in told[strange]
        assert told[bookie.log_ids()[-1]] == "newest log"
        collector.suspend()
        told = reasons(await collector.collect(minor=True, major=True))
        assert told[half] == "compaction suspended"
        assert collector.report().major_suspended
        collector.resume()
        report = await collector.collect(major=True)
        assert half not in reasons(report)
        assert report.compaction == "major"
        assert strange in reasons(report)
        assert json.loads(json.dumps(asdict(report)))["logs"][0]["log_bytes"] > 0

    on_bookie(main)


def test_the_emptiest_logs_come_first_and_dead_ones_need_no_space() -> None:
    """With hardly any room the dead log goes, then the one with one live entry, and that makes room for the other."""
    made: list[str] = []

    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2, 3)
        half, dead, few = (
            await bookie.fill_log(1, 2, 3),
            await bookie.fill_log(1, first=10),
            await bookie.fill_log(1, 1, 3, first=20),
        )
        await bookie.remove(1)

        @asynccontextmanager
        async def make_room() -> AsyncIterator[None]:
            made.append("room")
            yield

        collector = bookie.collector(
            GarbageSettings(free_bytes_min=500, major_live_ratio_max=0.8),
            free_bytes=bookie.free_bytes,
            make_room=make_room,
        )
        bookie.host.disk.limit_free_bytes(0)
        report = await collector.collect(minor=True)
        assert dead not in reasons(report)
        bookie.host.disk.limit_free_bytes(1_700)
        report = await collector.collect(major=True)
        assert report.outcome == "done"
        assert few not in reasons(report)
        assert half not in reasons(report)
        assert made == []
        await bookie.check(2, 1)
        await bookie.check(3, 2, 22)

    on_bookie(main)


def test_too_little_space_is_a_reason() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        log_id = await bookie.fill_log(1, 2)
        await bookie.remove(1)
        collector = bookie.collector(GarbageSettings(free_bytes_min=500), free_bytes=bookie.free_bytes)
        bookie.host.disk.limit_free_bytes(600)
        report = await collector.collect(major=True)
        assert reasons(report)[log_id].startswith("not enough free space: needs 1.")
        assert reasons(report)[log_id].endswith("KiB, has 600 bytes")
        assert (report.outcome, bookie.failures) == ("done", [])
        await bookie.check(2, 1)

    on_bookie(main)


def test_a_damaged_log_is_not_read_again_by_every_minor_compaction() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        log_id = await bookie.fill_log(1, 1, 2)
        bookie.host.disk.flip_bit(bookie.log_path(log_id), bookie.offset_of(2, 2) + 40)
        await bookie.remove(1)
        collector = bookie.collector(GarbageSettings(minor_live_ratio_max=0.5))
        why = reasons(await collector.collect(minor=True))[log_id]
        assert why.startswith("damaged at ")
        bookie.fail_reads(log_id, 512, 4_000)
        assert reasons(await collector.collect(minor=True))[log_id] == why
        assert "cannot be read" in reasons(await collector.collect(major=True))[log_id]

    on_bookie(main)


# --- When -----------------------------------------------------------------------------------------------------------


def test_passes_come_by_themselves_and_compactions_when_they_are_due() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        log_id = await bookie.fill_log(1, 2)
        await bookie.remove(1)
        collector = bookie.collector(GarbageSettings(interval_s=600))
        running = asyncio.create_task(collector.run())
        await asyncio.sleep(599)
        assert collector.report() == GarbageReport()
        await asyncio.sleep(10)
        assert (collector.report().outcome, collector.report().is_forced) == ("done", False)
        assert "major compaction is due at 2020-09-14T12:26:" in reasons(collector.report())[log_id]
        await asyncio.sleep(86_400)
        assert log_id not in bookie.log_ids()
        assert collector.counters.major_compactions == 1
        assert collector.counters.minor_compactions == 23
        assert collector.counters.last_major_ms > 0
        running.cancel()
        await asyncio.wait([running])

    on_bookie(main)


def test_a_pass_can_be_asked_for() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        log_id = await bookie.fill_log(1, 2)
        await bookie.remove(1)
        collector = bookie.collector()
        running = asyncio.create_task(collector.run())
        collector.trigger()
        await until(lambda: collector.counters.passes == 1)
        assert log_id in bookie.log_ids()
        assert collector.report().is_forced
        collector.trigger(major=True)
        await until(lambda: collector.counters.passes == 2)
        assert log_id not in bookie.log_ids()
        running.cancel()
        await asyncio.wait([running])

    on_bookie(main)


@pytest.mark.parametrize("seed", range(30))
def test_a_pass_that_is_cancelled_leaves_the_rest_to_the_next(seed: int) -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2, 3)
        log_id = await bookie.fill_log(1, 2, 3)
        await bookie.remove(1)
        collector = bookie.collector()
        first = asyncio.create_task(collector.collect(major=True))
        await asyncio.wait([first], timeout=bookie.host.rng.random() * 0.05)
        first.cancel()
        await asyncio.wait([first])
        if first.cancelled():
            assert collector.report().outcome == "cancelled"
        assert (await collector.collect(major=True)).outcome == "done"
        assert log_id not in bookie.log_ids()
        assert await ledgers_of(bookie) == [2, 3]
        await bookie.check(2, 1)
        await bookie.check(3, 2)

    on_bookie(main, seeds=[seed])


# --- Failures -------------------------------------------------------------------------------------------------------


def test_a_write_that_fails_is_the_end_and_is_told_once() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1, 2)
        await bookie.fill_log(1, 2)
        await bookie.remove(1)
        collector = bookie.collector()
        bookie.host.disk.faults.fail_next("sync", path=f"{bookie.log_path(bookie.log_ids()[-1] + 1)}.new")
        running = asyncio.create_task(collector.run())
        collector.trigger(major=True)
        await asyncio.wait_for(running, timeout=60)
        assert "major compaction failed" in str(collector.report().error)
        assert len(bookie.failures) == 1
        await bookie.reboot()
        await bookie.check(2, 1)

    on_bookie(main, seeds=range(5))


def test_an_index_that_fails_is_the_end_too() -> None:
    async def main(bookie: Bookie) -> None:
        bookie.add(1, 0)
        bookie.index.faults.fail_next("commit")
        report = await bookie.collector().collect()
        assert "deletion of ledgers failed" in str(report.error)
        assert len(bookie.failures) == 1

    on_bookie(main)


def test_a_file_that_cannot_be_deleted_is_no_failure_of_the_storage() -> None:
    async def main(bookie: Bookie) -> None:
        await bookie.create(1)
        log_id = await bookie.fill_log(1)
        await bookie.remove(1)
        bookie.host.disk.faults.fail_next("unlink")
        collector = bookie.collector()
        report = await collector.collect()
        assert "cannot be deleted" in reasons(report)[log_id]
        assert (report.outcome, bookie.failures) == ("done", [])
        assert log_id not in reasons(await collector.collect())

    on_bookie(main)


def test_settings_are_checked() -> None:
    for wrong in ({"interval_s": 0}, {"minor_live_ratio_max": 1.5}, {"free_bytes_min": -1}):
        with pytest.raises(InvalidArgument):
            GarbageSettings(**wrong)
