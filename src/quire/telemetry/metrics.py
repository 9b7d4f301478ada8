"""Metrics that cost almost nothing where they are updated: plain slotted numbers, made readable only when scraped.

    registry = Registry(clock.monotonic)
    adds = registry.operation(names.ADD_ENTRY_REQUEST)
    adds.ok.observe(0.0012, 64)               # 64 entries that took the same time are one call
    prometheus_client.generate_latest(registry)

Everything here belongs to the event loop's thread, updates and scrapes alike: there are no locks, so an update from
another thread could be lost. Memory is bounded: nothing is kept for each observation.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, nan
from typing import TYPE_CHECKING, Final, TypeVar

from quire.errors import invariant
from quire.telemetry.names import Declared, Kind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_Labels = dict[str, str]
_Sample = tuple[str, _Labels, float]  # Suffix of the name, labels, value.

WINDOW_S: Final = 60.0  # How far back quantiles look, at least: also the interval of Apache's own.
_SNAPSHOT_EVERY_S: Final = 10.0
QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)


def _bounds(mantissas: Sequence[str]) -> tuple[float, ...]:
    """Upper bounds from 10 µs to 100 s, log-spaced and round in decimal."""
    return (*(float(f"{mantissa}e{decade}") for decade in range(-5, 2) for mantissa in mantissas), 100.0)


HISTOGRAM_BOUNDS_S: Final = _bounds(("1", "2.5", "5"))
QUANTILE_BOUNDS_S: Final = _bounds(
    ("1", "1.2", "1.5", "2", "2.5", "3", "4", "5", "6", "8")
)  # Each ≤ 4/3 of the one before.


class Counter:
    """A number that only grows: either `value`, or what `read` answers at each scrape, where a part counts by itself.

    On a hot path write `counter.value += n`.
    """

    __slots__ = ("read", "value")

    def __init__(self) -> None:
        self.value = 0
        self.read: Callable[[], float] | None = None

    def add(self, count: int = 1) -> None:
        self.value += count


class Gauge:
    """A number that goes up and down: either `value`, or what `read` answers at each scrape."""

    __slots__ = ("read", "value")

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self.value: float = 0
        self.read = read

    def add(self, count: float = 1) -> None:
        self.value += count

    def current(self) -> float:
        return self.value if self.read is None else self.read()


class Latency:
    """How long something took, in fixed buckets. `counts[i]` took at most `bounds_s[i]`, the last one longer."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...] = HISTOGRAM_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Take in `count` things of the same duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += seconds * count

    @property
    def count(self) -> int:
        return sum(self.counts)


class OperationStats:
    """How often an operation succeeded and failed, and how long it took: `stats.ok.observe(...)`, or `stats.failed`.

    Exposed as BookKeeper exposes it: a summary in milliseconds. Its quantiles reach back to the newest scrape that is
    at least `WINDOW_S` old, or to the start. They are interpolated inside a bucket: from 10 µs on they are off by a
    third at most, and what took longer than the last bound, 100 s, is told as 100 s.
    """

    __slots__ = ("_recent_failed", "_recent_ok", "failed", "ok")

    def __init__(self) -> None:
        self.ok = Latency(QUANTILE_BOUNDS_S)
        self.failed = Latency(QUANTILE_BOUNDS_S)
        self._recent_ok = _Recent(self.ok)
        self._recent_failed = _Recent(self.failed)

    def summary(self, now: float) -> Iterator[_Sample]:
        for success, recent in (("false", self._recent_failed), ("true", self._recent_ok)):
            latency = recent.latency
            estimates = estimate_quantiles(latency.bounds_s, recent.counts(now), QUANTILES)
            for quantile, estimate in zip(QUANTILES, estimates, strict=True):
                yield "", {"success": success, "quantile": str(quantile)}, estimate * 1000
            yield "_count", {"success": success}, latency.count
            yield "_sum", {"success": success}, latency.sum_s * 1000

    def histogram(self) -> Iterator[_Sample]:
        """The same, in buckets; without what never happened, which would be most of the lines of a scrape."""
        for success, latency in (("false", self.failed), ("true", self.ok)):
            if latency.count:
                for suffix, labels, value in _histogram(latency):
                    yield suffix, {"success": success, **labels}, value


class _Recent:
    """What a latency counted lately, from snapshots that scrapes leave behind: updates know nothing of it."""

    __slots__ = ("_snapshots", "latency")

    def __init__(self, latency: Latency) -> None:
        self.latency = latency
        self._snapshots: deque[tuple[float, list[int]]] = deque([(-inf, [0] * len(latency.counts))])

    def counts(self, now: float) -> list[int]:
        snapshots, counts = self._snapshots, self.latency.counts
        while len(snapshots) > 1 and snapshots[1][0] <= now - WINDOW_S:
            snapshots.popleft()
        if snapshots[-1][0] <= now - _SNAPSHOT_EVERY_S:
            snapshots.append((now, counts.copy()))
        return [count - before for count, before in zip(counts, snapshots[0][1], strict=True)]


