"""`python -m benchmarks proxy` as a user runs it. What it finds depends on the machine; that it is whole does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended


def bench(*args: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "proxy", "--seconds", "0.5", "--rounds", "1", *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_appends_and_readers_are_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = json.loads(bench("--readers", "20", "--whole-readers", "2", "--json", "--folder", str(tmp_path)))
    assert [(row["way"], row["records"]) for row in found["waits"]] == [("direct", 50), ("proxy", 50)]
    for row in found["waits"]:
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert [(row["share"], row["target_ms"]) for row in found["added"]] == [("p50", 1.5), ("p99", 8.0)]
    kinds = [(row["way"], row["record_bytes"]) for row in found["throughput"]]
    assert kinds == [("proxy", 256), ("direct", 256), ("proxy", 1024), ("direct", 1024)]
    for row in found["throughput"]:
        assert row["records_per_s"] > 0
        assert row["client_cpu_us"] > 0
    assert [(row["readers"], row["stuck_readers"]) for row in found["fan_out"]] == [(20, 0), (20, 1)]
    for row in found["fan_out"]:
        assert row["fewest_records"] == row["records"] == 250
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        assert 0 < row["acked_p50_ms"] <= row["acked_p99_ms"]
        assert row["storage_reads"] > 0
        assert row["read_proxy_bytes"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_people_get_tables_that_fit_on_a_page() -> None:
    text = bench("--no-writing", "--readers", "3", "--whole-readers", "1", COLUMNS="100")
    lines = [line.split() for line in text.splitlines()]
    assert ["readers", "stuck", "records"] in [line[:3] for line in lines]
    assert ["3", "1", "250"] in [line[:3] for line in lines]
    assert "…" not in text
