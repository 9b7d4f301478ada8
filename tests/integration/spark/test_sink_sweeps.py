"""The sink's own look for lost ledgers: after which commits it comes, how often, and what it leaves alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quire.codec.stream_metadata.sinks import SinkBatch, StagedNode, decode_staged, encode_staged
from quire.errors import MetadataUnavailable
from quire.metadata import ANY_VERSION
from quire.metadata.paths import join
from quire.spark import sink_commit
from quire.spark.sink_commit import Part, close_writers, commit_parts, packed
from quire.spark.sink_options import Columns, Mode, SinkOptions
from quire.stream.staging import stage
from tests.support.spark.logs import FolderLog, folder_log

TTL_S = 3600.0


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderLog]:
    """With a sink that has not looked yet."""
    monkeypatch.setattr(sink_commit, "_sweeps", sink_commit._Sweeps())
    with folder_log(tmp_path / "log") as log:
        yield log
        close_writers()


def options(log: FolderLog, mode: Mode) -> SinkOptions:
    columns = Columns("payload", None, None)
    return SinkOptions(log.uri, "orders", mode, "sink", "", True, 5.0, TTL_S, 1 << 16, None, columns)


def commit(log: FolderLog, mode: Mode, number: int) -> None:
    rows = pa.table({"payload": pa.array([b"%d" % number], pa.binary())})
    part = Part(0, None, packed(rows), rows.nbytes, None)
    assert commit_parts(options(log, mode), SinkBatch("sink", number, "query"), [part], txid=number + 1).is_new


def stored_records(log: FolderLog) -> int:
    close_writers()  # Which completes the segment of an inline batch.
    return log.info("orders").record_count


def lose_attempt(log: FolderLog, *, age_s: float) -> str:
    """What is left of a batch of another sink whose driver died, so long ago."""
    context = log.access.namespace.context

    async def leave() -> str:
        if not await log.access.namespace.stream_exists("orders"):
            await log.access.namespace.create_stream("orders")
        settings = log.access.namespace.settings_for("orders")
        async with stage(context, "orders", settings, SinkBatch("other", 7, "lost")) as staging:
            await staging.append_many([b"lost"], [1])
        assert staging.segment is not None
        path = join(context.paths("orders").staged, staging.segment.node)
        node = decode_staged((await context.store.get(path)).data)
        aged = StagedNode(node.ledger, node.sink, node.at_ms - round(age_s * 1000))
        await context.store.set(path, encode_staged(aged), expected=ANY_VERSION)
        return staging.segment.node

    return log.access.run(leave())


@pytest.mark.parametrize("mode", ["inline", "staged"])
def test_a_commit_sweeps_what_is_older_than_the_time_to_live(log: FolderLog, mode: Mode) -> None:
    lose_attempt(log, age_s=2 * TTL_S)
    young = lose_attempt(log, age_s=TTL_S / 2)
    commit(log, mode, 0)
    assert log.nodes("orders", "staged") == [young]
    assert stored_records(log) == 1


def test_the_next_sweep_of_a_stream_comes_an_hour_later(log: FolderLog) -> None:
    """Method: the clock of the sink is ours."""
    now_s = 1000.0
    sweeps, found = sink_commit._Sweeps(lambda: now_s), options(log, "inline")
    for passed_s, is_swept in ((0.0, True), (3599.0, False), (1.0, True), (10.0, False)):
        now_s += passed_s
        old = lose_attempt(log, age_s=2 * TTL_S)
        sweeps.maybe(log.access, found)
        assert (old in log.nodes("orders", "staged")) != is_swept


def test_a_sweep_that_fails_does_not_fail_the_batch(log: FolderLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> int:
        raise MetadataUnavailable("nobody answers (on purpose)")

    old = lose_attempt(log, age_s=2 * TTL_S)
    monkeypatch.setattr(sink_commit, "sweep", fail)
    commit(log, "staged", 0)
    assert stored_records(log) == 1
    assert log.nodes("orders", "staged") == [old]
