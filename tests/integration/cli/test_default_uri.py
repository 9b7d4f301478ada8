"""Which log a command works on: with clusters that are announced, as `quire up` does it, and folders that exist."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from quire.app.occupancy import chosen_folder
from quire.app.running import announced
from quire.cli.default_uri import known_uri, metadata_uri, stream_uri
from quire.cli.proxy_calls import proxy_uri
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


def make_log(folder: Path) -> None:
    (folder / "quire-data").mkdir()
    (folder / "quire-data" / "metadata.db").touch()


def test_else_the_cluster_of_this_folder(run: ExitStack, tmp_path: Path, in_a_folder: Path) -> None:
    """Whatever else runs, before it and behind it in the list."""
    start(run, tmp_path / "a")
    (tmp_path / "my link").symlink_to(in_a_folder)
    ours = start(run, tmp_path / "my link" / "quire-data")
    start(run, tmp_path / "z")
    assert stream_uri(None, creating=False) == stream_uri(None, creating=True) == known_uri(None) == ours
    assert metadata_uri(None) == f"sqlite:{tmp_path}/my%20link/quire-data/metadata.db"


def test_names_are_looked_up_past_the_proxies_of_the_cluster_of_this_folder(run: ExitStack, in_a_folder: Path) -> None:
    run.enter_context(announced(str(in_a_folder / "quire-data"), "quire://127.0.0.1:7400/default"))
    assert stream_uri(None, creating=False) == "quire://127.0.0.1:7400/default"
    assert str(proxy_uri(None)) == "quire://127.0.0.1:7400/default"
    assert known_uri(None) == f"distributedlog+sqlite:{in_a_folder}/quire-data/metadata.db/default"
    assert known_uri("quire://elsewhere/ns") == "quire://elsewhere/ns"


def test_a_log_in_this_folder_wins_over_every_cluster_elsewhere(
    run: ExitStack, tmp_path: Path, in_a_folder: Path
) -> None:
    make_log(in_a_folder)
    start(run, tmp_path / "other")
    for creating in (True, False):
        assert stream_uri(None, creating=creating) == "file:./quire-data"
    assert known_uri(None) is None


@pytest.mark.parametrize("others", [["a"], ["a", "b"]], ids=["one", "two"])
def test_a_cluster_elsewhere_has_to_be_named(
    run: ExitStack, tmp_path: Path, in_a_folder: Path, others: list[str]
) -> None:
    """Also if it is the only one that runs. The error names all that could be meant, and nothing is made here."""
    uris = [start(run, tmp_path / name) for name in others]
    (in_a_folder / "quire-data").mkdir()  # No log is in there.
    for creating in (True, False):
        with pytest.raises(InvalidArgument, match=r"no log is named, and none is in \./quire-data") as caught:
            stream_uri(None, creating=creating)
        assert ", ".join(str(tmp_path / name) for name in others) in str(caught.value)
        for named in ("--uri", "QUIRE_URI", "file:./quire-data", *uris):
            assert named in caught.value.hint
    assert os.listdir(in_a_folder / "quire-data") == []
    assert known_uri(None) is None


def test_ledgers_bookies_and_proxies_elsewhere_have_to_be_named_too(
    run: ExitStack, tmp_path: Path, in_a_folder: Path
) -> None:
    """Also beside a log of this folder, which no cluster serves."""
    make_log(in_a_folder)
    run.enter_context(announced(str(tmp_path / "a"), "quire://127.0.0.1:7400/default"))
    with pytest.raises(InvalidArgument, match=f"; a local cluster runs in {tmp_path}/a$") as told:
        metadata_uri("")
    for named in ("--metadata", "QUIRE_METADATA", f"sqlite:{tmp_path}/a/metadata.db", "quire up"):
        assert named in told.value.hint
    with pytest.raises(InvalidArgument, match="no proxy is named") as told:
        proxy_uri(None)
    assert "quire://127.0.0.1:7400/default" in told.value.hint


def test_a_cluster_elsewhere_is_not_stopped_by_mistake(run: ExitStack, tmp_path: Path, in_a_folder: Path) -> None:
    """`quire down` and `quire status` mean this folder, or the one that is named."""
    start(run, tmp_path / "a")
    with pytest.raises(InvalidArgument, match=f"no local cluster runs in '{in_a_folder}/quire-data'") as caught:
        chosen_folder(None)
    assert caught.value.hint == f"Say which one is meant: --data {tmp_path}/a"
    assert chosen_folder(str(tmp_path / "a")).path == str(tmp_path / "a")


def test_else_a_folder_here_which_only_those_make_who_write(in_a_folder: Path) -> None:
    assert stream_uri(None, creating=True) == "file:./quire-data"
    with pytest.raises(NotInitialised, match="no local cluster runs, and there is no log in"):
        stream_uri(None, creating=False)
    with pytest.raises(NotInitialised, match=r"there is no log in '.*/other'"):
        stream_uri("file:./other", creating=False)
    assert os.listdir(in_a_folder) == []
    make_log(in_a_folder)
    assert stream_uri(None, creating=False) == "file:./quire-data"
    assert stream_uri("file:quire-data", creating=False) == "file:quire-data"


def test_bookies_are_in_no_folder_by_default() -> None:
    with pytest.raises(NotRunning) as caught:
        metadata_uri(None)
    assert "quire up" in caught.value.hint


@pytest.mark.parametrize("uri", ["file:./data", "FILE:/data", None])
def test_nothing_is_opened_to_complete_a_name(uri: str | None) -> None:
    assert known_uri(uri) is None
