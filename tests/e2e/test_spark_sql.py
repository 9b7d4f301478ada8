"""`quire sql`: streams as tables, on real bookies."""

import csv
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from quire.cli.main import app
from quire.testing import LocalCluster, local_cluster

pytestmark = pytest.mark.xdist_group("spark")

RECORDS = 300


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two streams, one with a name that is no word of SQL."""
    with local_cluster(tmp_path_factory.mktemp("sql")) as made:
        with made.connect_sync() as client:
            for stream in ("orders", "eu/orders.2"):
                with client.open_writer(stream) as writer:
                    writer.append_many([b"%d" % number for number in range(RECORDS)], txids=range(1, RECORDS + 1))
                    writer.append(b"\xff\xfe", txid=RECORDS + 1)
        yield made


def sql(cluster: LocalCluster, *arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["sql", "--uri", cluster.uri, *arguments], input=typed)


def test_a_stream_is_a_table(cluster: LocalCluster) -> None:
    done = sql(cluster, "SELECT count(*) AS records, max(txid) AS last FROM orders")
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [["records", "last"], ["301", "301"], ["1", "row"]]


def test_a_terminal_shows_how_far_a_query_is_and_results_are_where_they_should_be(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, for people only. Each format has its own way of writing rows while tasks go on."""
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr("quire.cli.spark_options.err", lambda: console)
    question = "SELECT count(*) AS records FROM orders"
    for form, rows in (
        ("table", ["records", "301", "1 row"]),
        ("csv", ["records", "301"]),
        ("json", ['{"records": 301}']),
    ):
        shown.truncate(0)
        assert [line.strip() for line in sql(cluster, "-f", form, question).stdout.splitlines()] == rows
        assert "running the query" in shown.getvalue()
    shown.truncate(0)
    assert sql(cluster, "--json", question).stdout == '{"records": 301}\n'
    assert shown.getvalue() == "", "with --json a program reads"


def test_streams_can_be_joined_and_rows_come_as_json(cluster: LocalCluster) -> None:
    joined = "orders a JOIN `eu/orders.2` b USING (txid)"
    done = sql(cluster, "--json", f"SELECT a.payload, b.stream FROM {joined} WHERE txid IN (2, 301) ORDER BY txid")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"payload": "1", "stream": "eu/orders.2"},
        {"payload": "//4=", "stream": "eu/orders.2"},
    ]


def test_rows_come_as_csv_and_parquet_with_the_same_values(cluster: LocalCluster, tmp_path: Path) -> None:
    text = "SELECT txid, dlsn, payload FROM orders WHERE txid <= 300 ORDER BY txid"
    rows = list(csv.reader(StringIO(sql(cluster, "-f", "csv", text).stdout)))
    output = tmp_path / "orders.parquet"
    assert sql(cluster, "-f", "parquet", "-o", str(output), text).exit_code == 0
    table = pq.read_table(output).to_pylist()
    assert rows[0] == ["txid", "dlsn", "payload"]
    assert [(int(txid), dlsn, payload.encode()) for txid, dlsn, payload in rows[1:]] == [
        (row["txid"], row["dlsn"], row["payload"]) for row in table
    ]
    assert [row["payload"] for row in table] == [b"%d" % number for number in range(RECORDS)]
    again = sql(cluster, "-f", "parquet", "-o", str(output), text)
    assert (again.exit_code, "is there already" in again.stderr) == (1, True)


def test_statements_are_read_up_to_their_semicolons(cluster: LocalCluster) -> None:
    typed = "CREATE TEMP VIEW few AS\n  SELECT * FROM orders LIMIT 2;\nSELECT count(*) FROM few;\nSHOW TABLES"
    done = sql(cluster, "--json", typed=typed)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0] == {"count(1)": 2}
    assert {"eu/orders.2", "orders", "few"} <= {row["tableName"] for row in rows[1:]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("SELECT * FROM nothing", "The table or view `nothing` cannot be found"),
        ("SELECT nope FROM orders", "with name `nope` cannot be resolved"),
        ("SELECT raise_error('never again') FROM orders", "never again"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(cluster: LocalCluster, text: str, said: str) -> None:
    done = sql(cluster, text)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 3
