"""What is in the way of a local cluster is told before anything is started, in a sentence with a hint."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path

import pytest

from quire.app.cluster_events import ClusterEvent, Noted
from quire.app.local_cluster import LocalOptions, run_local_cluster
from quire.app.preconditions import check_space, note_few_bookies, space_settings
from quire.embedded.folder import DataFolder
from quire.errors import (
    BookieFailed,
    DiskFull,
    FolderInUse,
    FolderUnusable,
    InvalidArgument,
    PortInUse,
    QuireError,
)
from quire.runtime import DiskUsage, OsDisk, Runtime, StrPath, real_runtime
from tests.support.servers.ports import free_port

MIB = 1 << 20
DEADLINE_S = 60.0


class FullDisk(OsDisk):
    """A disk that says that little is free."""

    def __init__(self, *, free_bytes: int, total_bytes: int = 100 << 30) -> None:
        super().__init__()
        self._usage = DiskUsage(total_bytes, free_bytes)

    async def usage(self, path: StrPath) -> DiskUsage:
        return self._usage


def with_free(free_bytes: int) -> Runtime:
    return replace(real_runtime(), disk=FullDisk(free_bytes=free_bytes))


@pytest.fixture(autouse=True)
def no_other_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(str(tmp_path / "data"))


async def refused(options: LocalOptions, runtime: Runtime | None = None) -> QuireError:
    """Why it does not start. Nothing is left running, nothing told."""
    told: list[ClusterEvent] = []
    with pytest.raises(QuireError) as error:
        await asyncio.wait_for(run_local_cluster(options, told.append, runtime=runtime), DEADLINE_S)
    assert error.value.hint
    assert not os.path.exists(f"{options.data.path}/cluster.json")
    assert [event for event in told if not isinstance(event, Noted)] == []
    return error.value


# --- Ports


async def test_a_port_that_is_taken_is_named(folder: DataFolder) -> None:
    port = free_port(in_a_row=2)
    with socket.create_server(("127.0.0.1", port + 1)):
        error = await refused(LocalOptions(folder, port=port))
    assert isinstance(error, PortInUse)
    assert str(error) == f"port {port + 1}, which bookie-2 should listen on, is taken by another program"
    assert error.hint == "Choose others with --port, or leave it out: then any free ports are taken."
    assert folder.bookie_numbers() == []


async def test_what_is_no_port_is_told(folder: DataFolder) -> None:
    for port in (-1, 65_536):
        with pytest.raises(InvalidArgument, match=f"{port} is no port"):
            LocalOptions(folder, port=port)
    error = await refused(LocalOptions(folder, port=65_534))
    assert str(error) == "bookie-3 would listen on port 65536, and ports end at 65535"


# --- The folder


async def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something else")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        error = await refused(LocalOptions(DataFolder(str(path))))
        assert isinstance(error, FolderUnusable)
        assert str(error) == f"{str(path)!r} is not a folder"
    assert (tmp_path / "file").read_text() == "something else"


async def test_a_folder_that_nobody_may_make_is_told() -> None:
    error = await refused(LocalOptions(DataFolder("/proc/quire")))  # Not even root creates folders there.
    assert isinstance(error, FolderUnusable)
    assert "/proc/quire" in str(error)


async def test_a_folder_in_which_logs_cannot_be_written_is_told(folder: DataFolder) -> None:
    os.mkdir(folder.path)
    Path(folder.path, "logs").write_text("in the way")
    error = await refused(LocalOptions(folder))
    assert isinstance(error, FolderUnusable)


async def test_a_folder_of_an_embedded_program_is_refused_with_its_name(folder: DataFolder) -> None:
    command = (sys.executable, "-m", "tests.support.programs.embedded", folder.path, "hold")
    program = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        assert program.stdout is not None
        assert await program.stdout.readline() == b"open\n"
        error = await refused(LocalOptions(folder))
    finally:
        program.kill()
        await program.wait()
    assert isinstance(error, FolderInUse)
    assert str(error) == f"the folder {folder.path!r} is in use by embedded.py (process {program.pid})"
    assert error.hint.startswith("End that program, or name another folder with --data")


# --- Space


async def test_a_new_cluster_on_a_disk_that_is_nearly_full_is_refused(folder: DataFolder) -> None:
    error = await refused(LocalOptions(folder), with_free(100 * MIB))
    assert isinstance(error, DiskFull)
    assert str(error) == (
        f"the disk of {folder.path!r} is nearly full: 100 MiB are free, and bookies take nothing new below 1 GiB"
    )
    assert error.hint == "Free some space, or choose a folder on another disk with --data."
    assert folder.bookie_numbers() == []


async def test_one_that_has_data_is_told_and_served(folder: DataFolder) -> None:
    os.makedirs(f"{folder.path}/bookie-1")
    told: list[ClusterEvent] = []
    await check_space(with_free(100 * MIB), folder, space_settings(()), told.append)
    (note,) = told
    assert isinstance(note, Noted)
    assert note.message == (
        f"the disk of {folder.path!r} is nearly full: 100 MiB are free, and bookies take nothing new below 1 GiB; "
        "what is there can be read"
    )
    assert note.hint == "Free some space: they take up writing by themselves."


async def test_the_threshold_is_that_of_the_bookies(folder: DataFolder) -> None:
    os.makedirs(folder.path)
    told: list[ClusterEvent] = []
    await check_space(with_free(2 << 30), folder, space_settings(()), told.append)
    await check_space(with_free(100 * MIB), folder, space_settings(("space.free_bytes_min=50MiB",)), told.append)
    assert told == []
    with pytest.raises(DiskFull, match="below 3 GiB"):
        await check_space(with_free(2 << 30), folder, space_settings(("space.free_bytes_min=3GiB",)), told.append)


# --- Options


def test_a_number_of_bookies_that_makes_no_sense_is_told(folder: DataFolder) -> None:
    for bookies in (0, -1, 10):
        with pytest.raises(InvalidArgument, match=f"1 to 9 bookies, not {bookies}"):
            LocalOptions(folder, bookies=bookies)


async def test_a_setting_that_there_is_not_is_told(folder: DataFolder) -> None:
    error = await refused(LocalOptions(folder, overrides=("garbage.intervall_s=1",)))
    assert isinstance(error, InvalidArgument)
    assert error.hint == "Did you mean garbage.interval_s?"
    assert not os.path.exists(folder.path)


def test_few_bookies_are_told_with_the_settings_that_fit() -> None:
    told: list[ClusterEvent] = []
    note_few_bookies(3, told.append)
    assert told == []
    note_few_bookies(1, told.append)
    (note,) = told
    assert isinstance(note, Noted)
    assert note.message == "writers ask for 3 bookies unless told otherwise, and this cluster has 1"
    assert "settings=quire.StreamSettings(ensemble=1, write_quorum=1, ack_quorum=1)" in note.hint


# --- Nothing starts


async def test_bookies_that_all_fail_end_the_start_with_their_own_sentence(folder: DataFolder) -> None:
    """Method: the metadata is lost, so that nobody knows the bookies any more."""
    for number in (1, 2, 3):
        os.makedirs(f"{folder.path}/bookie-{number}/current")
    error = await refused(LocalOptions(folder))
    assert isinstance(error, BookieFailed)
    assert str(error).startswith("no bookie starts; bookie-1 says: these are not the directories of bookie 'bookie-1'")
    assert error.hint.startswith("Start the bookie with the id it had")
