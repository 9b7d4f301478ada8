"""A ledger storage on a simulated host, for the tests of the storage and of its parts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from quire.bookie.journal import JournalSettings
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.settings import StorageSettings
from quire.codec.digest import Crc32cDigest, master_key
from quire.codec.entry import EntryCodec
from quire.testing import SimDisk, Simulation, simulate
from quire.testing.sim_index import SimIndexFolder
from quire.types import NO_ENTRY, EntryId, LedgerId

FOLDER, KEY = "/bookie", master_key(b"")
LEDGER = LedgerId(1)
JOURNAL = JournalSettings(file_bytes_max=20_000, preallocate_bytes=4_096, group_bytes_max=6_000, queue_bytes_max=30_000)
SETTINGS = StorageSettings(journal=JOURNAL)


def body(entry_id: int, *, ledger_id: int = LEDGER, lac: int = NO_ENTRY) -> bytes:
    """An entry whose bytes differ with its LAC, as those of a recovery do."""
    payload = f"{ledger_id}:{entry_id}".encode()
    codec = EntryCodec(LedgerId(ledger_id), Crc32cDigest())
    return codec.prefix(EntryId(entry_id), payload, lac=EntryId(lac), length=0) + payload


class StorageHost:
    """One host with a ledger storage. Its disk and index outlive it; checkpoints come only when a test asks for one."""

    def __init__(self, sim: Simulation, *, journals: int, settings: StorageSettings) -> None:
        self.host, self._settings = sim.host("bookie"), settings
        self.index = SimIndexFolder(self.host.rng)
        self.folders = [f"{FOLDER}/journal{number}" for number in range(journals)]
        self.failures: list[Exception] = []
        self.storage: LedgerStorage

    @property
    def disk(self) -> SimDisk:
        return self.host.disk

    async def open(self) -> None:
        self.storage = await LedgerStorage.open(
            self.host.runtime,
            FOLDER,
            lambda position: self.index.open(create=position is None, position_min=position),
            self._settings,
            journal_folders=self.folders,
            on_durable=lambda *_: None,
            on_failure=self.failures.append,
        )

    async def crash(self) -> None:
        """The machine loses power."""
        await self.host.crash()
        self.index.crash()
        self.disk.faults.repair()

    async def add(self, *entry_ids: int, ledger_id: int = LEDGER, lac: int = NO_ENTRY, recovery: bool = False) -> None:
        """Add entries, and return once they are acknowledged."""
        number = 0
        for entry_id in entry_ids:
            number = self.accept(entry_id, ledger_id=ledger_id, lac=lac, recovery=recovery)
        await self.storage.journals.wait_durable(LedgerId(ledger_id), number)

    def accept(self, entry_id: int, *, ledger_id: int = LEDGER, lac: int = NO_ENTRY, recovery: bool = False) -> int:
        """Add an entry without waiting for anything."""
        content = body(entry_id, ledger_id=ledger_id, lac=lac)
        number = self.storage.add(LedgerId(ledger_id), EntryId(entry_id), EntryId(lac), content, KEY, recovery=recovery)
        assert isinstance(number, int)
        return number

    async def check(self, *entry_ids: int, ledger_id: int = LEDGER, lac: int = NO_ENTRY) -> None:
        for entry_id in entry_ids:
            found = await self.storage.read(LedgerId(ledger_id), EntryId(entry_id))
            assert found == body(entry_id, ledger_id=ledger_id, lac=lac), f"entry {ledger_id}:{entry_id}"

    async def forget(self, *ledger_ids: int, touched_max: int | None = None) -> None:
        await self.storage.delete(map(LedgerId, ledger_ids), tombstones_until_ms=10**15, touched_max=touched_max)


def on_storage(
    check: Callable[[StorageHost], Awaitable[Any]],
    *,
    journals: int = 1,
    settings: StorageSettings = SETTINGS,
    seeds: Iterable[int] = (1,),
) -> None:
    """Run `check` on a new storage, once for each seed."""

    async def main(sim: Simulation) -> None:
        host = StorageHost(sim, journals=journals, settings=settings)
        await host.open()
        await check(host)

    for seed in seeds:
        simulate(seed, main)


async def until(condition: Callable[[], bool]) -> None:
    """Wait, in simulated time, until something is so."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event for every condition
            await asyncio.sleep(0.0001)


async def replace_content(disk: SimDisk, path: str, change: Callable[[bytes], bytes]) -> None:
    """Give a file other bytes, durably, as somebody does who restores a folder."""
    async with await disk.open(path) as file:
        data = await file.pread(await file.size(), 0)
    await disk.unlink(path)
    async with await disk.create(path) as file:
        await file.pwritev([change(data)], 0, sync=True)
    await disk.sync_directory(path.rpartition("/")[0])
