"""Frames of a real Spark into streams: each batch once, as a whole, in order; and errors that its users understand."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.spark import register
from tests.integration.spark.lossy_sink import LossyDataSource
from tests.support.spark.logs import FolderLog, folder_log
from tests.support.waiting import eventually

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def log(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FolderLog]:
    register(spark)
    spark.dataSource.register(LossyDataSource)
    with folder_log(tmp_path_factory.mktemp("log")) as log:
        yield log


def write(log: FolderLog, frame: Any, stream: str, *, save_mode: str = "append", **options: str) -> None:
    writer = frame.write.format("quire").option("uri", log.uri).option("stream", stream).mode(save_mode)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def numbers(spark: Any, count: int, partitions: int) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("CAST(id AS STRING) AS value")


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in range(*numbers)]


# --- Frames


def test_a_frame_becomes_segments_of_a_stream_in_the_order_of_its_partitions(spark: Any, log: FolderLog) -> None:
    write(log, numbers(spark, 20_000, 4), "frames", mode="staged")
    assert log.payloads("frames") == texts(20_000)
    info = log.info("frames")
    assert [segment.record_count for segment in info.segments] == [5_000] * 4
    assert len({record.txid for record in log.records("frames")}) == 1
    assert log.nodes("frames", "staged") == []
    log.append("frames", b"by a writer")
    write(log, numbers(spark, 10, 4), "frames")
    assert log.payloads("frames") == [*texts(20_000), "by a writer", *texts(10)]
    assert len(log.info("frames").segments) == 6, "what is small becomes one segment"
    write(log, numbers(spark, 2, 4), "frames", mode="staged")
    assert log.payloads("frames")[-3:] == ["9", "0", "1"], "partitions without rows are no segments"
    assert len(log.info("frames").segments) == 8
    sequence = [segment.first_dlsn for segment in log.info("frames").segments]
    assert [place.lssn for place in sequence if place is not None] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_write_that_is_run_again_under_its_name_changes_nothing(spark: Any, log: FolderLog) -> None:
    for _ in range(2):
        write(log, numbers(spark, 100, 2), "named", txnId="2026-01-01")
    assert log.payloads("named") == texts(100)
    write(log, numbers(spark, 5, 1), "named", txnId="2026-01-02")
    write(log, numbers(spark, 1, 1), "named")
    write(log, numbers(spark, 100, 2), "named", txnId="2026-01-01")
    assert log.payloads("named") == [*texts(100), *texts(5), *texts(1)]
    write(log, numbers(spark, 100, 7), "named", txnId="2026-01-01")  # The same rows, in other partitions.
    with pytest.raises(Exception, match=r"'2026-01-01' of sink 'batch' is in the stream with other rows(.|\n)*`txnId`"):
        write(log, numbers(spark, 101, 2), "named", txnId="2026-01-01")
    with pytest.raises(Exception, match=r"there is no option 'tnxid'(.|\n)*Did you mean txnId"):
        write(log, numbers(spark, 100, 2), "named", tnxId="2026-01-01")
    assert log.payloads("named") == [*texts(100), *texts(5), *texts(1)]
    assert "batch@unnamed" in log.nodes("named", "sinks"), "one without a name is kept apart"
    assert log.nodes("named", "staged") == []


@pytest.mark.extended
def test_records_are_in_the_order_of_a_column(spark: Any, log: FolderLog) -> None:
    shuffled = spark.range(0, 3_000, 1, 4).selectExpr("CAST(id AS STRING) AS payload", "(id * 7919) % 3000 AS txid")
    ranges = shuffled.repartitionByRange(3, "txid")
    write(log, ranges, "ordered", orderBy="txid", mode="staged")
    assert [record.txid for record in log.records("ordered")] == [*range(3_000)]
    with pytest.raises(Exception, match=r"partitions overlap in 'txid'(.|\n)*repartitionByRange"):
        write(log, shuffled, "ordered", orderBy="txid", mode="staged")
    small = shuffled.selectExpr("payload", "txid + 10000 AS txid").where("txid < 10100")
    write(log, small, "ordered", orderBy="txid")
    assert [record.txid for record in log.records("ordered")] == [*range(3_000), *range(10_000, 10_100)]


# --- What is refused


@pytest.mark.extended
def test_what_cannot_be_written_is_refused_with_words_and_leaves_nothing(spark: Any, log: FolderLog) -> None:
    one = numbers(spark, 4_000, 2)
    with pytest.raises(Exception, match=r"cannot be overwritten(.|\n)*append"):
        write(log, one, "refused", save_mode="overwrite")
    with pytest.raises(Exception, match=r"column 'id' is BIGINT, and a payload is BINARY or STRING"):
        write(log, spark.range(3), "refused")
    with pytest.raises(Exception, match=r"no place for stream STRING(.|\n)*one stream"):
        write(log, one.selectExpr("value", "'a' AS stream"), "refused")
    for slip, meant in (("lockTimout", "lockTimeout"), ("compresion", "compression"), ("topic", "stream")):
        with pytest.raises(Exception, match=rf"there is no option '{slip.lower()}'(.|\n)*{meant}"):
            write(log, one, "missing", **{slip: "1"})
    with pytest.raises(Exception, match=r"there is no stream 'missing'"):
        write(log, one, "missing", createStream="false")
    assert not log.exists("missing")
    with pytest.raises(Exception, match=r"NULL in 1 rows(.|\n)*IS NOT NULL"):
        write(log, one.selectExpr("nullif(value, '3999') AS value"), "refused", mode="staged")
    # Only the second partition falls: if both did, whichever task failed first would give the words.
    falling = spark.range(0, 4_000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id < 2000, id, 6000 - id) AS txid"
    )
    with pytest.raises(Exception, match=r"txid 3999 follows 4000(.|\n)*orderBy"):
        write(log, falling, "refused", mode="staged")
    backwards = spark.range(0, 4_000, 1, 2).selectExpr("CAST(id AS STRING) AS value", "(id + 2000) % 4000 AS txid")
    with pytest.raises(Exception, match=r"txid 0 would come behind 3999"):
        write(log, backwards, "refused", mode="staged")
    assert log.payloads("refused") == []
    assert log.nothing_is_left("refused")


def test_a_stream_that_a_live_writer_owns_is_not_written(spark: Any, log: FolderLog) -> None:
    writing = log.access.namespace.open_writer("owned")
    writer = log.access.run(writing.__aenter__())
    try:
        with pytest.raises(
            Exception, match=r"StreamOwned(.|\n)*its lock is held by(.|\n)*lockTimeout(.|\n)*nothing into"
        ):
            write(log, numbers(spark, 4_000, 2), "owned", lockTimeout="0", mode="staged")
        log.access.run(writer.append(b"goes on"))
    finally:
        log.access.run(writing.__aexit__(None, None, None))
    assert log.payloads("owned") == ["goes on"]
    assert log.nodes("owned", "staged") == []


# --- Streams


class Query:
    """A streaming query from text files to a stream, one batch for each file."""

    def __init__(self, spark: Any, log: FolderLog, folder: Path, stream: str, **options: str) -> None:
        self._spark, self._log, self._folder, self._stream, self._options = spark, log, folder, stream, options
        self.format, self.checkpoint = "quire", folder / "checkpoint"
        (folder / "in").mkdir()
        self._files = 0

    def add(self, *lines: str) -> None:
        self._files += 1
        path = self._folder / "in" / f"{self._files:04d}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_000_000 + self._files, 1_000_000 + self._files))  # The order in which Spark takes them.

    def run(self) -> None:
        frame = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self._folder / "in"))
        writer = frame.writeStream.format(self.format).option("uri", self._log.uri).option("stream", self._stream)
        for name, value in self._options.items():
            writer = writer.option(name, value)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if the query had died after the sink's commit, and before Spark noted it."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        for crc in (self.checkpoint / "commits").glob(f".{last.name}.crc"):
            crc.unlink()


@pytest.mark.parametrize("mode", ["staged", "inline"])
def test_a_batch_that_is_played_again_is_recognised(spark: Any, log: FolderLog, tmp_path: Path, mode: str) -> None:
    stream = f"replayed-{mode}"
    query = Query(spark, log, tmp_path, stream, mode=mode)
    query.add("a", "b")
    query.add("c")
    query.run()
    assert log.payloads(stream) == ["a", "b", "c"]
    query.forget_last_commit()
    query.add("d")
    query.run()
    assert log.payloads(stream) == ["a", "b", "c", "d"]
    assert log.nodes(stream, "staged") == []
    assert len(log.nodes(stream, "sinks")) == 1


def test_a_query_goes_on_across_small_and_large_batches(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    """Small ones are entries, a large one is a segment between them; the last of each kind is played again."""
    query = Query(spark, log, tmp_path, "mixed", mode="auto", inlineBytes="1000")
    large = [f"{number:060d}" for number in range(40)]
    query.add("a", "b")
    query.add(*large)
    query.run()
    query.forget_last_commit()
    query.add("c")
    query.run()
    query.forget_last_commit()
    query.add("d")
    query.run()
    assert log.payloads("mixed") == ["a", "b", *large, "c", "d"]
    counts = [segment.record_count for segment in log.info("mixed").segments]
    assert counts[:2] == [2, 40], "in a segment of its own: the writer for entries gave up the stream"
    assert log.nodes("mixed", "staged") == []


@pytest.mark.extended
def test_a_query_with_an_option_that_there_is_not_writes_nothing(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    query = Query(spark, log, tmp_path, "slip", lockTimout="5")
    query.add("a")
    with pytest.raises(Exception, match=r"there is no option 'locktimout'(.|\n)*Did you mean lockTimeout"):
        query.run()
    assert not log.exists("slip")


def test_a_writer_that_waits_gets_the_stream_between_two_batches(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    """However fast they come. Method: a query without a pause, and a writer that opens the stream twice meanwhile."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    writer = frame.selectExpr("CAST(value AS STRING) AS value").writeStream.format("quire")
    writer = writer.option("uri", log.uri).option("stream", "shared").option("checkpointLocation", str(tmp_path))
    query = writer.start()

    def runs_on(batches: int) -> None:
        wanted = len(query.recentProgress) + batches

        async def has_come() -> bool:
            assert query.isActive, query.exception()
            return len(query.recentProgress) >= wanted

        asyncio.run(eventually(has_come, within_s=120, what="the query goes on"))

    try:
        for word in ("first", "second"):
            runs_on(3)
            log.append("shared", word.encode())
        runs_on(3)
    finally:
        query.stop()
    log.complete("shared")
    found = log.payloads("shared")
    values = [word for word in found if word.isdecimal()]
    assert [word for word in found if not word.isdecimal()] == ["first", "second"]
    assert sorted(values, key=int) == texts(len(values))
    assert 0 < found.index("first") < found.index("second") < len(found) - 1


