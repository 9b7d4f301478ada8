"""What a write proxy counts: in the registry of the ledger client that it works with, so that one scrape has it all.

Nothing is counted for a single record: a batch is one step. What each metric means is in `quire.telemetry.names`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quire.protocol.stream_states import StreamState
from quire.proxy.counted_calls import RequestCounter
from quire.telemetry import names
from quire.telemetry.metrics import Counter, Registry
from quire.telemetry.names import Declared


class StreamFigures(NamedTuple):
    """Of one stream, now."""

    requests_per_s: float
    bytes_per_s: float
    waiting: int


class WriteProxyMetrics:
    """The counters of one proxy."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.request = RequestCounter(registry, names.WRITE_PROXY_REQUESTS_TOTAL)
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
        self.is_balancer = registry.gauge(names.WRITE_PROXY_IS_BALANCER)
        self.balance_looks = registry.counter(names.WRITE_PROXY_BALANCE_LOOKS_TOTAL)
        self.balance_moved = registry.counter(names.WRITE_PROXY_BALANCE_MOVES_TOTAL, outcome="moved")
        self.balance_failed = registry.counter(names.WRITE_PROXY_BALANCE_MOVES_TOTAL, outcome="failed")
        self.balance_spread = registry.gauge(names.WRITE_PROXY_BALANCE_SPREAD)

    def show_streams(self, figures: Callable[[], Mapping[str, StreamFigures]]) -> None:
        """Have a line of each for every stream: for proxies with few of them."""

        def show(declared: Declared, figure: Callable[[StreamFigures], float]) -> None:
            self.registry.gauges(declared, lambda: {stream: figure(each) for stream, each in figures().items()})

        show(names.WRITE_PROXY_STREAM_REQUESTS_PER_S, lambda each: each.requests_per_s)
        show(names.WRITE_PROXY_STREAM_BYTES_PER_S, lambda each: each.bytes_per_s)
        show(names.WRITE_PROXY_STREAM_PENDING_OPERATIONS, lambda each: each.waiting)

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
