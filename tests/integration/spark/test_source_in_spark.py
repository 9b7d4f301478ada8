"""`format("quire")` in a real Spark, against real bookies: wiring, columns, errors, checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.spark import client_cache
from quire.spark.sql import query, query_once
from quire.testing.local import LocalCluster, local_cluster

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        append(cluster, "orders", range(1000), range(1000, 1500))
        append(cluster, "paid", range(100))
        yield cluster
        client_cache.close_all()


def append(cluster: LocalCluster, stream: str, *segments: range) -> None:
    with cluster.connect_sync() as client:
        for each in segments:
            with client.open_writer(stream) as writer:
                for at in range(each.start, each.stop, 100):
                    part = list(range(at, min(at + 100, each.stop)))
                    writer.append_many([b"%d" % number for number in part], txids=part)


def reading(reader: Any, cluster: LocalCluster, stream: str, **options: str) -> Any:
    return reader.format("quire").option("uri", cluster.uri).option("stream", stream).options(**options)


def batch(spark: Any, cluster: LocalCluster, stream: str, **options: str) -> Any:
    return reading(spark.read, cluster, stream, **options).load()


# --- Batches


def test_a_stream_is_a_frame_without_any_registration(spark: Any, cluster: LocalCluster) -> None:
    frame = batch(spark, cluster, "orders", minPartitions="3")
    assert frame.dtypes == [
        ("stream", "string"),
        ("dlsn", "string"),
        ("segment", "bigint"),
        ("entry", "bigint"),
        ("slot", "bigint"),
        ("txid", "bigint"),
        ("time", "timestamp"),
        ("payload", "binary"),
    ]
    rows = frame.selectExpr("txid", "CAST(payload AS STRING) AS text", "dlsn", "unix_millis(time) AS ms").collect()
    assert [row.txid for row in rows] == list(range(1500))  # In the order of the stream, though in several tasks.
    assert all(row.text == str(row.txid) and row.ms == row.txid for row in rows)
    assert len({row.dlsn for row in rows}) == 1500


def test_a_schema_or_an_option_chooses_columns(spark: Any, cluster: LocalCluster) -> None:
    chosen = reading(spark.read, cluster, "paid").schema("payload BINARY, txid BIGINT").load()
    assert chosen.columns == ["payload", "txid"]
    assert chosen.agg({"txid": "sum"}).first()[0] == sum(range(100))
    assert batch(spark, cluster, "paid", columns="txid").columns == ["txid"]
    assert batch(spark, cluster, "paid", columns="txid", start="tx:90").count() == 10


def test_streams_are_tables_of_sql(spark: Any, cluster: LocalCluster) -> None:
    options = f"uri '{cluster.uri}', stream 'o*, paid'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING quire OPTIONS ({options})")
    counted = spark.sql("SELECT stream, count(*) AS records FROM log GROUP BY stream ORDER BY stream").collect()
    assert [(row.stream, row.records) for row in counted] == [("orders", 1500), ("paid", 100)]


@pytest.fixture
def tables(spark: Any) -> Iterator[Any]:
    """Spark, for tests that make tables and views: they go."""
    yield spark
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def test_a_table_of_the_catalog_keeps_its_options(tables: Any, cluster: LocalCluster) -> None:
    tables.sql(f"CREATE TABLE kept USING quire OPTIONS (uri '{cluster.uri}', stream 'paid', START 'tx:90')")
    assert tables.sql("SELECT count(*), min(txid) FROM kept").collect() == [(10, 90)]
    assert tables.table("kept").union(tables.table("kept").where("txid = 95")).count() == 11
    assert tables.sql("SELECT count(*) FROM kept a JOIN kept b USING (txid) WHERE a.txid > 94").collect() == [(5,)]
    assert tables.sql("SELECT count(*) FROM kept WITH (start = 'tx:99')").collect() == [(1,)]


def test_rows_are_inserted_into_tables_and_views(tables: Any, cluster: LocalCluster) -> None:
    """Spark gives the options of a table to no writer, so a statement says them, and may name its batch."""
    place = f"uri '{cluster.uri}', stream 'inserted'"
    tables.sql(f"CREATE TABLE kept USING quire OPTIONS ({place}, columns 'payload')")
    tables.sql(f"CREATE TEMPORARY VIEW seen USING quire OPTIONS ({place}, columns 'txid,payload')")
    payloads = "SELECT CAST(payload AS STRING) FROM kept"
    for _ in range(2):
        tables.sql(f"INSERT INTO kept WITH ({place}, txnId 'first') VALUES (X'61'), (CAST('b' AS BINARY))")
    tables.sql("INSERT INTO seen SELECT max(txid) + 1, CAST('c' AS BINARY) FROM seen")
    assert [row[0] for row in tables.sql(payloads).collect()] == ["a", "b", "c"]
    with pytest.raises(Exception, match=r"'first' of sink 'batch' is in the stream with other rows"):
        tables.sql(f"INSERT INTO kept WITH ({place}, txnId 'first') VALUES (X'7A')")
    with pytest.raises(Exception, match=r"there is no option 'tnxid'(.|\n)*Did you mean txnId"):
        tables.sql(f"INSERT INTO kept WITH ({place}, tnxId 'second') VALUES (X'7A')")
    with pytest.raises(Exception, match=r"option uri is missing(.|\n)*INSERT INTO … WITH \(uri"):
        tables.sql("INSERT INTO kept SELECT payload FROM kept")
    tables.sql(f"CREATE TEMPORARY VIEW whole USING quire OPTIONS ({place})")
    assert tables.sql("SELECT max(txid) - min(txid) FROM whole").collect() == [(1,)]
    with pytest.raises(Exception, match=r"no place for stream STRING(.|\n)*the option columns 'payload'"):
        tables.sql("INSERT INTO whole (payload) VALUES (X'7A')")
    assert tables.table("kept").count() == 3


def test_a_table_that_could_not_be_read_is_not_made(tables: Any, cluster: LocalCluster) -> None:
    uri = f"uri '{cluster.uri}'"
    for options, said in (
        (f"({uri}, steam 'paid')", r"there is no option 'steam'(.|\n)*Did you mean stream"),
        (f"({uri}, subscribe 'paid')", r"'subscribe', which is one of Kafka's(.|\n)*Use stream"),
        (f"({uri})", r"option stream is missing"),
        ("(stream 'paid')", r"option uri is missing(.|\n)*Say where the log is"),
    ):
        with pytest.raises(Exception, match=said):
            tables.sql(f"CREATE TABLE slip USING quire OPTIONS {options}")
    with pytest.raises(Exception, match=r"option uri is missing(.|\n)*INSERT INTO … WITH \(uri"):
        tables.sql(f"CREATE TABLE slip USING quire OPTIONS ({uri}, stream 'paid') AS SELECT X'61' AS payload")
    assert not tables.catalog.tableExists("slip")
    tables.sql(f"CREATE TABLE listed (txid BIGINT) USING quire OPTIONS ({uri}, stream 'paid')")
    with pytest.raises(Exception, match=r"option uri is missing(.|\n)*without a list of columns"):
        tables.sql("SELECT * FROM listed").collect()


@pytest.fixture
def pushing(spark: Any) -> Iterator[Any]:
    """Spark, where it hands filters to sources that want them."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield spark
    spark.conf.unset(name)


