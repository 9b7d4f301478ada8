"""The streaming source on real bookies, without Spark: offsets, limits, and what happens to streams while it runs."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from quire import txid
from quire.errors import NoSuchStream, PositionInFuture, PositionTruncated
from quire.spark import client_cache, followed_streams
from quire.testing.local import LocalCluster, local_cluster
from tests.integration.spark.source_rows import read, schema_of, source

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster
        client_cache.close_all()


class Query:
    """What Spark does with a stream reader, batch after batch, with offsets kept as text."""

    def __init__(self, cluster: LocalCluster, stream: str, **options: str) -> None:
        self.reader: DataSourceStreamReader = source({"uri": cluster.uri, "stream": stream, **options}).streamReader(
            schema_of(("stream", "txid", "dlsn"))
        )
        self.at: str | None = None

    def batch(self, limit: ReadLimit | None = None) -> list[int]:
        """The txids of the next batch; none if there is nothing."""
        reader = self.reader
        start = json.loads(self.at) if self.at is not None else reader.initialOffset()
        end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
        self.at = json.dumps(end)
        if end == start:
            return []
        return [row["txid"] for row in read(reader, reader.partitions(start, json.loads(self.at)))]

    def all(self) -> list[list[int]]:
        """All batches that have something, until twice in a row there is nothing."""
        batches: list[list[int]] = []
        empty = 0
        while empty < 2:
            found = self.batch()
            empty = 0 if found else empty + 1
            batches += [found] if found else []
        return batches

    def next(self) -> list[int]:
        """The next batch that has something: what was just appended to an open segment may take its time."""
        while not (found := self.batch()):
            pass
        return found


def append(cluster: LocalCluster, stream: str, *segments: range) -> None:
    """Ten records to an entry; each range is a segment."""
    with cluster.connect_sync() as client:
        client.create_stream(stream)
        for each in segments:
            with client.open_writer(stream) as writer:
                for at in range(each.start, each.stop, 10):
                    part = list(range(at, min(at + 10, each.stop)))
                    writer.append_many([b"%d" % number for number in part], txids=part)


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


# --- How far


def test_a_query_reads_everything_once_and_then_what_comes(cluster: LocalCluster) -> None:
    append(cluster, "follow", range(100), range(100, 150))
    query = Query(cluster, "follow")
    assert query.batch() == list(range(150))
    assert joined(query.all()) == []
    append(cluster, "follow", range(150, 170))
    assert joined(query.all()) == list(range(150, 170))


def test_a_query_goes_on_from_its_checkpoint_in_another_process(cluster: LocalCluster) -> None:
    append(cluster, "resumed", range(50))
    first = Query(cluster, "resumed")
    assert first.batch() == list(range(50))
    append(cluster, "resumed", range(50, 80))
    second = Query(cluster, "resumed", start="latest")  # A checkpoint counts, and not where a new query would begin.
    second.at = first.at
    assert joined(second.all()) == list(range(50, 80))


def test_a_query_may_begin_anywhere(cluster: LocalCluster) -> None:
    append(cluster, "begin", range(50))
    assert joined(Query(cluster, "begin", start="tx:42").all()) == list(range(42, 50))
    late = Query(cluster, "begin", start="latest")
    assert late.batch() == []
    append(cluster, "begin", range(50, 53))
    assert joined(late.all()) == [50, 51, 52]


def test_records_are_seen_while_their_segment_is_being_written(cluster: LocalCluster) -> None:
    with cluster.connect_sync() as client, client.open_writer("tail") as writer:
        writer.append(b"1", txid=1)
        query = Query(cluster, "tail")
        assert query.next() == [1]
        for number in range(2, 6):
            writer.append(b"x", txid=number)
            assert query.next() == [number]
    assert joined(query.all()) == []
    append(cluster, "tail", range(6, 8))
    assert joined(query.all()) == [6, 7]


def test_an_idle_question_is_answered_when_something_comes(cluster: LocalCluster, monkeypatch: Any) -> None:
    """Method: the wait is made so long that the test would not end, were it not cut short by the append."""
    from quire.spark import streaming

    monkeypatch.setattr(streaming, "WAIT_S", 60.0)
    with cluster.connect_sync() as client, client.open_writer("idle") as writer:
        writer.append(b"1", txid=1)
        query = Query(cluster, "idle")
        assert query.batch() == [1]
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.extend(query.batch() or query.batch()))
        asking.start()
        writer.append(b"2", txid=2)
        asking.join(30)
        assert found == [2]


def test_a_sealed_stream_is_read_to_its_end(cluster: LocalCluster) -> None:
    append(cluster, "sealed", range(20))
    query = Query(cluster, "sealed")
    with cluster.connect_sync() as client:
        client.seal_stream("sealed")
    assert joined(query.all()) == list(range(20))


# --- Limits


def test_records_are_admitted_in_whole_entries_up_to_the_limit(cluster: LocalCluster) -> None:
    append(cluster, "limited", range(100), range(100, 135), range(135, 300))
    query = Query(cluster, "limited", maxRecordsPerTrigger="40")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
    batches = query.all()
    assert joined(batches) == list(range(300))
    assert max(map(len, batches)) <= 40
    assert len(batches) <= 9


def test_a_batch_has_one_entry_at_least(cluster: LocalCluster) -> None:
    append(cluster, "large-entries", range(30))
    assert [len(batch) for batch in Query(cluster, "large-entries", maxRecordsPerTrigger="1").all()] == [10, 10, 10]


def test_bytes_are_admitted_too_and_all_that_is_there_if_spark_says_so(cluster: LocalCluster) -> None:
    append(cluster, "by-bytes", range(1000, 1200))
    query = Query(cluster, "by-bytes", maxBytesPerTrigger="1k")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(1024)
    first = query.batch()
    assert 0 < len(first) < 60
    assert first + query.batch(ReadAllAvailable()) == list(range(1000, 1200))


def test_streams_share_a_limit(cluster: LocalCluster) -> None:
    append(cluster, "share-a", range(300))
    append(cluster, "share-b", range(1000, 1100))
    query = Query(cluster, "share-*", maxRecordsPerTrigger="40")
    first = query.batch()
    assert (len([n for n in first if n < 1000]), len([n for n in first if n >= 1000])) == (30, 10)
    assert sorted(first + joined(query.all())) == [*range(300), *range(1000, 1100)]


def test_what_comes_after_available_now_is_left_for_the_next_query(cluster: LocalCluster) -> None:
    append(cluster, "now", range(100))
    query = Query(cluster, "now", maxRecordsPerTrigger="30")
    query.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    append(cluster, "now", range(100, 120))
    batches = query.all()
    assert joined(batches) == list(range(100))
    assert len(batches) > 2
    after = Query(cluster, "now")
    after.at = query.at
    assert joined(after.all()) == list(range(100, 120))


# --- Streams that come and go


def test_streams_that_appear_while_a_query_runs_are_read_from_their_start(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_streams, "_DISCOVER_S", 0.0)
    append(cluster, "found/a", range(5))
    query = Query(cluster, "found/*", start="latest")
    assert joined(query.all()) == []
    append(cluster, "found/b", range(10, 15), range(15, 20))
    append(cluster, "found/a", range(5, 7))
    assert sorted(joined(query.all())) == [5, 6, *range(10, 20)]


def test_a_pattern_may_match_nothing_yet(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_streams, "_DISCOVER_S", 0.0)
    query = Query(cluster, "later/*")
    assert query.batch() == []
    append(cluster, "later/a", range(3))
    assert joined(query.all()) == [0, 1, 2]


def test_a_stream_that_is_none_is_refused_when_the_query_begins(cluster: LocalCluster) -> None:
    with pytest.raises(NoSuchStream, match="there is no stream 'nowhere'"):
        Query(cluster, "nowhere").batch()


def test_truncation_behind_the_query_is_no_loss(cluster: LocalCluster) -> None:
    append(cluster, "kept-up", range(30), range(30, 60), range(60, 90))
    query = Query(cluster, "kept-up", maxRecordsPerTrigger="60")
    assert query.batch() == list(range(60))
    with cluster.connect_sync() as client:
        client.truncate_stream("kept-up", before=txid(60))
        client.purge_stream("kept-up")
    assert joined(query.all()) == list(range(60, 90))


def test_truncation_ahead_of_the_query_is_an_error_unless_losses_are_none(cluster: LocalCluster) -> None:
    append(cluster, "behind", range(30), range(30, 60), range(60, 90))
    strict = Query(cluster, "behind", maxRecordsPerTrigger="10")
    lenient = Query(cluster, "behind", maxRecordsPerTrigger="10", failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == list(range(10))
    with cluster.connect_sync() as client:
        client.truncate_stream("behind", before=txid(60))
        client.purge_stream("behind")
    with pytest.raises(PositionTruncated, match="but the query has not read them") as refused:
        strict.batch()
    assert "failOnDataLoss=false" in refused.value.hint
    assert joined(lenient.all()) == list(range(60, 90))


def test_a_deleted_stream_is_an_error_unless_losses_are_none(cluster: LocalCluster) -> None:
    append(cluster, "deleted", range(10))
    strict, lenient = Query(cluster, "deleted"), Query(cluster, "deleted", failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == list(range(10))
    with cluster.connect_sync() as client:
        client.delete_stream("deleted")
    with pytest.raises(NoSuchStream, match="'deleted', which the query has been reading, was deleted"):
        strict.batch()
    assert lenient.batch() == []
    append(cluster, "deleted", range(3))
    assert joined(lenient.all()) == [0, 1, 2]


@pytest.mark.parametrize(
    "segments",
    [
        (range(3),),
        (range(10), range(10, 20)),
        (range(20),),
        (range(10), range(10, 40)),
        (range(10), range(10, 20), range(20, 30)),
    ],
    ids=["fewer records", "the same segments", "as many records", "more in the last", "more segments"],
)
def test_a_stream_that_was_made_again_is_not_taken_for_the_old_one(
    cluster: LocalCluster, segments: tuple[range, ...], request: pytest.FixtureRequest
) -> None:
    """Method: the checkpoint is at the beginning of the segment that comes next, behind two that are closed."""
    stream = f"remade/{request.node.callspec.id.replace(' ', '-')}"
    append(cluster, stream, range(10), range(10, 20))
    query = Query(cluster, stream)
    assert query.batch() == list(range(20))
    assert query.at is not None
    place = json.loads(query.at)["streams"][stream]
    assert (place["segment"], place["entry"], place["slot"]) == (3, 0, 0)
    with cluster.connect_sync() as client:
        client.delete_stream(stream)
    append(cluster, stream, *segments)
    running, again = query, Query(cluster, stream)
    again.at = query.at
    for each in (running, again):
        with pytest.raises(PositionInFuture, match="deleted since the query read it, and made again"):
            each.batch()
    lenient = Query(cluster, stream, failOnDataLoss="false")
    lenient.at = query.at
    assert joined(lenient.all()) == [number for each in segments for number in each]
