"""Ledger storage: what a bookie holds, from the moment it accepts an entry to the entry log it ends up in.

An entry goes into the write cache first and into the journal second; once the journal has it, it is acknowledged. From
time to time a checkpoint moves the cache, sorted by ledger and entry, into an entry log, enters the places into the
index, and then tells the journal how far it is not needed any more.

Invariants, of those in the ledger protocol:
  CacheBeforeJournal   so everything before the journal's mark is in the cache when a checkpoint samples the mark.
  MarkComesLast        a checkpoint is stored only after all before it is durable in log and index; marks only grow.
  StateIsData          keys, fences and explicit LACs are journaled and checkpointed like entries, with or without any.
  CertainAbsence       "no such entry" is said only if it was never accepted here. After damage the answer is "unknown".
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Self

from quire.bookie.entry_log import EntryLogs
from quire.bookie.index import Index, LedgerRecord, Operation, PutLedger, PutLocations, PutMark
from quire.bookie.journal import Journal, JournalMark, JournalSettings, Replay
from quire.codec.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from quire.codec.entry_log import Entry, Location
from quire.codec.journal import EXPLICIT_LAC, FENCE, LEDGER_KEY, Record
from quire.errors import InvalidArgument, InvariantBroken
from quire.protocol.fencing import LedgerGate, Refusal
from quire.runtime import Runtime, read_file, replace_file
from quire.types import EntryId, LedgerId

OpenIndex = Callable[[int | None], Index]  # Given the position it must have reached; None for a new bookie.

_LOCATIONS_PER_COMMIT: Final = 4096
_DAMAGED: Final = "damaged"  # A mark in the index, set when part of the journal could not be read.


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """What may be tuned about a bookie's storage."""

    cache_bytes_max: int = 32 << 20
    """How much may wait in the write cache. At half of it a checkpoint begins; beyond it new entries are refused."""

    log_bytes_max: int = 1 << 30
    """Size of an entry log. Larger ones are fewer; smaller ones give their space back sooner."""

    journal: JournalSettings = JournalSettings()  # noqa: RUF009 - it is frozen


class Absence(Enum):
    """Why there is no entry to read."""

    NO_ENTRY = auto()
    NO_LEDGER = auto()
    UNKNOWN = auto()  # It may have been here: part of this bookie's data was damaged.


@dataclass(slots=True)
class _Ledger:
    gate: LedgerGate
    explicit_lac: bytes | None = None
    limbo: bool = False
    fence_number: int = 0  # Of the fence's record in the journal; 0 if it is in the index already.

    def record(self) -> LedgerRecord:
        return LedgerRecord(self.gate.master_key, self.gate.fenced, self.explicit_lac, self.limbo)


_Cache = dict[LedgerId, dict[EntryId, bytes]]


