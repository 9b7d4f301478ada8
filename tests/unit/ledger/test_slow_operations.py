"""What takes too long is told once a second at most, with the stage that took the time."""

import logging
from collections.abc import Iterator

import pytest

from quire.ledger.metrics import SLOW_S, LedgerMetrics


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append((record.event, record.facts))  # type: ignore[attr-defined]


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logging.getLogger("quire.ledger").addHandler(handler)
    yield handler
    logging.getLogger("quire.ledger").removeHandler(handler)


def test_a_slow_append_names_its_stage(told: Told) -> None:
    now_s = [100.0]
    metrics = LedgerMetrics(lambda: now_s[0])
    metrics.on_append_seconds(SLOW_S, 5, 7)
    assert told.events == [], "just fast enough"
    metrics.on_append_seconds(2.0, 5, 7)
    assert told.events == [("append.slow", {"seconds": 2.0, "stage": "bookies", "ledger_id": 7, "entries": 5})]
    metrics.on_append_seconds(2.0, 5, 7)
    assert len(told.events) == 1, "once a second"
    now_s[0] += 10
    metrics.on_ensemble_change()
    now_s[0] += 1
    metrics.on_append_seconds(3.0, 1, 7)
    assert told.events[-1][1]["stage"] == "ensemble change"


def test_a_slow_read_names_its_stage(told: Told) -> None:
    metrics = LedgerMetrics(lambda: 50.0)
    metrics.on_read_seconds(0.5, "bookies", 7, 3)
    metrics.on_read_seconds(1.5, "slow bookie", 7, 3)
    assert told.events == [("read.slow", {"seconds": 1.5, "stage": "slow bookie", "ledger_id": 7, "entry_id": 3})]
