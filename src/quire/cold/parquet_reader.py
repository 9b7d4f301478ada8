"""Reading a segment's file: the footer first, then one row group at a time, from whatever entry is wanted.

Only what is needed is fetched: two requests find an entry in a file of any size. Nothing is believed that was not
checked: the footer against what the metadata says of it, each row group against the footer.
"""

import hashlib
import io
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from quire.codec.cold import ColdFile
from quire.cold.blocking import CALL_TIMEOUT_S, Run, time_for, within
from quire.cold.parquet_rows import (
    COLUMNS,
    FORMAT_VERSION,
    KEY_FORMAT,
    KEY_GROUPS,
    KEY_LSSN,
    Rows,
    arrow,
    checksum,
    parquet,
)
from quire.cold.store import ColdStore
from quire.errors import DamagedColdFile, NoSuchColdObject
from quire.types import Lssn

T = TypeVar("T")

Read = Callable[[int, int], Awaitable[bytes]]

_ENTRY, _TXID = COLUMNS.index("entry"), COLUMNS.index("txid")
_MAGIC: Final = b"PAR1"


class Group(NamedTuple):
    """A row group, as the footer tells of it."""

    number: int
    first_row: int
    rows: int
    first_entry: int
    last_entry: int
    first_txid: int
    last_txid: int
    start: int  # Where it is in the file.
    end: int
    checksum: str


class StoredSegmentFile:
    """A file whose footer was read and checked. Made by `open_stored`."""

    def __init__(self, file: ColdFile, lssn: Lssn, read: Read, run: Run, footer: Any) -> None:
        self.file, self._lssn, self._read, self._run, self._footer = file, lssn, read, run, footer
        self.groups = self._groups()

    def groups_from(self, entry_id: int) -> list[Group]:
        """Those that have this entry, or later ones."""
        return [group for group in self.groups if group.last_entry >= entry_id]

    async def read(self, group: Group) -> Rows:
        """Raises `DamagedColdFile`, `ColdUnavailable`."""
        data = await self._read(group.start, group.end)
        return await self._in_time(lambda: self._decoded(group, data))

    async def read_table(self, group: Group) -> Any:
        """The same as a table of Arrow, for whoever needs no objects of Python's."""
        data = await self._read(group.start, group.end)
        return await self._in_time(lambda: self._table(group, data))

    async def _in_time(self, work: Callable[[], T]) -> T:
        return await in_time(self._run, work, self.file)

    # --- In a thread

    def _decoded(self, group: Group, data: bytes) -> Rows:
        table = self._table(group, data)
        columns = [table.column(name).to_pylist() for name in COLUMNS[1:]]
        return Rows(*columns)

    def _table(self, group: Group, data: bytes) -> Any:
        pa = arrow()
        part = _Part(self.file.size_bytes, group.start, data)
        try:
            file = parquet().ParquetFile(part, metadata=self._footer, page_checksum_verification=True)
            table = file.read_row_group(group.number, columns=list(COLUMNS), use_threads=False)
            found = checksum(table)
        except (pa.ArrowException, OSError) as error:  # pyarrow raises OSError for bytes that it cannot make sense of.
            raise self._damaged(f"row group {group.number} cannot be read: {error}") from error
        if found != group.checksum or table.num_rows != group.rows:
            raise self._damaged(f"the values of row group {group.number} are not those that were archived")
        return table

    def _groups(self) -> tuple[Group, ...]:
        facts = self._footer.metadata or {}
        version = facts.get(KEY_FORMAT)
        if version != b"%d" % FORMAT_VERSION:
            raise self._damaged(f"its format is {version!r}, which is not known")
        if facts.get(KEY_LSSN) != b"%d" % self._lssn:
            raise self._damaged(f"it holds segment {facts.get(KEY_LSSN)!r}")
        checksums = facts.get(KEY_GROUPS, b"").decode().split()
        if self._footer.num_row_groups != len(checksums) or self._footer.num_rows != self.file.rows:
            raise self._damaged(f"it has {self._footer.num_rows} rows, not {self.file.rows}")
        groups: list[Group] = []
        for index, digest in enumerate(checksums):
            first_row = groups[-1].first_row + groups[-1].rows if groups else 0
            groups.append(self._group(index, first_row, digest))
        return tuple(groups)

    def _group(self, index: int, first_row: int, digest: str) -> Group:
        found = self._footer.row_group(index)
        chunks = [found.column(column) for column in range(found.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        end = max(start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True))
        entry, txid = chunks[_ENTRY].statistics, chunks[_TXID].statistics
        if entry is None or txid is None or not (entry.has_min_max and txid.has_min_max):
            raise self._damaged(f"row group {index} has no statistics")
        return Group(
            index, first_row, found.num_rows, entry.min, entry.max, txid.min, txid.max, min(starts), end, digest
        )

    def _damaged(self, problem: str) -> DamagedColdFile:
        return damaged_file(self.file, self._lssn, problem)


async def open_segment_file(file: ColdFile, lssn: Lssn, read: Read, run: Run) -> StoredSegmentFile:
    """Raises `MissingExtra`, `DamagedColdFile`, `ColdUnavailable`."""
    parquet()
    footer = await read(file.size_bytes - file.footer_bytes, file.size_bytes)

    def parsed() -> Any:
        if len(footer) != file.footer_bytes or hashlib.sha256(footer).hexdigest() != file.footer_sha256:
            raise damaged_file(file, lssn, "its footer is not that of the file that was archived")
        try:
            # A file of the footer alone: nothing else is looked at, whatever its offsets say.
            return parquet().read_metadata(io.BytesIO(_MAGIC + footer))
        except (arrow().ArrowException, OSError) as error:
            raise damaged_file(file, lssn, f"its footer cannot be read: {error}") from error

    return StoredSegmentFile(file, lssn, read, run, await in_time(run, parsed, file))


async def in_time(run: Run, work: Callable[[], T], file: ColdFile) -> T:
    """Work on what was read of a file. It needs nobody; but a machine that has too much to do is as good as one that
    hangs. Raises `ColdUnavailable`.
    """
    return await within(time_for(CALL_TIMEOUT_S, file.size_bytes), run(work), f"decoding {file.name!r}")


async def open_stored(store: ColdStore, file: ColdFile, lssn: Lssn, run: Run) -> StoredSegmentFile:
    """A segment's file in cold storage. Raises what `open_segment_file` raises."""

    async def read(start: int, end: int) -> bytes:
        try:
            return await store.read(file.name, start, end)
        except NoSuchColdObject as error:
            missing = damaged_file(file, lssn, "it is missing")
            missing.facts["is_missing"] = True  # It may have been deleted on purpose, a moment ago.
            raise missing from error

    return await open_segment_file(file, lssn, read, run)


def damaged_file(file: ColdFile, lssn: Lssn, problem: str) -> DamagedColdFile:
    return DamagedColdFile(
        f"segment {lssn} cannot be read from {file.name!r} in {file.root}: {problem}",
        lssn=lssn,
        file=file.name,
        root=file.root,
    )


class _Part(io.RawIOBase):
    """A file of which only one part is there. The rest reads as zeros, which no checksum fits."""

    def __init__(self, size: int, start: int, data: bytes) -> None:
        self._size, self._start, self._data, self._at = size, start, data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        begin, self._at = self._at, max(self._at, end)
        if begin >= self._start and end <= self._start + len(self._data):
            return self._data[begin - self._start : end - self._start]
        return bytes(max(0, end - begin))