def test_filters_that_choose_what_is_read_are_refused_for_frames_which_may_be_used_twice(
    pushing: Any, cluster: LocalCluster
) -> None:
    """Spark would give both halves of a union what the filter of one of them chose."""
    with pytest.raises(Exception, match=r"a frame that is used twice would lack rows(.|\n)*query_once"):
        batch(pushing, cluster, "orders", pushdown="true").count()
    frame = batch(pushing, cluster, "orders")
    few = frame.filter("txid >= 1200 AND txid < 1210")
    assert (few.count(), frame.count(), few.union(frame).count()) == (10, 1500, 1510)
    assert few.union(frame.filter("stream = 'orders' AND segment = 2 AND entry = 0")).count() > 10
    assert frame.alias("a").join(few.alias("b"), "txid").count() == 10
    assert few.alias("a").join(frame.where("txid < 1205").alias("b"), "txid").count() == 5
    kept = few.cache()
    assert (kept.count(), kept.union(frame).count(), kept.filter("txid = 1201").count()) == (10, 1510, 1)
    kept.unpersist()


def rows_scanned(frame: Any) -> int:
    """How many rows its scan gave to Spark, before Spark looked at them itself."""
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numOutputRows").value())


def test_a_statement_that_reads_once_reads_what_its_filters_leave(pushing: Any, cluster: LocalCluster) -> None:
    statement = "SELECT txid FROM orders WHERE txid >= 1200 AND txid < 1210"
    chosen, everything = query_once(pushing, cluster.uri, statement), query(pushing, cluster.uri, statement)
    assert [row.txid for row in chosen.collect()] == [row.txid for row in everything.collect()] == [*range(1200, 1210)]
    assert rows_scanned(everything) == 1500
    assert rows_scanned(chosen) < 1000


