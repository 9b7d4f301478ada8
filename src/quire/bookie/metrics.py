"""All metrics of one bookie, grouped by the part that updates them. What each one means is in `quire.telemetry.names`.

    metrics = BookieMetrics(clock.monotonic)
    metrics.requests.add_entry.ok.observe(elapsed_s, entry_count)
    metrics.storage.write_bytes.value += len(body)
    metrics.cache.write_bytes.read = lambda: storage.cached_bytes       # asked at each scrape

Plain attributes without locks: they belong to the bookie's event loop. A part takes its group, not the whole.
"""

from collections.abc import Callable
from typing import Final

from quire.telemetry import names
from quire.telemetry.metrics import Registry

WRITABLE: Final = 1
READONLY: Final = 0
UNREGISTERED: Final = -1


class BookieMetrics:
    """The groups, and the registry that exposes them. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float], *, journal_count: int = 1) -> None:
        self.registry = Registry(now)
        self.status = self.registry.gauge(names.SERVER_STATUS)
        self.status.value = UNREGISTERED
        self.requests = RequestMetrics(self.registry)
        self.stages = StageMetrics(self.registry)
        self.journals = tuple(JournalMetrics(self.registry, index) for index in range(journal_count))
        self.storage = StorageMetrics(self.registry)
        self.cache = CacheMetrics(self.registry)
        self.disks = DiskMetrics(self.registry)
        self.gc = GcMetrics(self.registry)
        self.damage = DamageMetrics(self.registry)


class RequestMetrics:
    """What clients ask for, updated by the server: `ok` and `failed` of each operation, and what is under way."""

    def __init__(self, registry: Registry) -> None:
        self.add_entry = registry.operation(names.ADD_ENTRY_REQUEST)
        self.read_entry = registry.operation(names.READ_ENTRY_REQUEST)
        self.fence_read = registry.operation(names.READ_ENTRY_FENCE_REQUEST)
        self.long_poll_read = registry.operation(names.READ_ENTRY_LONG_POLL_REQUEST)
        self.write_lac = registry.operation(names.WRITE_LAC_REQUEST)
        self.read_lac = registry.operation(names.READ_LAC_REQUEST)
        self.force_ledger = registry.operation(names.FORCE_LEDGER_REQUEST)
        self.bookie_info = registry.operation(names.GET_BOOKIE_INFO_REQUEST)
        self.list_entries = registry.operation(names.GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST)
        self.adds_rejected = registry.counter(names.ADD_ENTRY_REJECTED)
        self.reads_rejected = registry.counter(names.READ_ENTRY_REJECTED)
        self.adds_in_progress = registry.gauge(names.ADD_ENTRY_IN_PROGRESS)
        self.reads_in_progress = registry.gauge(names.READ_ENTRY_IN_PROGRESS)
        self.connections = registry.gauge(names.CONNECTIONS)
        self.connections_accepted = registry.counter(names.CONNECTIONS_ACCEPTED_TOTAL)
        self.connections_refused = registry.counter(names.CONNECTIONS_REFUSED_TOTAL)


class StageMetrics:
    """Where an entry's time goes. An add passes queue, journal and fsync; a read passes index and read."""

    def __init__(self, registry: Registry) -> None:
        self.queue = registry.latency(names.STAGE_SECONDS, stage="queue")  # Waiting for its group to be written.
        self.journal = registry.latency(names.STAGE_SECONDS, stage="journal")  # Writing the group, the flush included.
        self.fsync = registry.latency(names.STAGE_SECONDS, stage="fsync")  # The flush of the disk alone.
        self.index = registry.latency(names.STAGE_SECONDS, stage="index")  # Looking up where an entry is.
        self.read = registry.latency(names.STAGE_SECONDS, stage="read")  # Reading it from its entry log.
        self.checkpoint = registry.latency(names.STAGE_SECONDS, stage="checkpoint")
        self.last_s: dict[str, float] = {}  # Of the stages that the storage tells of.

    def stage_of(self, seconds: float) -> str:
        """What most of a request's time went to, judging by what the storage did last. Else it waited for its turn."""
        found = [(self.last_s.get(stage, 0.0), stage) for stage in ("index", "read")]
        longest_s, stage = max(found)
        return stage if longest_s > seconds / 2 else "queue"


