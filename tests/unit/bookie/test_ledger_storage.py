"""What a ledger storage owes its bookie when things cross: a checkpoint and the end, a rewrite and a read, a deletion
and a new life.

Whole lives under crashes are in `tests/simulation/test_ledger_storage.py`.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.bookie.storage_samples import (
    FOLDER,
    KEY,
    LEDGER,
    SETTINGS,
    StorageHost,
    body,
    on_storage,
    replace_content,
    until,
)

from quire.bookie.ledger_storage import Absence
from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.errors import WrongDisk
from quire.protocol.fencing import Refusal
from quire.runtime import read_file
from quire.testing.disk_faults import Operation
from quire.types import EntryId, LedgerId

MOMENTS = [0.0, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.01]  # Of a checkpoint, in seconds.
OTHER = LedgerId(2)
JOURNAL_FILE = f"{FOLDER}/journal0/{1:016x}.journal"


# --- A checkpoint and the end


@pytest.mark.parametrize("moment_s", MOMENTS)
def test_a_checkpoint_goes_on_when_whoever_asked_for_it_leaves(moment_s: float) -> None:
    async def check(host: StorageHost) -> None:
        await host.add(*range(5))
        checkpoint = asyncio.create_task(host.storage.checkpoint())
        await asyncio.sleep(moment_s)
        checkpoint.cancel()
        await host.storage.aclose()
        await host.open()
        assert host.storage.damages == []
        await host.check(*range(5))

    on_storage(check)


@pytest.mark.parametrize("moment_s", MOMENTS)
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_checkpoint_cut_short_with_all_other_tasks_loses_nothing(moment_s: float, power_loss: bool) -> None:
    """As `asyncio.run` does at its end. What the cut checkpoint held is in the journals only: no other one may come.

    Method: cancel every task of the storage, but not its journals, and then close it as its bookie would.
    """

    async def check(host: StorageHost) -> None:
        await host.add(*range(5))
        others = asyncio.all_tasks()
        checkpoint = asyncio.create_task(host.storage.checkpoint())
        await asyncio.sleep(moment_s)
        for task in sorted(asyncio.all_tasks() - others, key=asyncio.Task.get_name):
            task.cancel()
        await asyncio.gather(checkpoint, return_exceptions=True)
        with suppress(OSError):  # It says that it was cut short.
            await host.storage.aclose()
        if power_loss:
            await host.crash()
        await host.open()
        await host.check(*range(5))

    on_storage(check)


@pytest.mark.parametrize("moment_s", MOMENTS)
def test_a_storage_is_given_up_only_when_its_checkpoint_has_ended(moment_s: float) -> None:
    """The next life would find its marks overwritten by those of the last one."""

    async def check(host: StorageHost) -> None:
        await host.add(*range(5))
        checkpoint = asyncio.create_task(host.storage.checkpoint())
        await asyncio.sleep(moment_s)
        await host.storage.abandon()
        assert checkpoint.done()
        checkpoint.exception()  # Whether it was made or refused is not told here.
        stored = await read_file(host.disk, f"{FOLDER}/checkpoint")
        with pytest.raises(OSError, match="given up"):
            await host.storage.checkpoint()
        with pytest.raises(OSError, match="given up"):
            await host.forget(LEDGER)
        assert await read_file(host.disk, f"{FOLDER}/checkpoint") == stored
        await host.open()
        await host.check(*range(5))

    on_storage(check)


def test_a_storage_closes_its_index_only_when_nobody_looks_into_it() -> None:
    """A thread cannot be stopped: whoever was cancelled while it looked has not ended the look-up."""

    async def check(host: StorageHost) -> None:
        host.disk.faults.latency_s = (0.0, 0.0)  # So that closing takes less than looking.
        storage = host.storage
        begun, ended = [], []

        async def look() -> None:
            begun.append(storage.index)
            await storage.reader.ask_index(lambda: ended.append(storage.index.position))

        looks = [asyncio.create_task(look()) for _ in range(10)]
        await until(lambda: len(begun) > 4)
        for task in looks[::2]:
            task.cancel()
        await storage.abandon()
        assert len(ended) == len(begun), "some of them met an index that was closed"

    on_storage(check, seeds=range(3))


# --- A start that fails


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("create", f"{FOLDER}/checkpoint.new"),
        ("rename", f"{FOLDER}/checkpoint.new"),
        ("create", f"{FOLDER}/journal0/{2:016x}.journal"),
        ("sync", f"{FOLDER}/journal1/{2:016x}.journal"),
        ("open", f"{FOLDER}/journal1/{1:016x}.journal"),
        ("listdir", f"{FOLDER}/entries"),
    ],
)
def test_a_start_that_fails_leaves_nothing_open(operation: Operation, path: str) -> None:
    """A second try in the same process would meet an index that is open already, and a journal that still writes."""

    async def check(host: StorageHost) -> None:
        await host.add(*range(5))
        await host.add(*range(5), ledger_id=OTHER)
        await host.crash()
        mine = asyncio.all_tasks()
        host.disk.faults.fail_next(operation, path=path, code=errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            await host.open()
        assert asyncio.all_tasks() == mine
        await host.open()
        await host.check(*range(5))
        await host.check(*range(5), ledger_id=OTHER)

    on_storage(check, journals=2)


# --- Damaged or exchanged journals


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: b"", id="emptied"),
        pytest.param(lambda data: data[:512], id="cut to its header"),
        pytest.param(lambda data: data[:1024], id="an older copy"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
def test_what_a_lost_journal_may_have_held_is_unknown_and_never_missing(change: Callable[[bytes], bytes]) -> None:
    """The checkpoint says that the journal went further than it does: who knows how much further it went."""

    async def check(host: StorageHost) -> None:
        await host.add(0)
        await host.add(1)
        await host.storage.checkpoint()
        await host.add(2)
        await host.crash()
        await replace_content(host.disk, JOURNAL_FILE, change)
        await host.open()
        assert len(host.storage.damages) == 1
        await host.check(0, 1)
        assert await host.storage.read(LEDGER, EntryId(2)) is Absence.UNKNOWN
        assert await host.storage.read(OTHER, EntryId(0)) is Absence.UNKNOWN
        assert host.storage.last_entry_id(LEDGER) is Absence.UNKNOWN

    on_storage(check)


def test_damage_in_one_journal_leaves_the_ledgers_of_others_certain() -> None:
    async def check(host: StorageHost) -> None:
        await host.add(0, ledger_id=1)
        await host.add(0, ledger_id=2)
        await host.storage.checkpoint()
        await host.crash()
        await replace_content(host.disk, JOURNAL_FILE, lambda _: b"")  # That of the even ledgers.
        await host.open()
        assert await host.storage.read(LedgerId(1), EntryId(7)) is Absence.NO_ENTRY
        assert await host.storage.read(LedgerId(2), EntryId(7)) is Absence.UNKNOWN

    on_storage(check, journals=2)


def test_exchanged_journals_are_refused_and_nothing_is_lost_by_the_attempt() -> None:
    """Two disks come up under one another's names. Each journal was read from the other's mark, once."""

    async def check(host: StorageHost) -> None:
        await host.add(*range(5), ledger_id=1)
        await host.storage.checkpoint()
        await host.add(*range(3), ledger_id=2)
        await host.crash()
        host.folders.reverse()
        with pytest.raises(WrongDisk, match="journal 2 of 2, not 1 of 2"):
            await host.open()
        host.folders.reverse()
        await host.open()
        await host.check(*range(5), ledger_id=1)
        await host.check(*range(3), ledger_id=2)

    on_storage(check, journals=2)


# --- A rewrite and a read


def test_an_entry_that_was_read_and_then_written_anew_is_not_served_old() -> None:
    async def check(host: StorageHost) -> None:
        await host.add(5, lac=1)
        await host.storage.checkpoint()
        await host.check(5, lac=1)
        await host.add(5, lac=9, recovery=True)
        await host.storage.checkpoint()
        await host.check(5, lac=9)

    on_storage(check)


def test_reading_ahead_does_not_bring_back_what_was_written_anew() -> None:
    """Entry 5 has an older copy on the disk, right behind entry 4."""

    async def check(host: StorageHost) -> None:
        await host.add(*range(10))
        await host.storage.checkpoint()
        await host.add(5, lac=9, recovery=True)
        await host.check(4)
        await host.check(5, lac=9)
        await host.storage.checkpoint()
        await host.check(5, lac=9)

    on_storage(check)


def before_the_answer(host: StorageHost, deed: Callable[[], Awaitable[None]]) -> None:
    """Have something happen after the index has answered the next look-up, and before the reader knows the answer."""
    reader, ask = host.storage.reader, host.storage.reader.ask_index

    async def ask_once(call: Callable[[], Any]) -> Any:
        reader.ask_index = ask  # type: ignore[method-assign]
        found = await ask(call)
        await deed()
        return found

    reader.ask_index = ask_once  # type: ignore[method-assign]


@pytest.mark.parametrize("checkpoint", ["none", "during the look-up", "during the read"])
def test_an_entry_written_anew_during_a_look_up_is_not_served_old_afterwards(checkpoint: str) -> None:
    """The place that the index told is that of the old bytes. They are an answer only to whoever asked before."""

    async def check(host: StorageHost) -> None:
        await host.add(5, lac=1)
        await host.storage.checkpoint()
        host.disk.faults.latency_by_operation_s["read"] = (1.0, 1.0)

        async def rewrite() -> None:
            await host.add(5, lac=9, recovery=True)
            if checkpoint == "during the look-up":
                await host.storage.checkpoint()

        before_the_answer(host, rewrite)
        read = asyncio.create_task(host.storage.read(LEDGER, EntryId(5)))
        if checkpoint == "during the read":
            await until(lambda: host.storage.is_dirty)
            await host.storage.checkpoint()
            assert not read.done()
        assert await read == body(5, lac=9 if checkpoint == "none" else 1)
        await host.storage.checkpoint()
        await host.check(5, lac=9)

    on_storage(check)


def test_a_read_that_crosses_a_checkpoint_keeps_nothing() -> None:
    """Method: entry 6 is written anew before the read of entry 5 begins, and leaves the write cache while it runs. The
    disk has its old bytes right behind entry 5.
    """

    async def check(host: StorageHost) -> None:
        await host.add(5, 6, lac=1)
        await host.storage.checkpoint()
        await host.add(6, lac=9, recovery=True)
        host.disk.faults.latency_by_operation_s["read"] = (1.0, 1.0)
        read = asyncio.create_task(host.storage.read(LEDGER, EntryId(5)))
        await asyncio.sleep(0.1)
        await host.storage.checkpoint()
        assert not read.done()
        assert await read == body(5, lac=1)
        await host.check(6, lac=9)

    on_storage(check)


# --- A deletion and a new life


@pytest.mark.parametrize("seed", range(8))
def test_nothing_of_a_deleted_life_is_served_in_the_next(seed: int) -> None:
    """Method: a recovery brings the ledger back while the index is still being told that it is gone, and the deleted
    entry is asked for at that moment.
    """

    async def check(host: StorageHost) -> None:
        await host.add(5, lac=1)
        await host.storage.checkpoint()
        deletion = asyncio.create_task(host.forget(LEDGER))
        while host.storage.is_here(LEDGER):  # noqa: ASYNC110 - not a moment later: the index is told within a millisecond
            await asyncio.sleep(0)
        host.accept(0, recovery=True)
        assert await host.storage.read(LEDGER, EntryId(5)) is Absence.NO_ENTRY
        await deletion
        assert await host.storage.read(LEDGER, EntryId(5)) is Absence.NO_ENTRY
        await host.add(5, lac=9, recovery=True)
        await host.storage.checkpoint()
        await host.check(0)
        await host.check(5, lac=9)

    on_storage(check, seeds=[seed])


def test_a_read_that_crosses_a_deletion_keeps_nothing() -> None:
    """Method: the disk reads while the ledger goes, and while a new life of it begins."""

    async def check(host: StorageHost) -> None:
        await host.add(5, 6, lac=1)
        await host.storage.checkpoint()
        host.disk.faults.latency_by_operation_s["read"] = (1.0, 1.0)
        read = asyncio.create_task(host.storage.read(LEDGER, EntryId(5)))
        await asyncio.sleep(0.1)
        await host.forget(LEDGER)
        await host.add(0)
        assert not read.done()
        await read
        assert await host.storage.read(LEDGER, EntryId(5)) is Absence.NO_ENTRY
        assert await host.storage.read(LEDGER, EntryId(6)) is Absence.NO_ENTRY

    on_storage(check)


def test_a_ledger_that_was_added_to_since_outlives_a_deletion_decided_before() -> None:
    async def check(host: StorageHost) -> None:
        await host.add(0)
        await host.add(0, ledger_id=OTHER)
        decided = host.storage.touches
        await host.add(1)
        await host.forget(LEDGER, OTHER, touched_max=decided)
        await host.check(0, 1)
        assert not host.storage.is_here(OTHER)
        await host.forget(LEDGER)
        assert not host.storage.is_here(LEDGER)

    on_storage(check)


# --- What is kept of ledgers in memory


def rewrite_before_the_last(host: StorageHost) -> None:
    for entry_id in range(10):
        host.accept(entry_id, lac=min(entry_id - 1, 5))
    host.accept(8, lac=9, recovery=True)


def explicit_lacs_out_of_order(host: StorageHost) -> None:
    host.accept(0)
    codec = EntryCodec(LEDGER, Crc32cDigest())
    for lac in (9, 5):
        host.storage.write_lac(LEDGER, codec.encode_lac(EntryId(lac)), KEY)


def last_entry_written_anew(host: StorageHost) -> None:
    host.accept(9, lac=9)
    host.accept(9, lac=5, recovery=True)


@pytest.mark.parametrize("deed", [rewrite_before_the_last, explicit_lacs_out_of_order, last_entry_written_anew])
def test_the_lac_does_not_fall_when_its_ledger_leaves_memory(deed: Callable[[StorageHost], None]) -> None:
    """What is looked up anew is the last entry's LAC and the explicit one; the highest may have come otherwise."""

    async def check(host: StorageHost) -> None:
        deed(host)
        assert await host.storage.lac(LEDGER) == 9
        await host.add(0, ledger_id=OTHER)
        await host.storage.checkpoint()
        assert await host.storage.lac(LEDGER) == 9

    on_storage(check, settings=replace(SETTINGS, ledgers_cached_max=1))


