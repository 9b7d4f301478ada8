"""What the dashboard and the alert rules name: read from the files as Prometheus would read them."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.documents import ROOT
from tests.support.monitoring.promql import Series, seconds

FOLDER: Final = ROOT / "docs/operate/dashboards"
RUNBOOKS: Final = "docs/operate/runbooks.md"

# What no healthy cluster shows. They are there from the start, and zero: else an alert would miss the first time.
# That each of them moves when it should is tested in tests/simulation/test_damage_metrics.py.
QUIET: Final = {
    "quire_bookie_damaged_entries_total",
    "quire_bookie_journal_damages_total",
    "quire_bookie_disk_errors_total",
    "quire_ledger_read_failures_total",
    "quire_ledger_damaged_copies_total",
    "replication_replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION",
}

_WORDS: Final = {"by", "or", "and", "unless", "on", "up"}  # `up` is Prometheus's own.
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ALERT: Final = re.compile(r"^      - alert: (\w+)\n((?:        .*\n)+)", re.MULTILINE)


class Query(NamedTuple):
    """One expression, and who asks it."""

    asked_by: str
    text: str

    @property
    def metrics(self) -> set[str]:
        """The samples that it reads."""
        text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", self.text)
        found = {match[0] for match in _NAME.finditer(text) if not text[match.end() :].lstrip().startswith("(")}
        return {name for name in found if name not in _WORDS}

    @property
    def labels(self) -> dict[str, set[str]]:
        """The labels that it selects by, of each metric."""
        found: dict[str, set[str]] = {}
        for name, selector in re.findall(r"(\w+)\{([^}]*)\}", self.text):
            found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!~]", selector))
        return found


def dashboards() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.json")):
        yield path, json.loads(path.read_text())


def dashboard_queries() -> list[Query]:
    return [
        Query(f"{path.name}: {panel['title']}", target["expr"])
        for path, dashboard in dashboards()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


class Alert(NamedTuple):
    name: str
    query: Query
    severity: str
    runbook: str
    for_s: float
    """How long it must be true before somebody is told."""


def alerts() -> list[Alert]:
    """The rules, of the few forms of YAML that the file has."""
    found = []
    text = (FOLDER / "alerts.yml").read_text()
    for name, body in _ALERT.findall(text):
        expr = re.search(r"expr: (?:>-\n)?((?:.*\n)(?:          .*\n)*)", body)
        severity = re.search(r"severity: (\w+)", body)
        runbook = re.search(r"runbook: (\S+)", body)
        assert expr, name
        assert severity, name
        assert runbook, name
        patience = re.search(r"for: (\w+)", body)
        query = Query(f"alert {name}", " ".join(expr[1].split()))
        found.append(Alert(name, query, severity[1], runbook[1], seconds(patience[1]) if patience else 0.0))
    assert len(found) == text.count("- alert:")
    return found


def samples(text: str) -> Counter[str]:
    """The sum of each sample of a scrape, whatever its labels."""
    found = Counter[str]()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = (
                line.partition(" ") if "{" not in line else (line.partition("{")[0], "", line.rpartition(" ")[2])
            )
            if value != "NaN":
                found[name] += float(value)  # type: ignore[assignment]
    return found


def scraped(text: str, at_s: float, **more: str) -> list[Series]:
    """Each sample of a scrape, with the labels that Prometheus adds."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            name, _, labels = sample.partition("{")
            pairs = frozenset({*re.findall(r'(\w+)="([^"]*)"', labels), *more.items()})
            found.append(Series(name, pairs, [(at_s, float(value))]))
    return found


def joined(*scrapes: list[Series]) -> list[Series]:
    """Scrapes one after the other, as series."""
    points: dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float]]] = {}
    for scrape in scrapes:
        for each in scrape:
            points.setdefault((each.name, each.labels), []).extend(each.points)
    return [Series(*key, found) for key, found in points.items()]
