"""Rebalancing on real bookies: all is read all the time, every entry keeps its copies, a plan survives a stop."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quire
from quire.app.inventory import Target, open_operations
from quire.app.rebalance import Made, make_plan, read_plan, run_plan, write_plan
from quire.errors import InvalidArgument
from quire.ledger.client import LedgerClient
from quire.ledger.repair.replica_reads import check_replicas
from quire.metadata.drivers._sqlite_tree import SqliteTree
from quire.protocol.rebalancing import Move, Plan
from quire.types import BookieId, EntryId, LedgerId
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually

BYTES = int(os.environ.get("QUIRE_REBALANCE_BYTES", 3_000_000))
"""How much to write before two bookies come, all copies counted."""

ENTRY = bytes(range(256)) * 32
LEDGERS = 24
DISK = max(64 << 20, 2 * BYTES)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    """Three bookies whose disks are said to be small, so that shares of them count."""
    async with small_cluster(tmp_path / "cluster", bookies=0) as running:
        for number in (1, 2, 3):
            await running.start(number, disk_bytes=DISK)
        yield running


async def fill(cluster: SmallCluster) -> dict[LedgerId, int]:
    """Ledgers with three copies each. Returns how many entries they have."""
    entries = max(2, BYTES // 3 // LEDGERS // len(ENTRY))
    written = {}
    async with quire.ledgers(cluster.metadata) as ledgers:
        for _ in range(LEDGERS):
            async with ledgers.create() as ledger:
                for first in range(0, entries, 64):
                    await ledger.enqueue([ENTRY] * min(64, entries - first))
                await ledger.flush()
            written[ledger.id] = entries
    return written


class Readers:
    """Read all ledgers over and over, with handles that were opened before anything moved, and with new ones."""

    def __init__(self, ledgers: LedgerClient, written: dict[LedgerId, int]) -> None:
        self._ledgers, self._written = ledgers, written
        self.rounds = 0
        self.is_over = False

    async def run(self) -> None:
        first = min(self._written)
        async with self._ledgers.open(first, keep_metadata=True) as old:
            while not self.is_over:
                for ledger, entries in self._written.items():
                    async with self._ledgers.open(ledger) as reader:
                        assert len([entry async for entry in reader.read()]) == entries
                assert len([entry async for entry in old.read()]) == self._written[first]
                self.rounds += 1


async def copies(cluster: SmallCluster, written: dict[LedgerId, int]) -> Counter[BookieId]:
    """Every copy of every entry, read from the very bookie that should have it. Returns how many each has."""
    found = Counter[BookieId]()
    async with quire.ledgers(cluster.metadata) as ledgers:
        for ledger, entries in written.items():
            stored = await ledgers.ledgers_metadata.read(ledger)
            checked = await check_replicas(ledgers, stored, EntryId(0), EntryId(entries), password=b"", timeout_s=10.0)
            assert checked.bad == ()
            assert checked.copies == 3 * entries
            for bookie in {bookie for fragment in stored.metadata.fragments for bookie in fragment.bookies}:
                found[bookie] += entries
    return found


@pytest.mark.timeout(1800)
async def test_two_new_bookies_get_their_share_while_everything_is_read(cluster: SmallCluster, tmp_path: Path) -> None:
    """Method: fill three bookies, add two, plan, stop the run in the middle, run it again; meanwhile readers read on.
    Then count every copy where it should be, and wait until the old ones have given their room back."""
    written = await fill(cluster)
    for number in (4, 5):
        await cluster.start(number, disk_bytes=DISK)
    plan = tmp_path / "moves.json"
    code, told = await cluster.run("rebalance", "plan", str(plan), "--tolerance", "0.001")
    assert (code, told["after"]["bookie-4"] > 0, told["before"].get("bookie-4")) == (0, True, 0)
    code, again = await cluster.run("rebalance", "plan", str(plan))
    assert "is there already" in again["error"]["message"]

    async with quire.ledgers(cluster.metadata) as ledgers:
        readers = Readers(ledgers, written)
        reading = asyncio.create_task(readers.run())
        half = told["moves"] // 2
        await run_until(cluster, plan, half)
        code, done = await cluster.run("rebalance", "run", str(plan), "--rate", "0")
        assert (code, done["failed"], len(done["moves"])) == (0, 0, told["moves"] - half)
        rounds = readers.rounds

        async def has_read_on() -> bool:
            return readers.rounds > rounds + 1 or reading.done()

        await eventually(has_read_on, within_s=600)
        readers.is_over = True
        await reading

    held = await copies(cluster, written)
    fair = sum(held.values()) / 5
    assert all(held[BookieId(f"bookie-{number}")] == pytest.approx(fair, rel=0.25) for number in range(1, 6))
    code, told = await cluster.run("rebalance", "run", str(plan))
    assert (code, told["moves"]) == (0, []), "all is written down"
    await eventually(lambda: is_tidy(cluster), within_s=60, what="old copies are gone")
    assert await copies(cluster, written) == held


async def is_tidy(cluster: SmallCluster) -> bool:
    """Whether each bookie has the ledgers that name it, and no others."""
    async with quire.ledgers(cluster.metadata) as ledgers:
        named: dict[BookieId, set[LedgerId]] = {}
        async for ledger in ledgers.scan():
            for fragment in (await ledgers.ledgers_metadata.read(ledger)).metadata.fragments:
                for bookie in fragment.bookies:
                    named.setdefault(bookie, set()).add(ledger)
    here = {each.bookie_id: set(await each.service.storage.ledger_ids()) for each in cluster.running.values()}
    return here == named


async def run_until(cluster: SmallCluster, plan: Path, count: int) -> None:
    """Make so many moves, and break off in the middle of the next one."""
    broken = asyncio.Event()
    made = []

    def on_made(each: Made) -> None:
        made.append(each)
        if len(made) == count:
            broken.set()

    async with open_operations(Target(cluster.metadata)) as operations:
        task = asyncio.create_task(
            run_plan(operations, await read_plan(operations, plan), plan, bytes_per_s=0, on_made=on_made)
        )
        await asyncio.wait([task, asyncio.create_task(broken.wait())], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait([task])
    assert len(made) == count
    assert all(each.is_done for each in made)
    diary = plan.with_name(f"{plan.name}.done")
    with diary.open("a") as file:
        file.write('{"move": 99')  # As a crash leaves it.


async def test_moves_that_do_not_fit_any_more_are_passed_by(cluster: SmallCluster, tmp_path: Path) -> None:
    """Method: between plan and run a ledger is deleted, and a taker turns read-only."""
    written = await fill(cluster)
    for number in (4, 5):
        await cluster.start(number, disk_bytes=DISK)
    path = tmp_path / "moves.json"
    async with open_operations(Target(cluster.metadata)) as operations:
        plan = await make_plan(operations, tolerance=0.001)
        await write_plan(operations, plan, path)
        gone = plan.moves[0].ledger_id
        await operations.ledgers.delete(gone)
        await cluster.run("bookie", "drain", "bookie-5")
        made = await run_plan(operations, plan, path, bytes_per_s=0)
    told = {each.told for each in made if plan.moves[each.number].ledger_id == gone}
    assert told == {"the ledger is deleted by now"}
    refused = {each.told for each in made if not each.is_done}
    assert refused == {"bookie-5 is not writable just now"}
    await copies(cluster, {ledger: count for ledger, count in written.items() if ledger != gone})


async def test_what_was_made_of_an_old_plan_counts_for_no_new_one(cluster: SmallCluster, tmp_path: Path) -> None:
    """Method: a plan is carried out and deleted, and another one takes its name."""
    await fill(cluster)
    await cluster.start(4, disk_bytes=DISK)
    path, diary = tmp_path / "moves.json", tmp_path / "moves.json.done"
    async with open_operations(Target(cluster.metadata)) as operations:
        first = await make_plan(operations, tolerance=0.001)
        await write_plan(operations, first, path)
        assert all(each.is_done for each in await run_plan(operations, first, path, bytes_per_s=0))
        assert await run_plan(operations, await read_plan(operations, path), path, bytes_per_s=0) == []
        there = first.moves[0]
        back = Plan((there._replace(source=there.target, target=there.source),), (), ())
        path.unlink()
        with pytest.raises(InvalidArgument, match="of an older plan"):
            await write_plan(operations, back, path)
        with pytest.raises(InvalidArgument, match="of another plan"):
            await run_plan(operations, back, path, bytes_per_s=0)
        diary.unlink()
        await write_plan(operations, back, path)
        (made,) = await run_plan(operations, await read_plan(operations, path), path, bytes_per_s=0)
        assert (made.is_done, made.told) == (True, "moved")


async def test_a_move_whose_session_is_lost_leaves_the_metadata_alone(cluster: SmallCluster, tmp_path: Path) -> None:
    """The lock goes with the session, and so may the half copy: the taker tidies up. Method: end the session in the
    middle of a move of the only copy; then run the plan again."""
    entries = 40
    async with quire.ledgers(cluster.metadata) as ledgers:
        async with ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
            await ledger.enqueue([ENTRY] * entries)
            await ledger.flush()
        await cluster.start(4, disk_bytes=DISK)
        before = (await ledgers.ledgers_metadata.read(ledger.id)).metadata
        taker = BookieId("bookie-4")
        move = Move(ledger.id, before.fragments[0].bookies[0], taker, (EntryId(0),), entries * len(ENTRY))
        plan = Plan((move,), (), ())
        async with open_operations(Target(cluster.metadata)) as operations:
            running = asyncio.create_task(run_plan(operations, plan, tmp_path / "plan", bytes_per_s=len(ENTRY)))

            async def is_under_way() -> bool:
                return bool(await cluster.running[4].service.storage.ledger_ids())

            await eventually(is_under_way)
            tree = SqliteTree.open(cluster.folder / "metadata.db", create=False, busy_timeout_s=5)
            with tree.writing(5):
                tree.end_session(operations.cluster.store.session)
            tree.close()
            (made,) = await running
            assert (made.is_done, "session is over" in made.told) == (False, True)
            assert (await ledgers.ledgers_metadata.read(ledger.id)).metadata == before
            (made,) = await run_plan(operations, plan, tmp_path / "plan", bytes_per_s=0)
            assert made.told == "moved"
        stored = await ledgers.ledgers_metadata.read(ledger.id)
        assert stored.metadata.fragments[0].bookies == (taker,)
        found = await check_replicas(ledgers, stored, EntryId(0), EntryId(entries), password=b"", timeout_s=10.0)
        assert (found.copies, found.bad) == (entries, ())


async def test_a_plan_of_another_cluster_or_none_at_all_is_refused(cluster: SmallCluster, tmp_path: Path) -> None:
    await cluster.start(4, disk_bytes=DISK)
    path = tmp_path / "moves.json"
    await cluster.run("rebalance", "plan", str(path))
    plan = json.loads(path.read_text())
    path.write_text(json.dumps(plan | {"instance_id": "another"}))
    code, told = await cluster.run("rebalance", "run", str(path))
    assert "another cluster" in told["error"]["message"]
    path.write_text("moves")
    code, told = await cluster.run("rebalance", "run", str(path))
    assert (code, "is no plan" in told["error"]["message"]) == (1, True)