@pytest.mark.extended
@pytest.mark.parametrize(("mode", "loss"), [("staged", "reply"), ("inline", "helper")])
def test_a_commit_whose_reply_was_lost_is_recognised(
    spark: Any, log: FolderLog, tmp_path: Path, mode: str, loss: str
) -> None:
    """Spark calls `abort` after a commit that raised, though it succeeded: nothing is deleted by that."""
    stream = f"lossy-{mode}"
    options = {"mode": mode, "loss": loss, "lossBatch": "1", "lossFolder": str(tmp_path)}
    query = Query(spark, log, tmp_path, stream, **options)
    query.format = "quire_lossy"
    query.add("a", "b")
    query.add("c")
    query.add("d")
    with pytest.raises(Exception, match="the reply to a commit was lost" if loss == "reply" else None):
        query.run()
    query.run()
    assert log.payloads(stream) == ["a", "b", "c", "d"]


@pytest.mark.extended
def test_another_query_does_not_take_over_a_sink_by_mistake(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    query = Query(spark, log, tmp_path, "taken", sinkId="etl", mode="staged")
    query.add("a")
    query.add("b")
    query.run()
    query.checkpoint = tmp_path / "another"
    with pytest.raises(Exception, match=r"SinkTaken(.|\n)*`sinkId` of its own"):
        query.run()
    assert log.payloads("taken") == ["a", "b"]


@pytest.mark.extended
def test_a_task_that_is_tried_again_leaves_no_ledger(spark: Any, log: FolderLog) -> None:
    def fails_first(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails, after its rows were read")

    frame = numbers(spark, 30_000, 2).mapInArrow(fails_first, "value STRING")
    write(log, frame, "retried", mode="staged")
    assert log.payloads("retried") == texts(30_000)
    assert log.nothing_is_left("retried")
