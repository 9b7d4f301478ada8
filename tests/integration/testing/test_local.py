"""The log and the cluster that users test their own programs with."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quire
from quire.errors import BookieUnavailable, FolderInUse, FolderUnusable, HandleClosed, InvalidArgument, NotEnoughBookies
from quire.testing import LocalCluster, local_cluster, local_log

DEADLINE_S = 60.0


def written(cluster: LocalCluster, *payloads: bytes) -> None:
    with cluster.connect_sync() as client, client.open_writer("orders") as writer:
        writer.append_many(payloads)


def stored(cluster: LocalCluster, count: int) -> list[bytes]:
    with cluster.connect_sync() as client, client.open_reader("orders") as reader:
        return [next(reader).payload for _ in range(count)]


def open_files(folder: Path) -> list[str]:
    """What this process has open of a folder."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(folder))]


# --- A log in a folder


def test_a_log_is_opened_again_to_see_what_has_stayed(tmp_path: Path) -> None:
    with local_log(tmp_path / "a log, 100% new") as log:
        assert not log.folder.exists()
        with log.connect_sync() as client, client.open_writer("orders") as writer:
            writer.append(b"paid")

        async def read() -> bytes:
            async with log.connect() as client, client.open_reader("orders") as reader:
                return (await anext(reader)).payload

        assert asyncio.run(read()) == b"paid"
    assert log.folder.is_dir()


# --- A cluster


def test_a_cluster_is_three_bookies_that_listen(tmp_path: Path) -> None:
    with local_cluster(tmp_path) as cluster:
        bookies = cluster.bookies
        assert [bookie.name for bookie in bookies] == ["bookie-1", "bookie-2", "bookie-3"]
        for bookie in bookies:
            assert bookie.is_running
            assert bookie.address is not None
            with socket.create_connection(bookie.address, timeout=DEADLINE_S):
                pass


def test_blocking_and_async_code_use_the_same_cluster(tmp_path: Path) -> None:
    with local_cluster(tmp_path) as cluster:
        written(cluster, b"paid", b"sent")

        async def read() -> list[bytes]:
            async with cluster.connect() as client, client.open_reader("orders") as reader:
                return [(await anext(reader)).payload for _ in range(2)]

        assert asyncio.run(read()) == [b"paid", b"sent"]


def test_the_ledgers_have_a_door_of_their_own(tmp_path: Path) -> None:
    with local_cluster(tmp_path) as cluster, quire.sync.ledgers(cluster.ledgers_uri) as ledgers:
        with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            ledger.append(b"entry")
        with ledgers.open(ledger.id) as reader:
            assert [entry.payload for entry in reader.read()] == [b"entry"]


def test_another_process_uses_the_cluster(tmp_path: Path) -> None:
    program = (
        "import sys, quire\n"
        "with quire.sync.connect(sys.argv[1]) as client, client.open_writer('orders') as writer:\n"
        "    writer.append(b'from elsewhere')\n"
    )
    with local_cluster(tmp_path) as cluster:
        subprocess.run([sys.executable, "-c", program, cluster.uri], check=True, timeout=DEADLINE_S)
        assert stored(cluster, 1) == [b"from elsewhere"]


def test_a_writer_goes_on_without_a_bookie_and_with_it_again(tmp_path: Path) -> None:
    expected = []
    with local_cluster(tmp_path, bookies=4) as cluster:
        for number in (1, 2, 3, 4):  # One of them is not in the ensemble.
            with cluster.connect_sync() as client, client.open_writer("orders") as writer:
                writer.append(b"with %d" % number)
                cluster.stop_bookie(number)
                writer.append(b"without %d" % number)
                cluster.start_bookie(number)
                writer.append(b"again with %d" % number)
            expected += [b"with %d" % number, b"without %d" % number, b"again with %d" % number]
        assert stored(cluster, len(expected)) == expected


def test_without_bookies_nothing_can_be_written(tmp_path: Path) -> None:
    with local_cluster(tmp_path, bookies=1) as cluster:
        cluster.stop_bookie(1)
        assert [(bookie.is_running, bookie.address) for bookie in cluster.bookies] == [(False, None)]
        with pytest.raises(NotEnoughBookies), cluster.connect_sync() as client, client.open_writer("orders") as writer:
            writer.append(b"paid")


