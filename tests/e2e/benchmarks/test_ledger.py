"""`python -m benchmarks ledger` as a user runs it. What it finds depends on the machine; that it is whole does not."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended


def bench(*args: str, code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "ledger", *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_every_size_and_quorum_is_appended_read_and_paced(tmp_path: Path) -> None:
    found = json.loads(bench("--entries", "200", "--folder", str(tmp_path), "--json").stdout)
    assert (found["rounds"], found["window"]) == (1, 10_000)
    cases = set(itertools.product(("1/1/1", "3/3/2", "3/2/2"), (100, 1024, 32_768)))
    operations = [(row["operation"], (row["quorum"], row["entry_bytes"])) for row in found["throughput"]]
    assert sorted(operations) == sorted(itertools.product(("append", "read"), cases))
    for row in found["throughput"]:
        assert row["entries"] == 200
        assert row["side"] == "quire"
        assert row["entries_per_s"] == row["rounds_entries_per_s"][0] > 0
        assert row["client_cpu_us"] > 0
        assert row["ahead"] is None
    assert any(row["bookies_cpu_us"] > 0 for row in found["throughput"])
    assert {(row["quorum"], row["entry_bytes"]) for row in found["latency"]} == cases
    for row in found["latency"]:
        assert (row["entries"], row["entries_per_s"]) == (200, 1000)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_people_get_tables_that_fit_on_a_page() -> None:
    text = bench("--entries", "50", "--entry-bytes", "10", "--quorum", "1/1/1", "--warm-up", "0", COLUMNS="80").stdout
    lines = text.splitlines()
    assert lines[0].split(maxsplit=5)[:5] == ["operation", "E/Qw/Qa", "side", "bytes", "entries/s"]
    assert lines[0].endswith("client CPU µs  bookies CPU µs")
    assert [line.split()[:4] for line in lines[1:3]] == [[word, "1/1/1", "quire", "10"] for word in ("append", "read")]
    assert lines[5].split()[:4] == ["1,000/s", "1/1/1", "quire", "10"]
    assert "…" not in text


def test_bad_quorums_and_settings_are_refused() -> None:
    assert "3/3" in bench("--quorum", "3/3", code=2).stderr
    assert "NAME=VALUE" in bench("--peer", "apache", "--peer-set", "journalSyncData", code=2).stderr
