"""`Index` on RocksDB, through rocksdict. The layout of keys and values is in `quire.codec.index_records`.

rocksdict lets other threads run while it syncs, flushes, and gets a list of keys; not while it writes, gets a single
key, or moves an iterator. Hence the shape of this module: a commit writes without syncing and then syncs separately, a
look-up asks for a list of one, and nothing holds an iterator longer than it takes to fill a list. The last also because
an iterator keeps the database open, and its folder locked, for as long as it lives.
"""

import errno
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NoReturn, Self, assert_never, cast

from rocksdict import RdictIter, ReadOptions, WriteBatch, WriteOptions

from quire.bookie._rocks_files import RocksFolder, is_stall, translated
from quire.bookie._rocks_options import CACHE_BYTES, MEMTABLE_BYTES
from quire.bookie.index import (
    DeleteLedger,
    DeleteMark,
    DeleteTombstone,
    LocationMove,
    Operation,
    PutLedger,
    PutLocations,
    PutMark,
    PutTombstone,
)
from quire.codec.entry_log import Location
from quire.codec.index_records import (
    LEDGERS,
    TOMBSTONES,
    LedgerRecord,
    decode_ledger,
    decode_location,
    decode_tombstone,
    encode_ledger,
    encode_tombstone,
    entry_id_of,
    entry_ids_of,
    ledger_id_of,
    ledger_key,
    location_bounds,
    location_items,
    location_key,
    mark_key,
    tombstone_key,
)
from quire.errors import InvalidArgument, QuireError
from quire.runtime import StrPath
from quire.types import EntryId, LedgerId

_PAGE_KEYS: Final = 4096  # What an iteration holds at a time: some hundred kilobytes.