def test_a_bookie_has_what_it_had_before_it_was_stopped(tmp_path: Path) -> None:
    """Method: all of them stop, so that what is read comes from their disks."""
    payloads = [bytes([number]) * 100_000 for number in range(40)]
    with local_cluster(tmp_path) as cluster:
        written(cluster, *payloads)
        for number in (1, 2, 3, 3):
            cluster.stop_bookie(number)  # A second time is fine.
        for number in (1, 2, 3, 3):
            cluster.start_bookie(number)
        assert stored(cluster, len(payloads)) == payloads


def test_two_clusters_know_nothing_of_each_other(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "a") as first, local_cluster(tmp_path / "b", bookies=1) as second:
        written(first, b"paid")
        with second.connect_sync() as client:
            assert client.list_streams() == []


def test_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a test would take as long as the disk of whoever runs it. (SQLite's own syncs are not seen here.)"""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with local_cluster(tmp_path) as cluster:
        written(cluster, b"paid")
        cluster.stop_bookie(1)
    assert synced == []


# --- Nothing is left


def test_a_cluster_takes_everything_along(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with local_cluster(tmp_path) as cluster:
        written(cluster, b"paid")
        cluster.stop_bookie(2)
        addresses = [bookie.address for bookie in cluster.bookies if bookie.address]
        assert open_files(tmp_path)
    assert set(threading.enumerate()) <= before
    assert open_files(tmp_path) == []
    for address in addresses:
        with pytest.raises(ConnectionRefusedError), socket.create_connection(address, timeout=DEADLINE_S):
            pass


def test_a_client_that_was_forgotten_is_closed_with_the_cluster(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with local_cluster(tmp_path) as cluster:
        client = cluster.connect_sync()
        writer = client.open_writer("orders")
        writer.append(b"paid")
        reader = client.open_reader("orders")
        assert next(reader).payload == b"paid"
    assert set(threading.enumerate()) <= before
    with pytest.raises(HandleClosed):
        writer.append(b"more")
    with pytest.raises(HandleClosed):
        next(reader)


async def test_an_open_client_does_not_keep_a_cluster_from_ending(tmp_path: Path) -> None:
    with local_cluster(tmp_path) as cluster:
        opening = quire.ledgers(cluster.ledgers_uri)
        ledgers = await opening.__aenter__()
        async with ledgers.create() as ledger:
            await ledger.append(b"entry")
    with pytest.raises(BookieUnavailable):
        async with ledgers.open(ledger.id, recover=False) as reader:
            await anext(reader.read(0, 0))
    await opening.__aexit__(None, None, None)


def test_the_error_of_the_block_is_what_its_caller_sees(tmp_path: Path) -> None:
    before, nothing = set(threading.enumerate()), 0
    with pytest.raises(ZeroDivisionError), local_cluster(tmp_path) as cluster:
        nothing = 1 // nothing
    assert set(threading.enumerate()) <= before
    with pytest.raises(HandleClosed, match="the cluster in"):
        cluster.stop_bookie(1)


# --- Refused


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_bookie_that_is_not_there_is_refused(tmp_path: Path, number: int) -> None:
    with local_cluster(tmp_path) as cluster:
        for call in (cluster.stop_bookie, cluster.start_bookie):
            with pytest.raises(InvalidArgument, match=f"no bookie {number}") as refused:
                call(number)
            assert refused.value.hint == "Its bookies have the numbers 1 to 3."


@pytest.mark.parametrize("count", [0, 100])
def test_a_senseless_number_of_bookies_is_refused_at_once(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{count} bookies"):
        local_cluster(tmp_path, bookies=count)


def test_a_folder_is_for_one_cluster(tmp_path: Path) -> None:
    with local_cluster(tmp_path):
        with pytest.raises(FolderInUse), local_cluster(tmp_path):
            pass
        with pytest.raises(FolderInUse), quire.sync.connect(f"file:{tmp_path}"):
            pass
    with pytest.raises(FolderUnusable, match="before") as refused, local_cluster(tmp_path):
        pass
    assert "new folder" in refused.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusable), local_cluster(tmp_path / "file"):
        pass
