"""Mixed load on one bookie for as long as you like: memory, descriptors and disk use must stay flat.

Ledgers are created, written, read, fenced and deleted all the time, while garbage collection and compaction run every
few seconds. `make soak` does this for an hour; a test does it for a minute.

    python -m tests.soak.bookie --seconds 3600
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from quire.codec.digest import Crc32cDigest, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.errors import NoSuchEntry, QuireError
from quire.metadata import Cluster, open_cluster
from quire.rpc import AddAnswers, BookieChannel
from quire.runtime import real_runtime
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum
from tests.support.servers.ports import free_port
from tests.support.servers.sqlite_bookie import BOOKIE, BookieProcess, new_cluster

KEY = master_key(b"")
LEDGERS_ALIVE = 40
ENTRIES_PER_LEDGER = 400
PAYLOAD_BYTES_MAX = 2000
SETTINGS = (
    "garbage.interval_s=2",
    "garbage.minor_interval_s=4",
    "garbage.major_interval_s=8",
    "garbage.compaction_bytes_per_s=200000000",
    "storage.cache_bytes_max=8MiB",
    "storage.read_cache_bytes_max=4MiB",
    "storage.log_bytes_max=8MiB",
    "storage.journal.file_bytes_max=16MiB",
    "storage.journal.preallocate_bytes=4MiB",
    "space.reserve_bytes=0",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process takes at one moment."""

    memory_bytes: int
    descriptors: int
    disk_bytes: int


