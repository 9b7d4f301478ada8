"""What a read proxy counts: in the registry of the ledger client that it works with. See `quire.telemetry.names`."""

from quire.protocol.read_windows import Chunk
from quire.proxy.counted_calls import RequestCounter
from quire.telemetry import names
from quire.telemetry.metrics import Registry


class ReadMetrics:
    """The counters of one read proxy. Gauges that are looked up at a scrape are set by the proxy."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.request = RequestCounter(registry, names.READ_PROXY_REQUESTS_TOTAL)
        self.session_expiries = registry.counter(names.READ_PROXY_SESSION_EXPIRIES_TOTAL)
        self.read_entries = registry.counter(names.READ_PROXY_READ_ENTRIES_TOTAL)
        self.read_bytes = registry.counter(names.READ_PROXY_READ_BYTES_TOTAL)
        self.sent_entries = registry.counter(names.READ_PROXY_SENT_ENTRIES_TOTAL)
        self.sent_bytes = registry.counter(names.READ_PROXY_SENT_BYTES_TOTAL)
        self.messages = registry.counter(names.READ_PROXY_MESSAGES_TOTAL)
        self.lanes_started = registry.counter(names.READ_PROXY_LANES_STARTED_TOTAL)
        self.dropped_out = registry.counter(names.READ_PROXY_DROPPED_OUT_TOTAL)
        self.refused = registry.counter(names.READ_PROXY_REFUSED_TOTAL)
        self.commits = registry.counter(names.READ_PROXY_COMMITS_TOTAL)
        self.commit_writes = registry.counter(names.READ_PROXY_COMMIT_WRITES_TOTAL)
        self._hits = {
            is_tail: registry.counter(names.READ_PROXY_LANE_HITS_TOTAL, pool=pool)
            for is_tail, pool in ((True, "tail"), (False, "scan"))
        }

    def on_read(self, chunk: Chunk) -> None:
        """A chunk came from storage."""
        self.read_entries.value += chunk.entries
        self.read_bytes.value += len(chunk.frame)

    def on_sent(self, *, entries: int, size_bytes: int) -> None:
        self.messages.value += 1
        self.sent_entries.value += entries
        self.sent_bytes.value += size_bytes

    def on_shared(self, *, is_tail: bool) -> None:
        """A reader found its place in a window that was there."""
        self._hits[is_tail].value += 1
