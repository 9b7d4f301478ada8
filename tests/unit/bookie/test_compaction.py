"""Compaction, log by log: what is alive moves, what is not goes, and whatever is in doubt stays."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.bookie.garbage_samples import BODY_BYTES, Bookie, on_bookie

from quire.bookie.compaction import Compactor, Pacer
from quire.bookie.entry_log_scan import StoredEntry
from quire.bookie.index import LocationMove
from quire.bookie.ledger_storage import Absence
from quire.codec.entry_log import LogId
from quire.errors import InvalidArgument
from quire.testing import Simulation, simulate
from quire.types import LedgerId


def test_what_is_alive_moves_and_the_log_goes() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        await bookie.forget(1, 2)
        assert await bookie.compact(log_id) == {log_id: None}
        assert log_id not in bookie.log_ids()
        await bookie.check(3, 2)
        assert (bookie.counters.compacted_logs, bookie.counters.compacted_entries) == (1, 1)
        assert 2 * BODY_BYTES < bookie.counters.reclaimed_bytes < 3 * BODY_BYTES
        await bookie.reboot()
        await bookie.check(3, 2)

    on_bookie(main, seeds=range(10))


def test_an_entry_that_was_written_anew_is_not_copied() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2)
        await bookie.fill_log(1, first=0, text="new")
        assert await bookie.compact(log_id) == {log_id: None}
        assert bookie.counters.compacted_entries == 1
        await bookie.check(1, 0, text="new")
        await bookie.check(2, 1)

    on_bookie(main)


class Interrupted(Compactor):
    """Lets something happen after the copies were written and before the index points to them."""

    bookie: Bookie

    async def _point_to(self, moves: list[LocationMove]) -> None:
        await self.between()
        await super()._point_to(moves)

    async def between(self) -> None:
        raise NotImplementedError


class WrittenAnew(Interrupted):
    async def between(self) -> None:
        self.bookie.add(1, 0, text="new")
        await self.bookie.storage.checkpoint()


class Deleted(Interrupted):
    async def between(self) -> None:
        await self.bookie.forget(1)


def test_an_entry_that_is_written_anew_while_it_is_copied_stays_new() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2)
        compactor = bookie.compactor(kind=WrittenAnew)
        assert isinstance(compactor, WrittenAnew)
        compactor.bookie = bookie
        assert await bookie.compact(log_id, compactor=compactor) == {log_id: None}
        await bookie.check(1, 0, text="new")
        await bookie.check(2, 1)

    on_bookie(main, seeds=range(5))


def test_a_ledger_that_is_deleted_while_it_is_copied_stays_deleted() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2)
        compactor = bookie.compactor(kind=Deleted)
        assert isinstance(compactor, Deleted)
        compactor.bookie = bookie
        assert await bookie.compact(log_id, compactor=compactor) == {log_id: None}
        assert await bookie.read(1, 0) is Absence.NO_LEDGER
        assert bookie.storage.index.last_entry(LedgerId(1)) is None
        await bookie.check(2, 1)

    on_bookie(main, seeds=range(5))


def test_a_power_cut_at_any_moment_loses_nothing() -> None:
    """The bookie dies so many milliseconds after the compaction began, with a disk that takes its time."""

    async def main(sim: Simulation) -> None:
        bookie = Bookie(sim)
        await bookie.start()
        log_id = await bookie.fill_log(1, 2, 3)
        await bookie.forget(2)
        life = bookie.host.spawn(bookie.compact(log_id))
        await asyncio.wait([life], timeout=sim.rng.random() * 0.06)
        await bookie.reboot()
        await bookie.check(1, 0)
        await bookie.check(3, 2)

    for seed in range(60):
        simulate(seed, main)


# --- What has to stay ----------------------------------------------------------------------------------------------


def test_the_newest_log_is_left_alone() -> None:
    async def main(bookie: Bookie) -> None:
        old = await bookie.fill_log(1, 2)
        assert [load.log_id for load in await bookie.surveyor().survey()] == bookie.log_ids()[:-1]
        await bookie.reboot(power_loss=False)  # None is growing now, and the newest one must stay all the same.
        newest = bookie.log_ids()[-1]
        surveyed = [load.log_id for load in await bookie.surveyor().survey()]
        assert old in surveyed
        assert newest not in surveyed

    on_bookie(main)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_is_not_looked_at_while_a_checkpoint_writes_it(seed: int) -> None:
    """Its entries are in no index yet, and would look dead."""

    async def main(bookie: Bookie) -> None:
        bookie.host.disk.faults.latency_by_operation_s["sync"] = (0.01, 0.05)
        for ledger_id in range(1, 12):
            bookie.add(ledger_id, 0)
        flush = asyncio.create_task(bookie.storage.checkpoint())
        await asyncio.sleep(bookie.host.rng.random() * 0.2)
        outcomes = await bookie.compact(*range(1, 100))
        await flush
        for ledger_id in range(1, 12):
            await bookie.check(ledger_id, 0)
        assert all(outcome is None for outcome in outcomes.values())

    on_bookie(main, seeds=[seed])


def test_an_entry_that_cannot_be_read_keeps_its_log_and_the_others_are_saved() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        offset = bookie.offset_of(2, 1)
        bookie.host.disk.flip_bit(bookie.log_path(log_id), offset + 100)
        compactor = bookie.compactor()
        why = (await bookie.compact(log_id, compactor=compactor))[log_id]
        assert why is not None
        assert f"damaged at {offset} " in why
        assert "1 entries of live ledgers" in why
        assert compactor.damaged == {log_id: why}
        await bookie.check(1, 0)
        await bookie.check(3, 2)
        assert bookie.counters.compacted_entries == 2
        await bookie.forget(2)
        assert await bookie.compact(log_id, compactor=compactor) == {log_id: None}
        assert compactor.damaged == {}

    on_bookie(main)


def test_a_dead_log_without_a_footer_goes_only_if_nothing_points_into_it() -> None:
    """A crash leaves a log without a footer. Damage to its last records looks as if they were never synced: then only
    the index knows that there was another ledger in it.
    """

    async def main(bookie: Bookie) -> None:
        bookie.add(1, 0)
        bookie.add(2, 0)
        await bookie.flush()
        [log_id] = bookie.log_ids()
        await bookie.reboot()
        offset = bookie.offset_of(2, 0)
        bookie.host.disk.flip_bit(bookie.log_path(log_id), offset)
        await bookie.fill_log(3, 4)
        await bookie.forget(1)
        [load] = [load for load in await bookie.surveyor().survey() if load.log_id == log_id]
        assert (load.live_bytes, load.has_footer) == (0, False)
        outcomes: dict[LogId, str | None] = {}
        await bookie.compactor().delete_dead([load], outcomes)
        assert outcomes == {log_id: "damaged: 1 entries of live ledgers should be there and cannot be read"}
        await bookie.forget(2)
        await bookie.compactor().delete_dead([load], outcomes)
        assert outcomes == {log_id: None}
        assert log_id not in bookie.log_ids()

    on_bookie(main)


def test_a_log_whose_contents_cannot_be_told_is_emptied_of_what_can_be_read() -> None:
    """Damage in the middle of a log without a footer: nobody knows which ledgers were there."""

    async def main(bookie: Bookie) -> None:
        for number in range(3):
            bookie.add(1 + number, 0)
            await bookie.flush()  # So that the later records vouch for the earlier ones.
        [log_id] = bookie.log_ids()
        bookie.host.disk.flip_bit(bookie.log_path(log_id), bookie.offset_of(1, 0) + 50)
        await bookie.reboot()
        await bookie.fill_log(7)
        [load] = [load for load in await bookie.surveyor().survey() if load.log_id == log_id]
        assert load.live_ratio is None
        assert load.problem is not None
        assert "damaged at" in load.problem
        why = (await bookie.compact(log_id))[log_id]
        assert why is not None
        assert "1 entries of live ledgers" in why
        await bookie.check(2, 0)
        await bookie.check(3, 0)
        await bookie.forget(1)
        assert await bookie.compact(log_id) == {log_id: None}
        await bookie.check(3, 0)

    on_bookie(main)


def test_a_log_that_the_disk_does_not_read_stays_and_says_so() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2)
        other = await bookie.fill_log(3, 4)
        loads = [load for load in await bookie.surveyor().survey() if load.log_id in (log_id, other)]
        bookie.fail_reads(log_id, 600, 610)
        outcomes: dict[LogId, str | None] = {}
        await bookie.compactor().compact(loads, outcomes, may_go_on=lambda: True)
        assert outcomes[other] is None
        assert "cannot be read" in str(outcomes[log_id])
        assert log_id in bookie.log_ids()

    on_bookie(main)


def test_a_deletion_that_fails_is_a_reason_and_is_tried_again() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2)
        bookie.host.disk.faults.fail_next("unlink")
        assert "cannot be deleted" in str((await bookie.compact(log_id))[log_id])
        assert bookie.counters.log_deletions_failed == 1
        assert await bookie.compact(log_id) == {log_id: None}

    on_bookie(main)


def test_a_suspended_compaction_stops_between_batches_and_goes_on_later() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        assert await bookie.compact(log_id, may_go_on=lambda: bookie.counters.compacted_entries == 0) == {
            log_id: "compaction suspended"
        }
        assert 0 < bookie.counters.compacted_entries < 3
        assert await bookie.compact(log_id) == {log_id: None}
        assert bookie.counters.compacted_entries == 3
        await bookie.check(1, 0)
        await bookie.check(3, 2)

    on_bookie(main)


# --- Space and pace -----------------------------------------------------------------------------------------------


def test_a_copy_is_begun_only_if_it_fits_above_the_floor() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        bookie.host.disk.limit_free_bytes(10_000)
        tight = bookie.compactor(free_bytes=bookie.free_bytes, free_bytes_min=9_000)
        why = (await bookie.compact(log_id, compactor=tight))[log_id]
        assert why is not None
        assert why.startswith("not enough free space: needs 11.")
        assert why.endswith("KiB, has 9.766 KiB")
        assert bookie.counters.compacted_entries == 0
        roomy = bookie.compactor(free_bytes=bookie.free_bytes, free_bytes_min=1_000)
        assert await bookie.compact(log_id, compactor=roomy) == {log_id: None}

    on_bookie(main)


def test_room_is_made_once_for_all_logs_and_only_if_it_is_needed() -> None:
    made: list[str] = []

    async def main(bookie: Bookie) -> None:
        first, second = await bookie.fill_log(1, 2, 3), await bookie.fill_log(4, 5, 6)

        @asynccontextmanager
        async def make_room() -> AsyncIterator[int]:
            made.append("begin")
            bookie.host.disk.limit_free_bytes(50_000)
            yield 50_000
            made.append("end")

        bookie.host.disk.limit_free_bytes(3_000)
        compactor = bookie.compactor(free_bytes=bookie.free_bytes, free_bytes_min=2_000, make_room=make_room)
        assert await bookie.compact(first, second, compactor=compactor) == {first: None, second: None}
        assert made == ["begin", "end"]
        third = await bookie.fill_log(7, 8)
        assert await bookie.compact(third, compactor=compactor) == {third: None}
        assert made == ["begin", "end"]

    on_bookie(main)


def test_a_disk_that_is_full_after_all_loses_nothing() -> None:
    """Nobody looked at the free space: the copy fails, the storage with it, and a restart finds all entries."""

    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        bookie.host.disk.limit_free_bytes(500)
        with pytest.raises(OSError, match="No space left") as caught:
            await bookie.compact(log_id)
        assert caught.value.errno == errno.ENOSPC
        bookie.host.disk.limit_free_bytes(10**6)
        await bookie.reboot()
        await bookie.check(1, 0)
        await bookie.check(2, 1)
        await bookie.check(3, 2)

    on_bookie(main, seeds=range(10))


def test_the_disk_is_not_used_faster_than_allowed() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        began = bookie.host.clock.monotonic()
        await bookie.compact(log_id, compactor=bookie.compactor(bytes_per_s=1_000))
        took_s = bookie.host.clock.monotonic() - began
        assert 2 * (3 - 1) * BODY_BYTES / 1_000 < took_s < 2 * 3 * 1_100 / 1_000  # Read and written; the last is owed.

    on_bookie(main)


def test_a_log_is_read_in_batches() -> None:
    sizes: list[int] = []

    class Watched(Compactor):
        async def _move(self, batch: list[StoredEntry]) -> int:
            sizes.append(len(batch))
            return await super()._move(batch)

    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        await bookie.compact(log_id, compactor=bookie.compactor(kind=Watched, batch_bytes=1))
        assert sizes == [1, 1, 1]

    on_bookie(main)


def test_a_pacer_makes_up_for_what_was_taken() -> None:
    async def main(sim: Simulation) -> None:
        clock = sim.host("a").clock
        pacer = Pacer(clock, per_s=10)
        await pacer.take(5)
        assert clock.monotonic() == 0
        await pacer.take(1)
        assert clock.monotonic() == pytest.approx(0.5)
        await clock.sleep(100)  # Time that nobody used is gone: there is no burst afterwards.
        await pacer.take(20)
        await pacer.take(1)
        assert clock.monotonic() == pytest.approx(102.5)

    simulate(1, main)
    with pytest.raises(InvalidArgument):
        Pacer(None, per_s=0)  # type: ignore[arg-type]


# --- What is known of logs -----------------------------------------------------------------------------------------


def test_what_a_finished_log_holds_is_read_once_as_long_as_it_fits() -> None:
    async def main(bookie: Bookie) -> None:
        log_id = await bookie.fill_log(1, 2, 3)
        surveyor, small = bookie.surveyor(rows_max=100), bookie.surveyor(rows_max=2)
        assert await surveyor.survey() == await small.survey()
        assert (small.rows, surveyor.rows >= 3) == (0, True)
        await bookie.forget(1, 2)
        bookie.fail_reads(log_id, 0, 10_000)
        [load] = [load for load in await surveyor.survey() if load.log_id == log_id]
        assert load.live_ratio is not None
        assert 0.2 < load.live_ratio < 0.5
        [load] = [load for load in await small.survey() if load.log_id == log_id]
        assert (load.live_ratio, load.is_readable) == (None, False)
        bookie.host.disk.faults.repair()
        await bookie.compact(log_id)
        before = surveyor.rows
        await surveyor.survey()
        assert surveyor.rows < before, "what is gone is forgotten"

    on_bookie(main)
