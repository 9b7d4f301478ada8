"""Entries, logs and accidents for the tests of entry logs."""

from collections.abc import Awaitable, Callable
from typing import Any

from quire.bookie.entry_log import EntryLogs
from quire.codec.entry_log import (
    Entry,
    Location,
    LogId,
    log_name,
)
from quire.testing import SimDisk, Simulation, simulate
from quire.types import EntryId, LedgerId

FOLDER = "/ledgers/current"


def on_disk(check: Callable[[SimDisk], Awaitable[Any]], *, seed: int = 1) -> None:
    async def main(sim: Simulation) -> None:
        await check(sim.host("bookie").disk)

    simulate(seed, main)


def entries(*ids: tuple[int, int], size: int = 100) -> list[Entry]:
    return [(LedgerId(ledger_id), EntryId(entry_id), body(ledger_id, entry_id, size)) for ledger_id, entry_id in ids]


def body(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return (b"%d:%d." % (ledger_id, entry_id) * size)[:size]


def run_of(ledger_id: int, count: int, *, size: int = 100) -> list[Entry]:
    return entries(*((ledger_id, entry_id) for entry_id in range(count)), size=size)


def path(log_id: int) -> str:
    return f"{FOLDER}/{log_name(LogId(log_id))}"


async def damage(disk: SimDisk, log_id: int, offset: int) -> bytes:
    """Change one byte of a log. Returns what was there."""
    async with await disk.open(path(log_id), writable=True) as file:
        before = await file.pread(1, offset)
        await file.pwritev([bytes([before[0] ^ 0x10])], offset)
    return before


async def check_all(logs: EntryLogs, stored: list[Entry], locations: list[Location]) -> None:
    for (ledger_id, entry_id, expected), location in zip(stored, locations, strict=True):
        assert await logs.read(location, ledger_id, entry_id) == expected


async def error_of(call: Awaitable[Any]) -> Exception:
    try:
        await call
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
