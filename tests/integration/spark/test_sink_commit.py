"""What a commit does in the process that Spark calls it in: a writer for small batches stays open, and for how long."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from quire.codec.stream_metadata.sinks import SinkBatch
from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, RecordTooLarge
from quire.spark import sink_commit
from quire.spark.sink_commit import Part, close_writers, commit_parts, packed
from quire.spark.sink_options import INLINE_BYTES_MAX, SinkOptions, sink_options
from quire.stream import staging
from tests.support.spark.logs import FolderLog, folder_log
from tests.support.waiting import eventually

SMALL_BYTES = 200


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FolderLog]:
    with folder_log(tmp_path_factory.mktemp("log")) as log:
        yield log
        close_writers()


def options(log: FolderLog, stream: str, mode: str) -> SinkOptions:
    given = {"uri": log.uri, "stream": stream, "mode": mode, "inlineBytes": str(SMALL_BYTES)}
    log.access.run(log.access.namespace.create_stream(stream))
    return sink_options(given, StructType().add("payload", BinaryType()), overwrite=False)


def rows(*words: str) -> list[Part]:
    """As a task sends them along that has few."""
    table = pa.table({"payload": [word.encode() for word in words]})
    return [Part(0, None, packed(table), sum(20 + len(word) for word in words), None)]


def commit(options: SinkOptions, number: int, parts: list[Part], query: str = "q") -> bool:
    return commit_parts(options, SinkBatch("sink", number, query), parts, txid=1).is_new


def shape(log: FolderLog, stream: str) -> list[int | None]:
    """How many records each segment has; None for the one that is written."""
    return [segment.record_count for segment in log.info(stream).segments]


def test_small_batches_are_entries_and_a_large_one_between_them_is_a_segment(log: FolderLog) -> None:
    auto, large = options(log, "mixed", "auto"), ["large" * 20, "and larger" * 20]
    for number, words in enumerate((["a", "b"], ["c"], large, ["d"], ["e"], large)):
        for is_new in (True, False):
            assert commit(auto, number, rows(*words)) == is_new
    close_writers()
    assert log.payloads("mixed") == ["a", "b", "c", *large, "d", "e", *large]
    assert shape(log, "mixed") == [3, 2, 2, 2]


def test_an_empty_batch_opens_no_writer_and_closes_none(log: FolderLog) -> None:
    auto = options(log, "empty", "auto")
    assert commit(auto, 0, [])
    assert (shape(log, "empty"), log.info("empty").owner) == ([], None)
    commit(auto, 1, rows("a"))
    assert commit(auto, 2, [])
    assert not commit(auto, 2, [])
    commit(auto, 3, rows("b"))
    assert shape(log, "empty") == [None], "the same writer, in the same segment"


def test_a_writer_without_batches_gives_up_the_stream_and_the_next_batch_opens_another(
    log: FolderLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "IDLE_S", 0.05)
    auto = options(log, "idle", "auto")

    async def is_given_up() -> bool:
        info = await log.access.namespace.stream_info("idle")
        return info.owner is None and all(segment.is_completed for segment in info.segments)

    for number, word in enumerate("abc"):
        assert commit(auto, number, rows(word))
        asyncio.run(eventually(lambda: on_loop(log, is_given_up()), within_s=60, what="the writer is closed"))
        assert not commit(auto, number, rows(word)), "it is known by the node"
    log.append("idle", b"by another writer")
    assert log.payloads("idle") == ["a", "b", "c", "by another writer"]


async def on_loop(log: FolderLog, what: Any) -> bool:
    return bool(log.access.run(what))


def test_a_batch_that_is_no_entry_is_refused_if_all_have_to_be(log: FolderLog) -> None:
    inline = options(log, "large", "inline")
    assert commit(inline, 0, rows("a"))
    with pytest.raises(
        RecordTooLarge, match=r"batch 1 of sink 'sink' has .* bytes, and one entry .* at most"
    ) as refused:
        commit(inline, 1, rows("x" * INLINE_BYTES_MAX))
    assert "mode=auto" in refused.value.hint
    assert commit(inline, 1, rows("b"))
    close_writers()
    assert log.payloads("large") == ["a", "b"]


def test_that_a_batch_may_be_in_the_stream_is_told_whatever_cannot_be_deleted_then(
    log: FolderLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot be reached has two errors for us, and only one of them says that."""

    async def lose(*_: Any, **__: Any) -> None:
        raise MetadataOutcomeUnknown("the answer was lost (on purpose)")

    async def fail(*_: Any, **__: Any) -> None:
        raise MetadataUnavailable("nobody answers (on purpose)")

    staged = options(log, "lost", "staged")
    monkeypatch.setattr(sink_commit, "commit_staged", lose)
    monkeypatch.setattr(staging, "discard", fail)
    monkeypatch.setattr(sink_commit, "discard", fail)
    with pytest.raises(MetadataOutcomeUnknown):
        commit(staged, 0, rows("a"))
