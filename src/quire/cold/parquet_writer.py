"""A segment becomes a file in cold storage, with little more than a row group of it in memory at a time.

    writer = SegmentFile(lssn, stream="orders", run=stores.run)
    await writer.add(rows)                    # as often as there are more
    file = await writer.store(store, name, entries=812)

The file is made on this machine, in memory while it is small, then stored, and read back: what `store` returns was seen
there, byte for byte. Row groups end where entries end.
"""

import hashlib
import tempfile
from functools import partial
from typing import Any, BinaryIO, Final, cast

from quire.codec.cold import ColdFile
from quire.cold.blocking import Run
from quire.cold.parquet_reader import open_segment_file
from quire.cold.parquet_rows import (
    FORMAT_VERSION,
    KEY_ENTRIES,
    KEY_FORMAT,
    KEY_GROUPS,
    KEY_LSSN,
    KEY_ROWS,
    KEY_STREAM,
    Rows,
    arrow,
    checksum,
    parquet,
    schema,
)
from quire.cold.store import ColdStore
from quire.errors import DamagedColdFile, NoSuchColdObject
from quire.types import Lssn

GROUP_BYTES: Final = 8 << 20
GROUP_ROWS_MAX: Final = 1 << 16

_IN_MEMORY_BYTES_MAX: Final = 16 << 20
_BLOCK_BYTES: Final = 4 << 20
_TAIL_BYTES: Final = 8  # The length of the footer, and the magic number.


class SegmentFile:
    """A file that is being written. `close` it, whatever happens."""

    def __init__(self, lssn: Lssn, *, stream: str, run: Run, group_bytes: int = GROUP_BYTES) -> None:
        """Raises `MissingExtra`."""
        library = parquet()
        self._lssn, self._stream, self._run, self._group_bytes = lssn, stream, run, group_bytes
        self._spool = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES_MAX))  # noqa: SIM115
        self._writer: Any = library.ParquetWriter(
            self._spool,
            schema(),
            version="2.6",
            compression="zstd",
            use_dictionary=["segment", "entry", "slot"],
            write_statistics=["segment", "entry", "slot", "txid"],
            write_page_checksum=True,
            store_schema=False,
        )
        self._waiting = Rows([], [], [], [])
        self._waiting_bytes = 0
        self._groups: list[str] = []
        self.rows = 0

    async def add(self, rows: Rows) -> None:
        """Whole entries, in order."""
        waiting = self._waiting
        waiting.entries.extend(rows.entries)
        waiting.slots.extend(rows.slots)
        waiting.txids.extend(rows.txids)
        waiting.payloads.extend(rows.payloads)
        self.rows += len(rows.entries)
        self._waiting_bytes += sum(map(len, rows.payloads))
        if self._waiting_bytes >= self._group_bytes or len(waiting.entries) >= GROUP_ROWS_MAX:
            await self._run(self._flush)

    def _flush(self) -> None:
        pa, rows = arrow(), self._waiting
        self._waiting, self._waiting_bytes = Rows([], [], [], []), 0
        count = len(rows.entries)
        if count:
            columns = [pa.array([self._lssn] * count, pa.int64())]
            columns += [pa.array(column, pa.int64()) for column in (rows.entries, rows.slots, rows.txids)]
            table = pa.Table.from_arrays([*columns, pa.array(rows.payloads, pa.binary())], schema=schema())
            self._writer.write_table(table, row_group_size=count)
            self._groups.append(checksum(table))

    async def store(self, store: ColdStore, name: str, *, entries: int) -> ColdFile:
        """Finish the file, store it, and read it back.

        Raises `ColdObjectExists`, `ColdUnavailable`, and `DamagedColdFile` if something else is stored now; then it is
        deleted again, as far as possible.
        """
        file = await self._run(lambda: self._finish(store.root, name, entries))
        await self._check_local(file)
        await store.create(name, self._spool, file.size_bytes)
        await verify_stored(store, file, self._run)
        return file

    def _finish(self, root: str, name: str, entries: int) -> ColdFile:
        self._flush()
        facts = {
            KEY_FORMAT: FORMAT_VERSION,
            KEY_STREAM: self._stream,
            KEY_LSSN: self._lssn,
            KEY_ROWS: self.rows,
            KEY_ENTRIES: entries,
            KEY_GROUPS: " ".join(self._groups),
        }
        self._writer.add_key_value_metadata({key.decode(): str(fact) for key, fact in facts.items()})
        self._writer.close()
        spool, digest, size_bytes = self._spool, hashlib.sha256(), 0
        spool.seek(0)
        while block := spool.read(_BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
        spool.seek(size_bytes - _TAIL_BYTES)
        footer_bytes = int.from_bytes(spool.read(4), "little") + _TAIL_BYTES
        spool.seek(size_bytes - footer_bytes)
        footer = hashlib.sha256(spool.read()).hexdigest()
        return ColdFile(root, name, size_bytes, digest.hexdigest(), footer_bytes, footer, self.rows, entries)

    async def _check_local(self, file: ColdFile) -> None:
        """What was written can be read again, with the same checks as later."""

        async def read(start: int, end: int) -> bytes:
            def work() -> bytes:
                self._spool.seek(start)
                return self._spool.read(end - start)

            return await self._run(work)

        written = await open_segment_file(file, self._lssn, read, self._run)
        for group in written.groups:
            await written.read(group)

    def close(self) -> None:
        if not self._writer.is_open:
            self._spool.close()
            return
        try:
            self._writer.close()
        finally:
            self._spool.close()


async def verify_stored(store: ColdStore, file: ColdFile, run: Run) -> None:
    """Read a file back, and compare it with what it should be, byte for byte. Raises `DamagedColdFile`."""
    digest = hashlib.sha256()
    try:
        size_bytes = await store.size(file.name)
        for start in range(0, max(size_bytes, 1), _BLOCK_BYTES):
            block = await store.read(file.name, start, start + _BLOCK_BYTES)
            await run(partial(digest.update, block))
    except NoSuchColdObject as error:
        raise DamagedColdFile(f"{file.name!r} in {file.root} is missing", file=file.name, root=file.root) from error
    if size_bytes != file.size_bytes or digest.hexdigest() != file.sha256:
        raise DamagedColdFile(
            f"{file.name!r} in {file.root}: its {size_bytes} bytes are not the {file.size_bytes} that were archived",
            file=file.name,
            root=file.root,
        )
