"""`python -m benchmarks stream` as a user runs it. What it finds depends on the machine; that it is whole does not."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import below, is_running, kill
from tests.support.waiting import eventually

pytestmark = pytest.mark.extended


def bench(*args: str, code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "stream", *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_every_size_and_number_of_streams_is_written_read_and_delivered(tmp_path: Path) -> None:
    arguments = ("--records", "100", "--streams", "1", "--streams", "3", "--rate", "100", "--rate", "200", "--json")
    found = json.loads(bench(*arguments, "--warm-up", "200", "--folder", str(tmp_path)).stdout)
    assert (found["rounds"], found["window"], found["call_records"]) == (1, 20_000, 500)
    cases = set(itertools.product((100, 1024), (1, 3)))
    done = [(row["operation"], (row["record_bytes"], row["streams"])) for row in found["throughput"]]
    assert sorted(done) == sorted(itertools.product(("open", "write", "read", "100/s", "200/s"), cases))
    for row in found["throughput"]:
        streams = row["streams"]
        written = 100 // streams * streams
        counts = {"open": streams, "write": written, "read": written + streams}
        assert row["count"] == counts.get(row["operation"], 100)
        assert (row["quorum"], row["side"], row["ahead"], row["ahead_cpu"]) == ("3/3/2", "quire", None, None)
        assert row["per_s"] == row["rounds_per_s"][0] > 0
        assert row["client_cpu_us"] > 0
    assert any(row["bookies_cpu_us"] > 0 for row in found["throughput"])
    delivered = [(row["records_per_s"], (row["record_bytes"], row["streams"])) for row in found["delivery"]]
    assert sorted(delivered) == sorted(itertools.product((100, 200), cases))
    for row in found["delivery"]:
        assert row["records"] == 100
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_people_get_tables_that_fit_on_a_page() -> None:
    small = ("--records", "50", "--record-bytes", "10", "--quorum", "1/1/1", "--streams", "1", "--rate", "100")
    text = bench(*small, "--warm-up", "0", COLUMNS="80").stdout
    lines = [line.split() for line in text.splitlines()]
    assert lines[1][:6] == ["operation", "E/Qw/Qa", "side", "bytes", "streams", "each/s"]
    assert [line[:5] for line in lines[2:6]] == [
        [word, "1/1/1", "quire", "10", "1"] for word in ("open", "write", "read", "100/s")
    ]
    assert lines[7][:2] == ["paced", "at"]
    assert lines[8][:5] == ["100/s", "1/1/1", "quire", "10", "1"]
    assert "…" not in text


def test_readers_of_a_long_history_are_opened_and_their_memory_is_told(tmp_path: Path) -> None:
    found = json.loads(bench("--segments", "1500", "--folder", str(tmp_path), "--json").stdout)
    assert found["open_s_max"] == 2.0
    readers = found["readers"]
    assert [(row["start"], row["segments"]) for row in readers] == [
        ("earliest", 1),
        ("earliest", 1500),
        ("txid", 1500),
        ("latest", 1500),
    ]
    for row in readers:
        assert row["cpu_s"] > 0
        assert 0 < row["held_bytes"] <= row["peak_bytes"]
        assert (row["first_record_s"] is None) == (row["start"] == "latest")
        assert row["first_record_s"] is None or row["first_record_s"] > row["open_s"] > 0
    assert readers[1]["held_bytes"] > readers[0]["held_bytes"], "names are kept"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_people_are_told_whether_opening_is_fast_enough() -> None:
    text = bench("--segments", "20", COLUMNS="80").stdout
    assert text.splitlines()[-1] in ("Each took less than 2 s.", "Each took NOT less than 2 s.")
    assert "…" not in text


def test_bad_quorums_and_settings_are_refused() -> None:
    assert "3/3" in bench("--quorum", "3/3", code=2).stderr
    assert "--segments" in bench("--segments", "100", "--peer", "apache", code=2).stderr
    for option in ("--peer-set", "--peer-stream-set"):
        assert "NAME=VALUE" in bench("--peer", "apache", option, "name", code=2).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_nothing_is_left_of_one_that_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", "stream", "--rounds", "1000", "--folder", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )

    async def all_started() -> bool:
        return len(below(running.pid)) == 3

    try:
        await eventually(all_started, within_s=60, what="three bookies run")
        bookies = below(running.pid)
    except BaseException:
        running.kill()
        raise
    try:
        running.send_signal(number)
        async with asyncio.timeout(60):
            printed, _ = await running.communicate()
        assert [pid for pid in bookies if is_running(pid)] == []
    finally:
        for pid in filter(is_running, (*bookies, running.pid)):
            kill(pid)
    assert running.returncode != 0
    assert b"Traceback" not in printed
    assert list(tmp_path.iterdir()) == []
