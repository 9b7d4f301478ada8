"""The index's RocksDB database: how it is made, opened and tuned, and its errors as ours.

Two things about opening are ours, not RocksDB's:
  NothingFromNothing  RocksDB begins an empty database where it finds no `CURRENT` file, whatever else is there. A new
                      one is therefore made under another name and renamed: a folder that exists is one to be opened.
  TornIsNotDamaged    after a power cut the end of RocksDB's own log can be torn in ways that its checksums cannot tell
                      from damage. Taking all of it for a torn end would hide damage, taking none of it would keep a
                      bookie from starting. So an end that does not read is given up only if the position that the
                      caller relies on lies before it; a caller who knows no position gets no such leave.
"""

import errno
import os
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
)

from quire.codec.index_records import FORMAT_KEY, FORMAT_VALUE
from quire.errors import DamagedIndex, Refused, StoreClosed

CACHE_BYTES: Final = 16 << 20  # Blocks, block indexes and filters together: all that reading keeps in memory.
MEMTABLE_BYTES: Final = 8 << 20  # About 100,000 entries; three of these at most exist at a time.

_OPEN_FILES_MAX: Final = 256  # Of 32 MiB each. Their indexes and filters are in the cache, so an open file is cheap.
_NEVER: Final = 1 << 30
_CODES: Final = {
    os.strerror(code): code
    for code in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    )
}


def open_database(
    folder: str, *, create: bool, position_min: int | None, cache_bytes: int, memtable_bytes: int
) -> Rdict:
    """Open the database in `folder`. Raises `DamagedIndex`, `Refused` if another process has it open, or `OSError`."""

    def database(path: str, *, torn: bool = False, new: bool = False, read_only: bool = False) -> Rdict:
        options = _options(torn=torn, new=new, cache_bytes=cache_bytes, memtable_bytes=memtable_bytes)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        try:
            # Named, or rocksdict would take the default family's options from the folder, and not from us.
            return Rdict(path, options, column_families={"default": options}, access_type=access)
        except Exception as error:
            raise translated(error, folder) from error

    if _is_absent(folder):
        if not create:
            raise DamagedIndex(f"there is no index in {folder!r}", folder=folder)
        temporary = folder.rstrip("/") + ".new"  # Possibly left there by a crash; there was nothing in it yet.
        try:
            os.mkdir(temporary)  # Not left to rocksdict, which would make the folders above, too, and sync none.
        except FileExistsError:
            pass
        new = database(temporary, new=True)
        try:
            new[FORMAT_KEY] = FORMAT_VALUE
            new.close()
        except Exception as error:
            raise translated(error, folder) from error
        os.rename(temporary, folder)
        _sync_directory(os.path.dirname(folder.rstrip("/")) or ".")

    try:
        db = database(folder)
    except DamagedIndex:
        if position_min is None:
            raise
        seen = database(folder, torn=True, read_only=True)  # Only looking: nothing is given up by this.
        readable = seen.latest_sequence_number()
        seen.close()
        if readable < position_min:
            raise
        db = database(folder, torn=True)
    try:
        _check(db, folder, position_min=position_min)
    except BaseException:
        db.close()
        raise
    return db


def translated(error: Exception, folder: str) -> Exception:
    """What callers get for an error of RocksDB's, which has nothing but a text."""
    text = str(error)
    if isinstance(error, DbClosedError):
        return StoreClosed(f"the index in {folder!r} is closed", folder=folder)
    if text.startswith(("IO error: lock hold by current process", "IO error: While lock file")):
        return Refused(
            f"the index in {folder!r} is open already, in this process or in another",
            hint="Stop the other bookie, or give this one a folder of its own.",
            folder=folder,
        )
    # A file that is not there is one that the database lists: its folder exists.
    gone = "create_if_missing is false" in text or os.strerror(errno.ENOENT) in text
    if gone or text.startswith("Corruption"):
        return DamagedIndex(f"the index in {folder!r} is damaged: {text}", folder=folder)
    code = next((code for name, code in _CODES.items() if name in text), errno.EIO)
    return OSError(code, text, folder)


def is_stall(error: Exception) -> bool:
    """Whether a write was refused only because flushing does not keep up with it."""
    return str(error).startswith("Result incomplete")


def _options(*, torn: bool, new: bool, cache_bytes: int, memtable_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(new)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(
        DBRecoveryMode.point_in_time() if torn else DBRecoveryMode.tolerate_corrupted_tail_records()
    )
    # --- Memory. One memtable fills, one is flushed, one is spare.
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(_OPEN_FILES_MAX)
    # --- Work in the background. rocksdict waits for a stalled write without letting other threads run, so writes ask
    # to be refused instead, and the only reason left is one that a flush removes. Compaction keeps up anyway: 30,000
    # entries a second are less than a megabyte.
    options.set_max_background_jobs(2)
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_bytes_per_sync(1 << 20)  # Small steps, so that the journal's syncs do not queue behind a large one.
    # --- Files. Keys differ little from their neighbours: LZ4 halves them, and costs nothing that could be measured.
    options.set_compression_type(DBCompressionType.lz4())
    options.set_target_file_size_base(32 << 20)
    options.set_max_bytes_for_level_base(128 << 20)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_block_based_table_factory(_table(cache_bytes))
    return options


def _table(cache_bytes: int) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(cache_bytes))
    table.set_block_size(8 << 10)
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_format_version(5)
    table.set_bloom_filter(10, False)  # 1 of 100 look-ups of an entry that is not here reads a block in vain.
    # A file's filter takes megabytes. Cut into parts, those in use fit into the cache and the rest stays on the disk.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4 << 10)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return table


def _check(db: Rdict, folder: str, *, position_min: int | None) -> None:
    try:
        found = db.get(FORMAT_KEY)
    except Exception as error:
        raise translated(error, folder) from error
    if found != FORMAT_VALUE:
        raise DamagedIndex(f"{folder!r} holds a database, but no index of this format: {found!r}", folder=folder)
    position = db.latest_sequence_number()
    if position_min is not None and position < position_min:
        raise DamagedIndex(
            f"the index in {folder!r} lost what was durable: it ends at position {position}, not at {position_min}",
            folder=folder,
            position=position,
            position_min=position_min,
        )


def _is_absent(folder: str) -> bool:
    try:
        return not os.listdir(folder)  # An empty folder makes way for the renamed one.
    except FileNotFoundError:
        return True


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
