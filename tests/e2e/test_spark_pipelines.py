"""A declarative pipeline (`spark-pipelines`) with streams at both ends, run as users run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.spark.session import worker_python

from quire.testing import LocalCluster

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

SPEC = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

TABLES = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    live = spark.readStream.format("quire").options(uri="{uri}", stream="orders").load()
    return live.selectExpr("from_json(CAST(payload AS STRING), 'item STRING, amount INT') AS sold", "txid")


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("sold.item").agg(expr("sum(sold.amount) AS amount"))


dp.create_sink("large", "quire", {{"uri": "{uri}", "stream": "large"}})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    return spark.readStream.table("orders").where("sold.amount > 50").selectExpr("to_json(sold) AS payload", "txid")
"""


def sell(cluster: LocalCluster, *amounts: int) -> None:
    with cluster.connect_sync() as client, client.open_writer("orders") as writer:
        writer.append_many([b'{"item":"tea","amount":%d}' % amount for amount in amounts])


def sold(cluster: LocalCluster) -> list[int]:
    """All that readers see. Small batches are entries, and what wrote them may not have completed its segment."""
    found: list[int] = []
    with cluster.connect_sync() as client, client.open_reader("large") as reader:
        while (records := reader.read_many(100, timeout_s=2.0)) or not reader.statistics().at_tail:
            found += [json.loads(record.payload)["amount"] for record in records]
    return found


def run(folder: Path) -> None:
    python = worker_python(folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    loopback = ("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1")
    catalog = ("--conf", "spark.sql.catalogImplementation=hive")  # The default one forgets its tables after a run.
    done = subprocess.run(
        ["spark-pipelines", "run", "--conf", "spark.ui.enabled=false", *catalog, *loopback],
        cwd=folder,
        env={**kept, "PATH": path, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]


def test_a_pipeline_reads_a_stream_and_writes_another_once(quire_cluster: LocalCluster, tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    (folder / "transformations").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    (folder / "transformations" / "orders.py").write_text(TABLES.format(uri=quire_cluster.uri))
    sell(quire_cluster, 10, 70, 30, 90)
    run(folder)
    assert sold(quire_cluster) == [70, 90]
    sell(quire_cluster, 51, 1)
    run(folder)
    assert sold(quire_cluster) == [70, 90, 51]