class JournalMetrics:
    """One journal; the label `journalIndex` is its place in the settings."""

    def __init__(self, registry: Registry, index: int) -> None:
        label = str(index)
        self.add_entry = registry.operation(names.JOURNAL_ADD_ENTRY, journalIndex=label)
        self.sync = registry.operation(names.JOURNAL_SYNC, journalIndex=label)
        self.queue_records = registry.gauge(names.JOURNAL_QUEUE_SIZE, journalIndex=label)
        self.write_bytes = registry.counter(names.JOURNAL_WRITE_BYTES, journalIndex=label)


class StorageMetrics:
    """Entries in and out of the ledger storage. `flush` is a checkpoint."""

    def __init__(self, registry: Registry) -> None:
        self.write_bytes = registry.counter(names.WRITE_BYTES)
        self.read_bytes = registry.counter(names.READ_BYTES)
        self.add_entry = registry.operation(names.BOOKIE_ADD_ENTRY)
        self.forces = registry.counter(names.BOOKIE_FORCE_LEDGER)
        self.flush = registry.operation(names.FLUSH)
        self.writes_throttled = registry.counter(names.THROTTLED_WRITE_REQUESTS)
        self.writes_rejected = registry.counter(names.REJECTED_WRITE_REQUESTS)


class CacheMetrics:
    """The write cache, where entries wait for a checkpoint, and the read cache."""

    def __init__(self, registry: Registry) -> None:
        self.write_bytes = registry.gauge(names.WRITE_CACHE_SIZE)
        self.read_bytes = registry.gauge(names.READ_CACHE_SIZE)


class DiskMetrics:
    """The folders of ledgers, and the space around them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.writable_folders = registry.gauge(names.LEDGER_WRITABLE_DIRS)
        self.folders = registry.gauge(names.LEDGER_NUM_DIRS)

    def watch(self, folder: str, *, free_bytes: Callable[[], float], total_bytes: Callable[[], float]) -> None:
        """Expose a folder's space. Both are called on the event loop at each scrape: they must not touch the disk."""
        self._registry.gauge(names.DISK_FREE_BYTES, free_bytes, folder=folder)
        self._registry.gauge(names.DISK_TOTAL_BYTES, total_bytes, folder=folder)


class GcMetrics:
    """What is kept, what was deleted, and what compaction won."""

    def __init__(self, registry: Registry) -> None:
        self.entry_logs = registry.gauge(names.ACTIVE_ENTRY_LOG_TOTAL)
        self.live_bytes = registry.gauge(names.ACTIVE_ENTRY_LOG_SPACE_BYTES)
        self.log_bytes = registry.gauge(names.ENTRY_LOG_SPACE_BYTES)
        self.ledgers = registry.gauge(names.ACTIVE_LEDGER_TOTAL)
        self.ledgers_deleted = registry.counter(names.DELETED_LEDGER_TOTAL)
        self.minor_compactions = registry.counter(names.MINOR_COMPACTION_TOTAL)
        self.major_compactions = registry.counter(names.MAJOR_COMPACTION_TOTAL)
        self.deletion_freed_bytes = registry.counter(names.RECLAIMED_DELETION_SPACE_BYTES)
        self.compaction_freed_bytes = registry.counter(names.RECLAIMED_COMPACTION_SPACE_BYTES)
        self.deletions_failed = registry.counter(names.RECLAIM_FAILED_TO_DELETE)


class DamageMetrics:
    """What should never happen. An alert on any of these is a good one."""

    def __init__(self, registry: Registry) -> None:
        self.entries = registry.counter(names.DAMAGED_ENTRIES_TOTAL)
        self.journal_places = registry.counter(names.JOURNAL_DAMAGES_TOTAL)
        self.disk_errors = registry.counter(names.DISK_ERRORS_TOTAL)
        self.protocol_violations = registry.counter(names.PROTOCOL_VIOLATIONS_TOTAL)
