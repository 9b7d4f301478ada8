"""`format("quire")` and the jobs of `quire.spark` with Spark Connect: a server and its client, each its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.quire_process import Commands
from tests.support.spark.connect import ConnectServer

from quire.testing import LocalCluster

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def payloads(cluster: LocalCluster, stream: str) -> list[str]:
    with cluster.connect_sync() as client:
        count = client.stream_info(stream).record_count
        with client.open_reader(stream) as reader:
            return [next(reader).payload.decode() for _ in range(count)]


def test_a_remote_session_reads_and_writes_streams(quire_cluster: LocalCluster, tmp_path: Path) -> None:
    """Batch and streaming, in and out, and jobs; nothing was registered by anybody."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    with ConnectServer(tmp_path / "server") as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.spark.connect_client", server.url, quire_cluster.uri, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        commands = Commands(tmp_path, quire_cluster.uri, longest_s=240)
        counted = commands.out("sql", "--master", server.url, "--json", "SELECT count(*) AS records FROM orders")
    assert json.loads(counted) == {"records": 1000}
    seen = json.loads(done.stdout.splitlines()[-1])
    numbers = [str(number) for number in range(1000)]
    assert seen["client"] == "pyspark.sql.connect.session"
    assert seen["columns"] == ["stream", "dlsn", "segment", "entry", "slot", "txid", "time", "payload"]
    assert seen["read"] == numbers
    assert payloads(quire_cluster, "orders") == numbers
    assert payloads(quire_cluster, "copy") == [f"{number}!" for number in numbers]
    assert payloads(quire_cluster, "again") == numbers
    assert (seen["archived"], seen["dropped"], seen["sql"], seen["replayed"]) == (1000, 1, 1000, 1000)
    assert "NoSuchStream: there is no stream 'nothing'" in seen["error"]