class LedgerStorage:
    """All ledgers of one bookie. Its methods decide; waiting for durability is the caller's part: `journal.durable`."""

    def __init__(self, runtime: Runtime, folder: str, index: Index, settings: StorageSettings) -> None:
        self._disk, self._folder, self._index, self._settings = runtime.disk, folder, index, settings
        self._logs = EntryLogs(runtime.disk, f"{folder}/entries", log_bytes_max=settings.log_bytes_max)
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self._changed: dict[LedgerId, None] = {}  # Ledgers whose record in the index is out of date.
        self._active: _Cache = {}
        self._flushing: _Cache = {}
        self._active_bytes = self._flushing_bytes = 0
        self._damaged = index.mark(_DAMAGED) is not None  # Ledgers may be missing without anybody knowing which.
        self._checkpointing = asyncio.Lock()
        self._failure: Exception | None = None
        self._journal: Journal | None = None

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        folder: str,
        open_index: OpenIndex,
        settings: StorageSettings,
        *,
        on_durable: Callable[[int], None],
        on_failure: Callable[[OSError], None],
    ) -> Self:
        """Bring back what an earlier life acknowledged, make it durable anew, and begin a new journal.

        Raises `DamagedJournal`, `DamagedIndex` when the disk is not the one that was left. Damage inside the journal
        does not keep the bookie from starting: its ledgers are in limbo then.
        """
        disk, checkpoint = runtime.disk, None
        await disk.makedirs(f"{folder}/journal")
        if await disk.exists(f"{folder}/checkpoint"):
            checkpoint = decode_checkpoint(await read_file(disk, f"{folder}/checkpoint"))
        storage = cls(runtime, folder, open_index(checkpoint.index_position if checkpoint else None), settings)
        await storage._logs.open()
        start = JournalMark(*checkpoint[:3]) if checkpoint else JournalMark(0, 0, 0)
        replay = Replay(disk, f"{folder}/journal", start=start)
        async for record in replay.records():
            storage._bring_back(record)
        if replay.damages:
            storage._enter_limbo()
        journal = await Journal.open(
            runtime,
            f"{folder}/journal",
            settings.journal,
            after=replay.end,
            on_durable=on_durable,
            on_failure=on_failure,
        )
        storage._journal = journal
        await storage.checkpoint()
        return storage

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise InvariantBroken("the storage was not opened")
        return self._journal

    @property
    def has_room(self) -> bool:
        """False while more waits than may: refuse new entries, and let a checkpoint catch up."""
        return self._active_bytes + self._flushing_bytes < self._settings.cache_bytes_max and self.journal.has_room

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the cache is so full that it should be moved into an entry log now."""
        return self._active_bytes >= self._settings.cache_bytes_max // 2

    # --- Writing

    def add(
        self, ledger_id: LedgerId, entry_id: EntryId, body: bytes, master_key: bytes, *, recovery: bool = False
    ) -> int | Refusal:
        """Accept an entry and return the number whose durability acknowledges it, or say why not."""
        if entry_id < 0:
            raise InvalidArgument(f"{entry_id} cannot be the id of an entry", ledger_id=ledger_id)
        ledger = self._find(ledger_id)
        if ledger is None:
            self._create(ledger_id, master_key)
        elif (refusal := ledger.gate.on_add(master_key, recovery=recovery)) is not None:
            return refusal
        self._keep(ledger_id, entry_id, body)
        return self.journal.append(ledger_id, entry_id, body)

    def fence(self, ledger_id: LedgerId, master_key: bytes) -> int | Refusal:
        """Fence a ledger, creating it if need be, and return the number whose durability allows any answer at all."""
        ledger = self._find(ledger_id) or self._create(ledger_id, master_key)
        was_fenced = ledger.gate.fenced
        if (refusal := ledger.gate.on_fence(master_key)) is not None:
            return refusal
        if not was_fenced:
            ledger.fence_number = self.journal.append(ledger_id, FENCE, b"")
            self._changed[ledger_id] = None
        return ledger.fence_number

    def write_lac(self, ledger_id: LedgerId, packet: bytes, master_key: bytes) -> int | Refusal:
        """Keep an explicit LAC, as the writer sent it, over the one before."""
        ledger = self._find(ledger_id) or self._create(ledger_id, master_key)
        if (refusal := ledger.gate.on_explicit_lac(master_key)) is not None:
            return refusal
        ledger.explicit_lac = packet
        self._changed[ledger_id] = None
        return self.journal.append(ledger_id, EXPLICIT_LAC, packet)

    def _find(self, ledger_id: LedgerId) -> _Ledger | None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None and (record := self._index.ledger(ledger_id)) is not None:
            gate = LedgerGate(record.master_key, fenced=record.fenced)
            ledger = self._ledgers[ledger_id] = _Ledger(gate, record.explicit_lac, record.limbo)
        return ledger

    def _create(self, ledger_id: LedgerId, master_key: bytes) -> _Ledger:
        ledger = self._ledgers[ledger_id] = _Ledger(LedgerGate(bytes(master_key)))
        self._changed[ledger_id] = None
        self.journal.append(ledger_id, LEDGER_KEY, bytes(master_key))
        return ledger

    def _keep(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        self._active.setdefault(ledger_id, {})[entry_id] = body
        self._active_bytes += len(body)

    # --- Reading

    async def read(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | Absence:
        """The entry. Raises `DamagedEntry`, or the disk's error: neither means that there is no such entry."""
        for cache in (self._active, self._flushing):
            body = cache.get(ledger_id, {}).get(entry_id)
            if body is not None:
                return body
        location = self._index.location(ledger_id, entry_id)
        if location is not None:
            return await self._logs.read(location, ledger_id, entry_id)
        return self._absence(ledger_id)

    def _absence(self, ledger_id: LedgerId) -> Absence:
        """What to say of an entry that is not here."""
        ledger = self._find(ledger_id)
        if ledger is None:
            return Absence.UNKNOWN if self._damaged else Absence.NO_LEDGER
        return Absence.UNKNOWN if ledger.limbo else Absence.NO_ENTRY

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId | Absence:
        """The highest entry id that is here."""
        absence = self._absence(ledger_id)
        if absence is not Absence.NO_ENTRY:
            return absence
        cached = [entry_id for cache in (self._active, self._flushing) for entry_id in cache.get(ledger_id, ())]
        indexed = self._index.last_entry(ledger_id)
        found = [*cached, *([] if indexed is None else [indexed])]
        return max(found) if found else absence

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        ledger = self._find(ledger_id)
        return ledger is not None and ledger.gate.fenced

    def explicit_lac(self, ledger_id: LedgerId) -> bytes | None:
        ledger = self._find(ledger_id)
        return None if ledger is None else ledger.explicit_lac

    # --- Checkpoints

    async def checkpoint(self) -> None:
        """Move the cache into entry logs and the index, then free the journal up to here.

        Once begun it goes on to its end, also if the caller is cancelled. After the first error no other checkpoint is
        made: part of the cache would be neither here nor there. Give the storage up then, and open it again.
        """
        task = asyncio.create_task(self._checkpoint_in_turn(), name=f"checkpoint {self._folder}")
        task.add_done_callback(_look_at_error)
        await asyncio.shield(task)

    async def _checkpoint_in_turn(self) -> None:
        async with self._checkpointing:
            if self._failure is not None:
                raise self._failure
            try:
                await self._checkpoint()
            except Exception as error:
                self._failure = error
                raise

    async def _checkpoint(self) -> None:
        mark = self.journal.mark  # Before the cache is taken: whatever is before the mark is in it.
        self._flushing, self._active = self._active, {}
        self._flushing_bytes, self._active_bytes = self._active_bytes, 0
        changed, self._changed = self._changed, {}
        entries: list[Entry] = [
            (ledger_id, entry_id, body)
            for ledger_id, cached in sorted(self._flushing.items())
            for entry_id, body in sorted(cached.items())
        ]
        states: list[Operation] = [PutLedger(each, self._ledgers[each].record()) for each in changed]
        if self._damaged:
            states.append(PutMark(_DAMAGED, b""))
        locations = await self._logs.append(entries) if entries else []
        await self._logs.sync()
        places = [(entry[0], entry[1], location) for entry, location in zip(entries, locations, strict=True)]
        position = await asyncio.to_thread(self._commit, states, places)
        self._flushing, self._flushing_bytes = {}, 0
        checkpoint = Checkpoint(mark.file_id, mark.offset, mark.number, position)
        await replace_file(self._disk, f"{self._folder}/checkpoint", encode_checkpoint(checkpoint))
        await self.journal.free_before(mark)

    def _commit(self, states: list[Operation], places: list[tuple[LedgerId, EntryId, Location]]) -> int:
        """Enter all into the index, durably. On a thread. In parts, the last of them synced: a crash in between only
        leaves places of entries that the journal has too.
        """
        operations: list[Operation] = [*states]
        for start in range(0, len(places), _LOCATIONS_PER_COMMIT):
            operations.append(PutLocations(places[start : start + _LOCATIONS_PER_COMMIT]))
            if start + _LOCATIONS_PER_COMMIT < len(places):
                self._index.commit(*operations, sync=False)
                operations = []
        return self._index.commit(*operations, sync=True) if operations else self._index.sync()

    # --- Coming back, and going

    def _bring_back(self, record: Record) -> None:
        """Take in a record of the journal, as it was taken in when it was new."""
        ledger_id, body = LedgerId(record.ledger_id), bytes(record.body)
        ledger = self._find(ledger_id)
        if record.entry_id == LEDGER_KEY:
            if ledger is None:
                self._ledgers[ledger_id] = _Ledger(LedgerGate(body))
                self._changed[ledger_id] = None
        elif ledger is None:
            return  # Its key was in a group that cannot be read, or the ledger was deleted since.
        elif record.entry_id >= 0:
            self._keep(ledger_id, EntryId(record.entry_id), body)
        elif record.entry_id == FENCE:
            ledger.gate.fenced = True
            self._changed[ledger_id] = None
        elif record.entry_id == EXPLICIT_LAC:
            ledger.explicit_lac = body
            self._changed[ledger_id] = None

    def _enter_limbo(self) -> None:
        """Acknowledged records may be lost, and nobody knows of which ledgers: none of them may be called complete."""
        self._damaged = True
        for ledger_id in sorted({*self._index.ledgers(), *self._ledgers}):
            ledger = self._find(ledger_id)
            if ledger is not None and not ledger.limbo:
                ledger.limbo = True
                self._changed[ledger_id] = None

    async def aclose(self) -> None:
        """Make everything durable and close. What was acknowledged is safe also without it."""
        try:
            await self.checkpoint()
        finally:
            await self.journal.aclose()
            await self._logs.aclose()
            await asyncio.to_thread(self._index.close)


def _look_at_error(task: asyncio.Task[None]) -> None:
    """Whoever waits gets the error, and so does the next checkpoint; asyncio need not warn of it."""
    if not task.cancelled():
        task.exception()
