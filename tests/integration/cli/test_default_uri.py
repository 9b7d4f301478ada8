"""Which log a command works on: with clusters that are announced, as `quire up` does it, and folders that exist."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from quire.app.running import announced
from quire.cli.default_uri import known_uri, metadata_uri, stream_uri
from quire.errors import InvalidArgument, NotInitialised, NotRunning


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing runs, and nothing is."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return here


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, data: Path) -> str:
    uri = f"distributedlog+sqlite:{quote(str(data))}/metadata.db/default"
    assert stack.enter_context(announced(str(data), uri)).problem is None
    return uri


def test_what_is_given_counts(run: ExitStack, tmp_path: Path) -> None:
    start(run, tmp_path / "data")
    assert stream_uri("distributedlog://zk/ns", creating=False) == "distributedlog://zk/ns"
    assert stream_uri("file:./new", creating=True) == "file:./new"
    assert metadata_uri("zk://zk/ledgers") == "zk://zk/ledgers"
    assert known_uri("distributedlog://zk/ns") == "distributedlog://zk/ns"


def test_else_the_cluster_that_runs(run: ExitStack, tmp_path: Path, in_a_folder: Path) -> None:
    (in_a_folder / "quire-data").mkdir()
    uri = start(run, tmp_path / "my data")
    assert stream_uri(None, creating=False) == stream_uri(None, creating=True) == known_uri(None) == uri
    assert metadata_uri(None) == f"sqlite:{tmp_path}/my%20data/metadata.db"


def test_names_are_looked_up_past_the_proxies_of_the_cluster_that_runs(run: ExitStack, tmp_path: Path) -> None:
    run.enter_context(announced(str(tmp_path / "my data"), "quire://127.0.0.1:7400/default"))
    assert stream_uri(None, creating=False) == "quire://127.0.0.1:7400/default"
    assert known_uri(None) == f"distributedlog+sqlite:{tmp_path}/my%20data/metadata.db/default"
    assert known_uri("quire://elsewhere/ns") == "quire://elsewhere/ns"


def test_of_several_the_one_of_this_folder(run: ExitStack, tmp_path: Path, in_a_folder: Path) -> None:
    start(run, tmp_path / "a")
    (tmp_path / "link").symlink_to(in_a_folder)
    ours = start(run, tmp_path / "link" / "quire-data")
    start(run, tmp_path / "z")
    assert stream_uri(None, creating=False) == known_uri(None) == ours


def test_nobody_guesses_between_others(run: ExitStack, tmp_path: Path) -> None:
    first, second = start(run, tmp_path / "a"), start(run, tmp_path / "b")
    with pytest.raises(InvalidArgument, match="2 local clusters run") as caught:
        stream_uri(None, creating=True)
    assert f"{tmp_path}/a, {tmp_path}/b" in str(caught.value)
    assert first in caught.value.hint
    assert second in caught.value.hint
    with pytest.raises(InvalidArgument) as caught:
        metadata_uri("")
    assert f"sqlite:{tmp_path}/a/metadata.db" in caught.value.hint
    assert known_uri(None) is None


def test_else_a_folder_here_which_only_those_make_who_write(in_a_folder: Path) -> None:
    assert stream_uri(None, creating=True) == "file:./quire-data"
    with pytest.raises(NotInitialised, match="no local cluster runs, and there is no log in"):
        stream_uri(None, creating=False)
    with pytest.raises(NotInitialised, match=r"there is no log in '.*/other'"):
        stream_uri("file:./other", creating=False)
    assert os.listdir(in_a_folder) == []
    (in_a_folder / "quire-data").mkdir()
    (in_a_folder / "quire-data" / "metadata.db").touch()
    assert stream_uri(None, creating=False) == "file:./quire-data"
    assert stream_uri("file:quire-data", creating=False) == "file:quire-data"


def test_bookies_are_in_no_folder_by_default() -> None:
    with pytest.raises(NotRunning) as caught:
        metadata_uri(None)
    assert "quire up" in caught.value.hint


@pytest.mark.parametrize("uri", ["file:./data", "FILE:/data", None])
def test_nothing_is_opened_to_complete_a_name(uri: str | None) -> None:
    assert known_uri(uri) is None
