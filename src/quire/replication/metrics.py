"""What autorecovery counts. What each metric means is in `quire.telemetry.names`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.telemetry import names
from quire.telemetry.metrics import OperationStats, Registry


class AutorecoveryMetrics:
    """The counters of one process, and the registry that exposes them. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.registry = registry = Registry(now)
        self.is_auditor = registry.gauge(names.AUTORECOVERY_IS_AUDITOR)
        self.elections = registry.counter(names.AUDITOR_ELECTION_ATTEMPTS)
        self.marked = registry.counter(names.AUDITOR_NUM_UNDER_REPLICATED_LEDGERS)
        self.lost_bookies = registry.gauge(names.AUTORECOVERY_LOST_BOOKIES)
        self.bookie_audits = registry.counter(names.AUDITOR_NUM_BOOKIE_AUDITS_DELAYED)
        self.audits = registry.operation(names.AUDITOR_AUDIT_BOOKIES_TIME)
        self.ledger_checks = registry.operation(names.AUDITOR_CHECK_ALL_LEDGERS_TIME)
        self.placement_checks = registry.operation(names.AUDITOR_PLACEMENT_POLICY_CHECK_TIME)
        self.replicas_checks = registry.operation(names.AUDITOR_REPLICAS_CHECK_TIME)
        self.ledgers_checked = registry.counter(names.AUDITOR_NUM_LEDGERS_CHECKED)
        self.misplaced = registry.gauge(names.AUDITOR_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY)
        self.without_copy = registry.gauge(names.AUDITOR_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY)
        self.below_ack_quorum = registry.gauge(names.AUDITOR_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY)
        self.below_write_quorum = registry.gauge(names.AUDITOR_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY)
        self.repairs = registry.operation(names.WORKER_REREPLICATE)
        self.repaired = registry.counter(names.WORKER_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED)
        self.entries_read = registry.counter(names.WORKER_NUM_ENTRIES_READ)
        self.bytes_read = registry.counter(names.WORKER_NUM_BYTES_READ)
        self.entries_written = registry.counter(names.WORKER_NUM_ENTRIES_WRITTEN)
        self.bytes_written = registry.counter(names.WORKER_NUM_BYTES_WRITTEN)
        self.unreadable = registry.counter(names.WORKER_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION)
        self.deferred = registry.counter(names.WORKER_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER)
        self.shut_out = registry.counter(names.AUTORECOVERY_SHUT_OUT_TOTAL)

    @contextmanager
    def timed(self, operation: OperationStats) -> Iterator[None]:
        """Whatever the block raises is a failure."""
        began_s, outcome = self._now(), operation.failed
        try:
            yield
            outcome = operation.ok
        finally:
            outcome.observe(self._now() - began_s)
