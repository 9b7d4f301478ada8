"""The example that runs on Spark, as a newcomer runs it: twice; totals come while payments go on, and each once."""

import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.testing import LocalCluster

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "windowed_totals.py"
MINUTES, SHOPS = 5, 3


def run(uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """In this process, which has a session already: another JVM would take longer than all the rest."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), uri, "--master", "local[2]"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def totals_in(uri: str) -> list[dict[str, Any]]:
    with quire.sync.connect(uri) as client, client.open_reader("totals") as reader:
        found = []
        while (records := reader.read_many(1000, timeout_s=0.5)) or not reader.statistics().at_tail:
            found += [json.loads(record.payload) for record in records]
        return found


def test_totals_by_the_minute_come_while_payments_go_on_and_each_is_there_once(
    spark: Any,
    quire_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program pays for the next minute only after it has read the totals of an earlier one: that it ends at all
    shows that totals come while the query runs. What is open when it ends is closed by the next run's payments.
    """
    monkeypatch.chdir(tmp_path)
    shown = run(quire_cluster.uri, monkeypatch, capsys)
    assert len(shown) == SHOPS * (MINUTES - 2)
    again = run(quire_cluster.uri, monkeypatch, capsys)
    totals = totals_in(quire_cluster.uri)
    assert totals[: len(shown) + len(again)] == shown + again, "it goes on with those that were not printed"
    assert len(again) == len(shown)
    windows = Counter((each["minute"], each["shop"]) for each in totals)
    assert set(windows.values()) == {1}
    assert {shop for _, shop in windows} == {f"shop-{number}" for number in range(SHOPS)}
    # Each shop has twenty payments a minute, and all shops together the numbers below sixty.
    by_minute: Counter[str] = Counter()
    for each in totals:
        by_minute[each["minute"]] += each["cents"]
    assert set(by_minute.values()) == {sum(range(60))}
    assert len(by_minute) >= MINUTES - 2
