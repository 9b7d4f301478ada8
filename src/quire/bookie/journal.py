"""The journal: what a bookie acknowledges is here first, and durable.

Records are queued without waiting; one task writes them in groups, each with one flush of the disk, and reports how far
the journal is durable. Nothing is retried: the first error of the disk ends the journal for good, since what a failed
flush had before it may be lost although a second one succeeds. The bookie then stops, and recovers from what is there.

    journal = await Journal.open(runtime, folder, settings, after=replay.end, on_durable=..., on_failure=...)
    number = journal.append(ledger_id, entry_id, body)      # durable once `on_durable` is told this number, or more

A mark is a place in the journal: everything before it is in the ledger storage too. Replaying from a mark gives back
every record that was acknowledged after it, in order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, Self

from quire.codec.journal import (
    RECORD_HEADER,
    SECTOR,
    FileHeader,
    Group,
    JournalNumber,
    Record,
    Verdict,
    decode_file_header,
    encode_file_header,
    encode_group,
    ends_group,
    find_group,
    group_size,
    read_group,
)
from quire.errors import DamagedJournal, InvalidArgument, InvariantBroken, WrongDisk, invariant
from quire.protocol.group_commit import GroupCommit
from quire.runtime import Disk, File, Runtime
from quire.values import dataclass

_SUFFIX: Final = ".journal"
_ONLY: Final = JournalNumber()


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How the journal uses its disk."""

    file_bytes_max: int = 64 << 20
    """When to begin a new file. Old ones are deleted whole, so smaller files free space sooner; a replay reads one
    file at a time into memory."""

    preallocate_bytes: int = 16 << 20
    """How much is reserved ahead, so that a flush writes data and not the file system's own records of it."""

    group_bytes_max: int = 4 << 20
    """The most that one flush writes: bounds the wait of whoever comes last, and the memory of a group."""

    queue_bytes_max: int = 64 << 20
    """What may wait to be written. Beyond it the bookie must refuse: the disk does not keep up."""

    def __post_init__(self) -> None:
        if not SECTOR <= self.group_bytes_max <= self.queue_bytes_max or self.preallocate_bytes < 0:
            raise InvalidArgument(
                "journal settings do not fit together", hint="group ≤ queue, both at least 512 bytes."
            )


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """How long a group of records took: `write_s` in all, `sync_s` of it for the flush of the disk."""

    records: int
    group_bytes: int
    write_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, order=True)
