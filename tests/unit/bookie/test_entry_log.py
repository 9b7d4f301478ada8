"""Entry logs on a simulated disk: what is appended comes back, and logs are opened and closed."""

import asyncio
import errno
from typing import Any

import pytest
from tests.unit.bookie.entry_log_samples import (
    FOLDER,
    body,
    check_all,
    damage,
    entries,
    error_of,
    on_disk,
    path,
    run_of,
)
from tests.unit.bookie.watched_disk import WatchedDisk

from quire.bookie.entry_log import EntryLogs
from quire.codec.entry_log import (
    HEADER_BYTES,
    LOG_BYTES_MAX,
    LogId,
    encode_header,
    location_of,
    log_name,
    split_location,
)
from quire.errors import DamagedEntry, InvalidArgument, InvariantBroken, StoreClosed
from quire.runtime import read_file
from quire.testing import SimDisk
from quire.types import EntryId, LedgerId

# --- Writing and reading back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("log_bytes_max", [513, 2000, 100_000])
@pytest.mark.parametrize("seed", range(5))
def test_entries_come_back_in_this_run_and_in_the_next(log_bytes_max: int, seed: int) -> None:
    """Whatever the size of logs; an entry too large for one gets a log of its own."""
    stored = [*entries((1, 0), (2, 0), (1, 1)), *run_of(3, 20), *entries((4, 0), size=9000), *entries((5, 0), size=0)]

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=log_bytes_max) as logs:
            locations = await logs.append(stored[:5]) + await logs.append([]) + await logs.append(stored[5:])
            assert locations == sorted(set(locations))
            await check_all(logs, stored, locations)
            await logs.sync()
        async with EntryLogs(disk, FOLDER) as logs:
            await check_all(logs, stored, locations)
            found = [entry for log in logs.usage() async for entry in logs.scan(log.log_id)]
            assert [(*entry[:2], entry.body) for entry in found] == stored
            assert [entry.location for entry in found] == locations

    on_disk(check, seed=seed)


def test_views_are_stored_like_bytes() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            arena = bytearray(b"one two")
            locations = await logs.append(
                [
                    (LedgerId(1), EntryId(0), memoryview(arena)[:3]),
                    (LedgerId(1), EntryId(1), arena[4:]),
                ]
            )
            arena[:] = b"changed"
            assert await logs.read(locations[0], LedgerId(1), EntryId(0)) == b"one"
            assert await logs.read(locations[1], LedgerId(1), EntryId(1)) == b"two"

    on_disk(check)


def test_a_batch_is_one_write_unless_it_is_huge() -> None:
    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        async with EntryLogs(watched, FOLDER) as logs:
            await logs.append(run_of(1, 1))
            watched.writes = 0
            await logs.append(run_of(1, 1000, size=20))
            assert watched.writes == 1
            await logs.append(run_of(1, 3000, size=20))
            assert watched.writes == 4

    on_disk(check)


@pytest.mark.parametrize("seed", range(10))
def test_appends_at_the_same_time_do_not_meet(seed: int) -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=3000) as logs:
            batches = [run_of(ledger_id, 7, size=ledger_id * 40) for ledger_id in range(12)]
            for batch, locations in zip(batches, await asyncio.gather(*map(logs.append, batches)), strict=True):
                await check_all(logs, batch, locations)

    on_disk(check, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_cancelled_append_does_not_meet_the_next_one(seed: int) -> None:
    """WritesGoOn: its bytes may still be on their way when the next batch is written."""

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER, log_bytes_max=3000) as logs:
            await logs.append(run_of(1, 1, size=300))
            for ledger_id in range(2, 8):
                cancelled = asyncio.create_task(logs.append(run_of(ledger_id, 10, size=300)))
                await asyncio.sleep(0.0005)
                cancelled.cancel()
                batch = run_of(ledger_id + 100, 5)
                await check_all(logs, batch, await logs.append(batch))
            await logs.sync()
            for log in logs.usage():
                scan = logs.scan(log.log_id)
                for entry in [entry async for entry in scan]:
                    assert entry.body == body(entry.ledger_id, entry.entry_id, 300 if entry.ledger_id < 100 else 100)
                assert (scan.report.damaged, scan.report.torn) == ((), ())

    on_disk(check, seed=seed)


def test_what_does_not_fit_the_format_is_refused_and_nothing_is_written() -> None:
    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            with pytest.raises(InvalidArgument):
                await logs.append(entries((1, 0), (1, -1)))
            assert await disk.listdir(FOLDER) == []
            await logs.append(entries((1, 0)))
        for bad in (HEADER_BYTES, LOG_BYTES_MAX + 1):
            with pytest.raises(InvalidArgument, match=str(bad)):
                EntryLogs(disk, FOLDER, log_bytes_max=bad)

    on_disk(check)


