"""Five real bookies under load: one is killed and its disk removed, and nobody lifts a finger.

The report that the test prints says how long it took until everything was whole again, how much was copied, and what
writers noticed of it. `QUIRE_TEST_LONG` makes it a larger one.
"""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import pytest

import quire
from quire.errors import QuireError
from quire.ledger.client import LedgerClient
from quire.metadata import open_cluster
from quire.metadata.underreplication import Underreplication
from quire.runtime import real_runtime
from quire.types import LedgerId
from tests.integration.replication.processes import RealCluster, real_cluster
from tests.support.simulation.copies import check_whole
from tests.support.waiting import eventually

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
STORED_BYTES = (256 << 20) if LONG else (6 << 20)
LEDGERS = 6
ENTRY = os.urandom(4096)
MEASURED = 2_000 if LONG else 300  # Appends before anything happens.
RATE = "64MiB" if LONG else "4MiB"


@dataclass
class Load:
    """What one writer wrote, and how long each append took."""

    seconds: list[float] = field(default_factory=list)
    written: dict[int, list[bytes]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    async def write(self, ledgers: LedgerClient, stop: asyncio.Event) -> None:
        """Append one entry after the other; after an error go on in a new ledger."""
        while not stop.is_set():
            try:
                async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                    payloads = self.written.setdefault(writer.id, [])
                    while not stop.is_set():
                        payload = b"%d/%d/" % (writer.id, len(payloads)) + ENTRY[:1000]
                        began_s = time.perf_counter()
                        await writer.append(payload)
                        self.seconds.append(time.perf_counter() - began_s)
                        payloads.append(payload)
            except QuireError as error:
                self.failures.append(repr(error))

    async def measured(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.seconds) >= count

        await eventually(enough, within_s=300, what=f"{count} appends")


@pytest.mark.timeout(900)
async def test_a_lost_disk_is_made_up_for_without_a_hand(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        await cluster.start(5)
        await cluster.start_autorecovery(
            f"recovery.bytes_per_s={RATE}", "recovery.open_ledger_grace_s=3", "recovery.failed_ledger_backoff_s=16"
        )
        async with quire.ledgers(cluster.uri) as ledgers:
            stored = [await _fill(ledgers, STORED_BYTES // LEDGERS) for _ in range(LEDGERS)]
            load, stop = Load(), asyncio.Event()
            writing = asyncio.create_task(load.write(ledgers, stop))
            await load.measured(MEASURED)
            before = list(load.seconds)
            load.seconds.clear()

            victim = await _most_used(ledgers, stored)
            began_s = time.monotonic()
            cluster.lose(victim)
            await _wait_repaired(cluster, ledgers, victim, stored)
            took_s = time.monotonic() - began_s
            during = list(load.seconds)
            stop.set()
            await writing

            copied = await cluster.metric("autorecovery", "replication_replication_worker_NUM_BYTES_WRITTEN")
            fragments = len(cluster.processes["autorecovery"].events("fragment.repaired"))
            await _prove(cluster, ledgers, [*stored, *map(LedgerId, load.written)], load)
        print(
            f"\nlost {victim}: whole again after {took_s:.1f} s, {fragments} fragments, {copied / 2**20:.1f} MiB copied"
            f"\nappends before: {_shown(before)}\nappends during: {_shown(during)}; writer errors: {load.failures}"
        )
        assert copied > 0
        assert fragments > 0


async def _fill(ledgers: LedgerClient, size_bytes: int) -> LedgerId:
    async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        for _ in range(0, size_bytes, 64 * len(ENTRY)):
            await writer.append_many([ENTRY] * 64)
        return writer.id


async def _most_used(ledgers: LedgerClient, stored: list[LedgerId]) -> str:
    members = [
        bookie
        for ledger_id in stored
        for bookie in (await ledgers.ledgers_metadata.read(ledger_id)).metadata.fragments[0].bookies
    ]
    return max(sorted(set(members)), key=members.count)


async def _wait_repaired(cluster: RealCluster, ledgers: LedgerClient, victim: str, stored: list[LedgerId]) -> None:
    """Until no ledger names the victim, and none is marked."""
    async with open_cluster(cluster.uri) as metadata:
        marks = Underreplication(metadata.store, metadata.uri.root, real_runtime(), "test")

        async def is_repaired() -> bool:
            for ledger_id in [each async for each in ledgers.scan()]:
                found = (await metadata.ledgers.read(ledger_id)).metadata
                if any(victim in fragment.bookies for fragment in found.fragments):
                    return False
            return not [mark async for mark in marks.marks()]

        await eventually(is_repaired, within_s=600, what=f"no ledger names {victim}, and none is marked")


async def _prove(cluster: RealCluster, ledgers: LedgerClient, ledger_ids: list[LedgerId], load: Load) -> None:
    """Every copy of every entry is where the metadata says, and what was acknowledged is there."""
    async with open_cluster(cluster.uri) as metadata:
        listing = await metadata.bookies.listing()
        for ledger_id in ledger_ids:
            problem = await check_whole(ledgers, await metadata.ledgers.read(ledger_id), listing.writable)
            assert problem is None, problem
    for number, payloads in load.written.items():
        async with ledgers.open(number) as reader:
            found = [entry.payload async for entry in reader.read()]
        assert found[: len(payloads)] == payloads


def _shown(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return f"{len(seconds)} only"
    cuts = quantiles(seconds, n=100)
    return (
        f"{len(seconds)}, p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms, max {max(seconds) * 1000:.1f} ms"
    )
