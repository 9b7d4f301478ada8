"""Metrics count what they are told, and expose it as Prometheus and as BookKeeper's dashboards expect it."""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from quire.errors import InvariantBroken
from quire.telemetry import names
from quire.telemetry.metrics import (
    HISTOGRAM_BOUNDS_S,
    QUANTILE_BOUNDS_S,
    WINDOW_S,
    Latency,
    OperationStats,
    Registry,
    estimate_quantiles,
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
generate_openmetrics, _ = choose_encoder("application/openmetrics-text; version=1.0.0")

DURATIONS_S = st.floats(0, 1000, allow_nan=False)


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def registry(clock: HandClock) -> Registry:
    return Registry(clock.monotonic)


def scrape(registry: Registry) -> Samples:
    families = parse_text(generate_latest(registry).decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


# --- What is counted


def test_counters_and_gauges_show_their_value_at_the_scrape(registry: Registry) -> None:
    written, queued, read = (
        registry.counter(names.WRITE_BYTES),
        registry.gauge(names.ADD_ENTRY_IN_PROGRESS),
        registry.counter(names.DAMAGED_ENTRIES_TOTAL),
    )
    cached = [10]
    registry.gauge(names.WRITE_CACHE_SIZE, lambda: cached[0])
    written.value += 5
    written.add(7)
    queued.add(3)
    queued.add(-1)
    read.add()
    cached[0] = 20
    samples = scrape(registry)
    assert value(samples, "bookie_WRITE_BYTES") == 12
    assert value(samples, "bookkeeper_server_ADD_ENTRY_IN_PROGRESS") == 2
    assert value(samples, "quire_bookie_damaged_entries_total") == 1
    assert value(samples, "bookie_write_cache_size") == 20


def test_a_histogram_counts_up_to_and_including_its_bounds(registry: Registry) -> None:
    stage = registry.latency(names.STAGE_SECONDS, stage="fsync")
    stage.observe(0.001)
    stage.observe(0.0010001, 9)
    stage.observe(1000.0)
    samples = scrape(registry)
    name = "quire_bookie_stage_seconds"
    assert value(samples, f"{name}_bucket", stage="fsync", le="0.0005") == 0
    assert value(samples, f"{name}_bucket", stage="fsync", le="0.001") == 1
    assert value(samples, f"{name}_bucket", stage="fsync", le="0.0025") == 10
    assert value(samples, f"{name}_bucket", stage="fsync", le="100.0") == 10
    assert value(samples, f"{name}_bucket", stage="fsync", le="+Inf") == 11
    assert value(samples, f"{name}_count", stage="fsync") == 11
    assert value(samples, f"{name}_sum", stage="fsync") == pytest.approx(1000.0100009)


@given(st.lists(st.tuples(DURATIONS_S, st.integers(1, 50))))
def test_a_run_of_equal_latencies_is_worth_as_many_single_ones(runs: list[tuple[float, int]]) -> None:
    together, singly = Latency(), Latency()
    for seconds, count in runs:
        together.observe(seconds, count)
        for _ in range(count):
            singly.observe(seconds)
    assert together.counts == singly.counts
    assert together.count == sum(count for _, count in runs)
    assert math.isclose(together.sum_s, singly.sum_s, rel_tol=1e-9)


# --- Operations, as BookKeeper shows them


def test_an_operation_is_a_summary_in_milliseconds_split_by_success(registry: Registry) -> None:
    adds = registry.operation(names.ADD_ENTRY_REQUEST)
    adds.ok.observe(0.002, 99)
    adds.ok.observe(0.5)
    samples = scrape(registry)
    name = "bookkeeper_server_ADD_ENTRY_REQUEST"
    assert value(samples, f"{name}_count", success="true") == 100
    assert value(samples, f"{name}_sum", success="true") == pytest.approx(698)
    assert value(samples, f"{name}_count", success="false") == 0
    quantiles = {
        quantile: value(samples, name, success="true", quantile=quantile)
        for quantile in ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
    }
    assert 1.5 < quantiles["0.5"] <= quantiles["0.99"] <= 2
    assert 400 < quantiles["0.999"] <= quantiles["1.0"] == 500
    assert math.isnan(value(samples, name, success="false", quantile="0.5")), "nothing failed"


def test_a_request_is_also_a_histogram_that_can_be_summed_up(registry: Registry) -> None:
    registry.operation(names.ADD_ENTRY_REQUEST).ok.observe(0.002, 5)
    registry.operation(names.READ_ENTRY_REQUEST).failed.observe(0.03)
    samples = scrape(registry)
    name = "quire_bookie_request_seconds"
    assert value(samples, f"{name}_bucket", operation="add_entry", success="true", le="0.001") == 0
    assert value(samples, f"{name}_bucket", operation="add_entry", success="true", le="0.0025") == 5
    assert value(samples, f"{name}_sum", operation="read_entry", success="false") == pytest.approx(0.03)
    series = {labels for name, labels in samples if name == "quire_bookie_request_seconds_count"}
    assert len(series) == 2, "what never happened is left out"


def test_quantiles_forget_what_is_older_than_the_window(registry: Registry, clock: HandClock) -> None:
    """Scraped every 15 s: slow at first, fast for a minute since then. The count and the sum forget nothing."""
    adds, name = registry.operation(names.ADD_ENTRY_REQUEST), "bookkeeper_server_ADD_ENTRY_REQUEST"
    adds.ok.observe(1.0, 1000)
    worst = []
    for _ in range(6):
        samples = scrape(registry)
        worst.append(value(samples, name, success="true", quantile="1.0"))
        clock.now += 15
        adds.ok.observe(0.001)
    assert worst == [1000, 1000, 1000, 1000, 1, 1]
    assert value(scrape(registry), f"{name}_count", success="true") == 1006


def test_rare_scrapes_look_back_to_the_one_before(registry: Registry, clock: HandClock) -> None:
    adds, name = registry.operation(names.ADD_ENTRY_REQUEST), "bookkeeper_server_ADD_ENTRY_REQUEST"
    adds.ok.observe(1.0)
    scrape(registry)
    clock.now += 3600
    adds.ok.observe(0.001)
    assert value(scrape(registry), name, success="true", quantile="1.0") == 1
    clock.now += 3600
    assert math.isnan(value(scrape(registry), name, success="true", quantile="1.0")), "nothing since"


@given(st.lists(st.floats(0, 5, allow_nan=False), max_size=300))
def test_however_often_it_is_scraped_it_remembers_only_a_few_moments(steps: list[float]) -> None:
    stats, now = OperationStats(), 0.0
    for step in steps:
        now += step
        list(stats.summary(now))
    assert len(stats._recent_ok._snapshots) <= WINDOW_S / 10 + 2


@given(st.lists(DURATIONS_S, min_size=1), st.floats(0.001, 1))
def test_an_estimated_quantile_is_in_the_bucket_of_the_real_one(durations: list[float], quantile: float) -> None:
    latency = Latency(QUANTILE_BOUNDS_S)
    for seconds in durations:
        latency.observe(seconds)
    (estimate,) = estimate_quantiles(latency.bounds_s, latency.counts, [quantile])
    real = sorted(durations)[math.ceil(quantile * len(durations)) - 1]
    place = bisect_left(QUANTILE_BOUNDS_S, real)
    lower = QUANTILE_BOUNDS_S[place - 1] if place else 0.0
    upper = QUANTILE_BOUNDS_S[min(place, len(QUANTILE_BOUNDS_S) - 1)]
    assert lower <= estimate <= upper


def test_quantile_buckets_are_close_together_and_contain_those_of_histograms() -> None:
    steps = [after / before for before, after in pairwise(QUANTILE_BOUNDS_S)]
    assert 1 < min(steps) <= max(steps) <= 4 / 3 + 1e-9
    assert set(HISTOGRAM_BOUNDS_S) <= set(QUANTILE_BOUNDS_S)


# --- Exposition


def test_everything_that_is_declared_parses_in_both_formats(registry: Registry) -> None:
    """Also the labels with the worst values."""
    make: dict[names.Kind, Callable[..., object]] = {
        names.Kind.COUNTER: registry.counter,
        names.Kind.GAUGE: registry.gauge,
        names.Kind.HISTOGRAM: registry.latency,
        names.Kind.OPERATION: registry.operation,
    }
    nasty = 'a "quoted"\n\\ földer'
    for declared in names.DECLARED.values():
        if declared is not names.REQUEST_SECONDS:
            made = make[declared.kind](declared, **dict.fromkeys(declared.labels, nasty))
            if isinstance(made, OperationStats):
                made.ok.observe(0.001)
    plain = list(parse_text(generate_latest(registry).decode()))
    modern = list(parse_openmetrics(generate_openmetrics(registry).decode()))  # type: ignore[no-untyped-call]
    documented = {family.name: family.documentation for family in modern}
    assert documented == {name: declared.help for name, declared in names.DECLARED.items()}
    assert {sample.name for family in plain for sample in family.samples} == {
        sample.name for family in modern for sample in family.samples
    }
    free = [sample for family in plain for sample in family.samples if sample.name == names.DISK_FREE_BYTES.name]
    assert free[0].labels == {"folder": nasty}


def test_the_counters_of_bookkeeper_keep_their_names(registry: Registry) -> None:
    """OpenMetrics would call a counter `…_total`; dashboards made for BookKeeper know no such name."""
    registry.counter(names.WRITE_BYTES).add(3)
    registry.counter(names.DISK_ERRORS_TOTAL).add(4)
    for text in (generate_latest(registry).decode(), generate_openmetrics(registry).decode()):
        assert "\nbookie_WRITE_BYTES 3" in text
        assert "\nquire_bookie_disk_errors_total 4" in text


def test_a_metric_is_used_as_it_was_declared(registry: Registry) -> None:
    registry.latency(names.STAGE_SECONDS, stage="queue")
    with pytest.raises(InvariantBroken, match="told apart"):
        registry.latency(names.STAGE_SECONDS, stage="queue")
    with pytest.raises(InvariantBroken, match="other labels"):
        registry.latency(names.STAGE_SECONDS)
    with pytest.raises(InvariantBroken, match="other labels"):
        registry.counter(names.WRITE_BYTES, folder="x")
    with pytest.raises(InvariantBroken, match="another kind"):
        registry.gauge(names.READ_BYTES)
    assert [family.name for family in registry.collect()] == ["quire_bookie_stage_seconds"]