def test_a_statement_that_reads_twice_gets_all_that_each_scan_asks_for(pushing: Any, cluster: LocalCluster) -> None:
    """Spark 4.3 would give the second scan what the filters of the first one chose, or the other way round."""

    def counts(statement: str) -> list[int]:
        return [row[0] for row in query_once(pushing, cluster.uri, statement).collect()]

    some = "SELECT count(*) FROM orders WHERE txid = 5"
    assert counts(f"{some} UNION ALL SELECT count(*) FROM orders") == [1, 1500]
    assert counts(f"{some} UNION ALL SELECT count(*) FROM orders WHERE segment = 2 AND txid > 1490") == [1, 9]
    assert counts(f"SELECT ({some}) + count(*) FROM orders") == [1501]
    assert counts("CREATE OR REPLACE TEMPORARY VIEW five AS SELECT * FROM orders WHERE txid = 5") == []
    assert counts("SELECT count(*) FROM five WHERE segment = 1") == [1]
    assert counts(some) == [1]
    assert counts("SELECT count(*) FROM five UNION ALL SELECT count(*) FROM orders") == [1, 1500]
    assert counts("SELECT count(*) FROM orders") == [1500]
    frame = query(pushing, cluster.uri, "SELECT * FROM orders")
    assert (frame.where("txid = 5").count(), frame.count(), frame.union(frame.where("txid = 5")).count()) == (
        1,
        1500,
        1501,
    )


def test_a_folder_is_served_to_spark(spark: Any, tmp_path: Path) -> None:
    uri = f"file:{tmp_path}/data"
    with client_cache.borrowed(uri) as access:

        async def write() -> None:
            async with access.namespace.open_writer("notes") as writer:
                await writer.append_many([b"a", b"b", b"c"])

        access.run(write())
    frame = spark.read.format("quire").option("uri", uri).load("notes")
    assert [row.payload for row in frame.select("payload").collect()] == [b"a", b"b", b"c"]


def test_mistakes_are_told_in_one_sentence_and_a_hint(spark: Any, cluster: LocalCluster) -> None:
    mistakes: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: batch(spark, cluster, "nope").count(), "there is no stream 'nope'", "quire stream list"),
        (lambda: batch(spark, cluster, "paid", start="soon").count(), "option start: 'soon' is no position", "3:17:0"),
        (lambda: batch(spark, cluster, "paid", endingOffsets="latest"), "one of Kafka's", "Use end"),
        (
            lambda: reading(spark.readStream, cluster, "paid", maxOffsetsPerTrigger="9").load(),
            "one of Kafka's",
            "Use maxRecordsPerTrigger",
        ),
        (
            lambda: reading(spark.readStream, cluster, "paid", failOnDataLos="false").load(),
            "there is no option 'failondatalos'",
            "Did you mean failOnDataLoss?",
        ),
        (
            lambda: reading(spark.read, cluster, "paid").schema("payload STRING").load().count(),
            "column 'payload' of a stream is BINARY, and not STRING",
            "CAST(payload AS STRING)",
        ),
    ]
    for ask, sentence, hint in mistakes:
        with pytest.raises(Exception) as refused:  # noqa: PT011 - Spark's own kind, which carries ours as text
            ask()
        assert sentence in str(refused.value)
        assert hint in str(refused.value)


# --- Streams


def run(frame: Any, folder: Path, name: str) -> list[int]:
    """What a query that ends by itself adds to a file: the txids, in the order of the stream."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / f"{name}-checkpoint"))
    query = writer.option("path", str(folder / name)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    if query.exception() is not None:
        raise query.exception()
    return sorted(row.txid for row in frame.sparkSession.read.parquet(str(folder / name)).select("txid").collect())


def test_a_query_goes_on_from_its_checkpoint(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    append(cluster, "resumed", range(500))
    frame = reading(spark.readStream, cluster, "resumed", maxRecordsPerTrigger="200").load()
    assert run(frame, tmp_path, "out") == list(range(500))
    append(cluster, "resumed", range(500, 620))
    assert run(frame, tmp_path, "out") == list(range(620))


def test_a_query_that_runs_sees_what_comes(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    append(cluster, "live/a", range(10))
    frame = reading(spark.readStream, cluster, "live/*").load().select("stream", "txid")
    query = frame.writeStream.format("memory").queryName("live").start()
    try:
        query.processAllAvailable()
        append(cluster, "live/a", range(10, 20))
        append(cluster, "live/b", range(5))
        wanted = {("live/a", n) for n in range(20)} | {("live/b", n) for n in range(5)}
        found: list[tuple[str, int]] = []
        while len(found) < len(wanted):  # The time limit of the test is the deadline.
            query.processAllAvailable()
            found = [(row.stream, row.txid) for row in spark.table("live").collect()]
        assert set(found) == wanted
        assert len(found) == len(wanted)
    finally:
        query.stop()
