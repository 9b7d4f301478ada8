"""`python -m benchmarks start` as a user runs it. What it finds depends on the machine; that it is whole does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

WAITS = [
    "import to first append, file:",
    "open again after kill -9, file:",
    "quire up to first append",
    "fixture quire_log, connected",
    "fixture quire_cluster, connected",
    "for comparison: import asyncio",
]


def test_every_wait_is_measured_in_each_round(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "start", "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "no progress where nobody looks"
    found = json.loads(done.stdout)
    assert found["rounds"] == 1
    assert [wait["what"] for wait in found["waits"]] == WAITS
    for wait in found["waits"]:
        assert wait["rounds_ms"] == [wait["median_ms"]], "the first run is not counted"
        assert 0 < wait["fastest_ms"] == wait["median_ms"] == wait["longest_ms"]
    assert [wait["budget_ms"] for wait in found["waits"]] == [300, 1000, 3000, 100, 100, None]
    assert [wait["budget_mb"] for wait in found["waits"]] == [100, 100, None, None, None, None]
    cluster = found["waits"][2]
    assert (cluster["cpu_ms"], cluster["memory_mb"]) == (None, None), "several processes"
    assert list(tmp_path.glob("quire-start-*")) == [], "nothing is left behind"