# --- Reading ahead ---------------------------------------------------------------------------------------------


def test_reading_ahead_takes_one_read_and_stays_in_its_ledger() -> None:
    stored = [*run_of(1, 10), *run_of(2, 10), *run_of(1, 1)]

    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        async with EntryLogs(watched, FOLDER) as logs:
            locations = await logs.append(stored)
            whole = [
                (entry_id, location, data) for (_, entry_id, data), location in zip(stored, locations, strict=True)
            ]

            async def ahead(first: int, *, entries_max: int = 100, bytes_max: int = 100_000) -> list[Any]:
                watched.reads = 0
                ledger_id, entry_id, _ = stored[first]
                found = await logs.read_ahead(
                    locations[first], ledger_id, entry_id, entries_max=entries_max, bytes_max=bytes_max
                )
                assert watched.reads == 1 or bytes_max < 132
                return found

            assert await ahead(0) == whole[:10]
            assert await ahead(10) == whole[10:20]
            assert await ahead(20) == whole[20:]
            assert await ahead(3, entries_max=4) == whole[3:7]
            assert await ahead(3, entries_max=0) == whole[3:4]
            assert await ahead(3, bytes_max=132 * 4 + 131) == whole[3:7]
            for small in (0, 31, 32, 131, 132):
                assert await ahead(3, bytes_max=small) == whole[3:4]

    on_disk(check)


def test_reading_ahead_stops_before_damage_and_reports_it_only_at_its_start() -> None:
    stored = run_of(1, 5)

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            locations = await logs.append(stored)
            await damage(disk, 1, split_location(locations[2])[1] + 40)
            found = await logs.read_ahead(locations[0], LedgerId(1), EntryId(0), entries_max=9, bytes_max=9999)
            assert [entry_id for entry_id, _, _ in found] == [0, 1]
            with pytest.raises(DamagedEntry, match="checksum"):
                await logs.read_ahead(locations[2], LedgerId(1), EntryId(2), entries_max=9, bytes_max=9999)
            with pytest.raises(DamagedEntry, match="entry 1:3 is there instead"):
                await logs.read_ahead(locations[3], LedgerId(1), EntryId(4), entries_max=9, bytes_max=9999)

    on_disk(check)


# --- Opening ---------------------------------------------------------------------------------------------------


def test_a_start_never_appends_to_old_logs_and_never_uses_an_id_twice() -> None:
    async def check(disk: SimDisk) -> None:
        seen: dict[str, bytes] = {}
        for run in range(1, 5):
            logs = EntryLogs(disk, FOLDER)
            assert await logs.open() == []
            assert [log.log_id for log in logs.usage()] == list(range(1, run))
            await logs.append(run_of(run, 3))
            await logs.sync()
            if run % 2:
                await logs.aclose()
            for name, content in seen.items():
                assert await read_file(disk, f"{FOLDER}/{name}") == content
            seen = {name: await read_file(disk, f"{FOLDER}/{name}") for name in await disk.listdir(FOLDER)}
            assert len(seen) == run

    on_disk(check)


def test_a_file_that_is_not_what_its_name_says_is_reported_and_kept() -> None:
    """Bug 22 of the ledger protocol: a wrong header once made garbage collection delete live data."""

    async def check(disk: SimDisk) -> None:
        await disk.makedirs(FOLDER)
        contents = {
            1: encode_header(LogId(1)),
            2: b"",
            3: bytes(2000),
            4: encode_header(LogId(5)),
            5: b"QUIRELOG" + bytes(504),
            0x70: encode_header(LogId(0x70))[:-1] + b"?",
        }
        for log_id, content in contents.items():
            async with await disk.create(path(log_id)) as file:
                await file.pwritev([content], 0)
        for name in ("notes.txt", "00.log", log_name(LogId(9)) + ".new"):
            await (await disk.create(f"{FOLDER}/{name}")).aclose()
        disk.faults.fail_reads(path(3), 0, 512)
        logs = EntryLogs(disk, FOLDER)
        refused = await logs.open()
        assert [(log.log_id, log.path) for log in refused] == [(n, path(n)) for n in (2, 3, 4, 5, 0x70)]
        for log, problem in zip(
            refused,
            ["0 bytes", "Input/output", "says log 5, its name says log 4", "format version 0", "checksum"],
            strict=True,
        ):
            assert problem in log.problem
        assert [log.log_id for log in logs.usage()] == [1]
        [location] = await logs.append(entries((1, 0)))
        assert split_location(location)[0] == 0x71
        for log in refused:
            with pytest.raises(InvalidArgument, match="not to be trusted"):
                await logs.delete(log.log_id)
            with pytest.raises(DamagedEntry, match="not to be trusted"):
                await logs.read(location_of(log.log_id, HEADER_BYTES), LedgerId(1), EntryId(0))
            with pytest.raises(DamagedEntry):
                [entry async for entry in logs.scan(log.log_id)]
            with pytest.raises(DamagedEntry):
                await logs.ledgers_in(log.log_id)
        await logs.aclose()
        assert len(await disk.listdir(FOLDER)) == len(contents) + 3 + 1

    on_disk(check)