@dataclass
class Soak:
    """The figures of one run."""

    samples: list[Sample] = field(default_factory=list)
    entries: int = 0
    ledgers_deleted: int = 0
    reads_checked: int = 0

    def growth(self) -> dict[str, tuple[float, float]]:
        """Each figure's median in the second quarter and in the last: before that, caches fill."""
        quarter = max(1, len(self.samples) // 4)
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        return {
            name: (median(getattr(each, name) for each in early), median(getattr(each, name) for each in late))
            for name in ("memory_bytes", "descriptors", "disk_bytes")
        }


class _Acks:
    def __init__(self) -> None:
        self.left = 0
        self.changed = asyncio.Event()
        self.problems: list[str] = []

    def on_add_answers(self, answers: AddAnswers) -> None:
        self.problems += [status.name for status, _ in answers if status is not Status.EOK]
        self.left -= sum(len(entry_ids) for _, entry_ids in answers)
        self.changed.set()

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self.problems.append(str(error))
        self.left -= len(entry_ids)
        self.changed.set()


class _Ledger:
    """One ledger's life: written in runs, read back, fenced at times."""

    def __init__(self, ledger_id: LedgerId, rng: random.Random) -> None:
        self.ledger_id, self._rng = ledger_id, rng
        self._codec = EntryCodec(ledger_id, Crc32cDigest())
        self._payload = rng.randbytes(PAYLOAD_BYTES_MAX)
        self._sizes: list[int] = []

    def _entry(self, entry_id: int) -> tuple[bytes, bytes]:
        payload = self._payload[: self._sizes[entry_id]]
        return self._codec.prefix(EntryId(entry_id), payload, lac=EntryId(entry_id - 1), length=0), payload

    async def write(self, channel: BookieChannel, count: int) -> None:
        acks = _Acks()
        first = len(self._sizes)
        self._sizes += [self._rng.randrange(PAYLOAD_BYTES_MAX) for _ in range(count)]
        acks.left = count
        frames: list[bytes] = []
        for entry_id in range(first, first + count):
            prefix, payload = self._entry(entry_id)
            head = v2.add_request_prefix(KEY, entry_bytes=len(prefix) + len(payload))
            frames += (head, prefix, payload)
        channel.send_adds(self.ledger_id, frames, range(first, first + count), acks)
        while acks.left:
            acks.changed.clear()
            await acks.changed.wait()
        assert not acks.problems, acks.problems[:3]

    async def check(self, channel: BookieChannel, count: int) -> None:
        for entry_id in self._rng.sample(range(len(self._sizes)), min(count, len(self._sizes))):
            answer = await channel.read(self.ledger_id, EntryId(entry_id))
            assert answer.body == b"".join(self._entry(entry_id))

    async def fence(self, channel: BookieChannel) -> None:
        try:
            await channel.read(self.ledger_id, NO_ENTRY, master_key=KEY)
        except NoSuchEntry:
            pass


async def soak(folder: Path, *, seconds: float, seed: int) -> Soak:
    """Run the load on a bookie in `folder`, and take about 40 samples."""
    result, rng, runtime = Soak(), random.Random(seed), real_runtime()
    uri = await new_cluster(runtime, folder)
    arguments = ("--admin", "none", *(part for each in SETTINGS for part in ("--set", each)))
    bookie = BookieProcess(runtime, folder, uri, port=free_port(), arguments=arguments)
    try:
        await bookie.start()
        async with open_cluster(uri, runtime=runtime) as cluster, await bookie.connect() as channel:
            await _load(result, cluster, channel, bookie, folder / "bookie", rng, seconds)
        assert await bookie.stop() == 0, bookie.stderr.read_text()[-2000:]
    finally:
        await bookie.kill()
        await runtime.disk.aclose()
    return result


async def _load(
    result: Soak,
    cluster: Cluster,
    channel: BookieChannel,
    bookie: BookieProcess,
    data: Path,
    rng: random.Random,
    seconds: float,
) -> None:
    alive: list[_Ledger] = []
    began = time.monotonic()
    while (elapsed_s := time.monotonic() - began) < seconds:
        metadata = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId(BOOKIE),)),))
        ledger = _Ledger((await cluster.ledgers.create(metadata)).ledger_id, rng)
        alive.append(ledger)
        for _ in range(4):
            await ledger.write(channel, ENTRIES_PER_LEDGER // 4)
            await rng.choice(alive).check(channel, 10)
            result.reads_checked += 10
        result.entries += ENTRIES_PER_LEDGER
        if rng.random() < 0.3:
            await ledger.fence(channel)
        if len(alive) > LEDGERS_ALIVE:
            doomed = alive.pop(rng.randrange(len(alive)))
            await cluster.ledgers.remove(doomed.ledger_id)
            result.ledgers_deleted += 1
        if len(result.samples) < 40 * elapsed_s / seconds:
            result.samples.append(_sample(bookie.pid, data))


def _sample(pid: int, data: Path) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    memory_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    disk = 0
    for path in data.rglob("*"):
        try:
            disk += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # Deleted while we look.
    return Sample(memory_kib * 1024, len(os.listdir(f"/proc/{pid}/fd")), disk)


def main() -> None:
    parser = argparse.ArgumentParser(description="Mixed load on one bookie; prints what it takes over time.")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:.0f} s")
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        result = asyncio.run(soak(Path(folder), seconds=options.seconds, seed=options.seed))
    print(f"{result.entries:,} entries written, {result.ledgers_deleted:,} ledgers deleted")
    for name, (early, late) in result.growth().items():
        print(f"{name:14} {early:14,.0f} early {late:14,.0f} late {late / early:8.2f} ×")
    for number, sample in enumerate(result.samples):
        memory, disk = sample.memory_bytes >> 20, sample.disk_bytes >> 20
        print(f"{number:3} {memory:6} MiB of memory {sample.descriptors:5} descriptors {disk:7} MiB on disk")
    sys.exit(0 if is_flat(result) else 1)


def is_flat(result: Soak) -> bool:
    """Whether nothing grew by more than a quarter, and some slack for what breathes: caches and half-full logs."""
    growth = result.growth()
    slack = {"memory_bytes": 16 << 20, "descriptors": 8, "disk_bytes": 32 << 20}
    return all(late <= early * 1.25 + slack[name] for name, (early, late) in growth.items())


if __name__ == "__main__":
    main()