def estimate_quantiles(bounds: Sequence[float], counts: Sequence[int], quantiles: Iterable[float]) -> Iterator[float]:
    """The values below which these parts of all observations lie, interpolated inside buckets; NaN if there is none."""
    reached = list(accumulate(counts))
    for quantile in quantiles:
        if not reached[-1]:
            yield nan
            continue
        rank = quantile * reached[-1]
        place = bisect_left(reached, rank)
        if place == len(bounds):
            yield bounds[-1]
            continue
        lower = bounds[place - 1] if place else 0.0
        inside = (rank - reached[place] + counts[place]) / counts[place]
        yield lower + (bounds[place] - lower) * inside


def _histogram(latency: Latency) -> Iterator[_Sample]:
    """Cumulative buckets at `HISTOGRAM_BOUNDS_S`, which are among the bounds of every latency."""
    reached = list(accumulate(latency.counts))
    for bound in HISTOGRAM_BOUNDS_S:
        yield "_bucket", {"le": str(bound)}, reached[bisect_left(latency.bounds_s, bound)]
    yield "_bucket", {"le": "+Inf"}, reached[-1]
    yield "_count", {}, reached[-1]
    yield "_sum", {}, latency.sum_s


_Series = Counter | Gauge | Latency | OperationStats
_S = TypeVar("_S", Counter, Gauge, Latency, OperationStats)


class Registry:
    """The metrics of one component, in the order of their making. A `prometheus_client` collector.

    `now` gives monotonic seconds; it is asked once for each scrape.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._families: dict[Declared, dict[tuple[str, ...], _Series]] = {}
        self._tables: dict[Declared, Callable[[], Mapping[str, float]]] = {}

    def counter(self, declared: Declared, **labels: str) -> Counter:
        return self._enter(Kind.COUNTER, declared, labels, Counter())

    def gauge(self, declared: Declared, read: Callable[[], float] | None = None, **labels: str) -> Gauge:
        return self._enter(Kind.GAUGE, declared, labels, Gauge(read))

    def gauges(self, declared: Declared, read: Callable[[], Mapping[str, float]]) -> None:
        """A gauge for each value of the one label that it has, whichever there are at a scrape."""
        invariant(declared.kind is Kind.GAUGE and len(declared.labels) == 1, "no such table", name=declared.name)
        invariant(declared not in self._tables, "two metrics cannot be told apart", name=declared.name)
        self._tables[declared] = read

    def latency(self, declared: Declared, **labels: str) -> Latency:
        return self._enter(Kind.HISTOGRAM, declared, labels, Latency())

    def operation(self, declared: Declared, **labels: str) -> OperationStats:
        return self._enter(Kind.OPERATION, declared, labels, OperationStats())

    def _enter(self, kind: Kind, declared: Declared, labels: _Labels, series: _S) -> _S:
        values = tuple(labels.get(name, "") for name in declared.labels)
        family = self._families.get(declared, {})
        invariant(kind is declared.kind, "a metric is used as another kind", name=declared.name, kind=kind)
        invariant(set(labels) == set(declared.labels), "a metric has other labels", name=declared.name, labels=labels)
        invariant(values not in family, "two metrics cannot be told apart", name=declared.name, labels=labels)
        family[values] = series
        self._families[declared] = family
        return series

    def collect(self) -> "Iterator[Metric]":
        """Every metric as it is now. Takes care of no thread: call it where the metrics are updated."""
        from prometheus_client.metrics_core import Metric  # Slow to import, and only a scrape needs it.

        now, again = self._now(), dict[Declared, Metric]()
        for declared, family in self._families.items():
            metric = Metric(declared.name.removesuffix("_total"), declared.help, _exposed_type(declared))
            for values, series in family.items():
                own = dict(zip(declared.labels, values, strict=True))
                for suffix, labels, value in _samples(series, now):
                    metric.add_sample(declared.name + suffix, own | labels, value)
                if (twin := declared.histogram) is not None and isinstance(series, OperationStats):
                    histogram = again.setdefault(twin, Metric(twin.name, twin.help, "histogram"))
                    for suffix, labels, value in series.histogram():
                        histogram.add_sample(twin.name + suffix, {"operation": declared.operation} | labels, value)
            yield metric
        yield from again.values()
        for declared, read in self._tables.items():
            metric = Metric(declared.name, declared.help, "gauge")
            for label, value in read().items():
                metric.add_sample(declared.name, {declared.labels[0]: label}, value)
            yield metric


def _exposed_type(declared: Declared) -> str:
    """A counter must end in `_total` to be called one; BookKeeper's do not, and keep their names as untyped metrics."""
    if declared.kind is Kind.COUNTER:
        return "counter" if declared.name.endswith("_total") else "unknown"
    return {Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram", Kind.OPERATION: "summary"}[declared.kind]


def _samples(series: _Series, now: float) -> Iterable[_Sample]:
    match series:
        case Counter():
            return [("", {}, series.value if series.read is None else series.read())]
        case Gauge():
            return [("", {}, series.current())]
        case Latency():
            return _histogram(series)
        case OperationStats():
            return series.summary(now)
