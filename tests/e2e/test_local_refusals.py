"""What is in the way of `quire up`: each is one sentence and a hint, an exit code, and nothing that was started."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.servers.local_cluster import LocalCluster, environment, quire_command
from tests.support.servers.ports import free_port

# What Python loads first: the system says that 100 MiB of 100 GiB are free.
_NEARLY_FULL = """
import os, types
sizes = types.SimpleNamespace(f_frsize=4096, f_bsize=4096, f_blocks=100 << 18, f_bfree=100 << 8, f_bavail=100 << 8)
os.statvfs = lambda path: sizes
"""


def refused(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The sentence and the hint with which a command is refused; as JSON it says the same."""

    def printed_by(*more: str) -> str:
        return quire_command(*arguments, *more, folder=folder, state=folder, code=1, variables=variables)

    printed = printed_by()
    sentence, hint = printed.splitlines()
    assert sentence.startswith("error: ")
    assert hint.startswith("hint: ")
    told = json.loads(printed_by("--json"))["error"]
    assert (told["message"], told["hint"]) == (sentence.removeprefix("error: "), hint.removeprefix("hint: "))
    return told["message"], told["hint"]


@contextmanager
def embedded_program(data: Path) -> Iterator[int]:
    """A program that has a log open in the folder. Yields its process."""
    command = [sys.executable, "-m", "tests.support.programs.embedded", str(data), "hold"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "open\n"
            yield program.pid
        finally:
            program.kill()


# --- Before anything is started


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence, hint = refused(tmp_path, "up", "--port", str(port))
    assert sentence == f"port {port}, which bookie-1 should listen on, is taken by another program"
    assert hint == "Choose others with --port, or leave it out: then any free ports are taken."
    assert not list(tmp_path.glob("quire-data/bookie-*"))


def test_a_port_of_proxies_that_is_taken(tmp_path: Path) -> None:
    """The second proxy's: all that follow from what was given are asked for."""
    port = free_port(in_a_row=2)
    with socket.create_server(("127.0.0.1", port + 1)):
        sentence, hint = refused(tmp_path, "up", "--proxy-port", str(port), "--write-proxies", "2")
    assert sentence == f"port {port + 1}, which write-proxy-2 should listen on, is taken by another program"
    assert hint == "Choose others with --proxy-port, or leave it out: then any free ports are taken."
    assert not list(tmp_path.glob("quire-data/bookie-*"))


def test_a_gateway_whose_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence, hint = refused(tmp_path, "up", "--gateway", address)
    assert sentence == f"{address}, which the gateway should listen on, is taken by another program"
    assert hint == "Choose another with --gateway; with port 0 any free one is taken."
    assert not list(tmp_path.glob("quire-data/bookie-*"))


def test_a_gateway_that_is_no_address(tmp_path: Path) -> None:
    sentence, hint = refused(tmp_path, "up", "--gateway", "8400")
    assert (sentence, hint) == ("'8400' is not HOST:PORT", "Write, for example, 127.0.0.1:8400.")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Nobody makes folders in /proc, not even root; for others it is any folder that is not theirs."""
    sentence, hint = refused(tmp_path, "up", "--data", "/proc/quire")
    assert sentence.startswith("'/proc/quire' cannot be used: ")
    assert hint == "Check the path and its disk."


def test_a_folder_that_is_for_others(tmp_path: Path) -> None:
    """In /sys the kernel alone makes folders: it refuses users for who they are, and root as well."""
    sentence, hint = refused(tmp_path, "up", "--data", "/sys/quire")
    assert sentence == "'/sys/quire' may not be written by this user"
    assert hint == "Give yourself the right to write there, or choose another."


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "quire-data").write_text("in the way")
    sentence, hint = refused(tmp_path, "up")
    assert sentence == f"'{tmp_path}/quire-data' is not a folder"
    assert hint == "Name a folder, or one that does not exist yet."


def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    """Method: the system says that of every disk."""
    (tmp_path / "sitecustomize.py").write_text(_NEARLY_FULL)
    sentence, hint = refused(tmp_path, "up", variables={"PYTHONPATH": str(tmp_path)})
    assert sentence == (
        f"the disk of '{tmp_path}/quire-data' is nearly full: 100 MiB are free, "
        "and bookies take nothing new below 1 GiB"
    )
    assert hint == "Free some space, or choose a folder on another disk with --data."
    assert not list(tmp_path.glob("quire-data/bookie-*"))


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (
            ("--bookies", "0"),
            "a local cluster has 1 to 9 bookies, not 0",
            "3 are enough to see everything work: they share one machine and one disk.",
        ),
        (("--port", "70000"), "70000 is no port: they end at 65535", "Choose another --port, or leave it out."),
        (
            ("--set", "garbage.intervall_s=1"),
            "there is no setting 'garbage.intervall_s'",
            "Did you mean garbage.interval_s?",
        ),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, arguments: tuple[str, ...], sentence: str, hint: str) -> None:
    assert refused(tmp_path, "up", *arguments) == (sentence, hint)
    assert not (tmp_path / "quire-data").exists()


# --- Somebody else is there


def test_a_folder_that_a_program_has_open(tmp_path: Path) -> None:
    data = tmp_path / "quire-data"
    with embedded_program(data) as pid:
        sentence, hint = refused(tmp_path, "up")
        assert sentence == f"the folder '{data}' is in use by embedded.py (process {pid})"
        assert hint == "End that program, or name another folder with --data; then let it connect to the cluster."

        status = json.loads(
            quire_command("status", "--data=quire-data", "--json", folder=tmp_path, state=tmp_path, code=1)
        )
        assert status["running"] is False
        assert status["message"] == f"no local cluster runs in '{data}': it is open in embedded.py (process {pid})"
        assert status["hint"] == "End that program to start one there."

        sentence, hint = refused(tmp_path, "down", "--data", "quire-data")
        assert sentence == f"the folder '{data}' is open in embedded.py (process {pid}), which is no local cluster"
        assert hint == "End that program."


def test_a_folder_in_which_a_cluster_runs(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, "--bookies=1") as cluster:
        data = cluster.data
        sentence, hint = refused(tmp_path, "up", "--data", "quire-data")
        assert sentence == f"a local cluster runs in '{data}' already: quire up (process {cluster.pid})"
        assert hint == f"`quire status --data {data}` shows it, `quire down --data {data}` stops it."

        sentence, hint = refused(tmp_path, "stream", "list", "--uri", "file:quire-data")
        assert sentence == f"the folder '{data}' is in use by quire up (process {cluster.pid})"
        assert hint == f"It is served to all processes of this machine: connect to {cluster.uri} instead."


@pytest.mark.extended
def test_which_of_several_clusters_is_meant(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, "--bookies=1", data=tmp_path / "one") as one:
        (tmp_path / "two").mkdir()
        with LocalCluster(tmp_path / "two", "--bookies=1", variables=environment(tmp_path)) as two:
            for command in ("status", "down"):
                sentence, hint = refused(tmp_path, command)
                assert sentence == f"no local cluster runs in '{tmp_path}/quire-data'; running: {one.data}, {two.data}"
                assert hint == f"Say which one is meant: --data {one.data}"


# --- Nothing runs


def test_nothing_is_there_to_be_stopped(tmp_path: Path) -> None:
    assert refused(tmp_path, "down") == ("no local cluster runs", "Start one with `quire up`.")
    sentence, hint = refused(tmp_path, "down", "--data", "elsewhere")
    assert sentence == f"no local cluster runs in '{tmp_path}/elsewhere'"
    assert hint == f"Start it with `quire up --data {tmp_path}/elsewhere`."
