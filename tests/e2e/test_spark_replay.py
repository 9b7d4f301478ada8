"""`quire replay` on real bookies: records of streams and files come into a stream once, in order, however often."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.spark.logs import folder_log
from typer.testing import CliRunner

from quire.cli.main import app
from quire.spark.replay import replay_frame, replay_parquet
from quire.testing import LocalCluster

pytestmark = pytest.mark.xdist_group("spark")


def replayed(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["replay", *arguments, "--uri", cluster.uri, "--json"])
    assert done.exit_code == code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def write(cluster: LocalCluster, stream: str, first_txid: int, count: int) -> list[tuple[int, bytes]]:
    records = [(txid, b"%s-%d" % (stream.encode(), txid)) for txid in range(first_txid, first_txid + count)]
    with cluster.connect_sync() as client, client.open_writer(stream) as writer:
        writer.append_many([payload for _, payload in records], txids=[txid for txid, _ in records])
    return records


def read(cluster: LocalCluster, stream: str, count: int | None = None) -> list[tuple[int, bytes]]:
    """So many, or all that there are: their number is known from the metadata if everything is completed."""
    with cluster.connect_sync() as client:
        count = client.stream_info(stream).record_count if count is None else count
        with client.open_reader(stream) as reader:
            return [(record.txid, record.payload) for record in (next(reader) for _ in range(count))]


def test_a_stream_is_copied_once_and_the_copy_goes_on(spark: Any, quire_cluster: LocalCluster, tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    records = write(quire_cluster, "orders", 1, 1000)
    told = replayed(quire_cluster, "copy", "--stream", "orders", *checkpoint)
    assert (told["records"], told["steps_before"]) == (1000, 0)
    assert read(quire_cluster, "copy") == records

    assert replayed(quire_cluster, "copy", "--stream", "orders", *checkpoint)["records"] == 0
    records += write(quire_cluster, "orders", 5000, 10)
    assert replayed(quire_cluster, "copy", "--stream", "orders", *checkpoint)["records"] == 10
    assert read(quire_cluster, "copy") == records

    lost = replayed(quire_cluster, "copy", "--stream", "orders", "--checkpoint", str(tmp_path / "other"), code=1)
    assert lost["error"]["kind"] == "SinkTaken"
    assert read(quire_cluster, "copy") == records


@pytest.mark.extended
def test_parquet_files_are_replayed_in_order_and_once(spark: Any, quire_cluster: LocalCluster, tmp_path: Path) -> None:
    """Three files of different sizes: Spark by itself would read the largest one first."""
    folder, expected = tmp_path / "events", []
    folder.mkdir()
    for number, count in enumerate((10, 3000, 200)):
        rows = [(number * 10_000 + each, b"%d-%d" % (number, each)) for each in range(1, count + 1)]
        table = pa.table({"txid": [txid for txid, _ in rows], "payload": [payload for _, payload in rows]})
        pq.write_table(table, folder / f"part-{number}.parquet")
        expected += rows
    told = replayed(quire_cluster, "events", "--parquet", str(folder))
    assert (told["records"], told["steps"], told["steps_before"]) == (3210, 1, 0)
    assert read(quire_cluster, "events") == expected

    told = replayed(quire_cluster, "events", "--parquet", str(folder))
    assert (told["records"], told["steps"], told["steps_before"]) == (0, 0, 1)
    steps: list[int] = []
    where = quire_cluster.uri, str(folder), "again"
    replay_parquet(spark, *where, name="by-file", new_txids=True, files_per_step=1, on_records=steps.append)
    assert steps == [10, 3000, 200], "told after each step"
    again = read(quire_cluster, "again")
    assert [payload for _, payload in again] == [payload for _, payload in expected]
    assert min(txid for txid, _ in again) > 1_600_000_000_000
    pq.write_table(pa.table({"payload": [b"late"]}), folder / "part-3.parquet")
    told = replayed(quire_cluster, "events", "--parquet", str(folder), code=1)
    assert told["error"]["kind"] == "InvalidArgument"
    assert read(quire_cluster, "events") == expected


def test_a_frame_without_payloads_is_replayed_as_json_under_its_name_once(
    spark: Any, quire_cluster: LocalCluster
) -> None:
    frame = spark.range(3).selectExpr("id AS number", "id * 2 AS twice")
    for records in (3, 0):
        report = replay_frame(spark, quire_cluster.uri, frame, "numbers", name="backfill", order_by=["number"])
        assert report.records == records
    payloads = [json.loads(payload) for _, payload in read(quire_cluster, "numbers")]
    assert payloads == [{"number": each, "twice": 2 * each} for each in range(3)]


@pytest.mark.extended
def test_streams_of_another_log_come_together_while_they_are_written_until_it_is_told_to_stop(
    spark: Any, quire_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--from-uri`, `--new-txids`, `--name`, `--follow`, and the checkpoint where nobody says one.

    While the command runs, another thread reads what it has copied, writes more, reads that, and presses Ctrl-C.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with folder_log(tmp_path / "another") as source:

        def fill(stream: str, first: int, end: int) -> list[bytes]:
            async def append() -> None:
                async with source.access.namespace.open_writer(stream) as writer:
                    await writer.append_many(payloads, txids=range(first, end))

            payloads = [b"%s-%d" % (stream.encode(), txid) for txid in range(first, end)]
            source.access.run(append())
            return payloads

        eu, us = fill("eu/orders", 1, 11), fill("us/orders", 1, 11)
        came: list[bytes] = []

        def watch() -> None:
            try:
                with quire_cluster.connect_sync() as client:
                    client.create_stream("merged")
                    with client.open_reader("merged") as reader:
                        came.extend(next(reader).payload for _ in range(20))
                        eu.extend(fill("eu/orders", 20, 25))
                        came.extend(next(reader).payload for _ in range(5))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        arguments = ["merged", "--stream", "*/orders", "--from-uri", source.uri, "--new-txids", "--name", "both"]
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        told = replayed(quire_cluster, *arguments, "--follow")
        watcher.join()
        assert (told["name"], told["records"]) == ("both", 25)
        assert [each for each in came if each.startswith(b"eu")] == eu
        assert [each for each in came if each.startswith(b"us")] == us

        assert replayed(quire_cluster, *arguments)["records"] == 0, "the same name goes on from the same checkpoint"
        records = read(quire_cluster, "merged", 25)  # In a segment that may still be open: the last batches were small.
        assert [payload for _, payload in records] == came
        txids = [txid for txid, _ in records]
        assert txids == sorted(txids)
        assert txids[0] > 1_600_000_000_000, "of their own, though those of the streams go from 1 to 24, twice"
        assert replayed(quire_cluster, *arguments[:-1], "again")["records"] == 25, "another name is another replay"
        assert sorted(payload for _, payload in read(quire_cluster, "merged")) == sorted(2 * came)
    assert len([*(tmp_path / "state" / "quire" / "replays").iterdir()]) == 2


def test_a_replay_has_one_source(spark: Any, quire_cluster: LocalCluster) -> None:
    assert replayed(quire_cluster, "copy", code=1)["error"]["kind"] == "InvalidArgument"
    told = replayed(quire_cluster, "copy", "--stream", "nothing", code=1)
    assert told["error"]["kind"] == "NoSuchStream"
