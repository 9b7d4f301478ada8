"""The source on real bookies, without Spark: which records a batch has, and what a user is told who asks for others."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from quire import txid
from quire.errors import BookieUnavailable, DamagedEntry, NoSuchStream, PositionInFuture, PositionTruncated, QuireError
from quire.ledger.settings import LedgerSettings
from quire.spark import client_cache
from quire.spark.planning import Piece, StreamPlan
from quire.stream.namespace import open_namespace
from quire.stream.settings import StreamSettings
from quire.testing.local import LocalCluster, local_cluster
from tests.integration.spark.source_rows import batch, places_of, read, rows_of
from tests.support.bit_rot import flip_bit
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster
        client_cache.close_all()


def written(cluster: LocalCluster, stream: str, *segments: list[int], **settings: Any) -> dict[str, str]:
    """A stream whose records have these txids, ten to an entry; each list is a segment. Returns options for it."""
    with cluster.connect_sync() as client:
        client.create_stream(stream)
        for txids in segments:
            with client.open_writer(stream, **settings) as writer:
                for at in range(0, len(txids), 10):
                    part = txids[at : at + 10]
                    writer.append_many([b"%d" % each for each in part], txids=part)
    return {"uri": cluster.uri, "stream": stream}


def numbers(*args: int) -> list[int]:
    return list(range(*args))


def txids(options: dict[str, str], filters: Any = ()) -> list[int]:
    return [row["txid"] for row in rows_of(options, "txid", filters=filters)]


# --- Which records


def test_a_batch_has_every_record_once_and_in_order(cluster: LocalCluster) -> None:
    options = written(cluster, "whole", numbers(0, 100), numbers(100, 130), numbers(130, 200))
    rows = rows_of(options)
    assert [row["txid"] for row in rows] == numbers(200)
    assert [row["payload"] for row in rows] == [b"%d" % each for each in range(200)]
    assert rows[0]["dlsn"] == "1:0:0"
    assert [(row["segment"], row["entry"], row["slot"]) for row in rows] == [
        tuple(map(int, row["dlsn"].split(":"))) for row in rows
    ]
    assert {row["stream"] for row in rows} == {"whole"}
    assert rows[7]["time"].timestamp() == 0.007


@pytest.mark.parametrize("settings", [{"compression": "lz4"}, {"entry_bytes": 100}, {"transmit": "periodic"}])
def test_streams_of_every_kind_are_read(cluster: LocalCluster, settings: dict[str, Any]) -> None:
    options = written(cluster, f"kind-{next(iter(settings))}", numbers(300), **settings)
    assert txids(options) == numbers(300)


def test_what_is_being_written_is_read_as_far_as_it_is_confirmed(cluster: LocalCluster) -> None:
    options = {"uri": cluster.uri, "stream": "live"}
    with cluster.connect_sync() as client, client.open_writer("live") as writer:
        writer.append_many([b"a", b"b"], txids=[1, 2])
        writer.flush()
        reader = batch(options, "payload")
        partitions = reader.partitions()
        writer.append(b"too late", txid=3)
        assert [row["payload"] for row in read(reader, partitions)] == [b"a", b"b"]


def test_an_empty_stream_and_a_sealed_one_are_fine(cluster: LocalCluster) -> None:
    assert rows_of(written(cluster, "empty")) == []
    options = written(cluster, "sealed", numbers(5))
    with cluster.connect_sync() as client:
        client.seal_stream("sealed")
    assert txids(options) == numbers(5)


def test_a_batch_begins_and_ends_where_it_is_told(cluster: LocalCluster) -> None:
    options = written(cluster, "bounds", numbers(0, 100), numbers(100, 200))
    places = places_of(options)
    for start, end, expected in [
        (places[25], places[175], numbers(25, 175)),
        (f">{places[25]}", "latest", numbers(26, 200)),
        ("tx:42", "tx:43", [42]),
        (places[190], "99:0:0", numbers(190, 200)),
        ("t:1970-01-01T00:00:00.150Z", "latest", numbers(150, 200)),
        ("latest", "latest", []),
        (places[150], places[50], []),
        ("earliest", "earliest", []),
    ]:
        assert txids({**options, "start": start, "end": end}) == expected


def test_several_streams_and_patterns_are_read_together(cluster: LocalCluster) -> None:
    for name in ("team/a", "team/b", "team/c/d"):
        written(cluster, name, numbers(3))
    rows = rows_of({"uri": cluster.uri, "stream": "team/*"}, "stream", "txid")
    assert [(row["stream"], row["txid"]) for row in rows] == [
        (name, each) for name in ("team/a", "team/b", "team/c/d") for each in range(3)
    ]
    rows = rows_of({"uri": cluster.uri, "stream": "team/b, team/a"}, "stream")
    assert [row["stream"] for row in rows] == ["team/b"] * 3 + ["team/a"] * 3


def test_partitions_are_cut_as_asked_and_hold_everything_once(cluster: LocalCluster) -> None:
    options = written(cluster, "cut", numbers(0, 500), numbers(500, 600))
    reader = batch({**options, "partitionBytes": "2k"}, "txid")
    partitions = reader.partitions()
    assert len(partitions) > 4
    assert [row["txid"] for row in read(reader, partitions)] == numbers(600)


def test_filters_choose_what_is_read(cluster: LocalCluster) -> None:
    options = {**written(cluster, "filtered", numbers(0, 100), numbers(100, 200)), "_pushdown": "true"}
    assert txids(options, [GreaterThanOrEqual(("txid",), 130), LessThan(("txid",), 140)]) == numbers(130, 140)
    assert txids(options, [EqualTo(("segment",), 1)]) == numbers(100)
    places = places_of(options)
    assert txids(options, [EqualTo(("dlsn",), places[155])]) == [155]
    assert txids(options, [EqualTo(("stream",), "other")]) == []
    assert txids(options, [EqualTo(("txid",), 1000)]) == []
    entries = [int(place.split(":")[1]) for place in places]  # How many a writer makes is a matter of time.
    alike = [txid for txid, entry in enumerate(entries) if entry == entries[155]]
    assert txids(options, [EqualTo(("entry",), entries[155])]) == alike


def test_a_bookie_that_is_away_changes_nothing(cluster: LocalCluster) -> None:
    options = written(cluster, "two-of-three", numbers(200))
    cluster.stop_bookie(2)
    try:
        assert txids(options) == numbers(200)
    finally:
        cluster.start_bookie(2)


# --- What cannot be read


def test_a_missing_stream_is_named(cluster: LocalCluster) -> None:
    with pytest.raises(NoSuchStream, match="there is no stream 'nowhere'"):
        rows_of({"uri": cluster.uri, "stream": "nowhere"})
    with pytest.raises(NoSuchStream, match=r"no stream of .* is called nowhere-\*") as refused:
        rows_of({"uri": cluster.uri, "stream": "nowhere-*"})
    assert "quire stream list" in refused.value.hint


def test_a_truncated_start_is_an_error_unless_losses_are_none(cluster: LocalCluster) -> None:
    options = written(cluster, "truncated", numbers(0, 100), numbers(100, 200))
    places = places_of(options)
    with cluster.connect_sync() as client:
        client.truncate_stream("truncated", before=txid(120))
        assert txids(options) == numbers(120, 200)
        with pytest.raises(PositionTruncated, match="were truncated or purged"):
            txids({**options, "start": places[50]})
        assert txids({**options, "start": places[50], "failOnDataLoss": "false"}) == numbers(120, 200)


def test_a_start_that_was_never_there_is_refused(cluster: LocalCluster) -> None:
    options = written(cluster, "short", numbers(5))
    with pytest.raises(PositionInFuture, match="nothing of stream 'short' can be at"):
        txids({**options, "start": "9:0:0"})


def test_what_goes_after_the_query_was_planned_is_an_error_unless_losses_are_none(cluster: LocalCluster) -> None:
    options = written(cluster, "purged", numbers(0, 10), numbers(10, 20), numbers(20, 30))
    strict, lenient = batch(options, "txid"), batch({**options, "failOnDataLoss": "false"}, "txid")
    strict_parts, lenient_parts = strict.partitions(), lenient.partitions()
    with cluster.connect_sync() as client:
        client.purge_stream("purged", before=txid(15))
    with pytest.raises(PositionTruncated, match="segment 1 of stream 'purged' was truncated or purged after"):
        read(strict, strict_parts)
    assert [row["txid"] for row in read(lenient, lenient_parts)] == numbers(10, 30)


@pytest.mark.parametrize("skip_truncated", [True, False])
def test_what_goes_while_the_query_is_planned_is_an_error_unless_losses_are_none(
    cluster: LocalCluster, skip_truncated: bool
) -> None:
    """Method: the stream is purged between the two steps of planning."""
    stream = f"purged-early-{skip_truncated}"
    options = written(cluster, stream, numbers(0, 10), numbers(10, 20), numbers(20, 30))
    with client_cache.borrowed(options["uri"]) as access, cluster.connect_sync() as client:

        async def planned() -> list[Piece]:
            plan = await StreamPlan.of(access.namespace, stream)
            begin, end = [await plan.find(place, skip_truncated=False) for place in ("earliest", "latest")]
            await asyncio.to_thread(client.purge_stream, stream, before=txid(15))
            return await plan.pieces(begin, end, skip_truncated=skip_truncated)

        if skip_truncated:
            assert [piece.lssn for piece in access.run(planned())] == [2, 3]
        else:
            with pytest.raises(PositionTruncated, match=r"from \(1, 0, 0\) on were truncated or purged"):
                access.run(planned())


def test_bookies_that_cannot_be_reached_are_named(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = LedgerSettings(read_timeout_s=0.5, read_patience_s=0.0, call_timeout_s=2.0)
    opened = partial(open_namespace, settings=StreamSettings(call_timeout_s=2.0), ledger_settings=hasty)
    monkeypatch.setattr(client_cache, "open_namespace", opened)
    client_cache.close_all()
    with local_cluster(tmp_path_factory.mktemp("away") / "data", bookies=1) as cluster:
        options = written(cluster, "away", numbers(10), ensemble=1, write_quorum=1, ack_quorum=1)
        reader = batch(options, "txid")
        partitions = reader.partitions()
        cluster.stop_bookie(1)
        with pytest.raises(BookieUnavailable, match="bookie-1") as failed:
            read(reader, partitions)
        assert isinstance(failed.value, QuireError)
        client_cache.close_all()


@pytest.mark.parametrize("rotten", [(1, 2, 3), (2,)])
def test_damage_is_told_at_once_unless_a_bookie_is_away_that_may_have_an_intact_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rotten: tuple[int, ...]
) -> None:
    """Method: if one copy alone is damaged, the other bookies come back when that one was met."""
    caplog.set_level(logging.WARNING, logger="quire.ledger")

    async def has_met() -> bool:
        return any(getattr(record, "event", "") == "ledger.damaged_copy" for record in caplog.records)

    with local_cluster(tmp_path / "data") as cluster:
        options = {"uri": cluster.uri, "stream": "rotten", "readPatience": "100"}
        with cluster.connect_sync() as client, client.open_writer("rotten") as writer:
            for payload in (b"before", b"what rots", b"behind"):
                writer.append(payload)
        for number in (1, 2, 3):
            cluster.stop_bookie(number)
            if number in rotten:
                flip_bit(cluster.folder / f"bookie-{number}", b"what rots")
                cluster.start_bookie(number)
        try:
            with ThreadPoolExecutor(1) as thread:
                rows = thread.submit(rows_of, options, "payload")
                if rotten == (2,):
                    asyncio.run(eventually(has_met, what="the damaged copy is met"))
                    cluster.start_bookie(1)
                    assert [row["payload"] for row in rows.result(60)] == [b"before", b"what rots", b"behind"]
                else:
                    with pytest.raises(DamagedEntry, match=r"entry \d+ of segment 1 of stream 'rotten' cannot be read"):
                        rows.result(60)
        finally:
            client_cache.close_all()
