"""What is refused is counted by cause, and can be scraped."""

from prometheus_client import generate_latest

from quire.rpc.serving.refusals import Refusals
from quire.telemetry.metrics import Registry


def test_causes_are_counted() -> None:
    refusals = Refusals()
    assert refusals.counts() == {}
    refusals.count("no_client_id")
    refusals.count("no_client_id")
    refusals.count("other_protocol")
    assert refusals.counts() == {"no_client_id": 2, "other_protocol": 1}


def test_counts_are_metrics() -> None:
    registry = Registry(lambda: 0.0)
    Refusals(registry).count("too_many_calls")
    assert b'quire_serving_refused_total{cause="too_many_calls"} 1.0' in generate_latest(registry)
