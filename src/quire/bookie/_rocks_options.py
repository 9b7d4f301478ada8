"""How the index's RocksDB database is tuned: little memory whatever it holds, and no wait that stops other threads."""

from typing import Final

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)

CACHE_BYTES: Final = 16 << 20  # Blocks, block indexes and filters together: all that reading keeps in memory.
MEMTABLE_BYTES: Final = 8 << 20  # About 100,000 entries; three of these at most exist at a time.

_OPEN_FILES_MAX: Final = 256  # Of 32 MiB each. Their indexes and filters are in the cache, so an open file is cheap.
_NEVER: Final = 1 << 30


def tuned(*, new: bool, cache_bytes: int, memtable_bytes: int) -> Options:
    """The options to open a database with, or to begin a `new` one."""
    options = Options(raw_mode=True)
    options.create_if_missing(new)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())  # Whether there is damage was decided before.
    # --- Memory. One memtable fills, one is flushed, one is spare.
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_file_opening_threads(1)  # Not 16 for every start: with so few files, they are what costs.
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
    options.set_max_manifest_file_size(4 << 20)  # We read it whole, before RocksDB does.
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
