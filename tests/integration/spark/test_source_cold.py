"""The source across bookies and cold storage: the same records wherever they are, also if they move meanwhile."""

import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from quire.errors import DamagedColdFile
from quire.spark import client_cache, reading
from quire.spark.client_cache import Access, borrowed
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import drop_hot, restore_segments
from quire.stream.context import StreamContext
from quire.testing.local import LocalCluster, local_cluster
from tests.integration.spark.source_rows import batch, places_of, read, rows_of, schema_of, source

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    cluster: LocalCluster
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data", bookies=1) as cluster:
        with borrowed(cluster.uri) as access:
            yield access
        client_cache.close_all()


def written(access: Access, stream: str) -> dict[str, str]:
    """Four segments of fifty records, ten to an entry. Returns options for it."""

    async def write() -> None:
        for first in range(0, 200, 50):
            async with access.namespace.open_writer(stream, ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                for at in range(first, first + 50, 10):
                    part = list(range(at, at + 10))
                    await writer.append_many([b"%d" % each for each in part], txids=part)

    access.run(write())
    return {"uri": access.uri, "stream": stream}


def moved(access: Access, work: Callable[[StreamContext], Coroutine[Any, Any, Any]]) -> Any:
    return access.run(work(access.namespace.context))


def archive(access: Access, stream: str, root: Path) -> None:
    """All of it, and of all but the last segment the copy on bookies goes."""
    moved(access, lambda context: archive_stream(context, stream, f"file:{root}"))
    assert moved(access, lambda context: drop_hot(context, stream)) == [1, 2, 3]


def test_a_batch_is_the_same_from_cold_storage(access: Access, tmp_path: Path) -> None:
    options = written(access, "archived")
    before, places = rows_of(options), places_of(options)
    archive(access, "archived", tmp_path)
    assert rows_of(options) == before
    assert rows_of({**options, "partitionBytes": "300", "columns": "txid"}, "txid") == [{"txid": n} for n in range(200)]
    for start, end, expected in [
        (places[23], places[127], range(23, 127)),
        (f">{places[23]}", "tx:61", range(24, 61)),
        ("tx:149", "latest", range(149, 200)),
    ]:
        rows = rows_of({**options, "start": start, "end": end}, "txid")
        assert [row["txid"] for row in rows] == list(expected)
    filters = [GreaterThanOrEqual(("txid",), 70), LessThan(("txid",), 75)]
    rows = rows_of({**options, "_pushdown": "true"}, "txid", "dlsn", filters=filters)
    assert [(row["txid"], row["dlsn"]) for row in rows] == [(n, places[n]) for n in range(70, 75)]


def test_segments_may_move_between_planning_and_reading(access: Access, tmp_path: Path) -> None:
    options = written(access, "moving")
    hot = batch(options, "txid")
    hot_parts = hot.partitions()
    archive(access, "moving", tmp_path)
    assert [row["txid"] for row in read(hot, hot_parts)] == list(range(200))
    cold = batch(options, "txid")
    cold_parts = cold.partitions()
    one_copy = access.namespace.settings_for("moving", ensemble=1, write_quorum=1, ack_quorum=1)
    moved(access, lambda context: restore_segments(context, "moving", settings=one_copy))
    assert [row["txid"] for row in read(cold, cold_parts)] == list(range(200))


def test_a_streaming_query_goes_on_across_the_archive(access: Access, tmp_path: Path) -> None:
    options = {**written(access, "followed"), "maxRecordsPerTrigger": "30"}
    found: list[int] = []
    offset: str | None = None
    for number in range(20):
        reader = source(options).streamReader(schema_of(("txid",)))  # Each batch after a restart.
        start = reader.initialOffset() if offset is None else json.loads(offset)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found += [row["txid"] for row in read(reader, reader.partitions(start, end))]
        offset = json.dumps(end)
        if number == 0:
            archive(access, "followed", tmp_path)
    assert found == list(range(200))


def test_damage_in_cold_storage_is_told_with_the_file(access: Access, tmp_path: Path) -> None:
    options = written(access, "damaged")
    archive(access, "damaged", tmp_path)
    reader = batch(options, "txid")
    partitions = reader.partitions()
    file = min(tmp_path.rglob("*.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:50] + bytes(200) + data[250:])
    with pytest.raises(DamagedColdFile, match=f"stream 'damaged': segment 1 cannot be read from .*{file.name}"):
        read(reader, partitions)


def test_a_file_that_is_gone_is_a_loss_which_a_query_may_go_on_without(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_LOST_S", 0.2)
    options = written(access, "lost")
    archive(access, "lost", tmp_path)
    min(tmp_path.rglob("*.parquet")).unlink()
    assert [row["txid"] for row in rows_of({**options, "failOnDataLoss": "false"}, "txid")] == [*range(50, 200)]
    with pytest.raises(DamagedColdFile, match="stream 'lost': segment 1 cannot be read from"):
        rows_of(options, "txid")