class RocksIndex:
    """A bookie's index in a folder of its own."""

    def __init__(self, folder: RocksFolder) -> None:
        self._files = folder
        self._folder = folder.path
        self._db = folder.db
        self._writing = threading.Lock()  # A commit that looks before it writes must not be overtaken in between.
        self._failed = False
        self._closed = False
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True

    @classmethod
    def open(
        cls,
        folder: StrPath,
        *,
        create: bool,
        position_min: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        memtable_bytes: int = MEMTABLE_BYTES,
    ) -> Self:
        """Open the index in `folder`, or with `create` begin one if the folder is not there or empty. Blocking.

        `position_min` is the newest position that anything relies on: see `quire.bookie.index`. Raises `DamagedIndex`,
        and `Refused` if somebody else has the index open. The folder above must exist.
        """
        return cls(
            RocksFolder(
                os.fspath(folder),
                create=create,
                position_min=position_min,
                cache_bytes=cache_bytes,
                memtable_bytes=memtable_bytes,
            )
        )

    # --- Reading ----------------------------------------------------------------------------------------------

    def location(self, ledger_id: LedgerId, entry_id: EntryId) -> Location | None:
        value = self._get([location_key(ledger_id, entry_id)])[0]
        return None if value is None else decode_location(value)

    def locations(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId | None = None, *, limit: int
    ) -> list[tuple[EntryId, Location]]:
        if limit < 1:
            raise InvalidArgument(f"a limit of {limit} entries leaves none", limit=limit)
        rows = self._rows(location_bounds(ledger_id, first, last), limit)
        return [(entry_id_of(key), decode_location(value)) for key, value in rows]

    def last_entry(self, ledger_id: LedgerId) -> EntryId | None:
        keys = self._keys(location_bounds(ledger_id), 1, backwards=True)
        return entry_id_of(keys[0]) if keys else None

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[EntryId]:
        return self._entry_ids(*location_bounds(ledger_id))  # A wrong id is for this call to refuse, not for its steps.

    def _entry_ids(self, lower: bytes, upper: bytes) -> Iterator[EntryId]:
        while True:
            keys = self._keys((lower, upper), _PAGE_KEYS)
            yield from entry_ids_of(keys)
            if len(keys) < _PAGE_KEYS:
                return
            lower = keys[-1] + b"\0"

    def ledger(self, ledger_id: LedgerId) -> LedgerRecord | None:
        value = self._get([ledger_key(ledger_id)])[0]
        return None if value is None else decode_ledger(value)

    def ledgers(self) -> Sequence[LedgerId]:
        found = array("q")
        self._scan(LEDGERS, lambda key, _: found.append(ledger_id_of(key)))
        return cast(Sequence[LedgerId], found)

    def tombstone(self, ledger_id: LedgerId) -> int | None:
        value = self._get([tombstone_key(ledger_id)])[0]
        return None if value is None else decode_tombstone(value)

    def tombstones(self) -> list[tuple[LedgerId, int]]:
        return [(ledger_id_of(key), decode_tombstone(value)) for key, value in self._rows(TOMBSTONES)]

    def mark(self, name: str) -> bytes | None:
        return self._get([mark_key(name)])[0]

    @property
    def position(self) -> int:
        try:
            return self._db.latest_sequence_number()
        except Exception as error:
            raise translated(error, self._folder) from error

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            return cast(list[bytes | None], self._db.get([*keys]))
        except Exception as error:
            raise translated(error, self._folder) from error

    def _keys(self, bounds: tuple[bytes, bytes], limit: int, *, backwards: bool = False) -> list[bytes]:
        keys: list[bytes] = []
        self._scan(bounds, lambda key, _: keys.append(key), limit=limit, backwards=backwards)
        return keys

    def _rows(self, bounds: tuple[bytes, bytes], limit: int | None = None) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        self._scan(bounds, lambda key, cursor: rows.append((key, cursor.value())), limit=limit)
        return rows

    def _scan(
        self,
        bounds: tuple[bytes, bytes],
        visit: Callable[[bytes, RdictIter], None],
        *,
        limit: int | None = None,
        backwards: bool = False,
    ) -> None:
        """Call `visit` for the keys from the first bound up to and without the second, as of one moment."""
        lower, upper = bounds
        options = ReadOptions()
        options.set_iterate_upper_bound(upper)  # Not copied: these names keep the bytes alive while the cursor lives.
        left = -1 if limit is None else limit
        cursor: RdictIter | None = None
        try:
            cursor = self._db.iter(options)
            if backwards:
                cursor.seek_to_last()
            else:
                cursor.seek(lower)
            while (key := cursor.key()) is not None and key >= lower:  # rocksdict 0.3 cannot set a lower bound.
                visit(key, cursor)
                left -= 1
                if left == 0:
                    return
                if backwards:
                    cursor.prev()
                else:
                    cursor.next()
            cursor.status()  # A cursor stops at damage as it does at the end. Only this tells.
        except QuireError:  # From `visit`, which decodes.
            raise
        except Exception as error:
            raise translated(error, self._folder) from error
        finally:
            cursor = None  # Or the traceback of an error would keep it alive.

    # --- Writing ----------------------------------------------------------------------------------------------

    def commit(self, *operations: Operation, sync: bool = True) -> int:
        with self._writing:
            position = self._write(operations)
        if sync:
            self._sync()
        return position

    def sync(self) -> int:
        position = self.position  # Asked for first: what is committed from now on, this sync does not promise.
        self._sync()
        return position

    def replace_locations(self, moves: Sequence[LocationMove], *, sync: bool = True) -> int:
        with self._writing:
            keys = [location_key(move.ledger_id, move.entry_id) for move in moves]
            values = zip(keys, self._get(keys), strict=True)
            present = {key: decode_location(value) for key, value in values if value is not None}
            held: list[tuple[LedgerId, EntryId, Location]] = []
            for key, move in zip(keys, moves, strict=True):
                if present.get(key) == move.old:
                    held.append((move.ledger_id, move.entry_id, move.new))
                    present[key] = move.new  # The same entry may be moved on by a later one.
            self._write((PutLocations(held),))
        if sync:
            self._sync()
        return len(held)

    def set_fenced(self, ledger_id: LedgerId, *, sync: bool = True) -> LedgerRecord | None:
        with self._writing:
            record = self.ledger(ledger_id)
            if record is not None and not record.fenced:
                record = replace(record, fenced=True)
                self._write((PutLedger(ledger_id, record),))
        if sync and record is not None:
            self._sync()  # Also if it was fenced before: that may not be durable yet.
        return record

    def _write(self, operations: Sequence[Operation]) -> int:
        """Without syncing; under the lock."""
        while True:
            batch = _batch(operations)  # Every time anew, since rocksdict empties it. Wrong ids end here.
            self._check_unfailed()
            try:
                self._db.write(batch, self._write_options)
                return self._db.latest_sequence_number()
            except Exception as error:
                if not is_stall(error):
                    self._fail(error)
            try:
                self._db.flush()  # The wait that rocksdict does not hold the other threads up for.
            except Exception as error:
                self._fail(error)

    def _sync(self) -> None:
        self._check_unfailed()
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self._fail(error)
        self._check_unfailed()  # The kernel tells one sync of lost pages. It may have told another thread's.

    def _fail(self, error: Exception) -> NoReturn:
        self._failed = True
        raise translated(error, self._folder) from error

    def _check_unfailed(self) -> None:
        if self._failed and not self._closed:
            raise OSError(errno.EIO, "an earlier write to the index failed; open it again", self._folder)

    # --- Closing ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._writing:
            if self._closed:
                return
            self._closed = True
            try:
                self._files.close()
            except Exception as error:
                if not self._failed:  # If it has, whoever made that commit was told already.
                    raise translated(error, self._folder) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _batch(operations: Sequence[Operation]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for operation in operations:
        match operation:
            case PutLocations(entries):
                for key, value in location_items(entries):
                    put(key, value)
            case PutLedger(ledger_id, record):
                put(ledger_key(ledger_id), encode_ledger(record))
            case DeleteLedger(ledger_id):
                batch.delete_range(*location_bounds(ledger_id))
                batch.delete(ledger_key(ledger_id))
            case PutTombstone(ledger_id, expires_ms):
                put(tombstone_key(ledger_id), encode_tombstone(expires_ms))
            case DeleteTombstone(ledger_id):
                batch.delete(tombstone_key(ledger_id))
            case PutMark(name, value):
                put(mark_key(name), value)
            case DeleteMark(name):
                batch.delete(mark_key(name))
            case _:
                assert_never(operation)
    return batch
