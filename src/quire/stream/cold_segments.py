"""One archived segment, open: its entries from a place on, and where a txid begins in it.

The file is opened by what the metadata says of it; errors name the stream, the segment and the file.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from quire.codec.cold import ColdSegment
from quire.codec.entry import Entry
from quire.errors import DamagedColdFile, QuireError
from quire.stream.context import StreamContext
from quire.telemetry.events import logger
from quire.types import DLSN, EntryId, Lssn, SlotId

if TYPE_CHECKING:
    from quire.cold.parquet_reader import Group, StoredSegmentFile
    from quire.cold.parquet_rows import Rows

_log = logger("stream")


class ColdReader:
    """A segment's file. Made by `open_cold`."""

    def __init__(self, stream: str, cold: ColdSegment, file: "StoredSegmentFile") -> None:
        self._stream, self.cold, self._file = stream, cold, file

    @property
    def lssn(self) -> Lssn:
        return self.cold.lssn

    @property
    def groups(self) -> "tuple[Group, ...]":
        return self._file.groups

    def groups_from(self, entry_id: EntryId) -> "list[Group]":
        """The parts of the file that have this entry, or later ones."""
        return self._file.groups_from(entry_id)

    async def rows(self, group: "Group") -> "Rows":
        """Raises `DamagedColdFile`, `ColdUnavailable`."""
        try:
            return await self._file.read(group)
        except DamagedColdFile as error:
            raise _of_stream(self._stream, error) from error

    async def table(self, group: "Group") -> Any:
        """The same as a table of Arrow."""
        try:
            return await self._file.read_table(group)
        except DamagedColdFile as error:
            raise _of_stream(self._stream, error) from error

    async def entries(self, group: "Group", *, first: EntryId) -> list[Entry]:
        """Those of a part, from `first` on, bare of envelopes."""
        from quire.stream.cold_entries import entries_of

        return entries_of(await self.rows(group), group, first=first, ledger=self.cold.segment.ledger_id)

    async def places(self, begin: DLSN) -> AsyncGenerator[DLSN]:
        """The places of all records from `begin` on."""
        for group in self.groups_from(begin.entry_id):
            rows = await self.rows(group)
            for entry, slot in zip(rows.entries, rows.slots, strict=True):
                place = DLSN(self.lssn, EntryId(entry), SlotId(slot))
                if place >= begin:
                    yield place

    async def find_txid(self, txid: int) -> DLSN | None:
        """The first record whose txid is not below."""
        for group in self.groups:
            if group.last_txid >= txid:
                rows = await self.rows(group)
                place = bisect_left(rows.txids, txid)
                return DLSN(self.lssn, EntryId(rows.entries[place]), SlotId(rows.slots[place]))
        return None


async def open_cold(context: StreamContext, stream: str, cold: ColdSegment) -> ColdReader:
    """Raises `DamagedColdFile`, `ColdUnavailable`, `MissingExtra`, and `InvalidUri` if its root is none."""
    from quire.cold.parquet_reader import open_stored  # Most programs never meet a cold segment.

    try:
        file = await open_stored(context.cold.at(cold.file.root), cold.file, cold.lssn, context.cold.run)
    except DamagedColdFile as error:
        raise _of_stream(stream, error) from error
    return ColdReader(stream, cold, file)


async def discard_file(context: StreamContext, root: str, name: str) -> bool:
    """Delete a file that nobody needs any more. Returns whether it is certain that it is gone."""
    try:
        await context.cold.at(root).delete(name)
    except QuireError as error:
        report_left(root, name, str(error))
        return False
    return True


def report_left(root: str, name: str, error: str) -> None:
    _log.warning("stream.cold_file_left", root=root, file=name, error=error)


def _of_stream(stream: str, error: DamagedColdFile) -> DamagedColdFile:
    damaged = DamagedColdFile(f"stream {stream!r}: {error}")
    damaged.facts = {"stream": stream, **error.facts}
    return damaged
