"""Entry logs in real files: descriptors, sizes beyond one read, a process killed while it writes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.bookie.entry_log import EntryLogs
from quire.codec.entry_log import HEADER_BYTES, Entry, Location, LogId, log_name, split_location
from quire.errors import DamagedEntry
from quire.runtime import OsDisk
from quire.types import EntryId, LedgerId


@pytest.fixture
async def disk() -> AsyncIterator[OsDisk]:
    disk = OsDisk()
    yield disk
    await disk.aclose()


def descriptors_in(folder: Path) -> int:
    """How many files of `folder` this process has open, deleted ones included."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder.resolve()))
        except FileNotFoundError:
            pass  # The descriptor that listed the others.
    return count


def entries(ledger_id: int, count: int, size: int) -> list[Entry]:
    return [(LedgerId(ledger_id), EntryId(n), (b"%d:%d;" % (ledger_id, n) * size)[:size]) for n in range(count)]


async def check_all(logs: EntryLogs, stored: list[Entry], locations: list[Location]) -> None:
    for (ledger_id, entry_id, body), location in zip(stored, locations, strict=True):
        assert await logs.read(location, ledger_id, entry_id) == body


async def test_entries_come_back_from_real_files(disk: OsDisk, tmp_path: Path) -> None:
    """Through many logs with few descriptors; entries from nothing to larger than a log, more than one write takes."""
    stored = [*entries(1, 3000, 100), *entries(2, 3, 300_000), *entries(3, 1, 0), *entries(4, 2, 2_000_000)]
    async with EntryLogs(disk, tmp_path, log_bytes_max=1_000_000, files_open_max=2) as logs:
        batches = [stored[:1000], stored[1000:2500], stored[2500:]]
        locations = [location for batch in await asyncio.gather(*map(logs.append, batches)) for location in batch]
        await logs.sync()
        await asyncio.gather(*(check_all(logs, stored[n::8], locations[n::8]) for n in range(8)))
        assert descriptors_in(tmp_path) <= 2
    assert descriptors_in(tmp_path) == 0
    async with EntryLogs(disk, tmp_path, files_open_max=2) as logs:
        await check_all(logs, stored, locations)
        assert sum(log.log_bytes for log in logs.usage()) == sum(path.stat().st_size for path in tmp_path.iterdir())
        totals: dict[int, int] = {}
        found = {}
        for log in logs.usage():
            for ledger_id, usage in (await logs.ledgers_in(log.log_id)).items():
                totals[ledger_id] = totals.get(ledger_id, 0) + usage.entries
            async for entry in logs.scan(log.log_id):
                found[entry.location] = (entry.ledger_id, entry.entry_id, entry.body)
        assert totals == {1: 3000, 2: 3, 3: 1, 4: 2}
        assert found == dict(zip(locations, stored, strict=True))
        ahead = await logs.read_ahead(locations[0], LedgerId(1), EntryId(0), entries_max=500, bytes_max=1 << 20)
        assert [body for _, _, body in ahead] == [body for _, _, body in stored[:500]]


async def test_a_deleted_log_leaves_no_file_and_no_descriptor(disk: OsDisk, tmp_path: Path) -> None:
    async with EntryLogs(disk, tmp_path, log_bytes_max=10_000) as logs:
        stored = entries(1, 100, 100)
        locations = await logs.append(stored)
        first = [index for index, location in enumerate(locations) if split_location(location)[0] == 1]
        reads = [logs.read(locations[index], LedgerId(1), EntryId(index)) for index in first]
        *results, _ = await asyncio.gather(*reads, logs.delete(LogId(1)), return_exceptions=True)
        for index, result in zip(first, results, strict=True):
            assert result == stored[index][2] or isinstance(result, DamagedEntry)
        assert not (tmp_path / log_name(LogId(1))).exists()
        assert descriptors_in(tmp_path) == 1  # The growing log, and nothing that is deleted.


async def test_a_file_cut_short_is_damage(disk: OsDisk, tmp_path: Path) -> None:
    async with EntryLogs(disk, tmp_path) as logs:
        locations = await logs.append(entries(1, 2, 5000))
        os.truncate(tmp_path / log_name(LogId(1)), HEADER_BYTES + 7000)
        await check_all(logs, entries(1, 1, 5000), locations[:1])
        with pytest.raises(DamagedEntry, match="the file ends at 7512"):
            await logs.read(locations[1], LedgerId(1), EntryId(1))


WRITE_FOREVER = """
import asyncio, sys
from quire.bookie.entry_log import EntryLogs
from quire.runtime import OsDisk

async def main():
    async with EntryLogs(OsDisk(), sys.argv[1], log_bytes_max=200_000) as logs:
        entry_id = 0
        while True:
            batch = [(7, entry_id + n, b"%d;" % (entry_id + n) * 300) for n in range(50)]
            locations = await logs.append(batch)
            await logs.sync()
            for (_, entry_id, _), location in zip(batch, locations):
                print(entry_id, location)
            sys.stdout.flush()
            entry_id += 1

asyncio.run(main())
"""


async def test_what_a_killed_process_had_synced_is_there(disk: OsDisk, tmp_path: Path) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE_FOREVER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    promised: list[bytes] = []
    try:
        async with asyncio.timeout(60):
            while len(promised) < 1000:
                promised.append(await writer.stdout.readline())
    finally:
        writer.kill()
        promised += (await writer.stdout.read()).splitlines(keepends=True)
        await writer.wait()
    async with EntryLogs(disk, tmp_path) as logs:
        assert logs.refused() == []
        for line in promised:
            if line.endswith(b"\n"):
                entry_id, location = map(int, line.split())
                body = await logs.read(Location(location), LedgerId(7), EntryId(entry_id))
                assert body == b"%d;" % entry_id * 300
        for log in logs.usage():
            scan = logs.scan(log.log_id)
            async for entry in scan:
                assert entry.body == b"%d;" % entry.entry_id * 300
            assert scan.report.damaged == ()
