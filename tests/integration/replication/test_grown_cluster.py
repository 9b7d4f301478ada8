"""Three real bookies become five, and what the three hold is moved until all have their share. No reader notices.

The report that the test prints says what was moved, how long it took, and how many entries were read meanwhile.
`QUIRE_REBALANCE_BYTES` is how much there is in all, every copy counted.
"""

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import quire
from quire.ledger.client import LedgerClient
from quire.ledger.repair.fragment_check import members_of
from quire.ledger.repair.replica_reads import check_replicas
from quire.types import EntryId, LedgerId
from tests.integration.replication.processes import RealCluster, real_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.extended

BYTES = int(os.environ.get("QUIRE_REBALANCE_BYTES") or 100_000_000)
COPIES = 3
LEDGERS = 20
ENTRY_BYTES = 16_384
ENTRIES = max(64, BYTES // COPIES // LEDGERS // ENTRY_BYTES)
_NOISE = random.Random(7).randbytes(2 * ENTRY_BYTES)
_BATCH = 64


def payload_of(ledger: LedgerId, entry: int) -> bytes:
    """Each entry has its own, which can be told without keeping any."""
    begin = (ledger * 31 + entry * 7) % ENTRY_BYTES
    return b"%d/%d:" % (ledger, entry) + _NOISE[begin : begin + ENTRY_BYTES - 24]


@dataclass
class Readers:
    """Read entries at random, all the time, over handles that were opened before anything moved, and over new ones."""

    ledgers: LedgerClient
    written: list[LedgerId]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0
    longest_s: float = 0.0

    async def run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stop.is_set():
            ledger = rng.choice(self.written)
            async with self.ledgers.open(ledger) as reader:
                for _ in range(rng.choice([1, 200])):
                    number = rng.randrange(ENTRIES)
                    began_s = time.perf_counter()
                    entry = await reader.read_entry(EntryId(number))  # Whatever it raises fails the test.
                    self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
                    assert entry.payload == payload_of(ledger, number)
                    self.reads += 1
                    if self.stop.is_set():
                        return


@pytest.mark.timeout(3600)
async def test_a_grown_cluster_is_balanced_while_everything_is_read(tmp_path: Path) -> None:
    """Method: three bookies are filled, two come, `quire rebalance run` is killed in the middle and run again. Those
    who gave ledgers away have to drop them; then each copy of each entry is read where it should be."""
    settings = ("garbage.interval_s=2", "garbage.moved_interval_s=2")
    with real_cluster(tmp_path) as cluster:
        await cluster.start(3, *settings)
        async with quire.ledgers(cluster.uri) as ledgers:
            written = [await _fill(ledgers) for _ in range(LEDGERS)]
            await cluster.add_bookies([4, 5], *settings)
            plan = str(tmp_path / "moves.json")
            planned = await cluster.run("rebalance", "plan", plan, "--tolerance", "0.000001")
            readers = Readers(ledgers, written)
            reading = [asyncio.create_task(readers.run(seed)) for seed in range(2)]
            began_s = time.monotonic()
            killed_after = await _kill_in_the_middle(cluster, plan, planned["moves"])
            done = await cluster.run("rebalance", "run", plan, "--rate", "0")
            took_s = time.monotonic() - began_s
            reads = readers.reads
            await _wait_dropped(cluster, ledgers, written)
            readers.stop.set()
            await asyncio.gather(*reading)
            copies = await _count_copies(ledgers, written)
        total = COPIES * LEDGERS * ENTRIES
        print(
            f"\n{total} copies, {total * ENTRY_BYTES / 1e6:.0f} MB, on 3 bookies; "
            f"on 5 after {planned['moves']} moves of {planned['bytes'] / 1e6:.0f} MB, killed after {killed_after}, in "
            f"{took_s:.1f} s\n{reads} reads meanwhile, {readers.reads} until old copies were gone, none failed, "
            f"the longest {readers.longest_s * 1000:.0f} ms\ncopies: {dict(sorted(copies.items()))}"
        )
        assert done["failed"] == 0
        assert len(done["moves"]) == planned["moves"] - killed_after
        assert reads > 0
        assert sum(copies.values()) == total
        fair = total / 5
        assert all(copies[f"bookie-{number}"] == pytest.approx(fair, rel=0.2) for number in range(1, 6))


async def _fill(ledgers: LedgerClient) -> LedgerId:
    async with ledgers.create(ensemble=COPIES, write_quorum=COPIES, ack_quorum=2) as writer:
        for first in range(0, ENTRIES, _BATCH):
            await writer.append_many(
                [payload_of(writer.id, number) for number in range(first, min(first + _BATCH, ENTRIES))]
            )
        return writer.id


async def _kill_in_the_middle(cluster: RealCluster, plan: str, moves: int) -> int:
    """Kill a run without warning when a third is done. Returns how many moves it had written down by then."""
    diary = Path(f"{plan}.done")

    def noted() -> int:
        lines = diary.read_text().splitlines() if diary.exists() else []
        return sum(line.endswith("}") and '"move"' in line for line in lines)  # The first one names the plan.

    async def a_third_is_done() -> bool:
        return noted() >= moves // 3 or process.poll() is not None

    with cluster.command("rebalance", "run", plan, "--rate", "0") as process:
        await eventually(a_third_is_done, within_s=1800, what="a third of the moves is made")
        process.kill()
    assert 0 < noted() < moves
    return noted()


async def _wait_dropped(cluster: RealCluster, ledgers: LedgerClient, written: list[LedgerId]) -> None:
    """Until every bookie has those ledgers that name it, and no others."""
    named = Counter[str]()
    for ledger in written:
        named.update(members_of((await ledgers.ledgers_metadata.read(ledger)).metadata))

    async def is_tidy() -> bool:
        return {name: int(await cluster.metric(name, "bookie_ACTIVE_LEDGER_TOTAL")) for name in sorted(named)} == named

    await eventually(is_tidy, within_s=300, what="old copies are gone")


async def _count_copies(ledgers: LedgerClient, written: list[LedgerId]) -> Counter[str]:
    """Every copy of every entry, read from the very bookie that should have it."""
    found = Counter[str]()
    for ledger in written:
        stored = await ledgers.ledgers_metadata.read(ledger)
        checked = await check_replicas(ledgers, stored, EntryId(0), EntryId(ENTRIES), password=b"", timeout_s=60.0)
        assert checked.bad == ()
        assert checked.copies == COPIES * ENTRIES
        for bookie in members_of(stored.metadata):
            found[bookie] += ENTRIES
    return found
