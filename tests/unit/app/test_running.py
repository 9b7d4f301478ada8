"""Which clusters run: only those whose very process lives, whatever else lies in the folder."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.app.processes import ProcessMark, own_mark
from quire.app.running import RunningCluster, announced, running_clusters

NO_PID = 2**22 + 1  # More than Linux ever gives.


@pytest.fixture(autouse=True)
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where they are announced."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "quire" / "clusters"


def put(clusters: Path, name: str, process: ProcessMark, **more: Any) -> Path:
    clusters.mkdir(parents=True, exist_ok=True)
    path = clusters / name
    path.write_text(json.dumps({"data": "/data", "uri": "u:", "process": process.to_json(), **more}))
    return path


def test_a_cluster_is_found_while_it_runs_and_no_longer() -> None:
    assert running_clusters() == []
    with announced("/b", "uri of b") as announcement, announced("/a", "uri of a"):
        assert announcement.problem is None
        pid = os.getpid()
        assert running_clusters() == [RunningCluster("/a", "uri of a", pid), RunningCluster("/b", "uri of b", pid)]
    assert running_clusters() == []


def test_others_learn_where_it_is_now() -> None:
    with announced("/a", "before") as announcement:
        announcement.update("after")
        assert [cluster.uri for cluster in running_clusters()] == ["after"]


def test_a_dead_one_is_ignored_and_swept(clusters: Path) -> None:
    path = put(clusters, "dead.json", replace(own_mark(), pid=NO_PID))
    assert running_clusters() == []
    assert not path.exists()


def test_a_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(clusters: Path) -> None:
    ours = own_mark()
    boot, _, ticks = ours.started.rpartition(":")
    path = put(clusters, "reused.json", replace(ours, started=f"{boot}:{int(ticks) - 1}"))
    put(clusters, "before-boot.json", replace(ours, started=f"another-boot:{ticks}"))
    assert running_clusters() == []
    assert not path.exists()


def test_what_another_machine_or_container_announced_is_left_alone(clusters: Path) -> None:
    path = put(clusters, "elsewhere.json", replace(own_mark(), place="elsewhere pid:[1]"))
    assert running_clusters() == []
    assert path.exists()


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"null",
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"data": 1, "uri": "u:", "process": {"pid": 1, "started": "b:1", "place": "p"}}',
        b'{"data": "/d", "uri": "u:", "process": {"pid": "1", "started": "b:1", "place": "p"}}',
        b'{"data": "/d", "uri": "u:", "process": {"pid": true, "started": "b:1", "place": "p"}}',
        b'{"data": "/d", "uri": "u:", "process": {"pid": -1, "started": "b:1", "place": "p"}}',
        b'{"data": "/d", "uri": "u:", "process": {"pid": 1, "place": "p"}}',
        b'{"data": "/d", "uri": "u:"}',
    ],
)
def test_junk_is_passed_by_and_kept(clusters: Path, junk: bytes) -> None:
    clusters.mkdir(parents=True)
    (clusters / "junk.json").write_bytes(junk)
    (clusters / "folder.json").mkdir()
    with announced("/a", "uri"):
        assert [cluster.data for cluster in running_clusters()] == ["/a"]
    assert (clusters / "junk.json").read_bytes() == junk


def test_a_folder_that_cannot_be_made_is_a_problem_and_no_error(tmp_path: Path, clusters: Path) -> None:
    (tmp_path / "quire").write_text("a file")
    with announced("/a", "uri") as announcement:
        assert announcement.problem is not None
        assert str(clusters) in announcement.problem
        assert running_clusters() == []


def test_a_relative_state_folder_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with announced("/a", "uri") as announcement:
        assert announcement.problem is None
        assert len(list((tmp_path / "home" / ".local" / "state" / "quire" / "clusters").iterdir())) == 1


def test_without_a_home_nothing_is_written_where_one_happens_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "not/absolute")
    monkeypatch.chdir(tmp_path)
    with announced("/a", "uri") as announcement:
        assert announcement.problem is not None
    assert list(tmp_path.iterdir()) == []