def test_a_ledger_that_left_memory_is_as_it_was() -> None:
    async def check(host: StorageHost) -> None:
        await host.add(*range(10), lac=5)
        host.storage.fence(OTHER, KEY)
        await host.storage.checkpoint()
        await host.add(0, ledger_id=3)
        await host.storage.checkpoint()
        assert [*host.storage.table.by_id] == [3]
        assert (await host.storage.lac(LEDGER), host.storage.last_entry_id(LEDGER)) == (5, 9)
        assert host.storage.is_fenced(OTHER)

    on_storage(check, settings=replace(SETTINGS, ledgers_cached_max=1))


@pytest.mark.parametrize("moment_s", MOMENTS)
@pytest.mark.parametrize(
    "is_new", [True, False], ids=["a ledger that only a recovery asked for", "a ledger with entries"]
)
def test_a_fence_is_not_forgotten_while_a_checkpoint_takes_it_to_the_index(is_new: bool, moment_s: float) -> None:
    """Garbage collection makes checkpoints, too: what its bookie does meanwhile to keep memory small must wait."""

    async def check(host: StorageHost) -> None:
        if not is_new:
            await host.add(0)
            await host.storage.checkpoint()
        for ledger_id in (LEDGER, OTHER):
            number = host.storage.fence(ledger_id, KEY)
            assert isinstance(number, int)
            await host.storage.journals.wait_durable(ledger_id, number)
        checkpoint = asyncio.create_task(host.storage.checkpoint())
        await asyncio.sleep(moment_s)
        host.storage.shrink()
        late = host.storage.add(LEDGER, EntryId(1), EntryId(0), body(1, lac=0), KEY, recovery=False)
        assert late is Refusal.FENCED
        await checkpoint
        assert host.storage.is_fenced(LEDGER)

    on_storage(check, settings=replace(SETTINGS, ledgers_cached_max=1), seeds=range(5))


def test_ledgers_that_are_only_read_do_not_stay_in_memory() -> None:
    async def check(host: StorageHost) -> None:
        for ledger_id in range(20):
            host.accept(0, ledger_id=ledger_id)
        await host.storage.checkpoint()
        for ledger_id in range(20):
            await host.check(0, ledger_id=ledger_id)
        host.storage.shrink()
        assert len(host.storage.table.by_id) == 3

    on_storage(check, settings=replace(SETTINGS, ledgers_cached_max=3))
