"""What a client of ledgers counts: numbers that its parts update as they go, and that a scrape or `statistics` reads.

    prometheus_client.generate_latest(ledgers.metrics.registry)

Nothing is counted for a single entry: a run of entries is one call. Numbers that some part knows anyway are asked for
when they are read, of those who registered for a block: so none can drift. What each metric means is in
`quire.telemetry.names`. All of it belongs to the client's event loop.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from quire.ledger.bookies.pool import BookiePool
from quire.telemetry import names
from quire.telemetry.events import logger
from quire.telemetry.metrics import OperationStats, Registry

SLOW_S: Final = 1.0
"""What takes longer is told as an event, with the stage that took the time."""

_log = logger("ledger")


class LedgerMetrics:
    """The counters of one client, and the registry that exposes them. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.registry = registry = Registry(now)
        self.creates = registry.operation(names.LEDGER_CREATE)
        self.opens = registry.operation(names.LEDGER_OPEN)
        self.deletes = registry.operation(names.LEDGER_DELETE)
        self.recoveries = registry.operation(names.LEDGER_RECOVER)
        self.ensemble_changes = registry.counter(names.NUM_ENSEMBLE_CHANGE)
        self.speculative_reads = registry.counter(names.SPECULATIVE_READ_COUNT)
        self._append_seconds = registry.latency(names.LEDGER_APPEND_SECONDS)
        self.appended_entries = registry.counter(names.LEDGER_APPENDED_ENTRIES_TOTAL)
        self.appended_bytes = registry.counter(names.LEDGER_APPENDED_BYTES_TOTAL)
        self.append_failures = registry.counter(names.LEDGER_APPEND_FAILURES_TOTAL)
        self.window_waits = registry.counter(names.LEDGER_WINDOW_WAITS_TOTAL)
        self.read_entries = registry.counter(names.LEDGER_READ_ENTRIES_TOTAL)
        self.read_bytes = registry.counter(names.LEDGER_READ_BYTES_TOTAL)
        self.read_failures = registry.counter(names.LEDGER_READ_FAILURES_TOTAL)
        self.damaged_copies = registry.counter(names.LEDGER_DAMAGED_COPIES_TOTAL)
        self.placement_failures = registry.counter(names.LEDGER_PLACEMENT_FAILURES_TOTAL)
        self._in_flight: dict[object, Callable[[], int]] = {}
        self._lags: dict[object, Callable[[], int]] = {}
        self._changed_s = self._told_s = -math.inf  # The last ensemble change; the last event of something slow.
        registry.gauge(names.LEDGER_WRITERS, lambda: self.writers)
        registry.gauge(names.LEDGER_IN_FLIGHT_ENTRIES, lambda: self.in_flight_entries)
        registry.gauge(names.LEDGER_LAC_LAG_ENTRIES, lambda: self.lac_lag_entries)

    # --- Writers

    def on_appended(self, entries: int, size_bytes: int) -> None:
        """A run of entries has its ack quorum."""
        self.appended_entries.value += entries
        self.appended_bytes.value += size_bytes

    def on_append_seconds(self, seconds: float, entries: int = 1, ledger_id: int | None = None) -> None:
        """So long it took a run to be acknowledged. One that took too long is told, with what it waited for."""
        self._append_seconds.observe(seconds, entries)
        if seconds > SLOW_S:
            stage = "ensemble change" if self._changed_s >= self._now() - seconds else "bookies"
            self._tell_slow("append.slow", seconds, stage, ledger_id=ledger_id, entries=entries)

    def on_append_failed(self) -> None:
        """A writer broke off: what it had in flight has no answer."""
        self.append_failures.value += 1

    def on_window_wait(self) -> None:
        self.window_waits.value += 1

    def on_ensemble_change(self) -> None:
        """A new ensemble is published."""
        self.ensemble_changes.value += 1
        self._changed_s = self._now()

    def on_placement_failed(self) -> None:
        """An ensemble was chosen that breaks the policy's rule, which is not enforced."""
        self.placement_failures.value += 1

    @contextmanager
    def writing(self, in_flight: Callable[[], int]) -> Iterator[None]:
        """A ledger is being written for the block; `in_flight` tells how many entries wait for their quorum."""
        with _registered(self._in_flight, in_flight):
            yield

    # --- Readers

    def on_read(self, entries: int, size_bytes: int) -> None:
        """Entries were handed to a reader."""
        self.read_entries.value += entries
        self.read_bytes.value += size_bytes

    def on_read_seconds(self, seconds: float, stage: str, ledger_id: int, first: int) -> None:
        """So long it took to fetch some entries. Told if it was too long."""
        if seconds > SLOW_S:
            self._tell_slow("read.slow", seconds, stage, ledger_id=ledger_id, entry_id=first)

    def _tell_slow(self, event: str, seconds: float, stage: str, **facts: object) -> None:
        """At most once a second: when everything is slow, a log full of it makes it no faster."""
        now_s = self._now()
        if now_s - self._told_s >= 1.0:
            self._told_s = now_s
            _log.warning(event, seconds=round(seconds, 3), stage=stage, **facts)

    def on_read_failed(self) -> None:
        """No replica had an entry intact."""
        self.read_failures.value += 1

    def on_speculative_read(self) -> None:
        self.speculative_reads.value += 1

    @contextmanager
    def following(self, lag: Callable[[], int]) -> Iterator[None]:
        """A ledger is followed for the block; `lag` tells how many confirmed entries its reader has not got yet."""
        with _registered(self._lags, lag):
            yield

    # --- The client

    def on_recovery(self, seconds: float, success: bool) -> None:
        (self.recoveries.ok if success else self.recoveries.failed).observe(seconds)

    @contextmanager
    def timed(self, operation: OperationStats) -> Iterator[None]:
        """Whatever the block raises is a failure, being cancelled too."""
        began_s, outcome = self._now(), operation.failed
        try:
            yield
            outcome = operation.ok
        finally:
            outcome.observe(self._now() - began_s)

    def watch_pool(self, pool: BookiePool) -> None:
        """Expose what the pool knows."""
        errors = self.registry.counter(names.LEDGER_BOOKIE_ERRORS_TOTAL)
        errors.read = lambda: sum(pool.health.failures().values())
        self.registry.gauge(names.LEDGER_BOOKIES_QUARANTINED, lambda: len(pool.statistics().quarantined))
        self.registry.gauge(names.LEDGER_CONNECTIONS, lambda: pool.statistics().open_channels)
        self.registry.gauge(names.LEDGER_UNSENT_BYTES, lambda: pool.statistics().unsent_bytes)

    @property
    def writers(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight_entries(self) -> int:
        return sum(read() for read in self._in_flight.values())

    @property
    def lac_lag_entries(self) -> int:
        return max((read() for read in self._lags.values()), default=0)


@contextmanager
def _registered(table: dict[object, Callable[[], int]], read: Callable[[], int]) -> Iterator[None]:
    key = object()  # Two blocks may bring the same function.
    table[key] = read
    try:
        yield
    finally:
        del table[key]
