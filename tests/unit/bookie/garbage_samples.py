"""A bookie's storage with ledgers, entries and metadata, for the tests of garbage collection and compaction."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from quire.bookie.compaction import Compactor, FreeBytes, GarbageCounters, MakeRoom, Undisturbed
from quire.bookie.garbage import GarbageCollector, GarbageSettings
from quire.bookie.journal import JournalSettings
from quire.bookie.ledger_storage import Absence, LedgerStorage
from quire.bookie.log_survey import LogSurveyor
from quire.bookie.settings import StorageSettings
from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.codec.entry_log import LogId, log_name
from quire.metadata import MetadataStore, StoreSettings
from quire.metadata.cluster import Cluster, init_cluster
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.uri import parse_uri
from quire.testing import SimHost, Simulation, simulate
from quire.testing.sim_index import SimIndexFolder
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum

FOLDER, KEY = "/bookie", b"k" * 20
METADATA = LedgerMetadata(
    quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), (BookieId("b1:3181"),)),)
)
STORAGE = StorageSettings(
    log_bytes_max=4_000,
    read_cache_bytes_max=0,  # What is read comes from the logs.
    journal=JournalSettings(
        file_bytes_max=20_000, preallocate_bytes=4_096, group_bytes_max=6_000, queue_bytes_max=30_000
    ),
)
BODY_BYTES = 900  # Three of them fit into a log, with whatever is around them.


class Bookie:
    """One bookie on a simulated host. Checkpoints come only when a test asks for one."""

    def __init__(self, sim: Simulation) -> None:
        self.host: SimHost = sim.host("bookie")
        self.index = SimIndexFolder(self.host.rng)
        self.tree = MemoryTree()
        self.failures: list[Exception] = []
        self.counters, self.undisturbed = GarbageCounters(), Undisturbed()
        self._added = 0
        self.storage: LedgerStorage
        self.cluster: Cluster

    async def start(self) -> None:
        runtime = self.host.runtime
        store = MetadataStore(MemoryDriver(self.tree, StoreSettings(), runtime))
        self.cluster = await init_cluster(store, parse_uri("memory:"), runtime)
        await self.open()

    async def open(self) -> None:
        self._added = 0
        self.storage = await LedgerStorage.open(
            self.host.runtime,
            FOLDER,
            lambda position: self.index.open(create=position is None, position_min=position),
            STORAGE,
            on_durable=lambda *_: None,
            on_failure=self.failures.append,
        )

    async def reboot(self, *, power_loss: bool = True) -> None:
        await self.host.crash(power_loss=power_loss)
        self.index.crash() if power_loss else self.index.kill()
        self.host.disk.faults.repair()
        await self.open()

    # --- Ledgers

    async def create(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.cluster.ledgers.create(METADATA, with_id=ledger_id)

    async def remove(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.cluster.ledgers.remove(LedgerId(ledger_id))

    def add(self, ledger_id: int, *entry_ids: int, text: str = "") -> None:
        for entry_id in entry_ids:
            content = body(ledger_id, entry_id, text=text)
            number = self.storage.add(
                LedgerId(ledger_id), EntryId(entry_id), NO_ENTRY, content, KEY, recovery=bool(text)
            )
            assert isinstance(number, int)
            self._added = number

    async def flush(self) -> None:
        """Have everything in the logs, and nothing that a restart would replay."""
        await until(lambda: self.storage.journals.of(LedgerId(0)).durable >= self._added)
        await self.storage.checkpoint()

    async def fill_log(self, *ledger_ids: int, first: int = 0, text: str = "") -> LogId:
        """Put one entry of each ledger into a log of their own, which is finished then. Returns its id."""
        for number, ledger_id in enumerate(ledger_ids):
            self.add(ledger_id, first + number, text=text)
        await self.flush()
        location = self.storage.index.location(LedgerId(ledger_ids[0]), EntryId(first))
        assert location is not None
        self.add(ROLLER, self._next_rolled(), text="roll" * BODY_BYTES)
        await self.flush()
        return LogId(location >> 32)

    def _next_rolled(self) -> int:
        last = self.storage.last_entry_id(LedgerId(ROLLER))
        return 0 if isinstance(last, Absence) else last + 1

    async def read(self, ledger_id: int, entry_id: int) -> bytes | Absence:
        return await self.storage.read(LedgerId(ledger_id), EntryId(entry_id))

    async def check(self, ledger_id: int, *entry_ids: int, text: str = "") -> None:
        for entry_id in entry_ids:
            assert await self.read(ledger_id, entry_id) == body(ledger_id, entry_id, text=text)

    def forget(self, *ledger_ids: int) -> Awaitable[None]:
        """Delete ledgers here, whatever the metadata says."""
        return self.storage.delete(map(LedgerId, ledger_ids), tombstones_until_ms=0)

    # --- Logs

    def log_ids(self) -> list[LogId]:
        return [each.log_id for each in self.storage.logs.usage()]

    def log_path(self, log_id: int) -> str:
        return f"{FOLDER}/entries/{log_name(LogId(log_id))}"

    def fail_reads(self, log_id: int, start: int, end: int) -> None:
        """Let a part of a log be a bad sector, also if the file is still open under the name it was made with."""
        for path in (self.log_path(log_id), f"{self.log_path(log_id)}.new"):
            self.host.disk.faults.fail_reads(path, start, end)

    def offset_of(self, ledger_id: int, entry_id: int) -> int:
        location = self.storage.index.location(LedgerId(ledger_id), EntryId(entry_id))
        assert location is not None
        return location & 0xFFFFFFFF

    async def free_bytes(self) -> int:
        return (await self.host.disk.usage(FOLDER)).free_bytes

    # --- Those who tidy up

    def surveyor(self, *, rows_max: int = 1000) -> LogSurveyor:
        return LogSurveyor(self.storage, rows_max=rows_max)

    def compactor(
        self,
        *,
        kind: type[Compactor] = Compactor,
        bytes_per_s: float = 10**9,
        free_bytes: FreeBytes | None = None,
        free_bytes_min: int = 0,
        make_room: MakeRoom | None = None,
        batch_bytes: int = 1_000,
    ) -> Compactor:
        return kind(
            self.storage,
            self.host.clock,
            self.counters,
            self.undisturbed,
            bytes_per_s=bytes_per_s,
            free_bytes=free_bytes,
            free_bytes_min=free_bytes_min,
            make_room=make_room,
            batch_bytes=batch_bytes,
        )

    async def compact(
        self, *log_ids: int, compactor: Compactor | None = None, may_go_on: Callable[[], bool] = lambda: True
    ) -> dict[LogId, str | None]:
        """Compact these logs, and say why each of them stays, if it does."""
        outcomes: dict[LogId, str | None] = {}
        loads = [load for load in await self.surveyor().survey() if load.log_id in log_ids]
        await (compactor or self.compactor()).compact(loads, outcomes, may_go_on=may_go_on)
        return outcomes

    def collector(
        self,
        settings: GarbageSettings | None = None,
        *,
        kind: type[GarbageCollector] = GarbageCollector,
        free_bytes: FreeBytes | None = None,
        make_room: MakeRoom | None = None,
    ) -> GarbageCollector:
        return kind(
            self.storage,
            self.cluster.ledgers,
            self.host.runtime,
            settings or GarbageSettings(),
            free_bytes=free_bytes,
            make_room=make_room,
            on_failure=self.failures.append,
        )


ROLLER = 9_999  # A ledger whose large entries never share a log with others.


def body(ledger_id: int, entry_id: int, *, text: str = "") -> bytes:
    payload = f"{ledger_id}:{entry_id}:{text}".encode().ljust(BODY_BYTES, b".")
    codec = EntryCodec(LedgerId(ledger_id), Crc32cDigest())
    return codec.prefix(EntryId(entry_id), payload, lac=NO_ENTRY, length=0) + payload


def on_bookie(check: Callable[[Bookie], Awaitable[Any]], *, seeds: Iterable[int] = (1,)) -> None:
    """Run `check` on a new bookie, once for each seed."""

    async def main(sim: Simulation) -> None:
        bookie = Bookie(sim)
        await bookie.start()
        await bookie.create(ROLLER)
        await check(bookie)

    for seed in seeds:
        simulate(seed, main, time_limit_s=30 * 86_400)


async def until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait, in simulated time, until something is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event for every condition
            await asyncio.sleep(0.001)
