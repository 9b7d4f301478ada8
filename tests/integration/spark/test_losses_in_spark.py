"""What is damaged, gone or out of reach, as people meet it in Spark: told once, with the place, and nothing half done.

Each query fails while the trouble lasts, and goes on from where it was when that is over.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.spark import client_cache
from quire.stream.start import Txid
from quire.testing.local import LocalCluster, local_cluster
from tests.integration.spark.test_source_in_spark import append, batch, reading, run
from tests.support.servers.ports import free_port
from tests.support.servers.webhdfs import WebHdfsServer

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster
        client_cache.close_all()


def archived(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["archive", *arguments, "--uri", cluster.uri, "--json"])
    assert done.exit_code == code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def places(cluster: LocalCluster, stream: str) -> list[tuple[bool, bool]]:
    """Of each segment, whether bookies have it, and whether cold storage has."""
    with cluster.connect_sync() as client:
        return [(each.is_hot, each.cold_file is not None) for each in client.stream_info(stream).segments]


def txids(spark: Any, cluster: LocalCluster, stream: str, **options: str) -> list[int]:
    rows = batch(spark, cluster, stream, columns="txid", **options).collect()
    return [row.txid for row in rows]


def follow(spark: Any, cluster: LocalCluster, stream: str, folder: Path, **options: str) -> list[int]:
    """All that a streaming query has given so far, after it was started again from its checkpoint."""
    return run(reading(spark.readStream, cluster, stream, **options).load().select("txid"), folder, stream)


def written_by(folder: Path, stream: str) -> list[Path]:
    return [*(folder / stream).glob("*.parquet")]


def test_a_damaged_cold_file_is_named_and_the_query_goes_on_when_it_is_back(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    append(cluster, "damaged", range(50), range(50, 100))
    archived(cluster, "damaged", "--to", f"file:{tmp_path}/cold", "--drop-hot")
    file = min((tmp_path / "cold").rglob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:50] + bytes(100) + whole[150:])
    said = rf"DamagedColdFile: stream 'damaged': segment 1 cannot be read from .*{file.name}(.|\n)*Bring the file back"
    with pytest.raises(Exception, match=said):
        txids(spark, cluster, "damaged")
    with pytest.raises(Exception, match=said):
        follow(spark, cluster, "damaged", tmp_path)
    assert written_by(tmp_path, "damaged") == []
    told = archived(cluster, "damaged", "--restore", code=1)["error"]
    assert told["kind"] == "DamagedColdFile"
    assert file.name in told["message"]
    assert "Bring the file back" in told["hint"]
    assert places(cluster, "damaged") == [(False, True), (True, True)]

    file.unlink()
    lenient = batch(spark, cluster, "damaged", columns="txid", failOnDataLoss="false")
    assert [row.txid for row in lenient.collect()] == [*range(50, 100)]
    file.write_bytes(whole)
    assert txids(spark, cluster, "damaged") == [*range(100)]
    assert follow(spark, cluster, "damaged", tmp_path) == [*range(100)]


def test_cold_storage_out_of_reach_is_named_and_everything_goes_on_when_it_is_back(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    append(cluster, "away", range(50), range(50, 100))
    storage = WebHdfsServer(free_port())  # It comes back there.
    storage.start()
    root = storage.root("cold")
    archived(cluster, "away", "--to", root, "--drop-hot")
    append(cluster, "away", range(100, 150))
    storage.stop()

    said = rf"ColdUnavailable: hdfs://127.0.0.1:8020/cold(.|\n)*{storage.port}(.|\n)*Check the address, the network"
    with pytest.raises(Exception, match=said):
        txids(spark, cluster, "away", readPatience="0")
    with pytest.raises(Exception, match=said):
        follow(spark, cluster, "away", tmp_path, readPatience="0")
    assert written_by(tmp_path, "away") == []
    before = [(False, True), (True, True), (True, False)]
    assert places(cluster, "away") == before
    told = archived(cluster, "away", "--to", root, "--drop-hot", code=1)
    assert [(each["stream"], each["lssn"], each["step"], each["kind"]) for each in told["failed"]] == [
        ("away", 3, "archive", "ColdUnavailable"),
        ("away", None, "drop", "ColdUnavailable"),
    ]
    assert all(root.partition("?")[0] in each["message"] for each in told["failed"])
    assert (told["archived"], told["dropped"]) == ([], []), "what cannot be seen in cold storage is not dropped"
    told = archived(cluster, "away", "--restore", code=1)["error"]
    assert (told["kind"], root.partition("?")[0] in told["message"]) == ("ColdUnavailable", True)
    assert places(cluster, "away") == before

    back = WebHdfsServer(storage.port, storage.files)
    back.start()
    try:
        assert txids(spark, cluster, "away") == [*range(150)]
        assert follow(spark, cluster, "away", tmp_path) == [*range(150)]
        assert [each["lssn"] for each in archived(cluster, "away", "--to", root)["archived"]] == [3]
        assert archived(cluster, "away", "--restore")["restored"] == {"away": [1]}
    finally:
        back.stop()
    assert txids(spark, cluster, "away") == [*range(150)]


def test_a_truncated_start_fails_the_query_unless_losses_are_none(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The start of a batch, and that of a streaming query, which is in its checkpoint."""
    append(cluster, "truncated", range(50))
    assert follow(spark, cluster, "truncated", tmp_path) == [*range(50)]
    append(cluster, "truncated", range(50, 100), range(100, 150))
    start = batch(spark, cluster, "truncated").where("txid = 70").first().dlsn
    with cluster.connect_sync() as client:
        client.truncate_stream("truncated", before=Txid(100))
    said = r"PositionTruncated: (.|\n)*'truncated'(.|\n)*failOnDataLoss"
    with pytest.raises(Exception, match=said):
        txids(spark, cluster, "truncated", start=start)
    assert txids(spark, cluster, "truncated", start=start, failOnDataLoss="false") == [*range(100, 150)]
    with pytest.raises(Exception, match=said):
        follow(spark, cluster, "truncated", tmp_path)
    lenient = follow(spark, cluster, "truncated", tmp_path, failOnDataLoss="false")
    assert lenient == [*range(50), *range(100, 150)], "the query that failed has written nothing, and left its place"


@pytest.mark.parametrize("records", [30, 50, 120], ids=["fewer records", "as many records", "more records"])
def test_an_old_checkpoint_fails_the_query_on_a_stream_that_was_made_again(
    spark: Any, cluster: LocalCluster, tmp_path: Path, records: int
) -> None:
    stream = f"remade-{records}"
    append(cluster, stream, range(50))
    assert follow(spark, cluster, stream, tmp_path) == [*range(50)]
    with cluster.connect_sync() as client:
        client.delete_stream(stream)
    append(cluster, stream, range(1000, 1000 + records))
    with pytest.raises(Exception, match=rf"PositionInFuture: (.|\n)*'{stream}'(.|\n)*made again(.|\n)*failOnDataLoss"):
        follow(spark, cluster, stream, tmp_path)
    lenient = follow(spark, cluster, stream, tmp_path, failOnDataLoss="false")
    assert lenient == [*range(50), *range(1000, 1000 + records)], "all that the new one has, and nothing twice"
