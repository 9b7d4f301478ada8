"""Which figures of the running parts the metrics show. What can be asked at a scrape is not counted as it happens."""

from collections.abc import Callable, Iterable

from quire.bookie.garbage import GarbageCollector
from quire.bookie.journal import GroupWritten
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.metrics import BookieMetrics, JournalMetrics
from quire.bookie.service import BookieService
from quire.bookie.space import SpaceWatch
from quire.protocol.space import FolderSpace, SpaceMode
from quire.runtime import Server


def measure(metrics: BookieMetrics, storage: LedgerStorage, service: BookieService) -> None:
    """Have the parts report to the metrics, and the metrics ask the parts."""
    stages = {"index": metrics.stages.index, "read": metrics.stages.read, "checkpoint": metrics.stages.checkpoint}

    def observe(stage: str, seconds: float) -> None:
        stages[stage].observe(seconds)
        metrics.stages.last_s[stage] = seconds
        if stage == "checkpoint":
            metrics.storage.flush.ok.observe(seconds)

    storage.reader.observe = observe
    for journal, figures in zip(storage.journals.all, metrics.journals, strict=True):
        journal.on_group = _on_group(metrics, figures)
        figures.queue_records.read = lambda journal=journal: journal.queued
    metrics.cache.write_bytes.read = lambda: storage.write_cache.total_bytes
    metrics.cache.read_bytes.read = lambda: storage.read_cache.bytes
    metrics.requests.connections.read = lambda: len(service.connections)
    metrics.requests.reads_in_progress.read = lambda: service.reads.queued
    metrics.gc.entry_logs.read = lambda: len(storage.logs.usage())
    metrics.gc.log_bytes.read = lambda: sum(log.log_bytes for log in storage.logs.usage())


def measure_connections(metrics: BookieMetrics, server: Server) -> None:
    """Count also the connections that were closed before any of our code saw them."""
    refused = metrics.requests.connections_refused
    refused.read = lambda: refused.value + server.refused


def measure_space(
    metrics: BookieMetrics, space: Callable[[], SpaceWatch | None], folders: Iterable[str], service: BookieService
) -> None:
    """The same for the disks. `space` gives the watch of now."""
    metrics.disks.folders.value = 1
    metrics.disks.writable_folders.read = lambda: int(service.mode is SpaceMode.WRITABLE)
    for folder in folders:
        _watch_folder(metrics, space, folder)


def _watch_folder(metrics: BookieMetrics, space: Callable[[], SpaceWatch | None], folder: str) -> None:
    def now() -> FolderSpace:
        watch = space()
        return FolderSpace(0, 0) if watch is None else watch.spaces.get(folder, FolderSpace(0, 0))

    metrics.disks.watch(folder, free_bytes=lambda: now().free_bytes, total_bytes=lambda: now().total_bytes)


def measure_garbage(metrics: BookieMetrics, garbage: GarbageCollector) -> None:
    """The same for garbage collection, which counts by itself."""
    counters, gc = garbage.counters, metrics.gc
    gc.ledgers_deleted.read = lambda: counters.deleted_ledgers
    gc.minor_compactions.read = lambda: counters.minor_compactions
    gc.major_compactions.read = lambda: counters.major_compactions
    gc.deletion_freed_bytes.read = lambda: counters.reclaimed_by_deletion_bytes
    gc.compaction_freed_bytes.read = lambda: counters.reclaimed_bytes - counters.reclaimed_by_deletion_bytes
    gc.deletions_failed.read = lambda: counters.log_deletions_failed
    gc.ledgers.read = lambda: garbage.report().ledgers_local
    gc.live_bytes.read = lambda: sum(log.live_bytes or 0 for log in garbage.report().logs)


def _on_group(metrics: BookieMetrics, figures: JournalMetrics) -> Callable[[GroupWritten], None]:
    stages = metrics.stages

    def on_group(group: GroupWritten) -> None:
        stages.journal.observe(group.write_s, group.records)
        stages.fsync.observe(group.sync_s, group.records)
        figures.add_entry.ok.observe(group.write_s, group.records)
        figures.sync.ok.observe(group.sync_s)
        figures.write_bytes.value += group.group_bytes
        metrics.storage.write_bytes.value += group.group_bytes

    return on_group
