"""`python -m benchmarks … --peer apache`, small: that both sides do the same work, and that they are compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)  # Five JVMs start, on a machine that may have better things to do.
def test_apache_takes_its_turns_beside_us(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "ledger", "--peer", "apache", "--rounds", "1", "--json"),
            *("--entries", "300", "--entry-bytes", "1000", "--quorum", "3/2/2", "--warm-up", "100", "--window", "50"),
            *("--folder", str(tmp_path), "--peer-set", "journalMaxGroupWaitMSec=1"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    rows = {(row["operation"], row["side"]): row for row in found["throughput"]}
    assert set(rows) == {(operation, side) for operation in ("append", "read") for side in ("quire", "apache")}
    for row in rows.values():
        assert (row["entries"], row["quorum"], row["entry_bytes"]) == (300, "3/2/2", 1000)
        assert row["client_cpu_us"] > 0
    for operation in ("append", "read"):
        ours, theirs = rows[operation, "quire"], rows[operation, "apache"]
        expected = pytest.approx(ours["entries_per_s"] / theirs["entries_per_s"])
        assert ours["ahead"] == {"median": expected, "low": expected, "high": expected}
        assert theirs["ahead"] is None
    ours, theirs = found["latency"]
    assert (ours["side"], theirs["side"]) == ("quire", "apache")
    assert ours["entries"] == theirs["entries"] == 300
    assert ours["ahead_p50"]["median"] == pytest.approx(theirs["p50_ms"] / ours["p50_ms"])
    for row in (ours, theirs):
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.timeout(300)
def test_apaches_streams_take_their_turns_beside_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "stream", "--peer", "apache", "--rounds", "1", "--json"),
            *("--records", "300", "--record-bytes", "1000", "--quorum", "3/2/2", "--streams", "3", "--rate", "100"),
            *("--warm-up", "100", "--window", "50", "--call-records", "7"),
            *("--folder", str(tmp_path), "--peer-set", "journalMaxGroupWaitMSec=1"),
            *("--peer-stream-set", "readLACLongPollTimeout=500"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    rows = {(row["operation"], row["side"]): row for row in found["throughput"]}
    counts = {"open": 3, "write": 300, "read": 303, "100/s": 300}
    assert set(rows) == {(operation, side) for operation in counts for side in ("quire", "apache")}
    for (operation, _), row in rows.items():
        assert (row["count"], row["quorum"], row["record_bytes"]) == (counts[operation], "3/2/2", 1000)
        assert row["streams"] == 3
        assert row["client_cpu_us"] > 0
    for operation in ("open", "write", "read"):
        ours, theirs = rows[operation, "quire"], rows[operation, "apache"]
        expected = pytest.approx(ours["per_s"] / theirs["per_s"])
        assert ours["ahead"] == {"median": expected, "low": expected, "high": expected}
        assert theirs["ahead"] is None
    ours, theirs = found["delivery"]
    assert (ours["side"], theirs["side"]) == ("quire", "apache")
    assert ours["records"] == theirs["records"] == 300
    assert ours["ahead_p50"]["median"] == pytest.approx(theirs["p50_ms"] / ours["p50_ms"])
    for row in (ours, theirs):
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
