"""What the writers and readers of a namespace count: in the registry of the ledger client that they work with.

    prometheus_client.generate_latest(namespace.context.ledgers.metrics.registry)

Nothing is counted for a single record: an entry, or a call, is one step. What each metric means is in
`quire.telemetry.names`. All of it belongs to the event loop.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from quire.telemetry import names
from quire.telemetry.metrics import Gauge, Registry


class StreamMetrics:
    """The counters of one namespace."""

    def __init__(self, registry: Registry) -> None:
        self.append_seconds = registry.latency(names.STREAM_APPEND_SECONDS)
        self.appended_records = registry.counter(names.STREAM_APPENDED_RECORDS_TOTAL)
        self.appended_bytes = registry.counter(names.STREAM_APPENDED_BYTES_TOTAL)
        self.failed_records = registry.counter(names.STREAM_FAILED_RECORDS_TOTAL)
        self.control_records = registry.counter(names.STREAM_CONTROL_RECORDS_TOTAL)
        self.fenced_writers = registry.counter(names.STREAM_FENCED_WRITERS_TOTAL)
        self.lost_locks = registry.counter(names.STREAM_LOST_LOCKS_TOTAL)
        self.begun_segments = registry.counter(names.STREAM_BEGUN_SEGMENTS_TOTAL)
        self.completed_segments = registry.counter(names.STREAM_COMPLETED_SEGMENTS_TOTAL)
        self.recovered_segments = registry.counter(names.STREAM_RECOVERED_SEGMENTS_TOTAL)
        self.purged_segments = registry.counter(names.STREAM_PURGED_SEGMENTS_TOTAL)
        self.archived_segments = registry.counter(names.STREAM_ARCHIVED_SEGMENTS_TOTAL)
        self.dropped_segments = registry.counter(names.STREAM_DROPPED_SEGMENTS_TOTAL)
        self.restored_segments = registry.counter(names.STREAM_RESTORED_SEGMENTS_TOTAL)
        self.read_records = registry.counter(names.STREAM_READ_RECORDS_TOTAL)
        self.read_bytes = registry.counter(names.STREAM_READ_BYTES_TOTAL)
        self.damaged_entries = registry.counter(names.STREAM_DAMAGED_ENTRIES_TOTAL)
        self.writers = registry.gauge(names.STREAM_WRITERS)
        self.readers = registry.gauge(names.STREAM_READERS)
        self._told_slow_s = -math.inf

    def may_tell_slow(self, now_s: float) -> bool:
        """At most once a second: when everything is slow, a log full of it makes it no faster."""
        if now_s - self._told_slow_s < 1.0:
            return False
        self._told_slow_s = now_s
        return True

    @contextmanager
    def open(self, handles: Gauge) -> Iterator[None]:
        """One of `writers` or `readers` is open for the block."""
        handles.add(1)
        try:
            yield
        finally:
            handles.add(-1)
