"""What a write proxy counts: in the registry of the ledger client that it works with, so that one scrape has it all.

Nothing is counted for a single record: a batch is one step. What each metric means is in `quire.telemetry.names`.
"""

from quire.protocol.stream_states import StreamState
from quire.telemetry import names
from quire.telemetry.metrics import Counter, Registry


class WriteProxyMetrics:
    """The counters of one proxy."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._requests: dict[tuple[str, str], Counter] = {}
        self._acquire_failures: dict[str, Counter] = {}
        self._limited: dict[tuple[str, str], Counter] = {}
        self.queue_seconds = registry.latency(names.WRITE_PROXY_WRITE_SECONDS, stage="queue")
        self.storage_seconds = registry.latency(names.WRITE_PROXY_WRITE_SECONDS, stage="storage")
        self.total_seconds = registry.latency(names.WRITE_PROXY_WRITE_SECONDS, stage="total")
        self.records = registry.counter(names.WRITE_PROXY_RECORDS_TOTAL)
        self.bytes = registry.counter(names.WRITE_PROXY_BYTES_TOTAL)
        self.duplicates = registry.counter(names.WRITE_PROXY_DUPLICATES_TOTAL)
        self.redirects = registry.counter(names.WRITE_PROXY_REDIRECTS_TOTAL)
        self.acquire_seconds = registry.latency(names.WRITE_PROXY_ACQUIRE_SECONDS)
        self.cached = registry.gauge(names.WRITE_PROXY_STREAMS_CACHED)
        self.owned = registry.gauge(names.WRITE_PROXY_STREAMS_OWNED)
        self.by_state = {
            state: registry.gauge(names.WRITE_PROXY_STREAMS, state=state.name.lower()) for state in StreamState
        }
        self.status = registry.gauge(names.WRITE_PROXY_STATUS)
        self.requests_per_s = registry.gauge(names.WRITE_PROXY_REQUESTS_PER_S)
        self.bytes_per_s = registry.gauge(names.WRITE_PROXY_BYTES_PER_S)
        self.pending = registry.gauge(names.WRITE_PROXY_PENDING_OPERATIONS)
        self.in_flight_bytes = registry.gauge(names.WRITE_PROXY_IN_FLIGHT_BYTES)
        self.service_timeouts = registry.counter(names.WRITE_PROXY_SERVICE_TIMEOUTS_TOTAL)
        self.session_expiries = registry.counter(names.WRITE_PROXY_SESSION_EXPIRIES_TOTAL)
        self.unloads = registry.counter(names.WRITE_PROXY_UNLOADS_TOTAL)
        self.snapshots = registry.counter(names.WRITE_PROXY_SNAPSHOTS_TOTAL)
        self.calls = registry.gauge(names.WRITE_PROXY_CALLS)
        self.violations = registry.counter(names.WRITE_PROXY_VIOLATIONS_TOTAL)

    def request(self, rpc: str, code: str) -> None:
        counter = self._requests.get((rpc, code))
        if counter is None:
            counter = self.registry.counter(names.WRITE_PROXY_REQUESTS_TOTAL, rpc=rpc, code=code)
            self._requests[rpc, code] = counter
        counter.value += 1

    def acquire_failed(self, cause: str) -> None:
        counter = self._acquire_failures.get(cause)
        if counter is None:
            counter = self.registry.counter(names.WRITE_PROXY_ACQUIRE_FAILURES_TOTAL, cause=cause)
            self._acquire_failures[cause] = counter
        counter.value += 1

    def limited(self, level: str, kind: str) -> None:
        counter = self._limited.get((level, kind))
        if counter is None:
            counter = self.registry.counter(names.WRITE_PROXY_LIMITED_TOTAL, level=level, kind=kind)
            self._limited[level, kind] = counter
        counter.value += 1
