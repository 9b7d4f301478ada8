"""Each alert rule is evaluated: it fires when it should, in the very minute, and keeps quiet where it should.

Samples come every minute, as Prometheus would scrape them. That the names and labels in them are those of real services
is tested in `test_monitoring.py`, and that damage moves its counters in `tests/simulation/test_damage_metrics.py`.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from tests.support.monitoring.monitored import Alert, alerts
from tests.support.monitoring.promql import Series, evaluate

MINUTE_S: Final = 60.0
BEGIN: Final = 20  # The minute in which something happens.
Values = Callable[[int], float | None]  # By minute; None if there is no sample.


class Given(NamedTuple):
    name: str
    labels: dict[str, str]
    values: Values


class Case(NamedTuple):
    """What is measured, and in which minute the alert fires; None for never, within the minutes that are looked at."""

    given: list[Given]
    fires_at: int | None
    minutes: int = 120


def steps(*changes: tuple[int, float | None]) -> Values:
    """The value of the last change, each from its minute on."""
    return lambda minute: next((value for since, value in reversed(changes) if minute >= since), None)


def counting(per_minute: float, *, begin: int = BEGIN, end: int = 10_000, start: float = 0.0) -> Values:
    return lambda minute: start + per_minute * max(0, min(minute, end) - begin)


def of(name: str, values: Values, **labels: str) -> Given:
    return Given(name, {"instance": "b1:8080", **labels}, values)


def adds(slow_share: float, *, operation: str = "add_entry") -> list[Given]:
    """A thousand requests a minute; from `BEGIN` on this share of them takes more than a second, the others 10 ms."""

    def upto(bound: float) -> Values:
        slow = counting(1000 * slow_share)
        return lambda minute: 1000.0 * minute - (0.0 if bound > 1 else slow(minute) or 0.0)

    return [
        of("quire_bookie_request_seconds_bucket", upto(bound), le=name, operation=operation, success="true")
        for name, bound in [("0.01", 0.01), ("0.1", 0.1), ("1.0", 1.0), ("10.0", 10.0), ("+Inf", math.inf)]
    ]


UP: Final = "up"
STATUS: Final = "bookie_SERVER_STATUS"
FREE: Final = "quire_bookie_disk_free_bytes"
DAMAGE: Final = [f"quire_bookie_{kind}_total" for kind in ("damaged_entries", "journal_damages", "disk_errors")]
UNREADABLE: Final = "replication_replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION"
READ_FAILURES: Final = "quire_ledger_read_failures_total"
DAMAGED_COPIES: Final = "quire_ledger_damaged_copies_total"
APPENDS: Final = "quire_ledger_append_failures_total"
RECORDS: Final = "quire_stream_failed_records_total"
CHANGES: Final = "bookkeeper_client_NUM_ENSEMBLE_CHANGE"
FENCED: Final = "quire_stream_fenced_writers_total"
AUDITOR: Final = "quire_autorecovery_is_auditor"
LOST: Final = "quire_autorecovery_lost_bookies"
PROXY: Final = "quire_write_proxy_status"


CASES: Final[dict[str, list[Case]]] = {
    "QuireBookieDown": [
        Case([of(UP, steps((0, 1), (BEGIN, 0)), job="quire-bookies")], BEGIN + 2),
        Case([of(UP, steps((0, 1), (BEGIN, 0), (BEGIN + 2, 1)), job="quire-bookies")], None),  # Started again.
        Case([of(UP, steps((0, 0)), job="quire-proxies")], None),
    ],
    "QuireBookieReadOnly": [
        Case([of(STATUS, steps((0, 1), (BEGIN, 0)))], BEGIN + 10),
        Case([of(STATUS, steps((0, 1), (BEGIN, 0), (BEGIN + 10, 1)))], None),
    ],
    "QuireDiskFillingUp": [
        # In two days 60 MB a minute are 173 GB, and 40 MB are 115 GB. There are two samples from the first minute on.
        Case([of(FREE, lambda minute: 150e9 - 60e6 * minute, folder="/data")], 1 + 60),
        Case([of(FREE, lambda minute: 150e9 - 40e6 * minute, folder="/data")], None, 400),
        # Logs grow quickly, and garbage collection takes them back every half hour.
        Case([of(FREE, lambda minute: 150e9 - 60e6 * (minute % 30), folder="/data")], None, 400),
    ],
    "QuireBookieSlow": [
        # Of the last five minutes, the share of slow ones is above a hundredth from the second minute on.
        Case(adds(0.02), BEGIN + 3 + 10),
        Case(adds(0.005), None),
        Case(adds(0.02, operation="read_entry"), None),
    ],
    "QuireBookieDamage": [
        *(Case([of(name, steps((0, 0), (BEGIN, 1)))], BEGIN) for name in DAMAGE),
        Case([of(name, steps((0, 3))) for name in DAMAGE], None),  # Long ago.
        Case([of(name, steps((0, 3), (BEGIN, 0))) for name in DAMAGE], None),  # And then it was started again.
    ],
    "QuireAppendsFail": [
        Case([of(APPENDS, counting(1, end=BEGIN + 6))], BEGIN + 4 + 5),
        Case([of(RECORDS, steps((0, 0), (BEGIN, 1)))], BEGIN + 5),
        Case([of(APPENDS, counting(1, end=BEGIN + 2)), of(RECORDS, steps((0, 0)))], None),
    ],
    "QuireReadsFail": [
        Case([of(READ_FAILURES, steps((0, 0), (BEGIN, 1)))], BEGIN),
        Case([of(READ_FAILURES, steps((0, 7)))], None),
    ],
    "QuireDamagedCopies": [
        Case([of(DAMAGED_COPIES, steps((0, 0), (BEGIN, 1)))], BEGIN),
        Case([of(DAMAGED_COPIES, steps((0, 7)))], None),
    ],
    "QuireWritersMoveOften": [
        # More than ninety within fifteen minutes: with ten a minute that is so after ten.
        Case([of(CHANGES, counting(10))], BEGIN + 10 + 15),
        Case([of(CHANGES, counting(5))], None),
        Case([of(CHANGES, steps((0, 0), (BEGIN, 500)))], None),  # A bookie died, and everybody moved once.
    ],
    "QuireStreamsContested": [
        Case([of(FENCED, counting(1))], BEGIN + 6),
        Case([of(FENCED, counting(1, end=BEGIN + 4))], None),
    ],
    "QuireProxyTakesNoStreams": [
        Case([of(PROXY, steps((0, 100), (BEGIN, 200)))], BEGIN + 15),
        Case([of(PROXY, steps((0, 100), (BEGIN, 200), (BEGIN + 5, None), (BEGIN + 6, 100)))], None),  # Drained.
    ],
    "QuireBookieLost": [
        Case([of(LOST, steps((0, 0), (BEGIN, 1)))], BEGIN + 30),
        Case([of(LOST, steps((0, 0), (BEGIN, 2), (BEGIN + 20, 0)))], None),
    ],
    "QuireNoAuditor": [
        Case([of(AUDITOR, steps((0, 1), (BEGIN, 0))), of(AUDITOR, steps((0, 0)), instance="b2:8080")], BEGIN + 10),
        Case([], 10),  # Nobody runs autorecovery.
        Case(
            [of(AUDITOR, steps((0, 1), (BEGIN, 0))), of(AUDITOR, steps((0, 0), (BEGIN + 3, 1)), instance="b2:8080")],
            None,
        ),
    ],
    "QuireCopiesUnreadable": [
        Case([of(UNREADABLE, steps((0, 0), (BEGIN, 4)))], BEGIN),
        Case([of(UNREADABLE, steps((0, 4)))], None, 70),
    ],
}


def first_minute(alert: Alert, case: Case) -> int | None:
    """When it fires first: evaluated every minute, and true of one and the same series for as long as the rule says."""
    since: dict[frozenset[tuple[str, str]], int] = {}
    series = [Series(each.name, frozenset(each.labels.items()), []) for each in case.given]
    for minute in range(case.minutes):
        for each, (_, _, points) in zip(case.given, series, strict=True):
            value = each.values(minute)
            if value is not None:
                points.append((minute * MINUTE_S, value))
        found = evaluate(alert.query.text, series, minute * MINUTE_S)
        since = {labels: since.get(labels, minute) for labels in found}
        if any((minute - begun) * MINUTE_S >= alert.for_s for begun in since.values()):
            return minute
    return None


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: Alert) -> None:
    cases = CASES[alert.name]
    assert {case.fires_at is None for case in cases} == {True, False}
    for case in cases:
        for name, labels, _ in case.given:
            assert name in alert.query.metrics | {UP}
            assert alert.query.labels.get(name, set()) <= labels.keys()
        assert first_minute(alert, case) == case.fires_at, case
    named = {name for case in cases for name, _, _ in case.given}
    assert alert.query.metrics <= named, "each metric of the rule is in a case"


def test_the_evaluation_is_that_of_prometheus() -> None:
    """Values that Prometheus's documentation and its own tests give for these functions."""

    def value(text: str, *series: Series, at_s: float = 300.0) -> float:
        ((_, found),) = evaluate(text, series, at_s).items()
        return found

    none: frozenset[tuple[str, str]] = frozenset()
    counter = Series("c", none, [(0.0, 0.0), (60.0, 10.0), (120.0, 20.0), (180.0, 5.0), (240.0, 15.0), (300.0, 25.0)])
    # Of the five minutes to 300 s the sample at 0 s is outside; what is inside begins 60 s later, and is extended.
    assert value("increase(c[5m])", counter) == pytest.approx(35 * 300 / 240)
    assert value("rate(c[5m])", counter) == pytest.approx(35 / 240)
    assert value("predict_linear(c[2m], 60)", counter) == pytest.approx(35)
    bounds = [("1", 0.0), ("2", 50.0), ("4", 100.0), ("+Inf", 100.0)]
    buckets = [Series("h", frozenset({("le", bound)}), [(300.0, count)]) for bound, count in bounds]
    assert value("histogram_quantile(0.25, h)", *buckets) == pytest.approx(1.5)
    assert value("histogram_quantile(0.9, h)", *buckets) == pytest.approx(3.6)
    assert value("sum by (x) (c)", counter) == 25
    assert evaluate("absent(c)", [counter], 300.0) == {}
    assert evaluate("c > 2 * 13 or absent(d)", [counter], 300.0) == {none: 1.0}
    assert evaluate("c == 25", [counter], 700.0) == {}, "older than five minutes"
    for text in ("c offset 5m > 1", 'c{a=~"b"} > 1', "avg(c) > 1", "c > 1 and d"):
        with pytest.raises(AssertionError):
            evaluate(text, [counter], 300.0)
