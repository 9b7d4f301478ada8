"""Cold storage on a real HDFS: segments go there, are read from there, and come back; Spark alone reads the files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.cold.stores import ColdStores
from quire.errors import ColdObjectExists, ColdUnavailable, NoSuchColdObject
from quire.spark.archive import archive, restore
from quire.stream.cold_moves import DropPolicy
from quire.testing import LocalCluster
from tests.interop.hdfs import HdfsServer

pytestmark = pytest.mark.xdist_group("spark")

RECORDS = 500


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


def write_segments(cluster: LocalCluster, stream: str, count: int) -> list[bytes]:
    written = []
    for number in range(count):
        payloads = [b"%d-%d" % (number, each) for each in range(RECORDS)]
        with cluster.connect_sync() as client, client.open_writer(stream) as writer:
            writer.append_many(payloads)
        written += payloads
    return written


def read(cluster: LocalCluster, stream: str, count: int) -> list[bytes]:
    with cluster.connect_sync() as client, client.open_reader(stream) as reader:
        return [next(reader).payload for _ in range(count)]


def test_segments_live_in_hdfs_and_come_back(spark: Any, quire_cluster: LocalCluster, hdfs: HdfsServer) -> None:
    written = write_segments(quire_cluster, "orders", 3)
    report = archive(spark, quire_cluster.uri, hdfs.root("archive"), ["orders"], drop=DropPolicy())
    assert report.failed == ()
    assert [each.lssn for each in report.archived] == [1, 2, 3]
    assert report.dropped == (("orders", 1), ("orders", 2))
    assert read(quire_cluster, "orders", len(written)) == written
    rows = spark.read.format("quire").option("uri", quire_cluster.uri).option("stream", "orders").load()
    assert [bytes(row.payload) for row in rows.orderBy("segment", "entry", "slot").collect()] == written

    files = spark.read.option("recursiveFileLookup", "true").parquet(hdfs.for_spark("archive"))
    assert files.columns == ["segment", "entry", "slot", "txid", "payload"]
    assert [bytes(row.payload) for row in files.orderBy("segment", "entry", "slot").collect()] == written

    assert restore(spark, quire_cluster.uri, ["orders"]) == {"orders": [2, 1]}
    assert read(quire_cluster, "orders", len(written)) == written


def test_hdfs_creates_an_object_once_and_says_what_is_missing(hdfs: HdfsServer, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"first")
    second.write_bytes(b"second")

    async def work() -> None:
        stores = ColdStores()
        store = stores.at(hdfs.root("objects"))
        try:
            with first.open("rb") as content:
                await store.create("a/b.parquet", content, 5)
            with second.open("rb") as content, pytest.raises(ColdObjectExists):
                await store.create("a/b.parquet", content, 6)
            assert await store.read("a/b.parquet", 0, 100) == b"first"
            assert await store.size("a/b.parquet") == 5
            assert await store.names() == ["a/b.parquet"]
            await store.delete("a/b.parquet")
            with pytest.raises(NoSuchColdObject):
                await store.size("a/b.parquet")
            with pytest.raises(ColdUnavailable):
                await stores.at(f"hdfs://127.0.0.1:{hdfs.rpc_port}/objects?http=1").size("a")
        finally:
            await stores.aclose()

    asyncio.run(work())
