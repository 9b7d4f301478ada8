"""What a client of ledgers did and how it is, as plain numbers for programs. `metrics` has the same for Prometheus."""

from quire.ledger.bookies.pool import BookiePool, PoolStatistics
from quire.ledger.metrics import LedgerMetrics
from quire.types import BookieId, EntryId
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """What a client did since it was opened, and how it is at this moment."""

    created: int
    opened: int
    deleted: int
    recovered: int
    failed_calls: int
    ensemble_changes: int
    placement_failures: int
    writers: int
    in_flight_entries: int
    appended_entries: int
    appended_bytes: int
    read_entries: int
    read_bytes: int
    speculative_reads: int
    damaged_copies: int
    """Copies of entries that a bookie could not give intact. Another one may have."""

    lac_lag_entries: int
    pool: PoolStatistics


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer did, and what it has in flight, at one moment."""

    confirmed: EntryId
    pushed: EntryId
    length: int
    in_flight_entries: int
    in_flight_bytes: int
    """Payload bytes in the window, to the precision of what was sent together."""

    ensemble: tuple[BookieId, ...]
    ensemble_changes: int


def statistics_of(metrics: LedgerMetrics, pool: BookiePool) -> LedgerStatistics:
    calls = (metrics.creates, metrics.opens, metrics.deletes, metrics.recoveries)
    return LedgerStatistics(
        created=metrics.creates.ok.count,
        opened=metrics.opens.ok.count,
        deleted=metrics.deletes.ok.count,
        recovered=metrics.recoveries.ok.count,
        failed_calls=sum(call.failed.count for call in calls),
        ensemble_changes=metrics.ensemble_changes.value,
        placement_failures=metrics.placement_failures.value,
        writers=metrics.writers,
        in_flight_entries=metrics.in_flight_entries,
        appended_entries=metrics.appended_entries.value,
        appended_bytes=metrics.appended_bytes.value,
        read_entries=metrics.read_entries.value,
        read_bytes=metrics.read_bytes.value,
        speculative_reads=metrics.speculative_reads.value,
        damaged_copies=metrics.damaged_copies.value,
        lac_lag_entries=metrics.lac_lag_entries,
        pool=pool.statistics(),
    )