def test_other_errors_stop_the_start() -> None:
    """Too many open files say nothing about a log, so no log may be given up for it."""

    async def check(disk: SimDisk) -> None:
        async with EntryLogs(disk, FOLDER) as logs:
            await logs.append(entries((1, 0)))
        disk.faults.fail_next("open", code=errno.EMFILE)
        with pytest.raises(OSError, match="Too many open files"):
            await EntryLogs(disk, FOLDER).open()

    on_disk(check)


def test_what_a_crash_left_of_a_log_without_a_name_is_written_over() -> None:
    async def check(disk: SimDisk) -> None:
        await disk.makedirs(FOLDER)
        async with await disk.create(path(1) + ".new") as file:
            await file.pwritev([bytes(5000)], 0)
        async with EntryLogs(disk, FOLDER) as logs:
            [location] = await logs.append(entries((1, 0)))
            assert await logs.read(location, LedgerId(1), EntryId(0)) == body(1, 0)
            assert await disk.listdir(FOLDER) == [log_name(LogId(1))]
            assert len(await read_file(disk, path(1))) == HEADER_BYTES + 132

    on_disk(check)


def test_log_ids_end_with_a_clear_word() -> None:
    async def check(disk: SimDisk) -> None:
        await disk.makedirs(FOLDER)
        await (await disk.create(path(2**31 - 1))).aclose()
        async with EntryLogs(disk, FOLDER) as logs:
            with pytest.raises(InvalidArgument, match="cannot be a log id"):
                await logs.append(entries((1, 0)))

    on_disk(check)


def test_nothing_works_before_open_and_nothing_is_opened_twice() -> None:
    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER)
        await logs.aclose()
        with pytest.raises(InvariantBroken):
            await logs.append(entries((1, 0)))
        await logs.open()
        with pytest.raises(InvariantBroken):
            await logs.open()

    on_disk(check)


# --- The end ---------------------------------------------------------------------------------------------------


def test_closing_syncs_and_leaves_nothing_open() -> None:
    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        logs = EntryLogs(watched, FOLDER, log_bytes_max=700, files_open_max=2)
        await logs.open()
        stored = run_of(1, 9)
        locations = await logs.append(stored)
        await check_all(logs, stored, locations)
        assert len(watched.open_files) == 2
        await logs.aclose()
        await logs.aclose()
        assert watched.open_files == []
        for call in (
            logs.append([]),
            logs.sync(),
            logs.read(locations[0], LedgerId(1), EntryId(0)),
            logs.delete(LogId(1)),
        ):
            assert isinstance(await error_of(call), StoreClosed)
        disk.crash()
        async with EntryLogs(disk, FOLDER) as logs:
            await check_all(logs, stored, locations)

    for seed in range(10):
        on_disk(check, seed=seed)


def test_closing_waits_for_what_a_cancelled_call_began() -> None:
    async def check(disk: SimDisk) -> None:
        logs = EntryLogs(disk, FOLDER, log_bytes_max=1000)
        await logs.open()
        disk.faults.latency_by_operation_s["create"] = (1.0, 1.0)
        appending = asyncio.create_task(logs.append(run_of(1, 20)))
        await asyncio.sleep(0.5)
        appending.cancel()
        await logs.aclose()
        async with EntryLogs(disk, FOLDER) as logs:
            found = [entry.entry_id for log in logs.usage() async for entry in logs.scan(log.log_id)]
            assert found == list(range(20))

    for seed in range(10):
        on_disk(check, seed=seed)


def test_closing_tells_when_the_last_sync_fails() -> None:
    async def check(disk: SimDisk) -> None:
        watched = WatchedDisk(disk)
        logs = EntryLogs(watched, FOLDER)
        await logs.open()
        await logs.append(run_of(1, 1))
        disk.faults.fail_next("sync")
        with pytest.raises(OSError, match="Input/output"):
            await logs.aclose()
        assert watched.open_files == []

    on_disk(check)
