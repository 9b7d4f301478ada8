"""What a client of ledgers counts: all of it there from the start, and nothing that drifts."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from quire.ledger.bookies.pool import BookiePool, PoolSettings
from quire.ledger.metrics import LedgerMetrics
from quire.ledger.statistics import statistics_of
from quire.telemetry import names
from quire.testing import Simulation, sim_cluster, simulate


def test_a_client_exposes_every_metric_of_its_own_from_the_start() -> None:
    async def main(sim: Simulation) -> None:
        runtime = sim.host("client").runtime
        metrics = LedgerMetrics(runtime.clock.monotonic)
        async with sim_cluster(sim) as cluster, BookiePool(runtime, cluster.bookies, PoolSettings()) as pool:
            metrics.watch_pool(pool)
            text = generate_latest(metrics.registry).decode()
            families = {family.name for family in text_string_to_metric_families(text)}
            assert families == {name for name in names.DECLARED if "client" in name or name.startswith("quire_ledger")}
            metrics.on_appended(3, 300)
            metrics.on_append_seconds(0.002, 3)
            metrics.on_read(2, 50)
            metrics.on_recovery(1.0, success=False)
            metrics.on_recovery(1.0, success=True)
            text = generate_latest(metrics.registry).decode()
            assert "\nquire_ledger_appended_entries_total 3.0\n" in text
            assert "\nquire_ledger_appended_bytes_total 300.0\n" in text
            assert '\nquire_ledger_append_seconds_bucket{le="0.0025"} 3.0\n' in text
            assert '\nquire_ledger_append_seconds_bucket{le="0.001"} 0.0\n' in text
            found = statistics_of(metrics, pool)
            assert (found.appended_entries, found.appended_bytes) == (3, 300)
            assert (found.read_entries, found.read_bytes) == (2, 50)
            assert (found.recovered, found.failed_calls) == (1, 1)

    simulate(1, main)


def test_what_is_in_flight_is_the_sum_of_those_who_write_now() -> None:
    metrics, first = LedgerMetrics(lambda: 0.0), 5

    def same() -> int:
        return first

    with metrics.writing(same), metrics.writing(same):
        assert (metrics.writers, metrics.in_flight_entries) == (2, 10)
        first = 7
        assert metrics.in_flight_entries == 14
    assert (metrics.writers, metrics.in_flight_entries) == (0, 0)


def test_the_lag_is_that_of_the_slowest_follower() -> None:
    metrics = LedgerMetrics(lambda: 0.0)
    with metrics.following(lambda: 3):
        with metrics.following(lambda: 8):
            assert metrics.lac_lag_entries == 8
        assert metrics.lac_lag_entries == 3
    assert metrics.lac_lag_entries == 0


def test_an_operation_counts_as_failed_however_it_ends_early() -> None:
    now = 10.0
    metrics = LedgerMetrics(lambda: now)
    with metrics.timed(metrics.creates):
        now = 12.0
    with pytest.raises(KeyError), metrics.timed(metrics.creates):
        raise KeyError
    assert (metrics.creates.ok.count, metrics.creates.ok.sum_s) == (1, 2.0)
    assert metrics.creates.failed.count == 1
