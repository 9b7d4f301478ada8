"""The file that says what runs in a data folder: what was written is read, anything else is nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from quire.app.cluster_state import STATE, ClusterState, ServiceState, drop_state, read_state, write_state
from quire.app.processes import ProcessMark

SUPERVISOR = ProcessMark(10, "boot:1", "here")
UP = ServiceState(
    "bookie-1",
    "bookie",
    "up",
    "/log",
    ProcessMark(11, "boot:2", "here"),
    "127.0.0.1:1",
    "127.0.0.1:2",
    restarts=3,
    problem=None,
)
DOWN = ServiceState("bookie-2", "bookie", "failing", "/log", problem="no disk")
CLUSTER = ClusterState(SUPERVISOR, "uri", (UP, DOWN))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_state(str(tmp_path), CLUSTER)
    assert read_state(str(tmp_path)) == CLUSTER
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
    drop_state(str(tmp_path))
    drop_state(str(tmp_path))
    assert read_state(str(tmp_path)) is None


def test_it_is_replaced_in_one_step(tmp_path: Path) -> None:
    write_state(str(tmp_path), CLUSTER)
    with (tmp_path / STATE).open() as before:
        write_state(str(tmp_path), ClusterState(SUPERVISOR, "other", ()))
        assert json.load(before)["uri"] == "uri"  # Whoever reads it meanwhile has the whole of the old one.


def changed(**facts: Any) -> dict[str, Any]:
    return {**CLUSTER.to_json(), **facts}


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff",
        b"[" * 20_000,
        json.dumps(changed(version=3)).encode(),
        json.dumps(changed(supervisor=None)).encode(),
        json.dumps(changed(uri=None)).encode(),
        json.dumps(changed(services=7)).encode(),
        json.dumps(changed(services=[7])).encode(),
        json.dumps(changed(services=[{}])).encode(),
        json.dumps(changed(services=[{**UP.to_json(), "name": 7}])).encode(),
        json.dumps(changed(services=[{**UP.to_json(), "address": 7}])).encode(),
        json.dumps(changed(services=[{**UP.to_json(), "restarts": "many"}])).encode(),
    ],
)
def test_junk_is_nothing(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / STATE).write_bytes(junk)
    assert read_state(str(tmp_path)) is None
