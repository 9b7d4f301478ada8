"""A peer that cannot be measured is one sentence and a hint, and nothing of it stays."""

import os
from pathlib import Path

import pytest
from benchmarks.__main__ import app
from benchmarks.apache import class_path, cluster
from tests.support.processes import below
from typer.testing import CliRunner


def told(command: str) -> tuple[str, str]:
    """The sentence and the hint."""
    done = CliRunner().invoke(app, [command, "--peer", "apache"], env={"COLUMNS": "200"})
    assert done.exit_code == 1, done.output
    error, hint = done.stderr.splitlines()
    return error, hint


@pytest.mark.parametrize("command", ["ledger", "stream"])
def test_jars_that_were_not_fetched_are_named(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_path, "_FETCHED", tmp_path / "classpath.txt")
    error, hint = told(command)
    assert error == "error: the jars of Apache BookKeeper are not there"
    assert "make bench-peer" in hint


@pytest.mark.parametrize("command", ["ledger", "stream"])
def test_a_server_that_does_not_start_says_why(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "class_path", lambda: str(tmp_path))
    before = set(below(os.getpid()))
    error, hint = told(command)
    assert error.startswith("error: Apache's ZooKeeper did not start")
    assert "ZooKeeperServerMain" in error
    assert "make bench-peer" in hint
    assert set(below(os.getpid())) == before
