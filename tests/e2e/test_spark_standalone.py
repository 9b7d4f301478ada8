"""Everything on a real Spark cluster, one master and two workers, against three real bookies, each its own process.

`QUIRE_SPARK_RECORDS=1000000` for a million records.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.servers.local_cluster import LocalCluster
from tests.support.spark.round_trip import expected
from tests.support.spark.standalone import StandaloneCluster

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]

RECORDS = int(os.environ.get("QUIRE_SPARK_RECORDS", "50000"))


def test_every_record_comes_through_once_and_in_order(tmp_path: Path) -> None:
    """In by the sink, out by batch and by stream, archived, dropped, truncated and restored. Then a command asks the
    same cluster how many there are.
    """
    with LocalCluster(tmp_path) as log, StandaloneCluster(tmp_path / "spark") as spark:
        direct = str(log.wait_for("started")["direct_uri"])
        settings = {**spark.settings, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
        conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        size = ["--records", str(RECORDS), "--folder", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.spark.round_trip", direct, spark.master, *size, *conf],
            env=spark.environment,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        question = "SELECT count(*) AS records, count(DISTINCT dlsn) AS places FROM copy"
        asked = subprocess.run(
            [
                sys.executable,
                "-m",
                "quire",
                "sql",
                "--uri",
                direct,
                "--master",
                spark.master,
                *conf,
                "--json",
                question,
            ],
            env=spark.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert spark.has_run("quire sql")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert (asked.returncode, asked.stderr) == (0, ""), asked.stdout
    seen = json.loads(done.stdout.splitlines()[-1])
    gone = RECORDS // 4
    whole = {"records": RECORDS, "in_order": True, "txids": True, "checksum": expected(RECORDS, 0)}
    rest = {**whole, "records": RECORDS - gone, "checksum": expected(RECORDS, gone)}
    for station in ("written", "copied", "cold", "cold_copy", "restored_copy"):
        assert (station, seen[station]) == (station, whole)
    for station in ("truncated", "restored"):
        assert (station, seen[station]) == (station, rest)
    assert seen["read_directly"] == {"records": rest["records"], "checksum": rest["checksum"]}
    assert (seen["streamed"], seen["archived"], seen["failed"]) == (RECORDS, 2 * RECORDS, [])
    command = json.loads(asked.stdout)
    assert (command["records"], command["places"]) == (RECORDS, RECORDS)
    assert seen["dropped"] > 0
    assert seen["restored_segments"] > 0