class JournalMark:
    """A place in the journal, between two groups."""

    file_id: int
    offset: int
    number: int  # Of the last group before it.


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where acknowledged records may have been lost."""

    file_id: int
    offset: int
    reason: str


class Journal:
    """The journal that is being written. Replay the old one first: `open` never appends to an existing file."""

    def __init__(
        self,
        runtime: Runtime,
        folder: str,
        settings: JournalSettings,
        number: JournalNumber,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._number = number
        self._disk, self._rng, self._folder, self._settings = runtime.disk, runtime.rng, folder, settings
        self._on_durable, self._on_failure = on_durable, on_failure
        self._clock = runtime.clock
        self.last_write_s = 0.0  # What the newest group took.
        self.on_group: Callable[[GroupWritten], None] | None = None  # For whoever measures.
        self.on_written: Callable[[int], None] | None = None  # Told of groups with records that wait for no flush.
        self._last_deferred = 0  # The number of the newest such record.
        self._commit = GroupCommit(group_bytes_max=settings.group_bytes_max)
        self._queue: deque[Sequence[bytes | memoryview]] = deque()  # Each: header and body of one or more records.
        self._wake = asyncio.Event()
        self._closing = False
        self._failure: Exception | None = None
        self._file: File | None = None
        self._task: asyncio.Task[None] | None = None
        self._file_id = self._salt = self._group_number = 0
        self._position = self._allocated = 0

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        folder: str,
        settings: JournalSettings,
        *,
        after: JournalMark,
        number: JournalNumber = _ONLY,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> Self:
        """Begin a new file behind everything in `folder`. `after` is where the replay of the old ones ended."""
        journal = cls(runtime, folder, settings, number, on_durable, on_failure)
        journal._file_id = max([after.file_id, *await journal_files(runtime.disk, folder)])
        journal._group_number = after.number
        await journal._begin_file()
        journal._task = asyncio.create_task(journal._write(), name=f"journal {folder}")
        return journal

    # --- Appending

    def append(self, ledger_id: int, entry_id: int, body: bytes | memoryview, *, deferred: bool = False) -> int:
        """Queue a record and return its number. The body belongs to the journal until that number is durable.

        For a `deferred` one `on_written` is told when it is in the file, so that it survives the process, before the
        flush that makes it survive the machine.
        """
        if self._failure is not None:
            raise self._failure
        invariant(not self._closing, "the journal is closed")
        size = RECORD_HEADER.size + len(body)
        self._queue.append((RECORD_HEADER.pack(len(body), ledger_id, entry_id), body))
        number = self._commit.on_write(size)
        if deferred:
            self._last_deferred = number
        self._wake.set()
        return number

    def append_run(self, ledger_id: int, entry_ids: Sequence[int], bodies: Sequence[bytes]) -> int:
        """The same for several entries of one ledger. Returns the number of the first; the others follow."""
        if self._failure is not None:
            raise self._failure
        invariant(not self._closing, "the journal is closed")
        pack = RECORD_HEADER.pack
        parts: list[bytes] = []
        for entry_id, body in zip(entry_ids, bodies, strict=True):
            parts += (pack(len(body), ledger_id, entry_id), body)
        self._queue.append(parts)
        last = self._commit.on_write(sum(map(len, parts)), len(bodies))
        self._wake.set()
        return last - len(bodies) + 1

    @property
    def last(self) -> int:
        """The number of the newest record: once this is durable, everything queued before now is."""
        return self._commit.last

    @property
    def durable(self) -> int:
        """The number of the last durable record."""
        return self._commit.durable

    @property
    def queued(self) -> int:
        """How many records no group has taken yet."""
        return self._commit.last - self._commit.flushing

    @property
    def has_room(self) -> bool:
        """False while so much waits that new records should be refused."""
        return self._commit.queued_bytes < self._settings.queue_bytes_max

    @property
    def mark(self) -> JournalMark:
        """The place behind the last durable group: a checkpoint that begins now may cover all before it."""
        return JournalMark(self._file_id, self._position, self._group_number)

    # --- The writing task

    async def _write(self) -> None:
        try:
            while True:
                calls = self._commit.next_group()
                if calls is None:
                    if self._closing:
                        return
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await self._write_group(calls)
                self._on_durable(self._commit.on_flushed())
        except Exception as error:  # Also a bug of ours: a journal that stands still would leave everybody waiting.
            self._commit.on_failed()
            self._failure = error
            self._queue.clear()
            self._on_failure(error)

    async def _write_group(self, calls: int) -> None:
        began = self._clock.monotonic()
        count = self._commit.flushing - self._commit.durable
        parts = [part for _ in range(calls) for part in self._queue.popleft()]
        size = group_size(sum(map(len, parts)))
        if self._position > SECTOR and self._position + size > self._settings.file_bytes_max:
            await self._begin_file()
        if self._position + size > self._allocated:
            ahead = max(self._settings.preallocate_bytes, size)
            await self._open_file.preallocate(self._position, ahead)
            self._allocated = self._position + ahead
        group = encode_group(self._salt, self._position, self._group_number + 1, parts)
        deferred = self._last_deferred > self._commit.durable and self.on_written is not None
        sync_s = await self._open_file.pwritev(group, self._position, sync=not deferred)
        if deferred and self.on_written is not None:
            self.on_written(self._commit.flushing)
            await self._open_file.fdatasync()
        self._position += size
        self._group_number += 1
        self.last_write_s = self._clock.monotonic() - began
        if self.on_group is not None:
            self.on_group(GroupWritten(count, size, self.last_write_s, sync_s))

    @property
    def _open_file(self) -> File:
        if self._file is None:
            raise InvariantBroken("the journal has no file")
        return self._file

    async def _begin_file(self) -> None:
        """The new file's name and header are durable before any group in it can be acknowledged."""
        file_id, salt = self._file_id + 1, self._rng.randrange(1 << 64)
        file = await self._disk.create(_path(self._folder, file_id))
        await file.pwritev([encode_file_header(FileHeader(file_id, salt, self._number))], 0, sync=True)
        await self._disk.sync_directory(self._folder)
        before, self._file = self._file, file
        # All at once: a checkpoint may ask for the mark at any moment, and must not get half of each file.
        self._file_id, self._salt, self._position, self._allocated = file_id, salt, SECTOR, SECTOR
        if before is not None:
            await before.aclose()

    # --- Letting go

    async def free_before(self, mark: JournalMark) -> int:
        """Delete the files that a checkpoint at `mark` has made useless. Returns how many."""
        useless = [file_id for file_id in await journal_files(self._disk, self._folder) if file_id < mark.file_id]
        for file_id in useless:
            await self._disk.unlink(_path(self._folder, file_id))
        if useless:
            await self._disk.sync_directory(self._folder)
        return len(useless)

    async def aclose(self) -> None:
        """Write what is queued, then close. A journal that failed only closes its file."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._file is not None:
            await self._file.aclose()
        if self._task is not None:
            self._task.result()  # Raises if the task met a bug; what the disk did is in `on_failure`.


# --- Replaying


class Replay:
    """Reads a journal back, from a mark on. Afterwards `end` is where a new journal continues."""

    def __init__(self, disk: Disk, folder: str, *, start: JournalMark, number: JournalNumber = _ONLY) -> None:
        self._disk, self._folder, self._number = disk, folder, number
        self._start = start
        self.end = start
        self.damages: list[Damage] = []
        self.torn_groups = 0

    async def records(self) -> AsyncIterator[Record]:
        """Every record behind the mark that was written whole. Damage is noted in `damages`, and what can be read
        beyond it is given too. Raises `DamagedJournal` if the marked file is gone, since nothing could be vouched for
        then, and `WrongDisk` if this is another one of the bookie's journals.
        """
        files = [file_id for file_id in await journal_files(self._disk, self._folder) if file_id >= self._start.file_id]
        if self._start.file_id and self._start.file_id not in files:
            raise DamagedJournal(
                f"the journal file of the last checkpoint is missing from {self._folder!r}",
                hint="Start the bookie with the journal directory it had. Without it, acknowledged entries are lost.",
                file_id=self._start.file_id,
            )
        for file_id in files:
            async for record in self._file_records(file_id):
                yield record

    async def _file_records(self, file_id: int) -> AsyncIterator[Record]:
        async with await self._disk.open(_path(self._folder, file_id)) as file:
            data = await file.pread(await file.size(), 0)
        is_marked = file_id == self._start.file_id
        if not is_marked and not data[SECTOR:].strip(b"\0"):
            return  # No group was ever written here; perhaps the machine stopped while the file was being created.
        try:
            named, salt, number = decode_file_header(data)
            if named != file_id:
                raise DamagedJournal("a journal file has the header of another one")
        except DamagedJournal as error:
            self._note(file_id, 0, str(error))  # Without the salt nothing in this file can be told from garbage.
            return
        if number != self._number:
            raise WrongDisk(
                f"{self._folder!r} holds journal {number.place + 1} of {number.journals}, "
                f"not {self._number.place + 1} of {self._number.journals}",
                hint="The journal directories, or their disks, were exchanged. Start the bookie with those it had.",
            )
        if is_marked and self._start.offset > SECTOR and not ends_group(data, self._start.offset, self._start.number):
            self._note(file_id, self._start.offset, "the group before the last checkpoint's mark is gone")
        offset: int | None = self._start.offset if is_marked else SECTOR
        while offset is not None:
            verdict, group = read_group(data, salt, offset)
            if group is not None:
                for record in self._take(file_id, group):
                    yield record
                offset = group.end
            elif verdict is Verdict.DAMAGED:
                self._note(file_id, offset, "a group that was written whole cannot be read")
                offset = find_group(data, salt, offset + SECTOR)
            else:
                self.torn_groups += verdict is Verdict.TORN
                offset = None

    def _take(self, file_id: int, group: Group) -> Iterator[Record]:
        if group.number != self.end.number + 1:
            self._note(file_id, group.offset, f"expected group {self.end.number + 1} and found {group.number}")
        self.end = JournalMark(file_id, group.end, group.number)
        try:
            yield from group
        except DamagedJournal as error:
            self._note(file_id, group.offset, str(error))

    def _note(self, file_id: int, offset: int, reason: str) -> None:
        self.damages.append(Damage(file_id, offset, reason))


async def journal_files(disk: Disk, folder: str) -> list[int]:
    """The ids of the journal files in a folder, ascending."""
    found = []
    for name in await disk.listdir(folder):
        digits = name.removesuffix(_SUFFIX)
        if name.endswith(_SUFFIX) and len(digits) == 16 and all(digit in "0123456789abcdef" for digit in digits):
            found.append(int(digits, 16))
    return sorted(found)


def _path(folder: str, file_id: int) -> str:
    return f"{folder}/{file_id:016x}{_SUFFIX}"
