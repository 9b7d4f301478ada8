"""Ledger storage: what a bookie holds, from the moment it accepts an entry to the entry log it ends up in.

An entry goes into the write cache first and into the journal second; once the journal has it, it is acknowledged. From
time to time a checkpoint moves the cache, sorted by ledger and entry, into an entry log, enters the places into the
index, and then tells the journals how far they are not needed any more.

Invariants, of those in the ledger protocol:
  CacheBeforeJournal   so everything before the journals' marks is in the cache when a checkpoint samples them.
  MarkComesLast        a checkpoint is stored only after all before it is durable in log and index; marks only grow.
  StateIsData          keys, fences and explicit LACs are journaled and checkpointed like entries, with or without any.
  CertainAbsence       "no such entry" is said only if it was never accepted here. After damage the answer is "unknown".
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from enum import Enum, auto
from typing import Final, Self

from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_reader import EntryReader
from quire.bookie.index import DeleteLedger, Index, Operation, PutLocations
from quire.bookie.journal import Damage
from quire.bookie.journals import Journals
from quire.bookie.ledger_state import LacWaiter, Ledger
from quire.bookie.ledger_table import LedgerTable
from quire.bookie.read_cache import ReadCache
from quire.bookie.settings import StorageSettings
from quire.bookie.storage_start import bring_back, read_checkpoint
from quire.bookie.write_cache import WriteCache
from quire.codec.checkpoint import Checkpoint, JournalPlace, encode_checkpoint
from quire.codec.entry import STORABLE_BYTES_MIN, stored_ids, stored_lac
from quire.codec.entry_digest import WRONG, all_match, check_digest
from quire.codec.entry_log import Location
from quire.codec.journal import EXPLICIT_LAC, FENCE, LEDGER_KEY
from quire.codec.wire.availability import EntryAvailability
from quire.errors import Damaged, DamagedEntry, InvalidArgument, InvariantBroken, StoreClosed
from quire.protocol.fencing import Refusal
from quire.runtime import Runtime, replace_file
from quire.types import NO_ENTRY, EntryId, LedgerId

OpenIndex = Callable[[int | None], Index]  # Given the position it must have reached; None for a new bookie.

_LOCATIONS_PER_COMMIT: Final = 4096
_DIGEST_END_MAX: Final = 32 + 20  # Entries below it may end within their digest.
_LAC_PACKET_BYTES_MAX: Final = 64  # Ids and the longest digest take 36.


class Absence(Enum):
    """Why there is no entry to read."""

    NO_ENTRY = auto()
    NO_LEDGER = auto()
    UNKNOWN = auto()  # It may have been here: part of this bookie's data was damaged.


class LedgerStorage:
    """All ledgers of one bookie. Its methods decide; waiting for durability is the caller's part: `journals`."""

    def __init__(self, runtime: Runtime, folder: str, index: Index, settings: StorageSettings) -> None:
        self._disk, self._clock, self._settings = runtime.disk, runtime.clock, settings
        self.folder, self.index = folder, index
        self.logs = EntryLogs(
            runtime.disk, f"{folder}/entries", log_bytes_max=settings.log_bytes_max, direct=settings.direct_logs
        )
        self.read_cache = ReadCache(bytes_max=settings.read_cache_bytes_max)
        self.table = LedgerTable(index)
        self.write_cache = WriteCache()
        self.reader = EntryReader(runtime.clock, index, self.logs, self.table, self.write_cache, self.read_cache)
        self._touches = 0  # How many adds were accepted.
        self.damages: list[Damage] = []  # What this start found in the journals.
        self.checkpointing = asyncio.Lock()  # Held by whoever needs index and logs to agree meanwhile.
        self._failure: Exception | None = None
        self._journals: Journals | None = None

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        folder: str,
        open_index: OpenIndex,
        settings: StorageSettings,
        *,
        journal_folders: Sequence[str] = (),
        journal_runtime: Runtime | None = None,
        is_new: bool = True,
        on_durable: Callable[[int, int], None],
        on_written: Callable[[int, int], None] | None = None,
        on_failure: Callable[[Exception], None],
    ) -> Self:
        """Bring back what an earlier life acknowledged, make it durable anew, and begin new journals.

        Raises `DamagedJournal`, `DamagedIndex` when the disk is not the one that was left. Damage inside a journal
        does not keep the bookie from starting: its ledgers are in limbo then. The journals write through a runtime of
        their own, if there is one, so that their syncs never stand behind reads. Only what `is_new` may be empty.
        """
        disk = runtime.disk
        folders = tuple(journal_folders) or (f"{folder}/journal",)
        for journal_folder in folders:
            await disk.makedirs(journal_folder)
        checkpoint = await read_checkpoint(disk, folder, journals=len(folders), is_new=is_new)
        storage = cls(runtime, folder, open_index(checkpoint.index_position if checkpoint else None), settings)
        try:
            await storage.logs.open()
            ends, damages = await bring_back(disk, folders, checkpoint, storage.table, storage.write_cache)
            storage._enter_limbo(damages)
            storage._journals = await Journals.open(
                journal_runtime or runtime,
                folders,
                settings.journal,
                after=ends,
                on_durable=on_durable,
                on_written=on_written,
                on_failure=on_failure,
            )
            await storage.checkpoint()
        except BaseException:
            await storage.abandon()
            raise
        return storage

    @property
    def journals(self) -> Journals:
        if self._journals is None:
            raise InvariantBroken("the storage was not opened")
        return self._journals

    @property
    def has_room(self) -> bool:
        """False while more waits than should: let new entries wait, and a checkpoint catch up."""
        return self.write_cache.total_bytes < self._settings.cache_bytes_max and self.journals.has_room

    @property
    def is_overfull(self) -> bool:
        """True when so much waits that new entries have to be refused."""
        return self.write_cache.total_bytes >= 2 * self._settings.cache_bytes_max

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the cache is so full that it should be moved into an entry log now."""
        return self.write_cache.active_bytes >= self._settings.cache_bytes_max // 2

    @property
    def is_dirty(self) -> bool:
        """Whether anything is in the journals only."""
        return bool(self.write_cache) or self.table.has_changes

    @property
    def failure(self) -> Exception | None:
        """What ended all checkpoints, if anything did: the storage has to be opened anew."""
        return self._failure

    # --- Writing

    def add(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        lac: EntryId,
        body: bytes,
        master_key: bytes,
        *,
        recovery: bool,
        deferred: bool = False,
    ) -> int | Refusal:
        """Accept an entry and return the number whose durability acknowledges it, or say why not.

        Raises `InvalidArgument` for ids that no entry has, and `DamagedEntry` if the body is not what its digest says.
        """
        if entry_id < 0 or ledger_id < 0 or len(body) < STORABLE_BYTES_MIN:
            raise InvalidArgument(f"there can be no entry {entry_id} of a ledger {ledger_id} in {len(body)} bytes")
        ledger = self.table.by_id.get(ledger_id) or self.table.find(ledger_id)
        if ledger is None:
            created = self._create(ledger_id, master_key, revive=recovery)
            if isinstance(created, Refusal):
                return Refusal.FENCED  # It was, before it was deleted here.
            ledger = created
        refusal = ledger.gate.on_add(master_key, recovery=recovery)
        if refusal is not None:
            return refusal
        if self._settings.check_digests:
            digest = check_digest(body, ledger.digest)
            if digest == WRONG:
                raise DamagedEntry(
                    f"entry {ledger_id}:{entry_id} came with a digest that does not match",
                    ledger_id=ledger_id,
                    entry_id=entry_id,
                )
            ledger.digest = digest
        self.write_cache.put(ledger_id, entry_id, body)
        self._touches = ledger.touched = self._touches + 1
        if entry_id <= ledger.last:
            self.read_cache.forget_entry(ledger_id, entry_id)
        ledger.on_entry(entry_id, lac)
        return self.journals.of(ledger_id).append(ledger_id, entry_id, body, deferred=deferred)

    def add_run(
        self,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        lacs: Sequence[EntryId],
        bodies: Sequence[bytes],
        master_key: bytes,
    ) -> int | None:
        """Accept entries that a writer sends in order, as all of them do nearly always. Returns the number of the first
        record; the others follow.

        None, and nothing was done, if there is anything to look at more closely: then `add` decides on each.
        """
        ledger = self.table.by_id.get(ledger_id)
        if (
            ledger is None
            or ledger.gate.on_add(master_key, recovery=False) is not None
            or not ledger.is_continued_by(entry_ids)
            or len(min(bodies, key=len)) < _DIGEST_END_MAX
            or (self._settings.check_digests and not all_match(bodies, ledger.digest))
        ):
            return None
        self.write_cache.put_new(ledger_id, entry_ids, bodies)
        self._touches = ledger.touched = self._touches + len(bodies)
        ledger.on_entry(entry_ids[-1], lacs[-1])
        ledger.raise_lac(max(lacs))  # Of one that sends in order it is the last one's. Others may send as they like.
        return self.journals.of(ledger_id).append_run(ledger_id, entry_ids, bodies)

    def fence(self, ledger_id: LedgerId, master_key: bytes) -> int | Refusal:
        """Fence a ledger, creating it if need be, and return the number whose durability allows any answer at all."""
        ledger = self.table.find(ledger_id) or self._create(ledger_id, master_key)
        if isinstance(ledger, Refusal):
            return ledger
        was_fenced = ledger.gate.fenced
        if (refusal := ledger.gate.on_fence(master_key)) is not None:
            return refusal
        if not was_fenced:
            ledger.fence_number = self.journals.of(ledger_id).append(ledger_id, FENCE, b"")
            self.table.on_change(ledger_id)
            ledger.wake_all()
        return ledger.fence_number

    def write_lac(self, ledger_id: LedgerId, packet: bytes, master_key: bytes) -> int | Refusal:
        """Keep an explicit LAC, as the writer sent it, over the one before. Raises `DamagedEntry` if it is none."""
        named, lac = stored_lac(packet)
        if named != ledger_id or len(packet) > _LAC_PACKET_BYTES_MAX:
            raise InvalidArgument(f"{len(packet)} bytes for ledger {named} are no explicit LAC of ledger {ledger_id}")
        ledger = self.table.find(ledger_id) or self._create(ledger_id, master_key)
        if isinstance(ledger, Refusal):
            return ledger
        if (refusal := ledger.gate.on_explicit_lac(master_key)) is not None:
            return refusal
        if len(packet) < len(ledger.explicit_lac or b""):
            raise InvalidArgument(f"an explicit LAC of ledger {ledger_id} lost part of its digest")
        ledger.explicit_lac = packet
        self.table.on_change(ledger_id)
        ledger.raise_lac(lac)
        return self.journals.of(ledger_id).append(ledger_id, EXPLICIT_LAC, packet)

    def _create(self, ledger_id: LedgerId, master_key: bytes, *, revive: bool = False) -> Ledger | Refusal:
        ledger = self.table.create(ledger_id, master_key, revive=revive)
        if isinstance(ledger, Ledger):
            journal = self.journals.of(ledger_id)
            journal.append(ledger_id, LEDGER_KEY, ledger.gate.master_key)
            if ledger.gate.fenced:  # Brought back by a recovery: as fenced as it was.
                ledger.fence_number = journal.append(ledger_id, FENCE, b"")
        return ledger

    # --- Reading

    def cached(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """The entry if it is in memory."""
        return self.reader.cached(ledger_id, entry_id)

    async def read(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | Absence:
        """The entry. Raises `DamagedEntry`, or the disk's error: neither means that there is no such entry."""
        body = self.reader.cached(ledger_id, entry_id)
        if body is None and entry_id >= 0 and self.table.find(ledger_id) is not None:
            body = await self.reader.read(ledger_id, entry_id)
        return self.absence(ledger_id) if body is None else body

    def absence(self, ledger_id: LedgerId) -> Absence:
        """What to say of an entry that is not here."""
        ledger = self.table.find(ledger_id)
        if ledger is None:
            return Absence.UNKNOWN if self.table.is_damaged else Absence.NO_LEDGER
        return Absence.UNKNOWN if ledger.gate.limbo else Absence.NO_ENTRY

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId | Absence:
        """The highest entry id that is here."""
        absence = self.absence(ledger_id)
        if absence is not Absence.NO_ENTRY:
            return absence
        last = self.table.by_id[ledger_id].last
        return absence if last == NO_ENTRY else last

    def known_lac(self, ledger_id: LedgerId) -> EntryId | None:
        """The highest LAC that the ledger's entries and explicit LACs carried; None if it has to be looked up."""
        ledger = self.table.by_id.get(ledger_id)
        return ledger.lac if ledger is not None and ledger.is_lac_known else None

    async def lac(self, ledger_id: LedgerId) -> EntryId | Absence:
        """The same, looked up in the last entry if need be."""
        ledger = self.table.find(ledger_id)
        if ledger is None:
            return self.absence(ledger_id)
        if not ledger.is_lac_known:
            body = await self.read(ledger_id, ledger.last)
            if isinstance(body, bytes):
                last_id, last_lac = stored_ids(body)[1:]
                if last_id == ledger.last:
                    ledger.last_lac = last_lac
                ledger.raise_lac(last_lac)
            ledger.is_lac_known = True
        return ledger.lac

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        ledger = self.table.find(ledger_id)
        return ledger is not None and ledger.gate.fenced

    def explicit_lac(self, ledger_id: LedgerId) -> bytes | None:
        ledger = self.table.find(ledger_id)
        return None if ledger is None else ledger.explicit_lac

    def wait_for_lac(self, ledger_id: LedgerId, waiter: LacWaiter) -> bool:
        """Have `waiter` woken when the LAC passes its own, or the ledger is fenced or deleted. False if unknown."""
        ledger = self.table.find(ledger_id)
        if ledger is None:
            return False
        ledger.waiters.append(waiter)
        return True

    def stop_waiting(self, ledger_id: LedgerId, waiter: LacWaiter) -> None:
        ledger = self.table.by_id.get(ledger_id)
        if ledger is not None and waiter in ledger.waiters:
            ledger.waiters.remove(waiter)

    def is_empty(self, ledger_id: LedgerId) -> bool:
        """Whether a ledger has neither an entry nor an explicit LAC here."""
        ledger = self.table.find(ledger_id)
        return ledger is None or (ledger.last == NO_ENTRY and ledger.explicit_lac is None)

    async def availability(self, ledger_id: LedgerId) -> EntryAvailability | Absence:
        """Which entries of a ledger are here. What is added or deleted meanwhile may or may not be counted."""
        absence = self.absence(ledger_id)
        if absence is not Absence.NO_ENTRY:
            return absence
        return await self.reader.availability(ledger_id)

    # --- Deleting

    async def ledger_ids(self) -> list[LedgerId]:
        """Every ledger that is here, ascending."""
        return self.table.ids(await self.reader.ask_index(self.index.ledgers))

    def is_here(self, ledger_id: LedgerId) -> bool:
        return self.table.find(ledger_id) is not None

    @property
    def touches(self) -> int:
        """A moment, for `delete`: how many adds were accepted so far."""
        return self._touches

    async def delete(
        self, ledger_ids: Iterable[LedgerId], *, tombstones_until_ms: int, touched_max: int | None = None
    ) -> None:
        """Forget ledgers and all their entries, but not those that were added to after the moment `touched_max`.

        Those that were fenced stay refused to late writers for a while.
        """
        touched_max = self._touches if touched_max is None else touched_max
        work = self._delete(list(ledger_ids), tombstones_until_ms, touched_max)
        task = asyncio.create_task(work, name="delete ledgers")
        task.add_done_callback(_look_at_error)
        await asyncio.shield(task)  # A thread goes on with what it began, so the lock has to stay until it is done.

    async def _delete(self, ledger_ids: list[LedgerId], tombstones_until_ms: int, touched_max: int) -> None:
        async with self.checkpointing:  # So nothing of theirs is on its way into the index.
            self._check_failure()
            operations = self.table.begin_drop(
                ledger_ids, tombstones_until_ms=tombstones_until_ms, touched_max=touched_max
            )
            self.reader.generation += 1
            try:
                for operation in operations:
                    if isinstance(operation, DeleteLedger):
                        self.write_cache.forget(operation.ledger_id)
                        self.read_cache.forget(operation.ledger_id)
                if operations:
                    await asyncio.to_thread(self.index.commit, *operations)
            finally:
                self.table.end_drop()
                self.reader.generation += 1

    # --- Checkpoints

    async def checkpoint(self) -> None:
        """Move the cache into entry logs and the index, then free the journals up to here.

        Once begun it goes on to its end, also if the caller is cancelled. After the first error no other checkpoint is
        made: part of the cache would be neither here nor there. Give the storage up then, and open it again.
        """
        task = asyncio.create_task(self._checkpoint_in_turn(), name=f"checkpoint {self.folder}")
        task.add_done_callback(_look_at_error)
        await asyncio.shield(task)

    async def _checkpoint_in_turn(self) -> None:
        async with self.checkpointing:
            self._check_failure()
            began = self._clock.monotonic()
            try:
                await self._checkpoint()
                self.reader.observe("checkpoint", self._clock.monotonic() - began)
            except BaseException as error:  # Also when the whole event loop is being ended.
                self._failure = error if isinstance(error, Exception) else OSError("a checkpoint was cut short")
                raise

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _checkpoint(self) -> None:
        marks = self.journals.marks  # Before the cache is taken: whatever is before the marks is in it.
        entries = self.write_cache.begin_flush()
        states = self.table.take_changes()
        locations = await self.logs.append(entries) if entries else []
        await self.logs.sync()
        places = [(entry[0], entry[1], location) for entry, location in zip(entries, locations, strict=True)]
        position = await asyncio.to_thread(self._commit, states, places)
        self.write_cache.end_flush()
        self.table.end_commit()
        self.reader.generation += 1
        checkpoint = Checkpoint(position, tuple(JournalPlace(mark.file_id, mark.offset, mark.number) for mark in marks))
        await replace_file(self._disk, f"{self.folder}/checkpoint", encode_checkpoint(checkpoint))
        await self.journals.free_before(marks)
        self.shrink()

    def shrink(self) -> None:
        """Keep the state of ledgers in memory within its bound. Also while a checkpoint is under way."""
        self.table.shrink(self._settings.ledgers_cached_max, busy=self.write_cache.ledgers)

    def _commit(self, states: list[Operation], places: list[tuple[LedgerId, EntryId, Location]]) -> int:
        """Enter all into the index, durably. On a thread. In parts, the last of them synced: a crash in between only
        leaves places of entries that the journals have too.
        """
        operations: list[Operation] = [*states]
        for start in range(0, len(places), _LOCATIONS_PER_COMMIT):
            operations.append(PutLocations(places[start : start + _LOCATIONS_PER_COMMIT]))
            if start + _LOCATIONS_PER_COMMIT < len(places):
                self.index.commit(*operations, sync=False)
                operations = []
        return self.index.commit(*operations, sync=True) if operations else self.index.sync()

    # --- Coming back, and going

    def _enter_limbo(self, damages: list[list[Damage]]) -> None:
        """Of a damaged journal's ledgers none may be called complete."""
        self.damages = [damage for each in damages for damage in each]
        if self.damages:
            here = self.table.ids(self.index.ledgers())
            self.table.enter_limbo([each for each in here if damages[each % len(damages)]])

    async def abandon(self) -> None:
        """Let go of everything after a failure, writing nothing more: the next start recovers what was acknowledged."""
        self._failure = self._failure or OSError("the storage was given up")
        await self._close(expected=(OSError, Damaged))

    async def aclose(self) -> None:
        """Make everything durable and close. What was acknowledged is safe also without it."""
        try:
            await self.checkpoint()
        finally:
            self._failure = self._failure or StoreClosed("the storage is closed")
            await self._close(expected=())

    async def _close(self, *, expected: tuple[type[Exception], ...]) -> None:
        """Close every part, whatever the others do. What is `expected` has happened before, and was reported then."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_closed, lambda: asyncio.to_thread(self.index.close), expected)
            stack.push_async_callback(_closed, self.reader.aclose, expected)
            stack.push_async_callback(_closed, self.logs.aclose, expected)
            stack.push_async_callback(_closed, self._settled, expected)
            if self._journals is not None:
                stack.push_async_callback(_closed, self._journals.aclose, expected)

    async def _settled(self) -> None:
        """Return when no checkpoint and no deletion is under way. None begins after a failure."""
        async with self.checkpointing:
            pass


async def _closed(close: Callable[[], Awaitable[None]], expected: tuple[type[Exception], ...]) -> None:
    try:
        await close()
    except expected:
        pass


def _look_at_error(task: asyncio.Task[None]) -> None:
    """Whoever waits gets the error, and so does the next checkpoint; asyncio need not warn of it."""
    if not task.cancelled():
        task.exception()
