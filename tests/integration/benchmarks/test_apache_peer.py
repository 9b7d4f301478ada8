"""A peer that cannot be measured is one sentence and a hint, and nothing of it stays."""

import os
from pathlib import Path

import pytest
from benchmarks.apache import class_path, cluster
from tests.support.processes import below

from quire.errors import BookieFailed, InvalidArgument


async def started(folder: Path) -> None:
    async with cluster.open_apache_cluster(str(folder), client="ApacheLedgers", bookies=1, settings={}):
        raise AssertionError("it runs")


async def test_jars_that_were_not_fetched_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_path, "_FETCHED", tmp_path / "classpath.txt")
    with pytest.raises(InvalidArgument, match="jars of Apache BookKeeper") as missing:
        await started(tmp_path)
    assert "make bench-peer" in missing.value.hint


async def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "class_path", lambda: str(tmp_path))
    before = set(below(os.getpid()))
    with pytest.raises(BookieFailed, match=r"Apache's ZooKeeper did not start: .*ZooKeeperServerMain"):
        await started(tmp_path)
    assert set(below(os.getpid())) == before
