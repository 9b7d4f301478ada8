"""Commands that run on Spark, as processes of their own: stopped, killed and typed at, as users do it."""

import asyncio
import json
import signal
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.e2e.quire_process import Commands, hear, hear_errors
from tests.support.processes import below, kill
from tests.support.servers.local_cluster import wait_gone
from tests.support.servers.s3 import KEYS, S3Server
from tests.support.waiting import eventually

from quire.testing import LocalCluster

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_PATIENCE_S = 240.0  # A JVM has to start each time, on a machine that may be busy.


@pytest.fixture
def commands(quire_cluster: LocalCluster, tmp_path: Path) -> Commands:
    return Commands(tmp_path, quire_cluster.uri, longest_s=_PATIENCE_S)


def write(cluster: LocalCluster, stream: str, number: int, records: int) -> list[bytes]:
    """One segment."""
    payloads = [b"%s-%d-%d" % (stream.encode(), number, each) for each in range(records)]
    with cluster.connect_sync() as client, client.open_writer(stream) as writer:
        writer.append_many(payloads)
    return payloads


def count(cluster: LocalCluster, stream: str) -> int:
    with cluster.connect_sync() as client:
        return client.stream_info(stream).record_count if client.stream_exists(stream) else 0


def read(cluster: LocalCluster, stream: str) -> list[bytes]:
    expected = count(cluster, stream)
    with cluster.connect_sync() as client, client.open_reader(stream) as reader:
        return [next(reader).payload for _ in range(expected)]


def cold_segments(cluster: LocalCluster, stream: str) -> int:
    with cluster.connect_sync() as client:
        return sum(segment.cold_file is not None for segment in client.stream_info(stream).segments)


# --- Archiving


def test_segments_go_to_s3_and_come_back(quire_cluster: LocalCluster, commands: Commands, tmp_path: Path) -> None:
    """Bookies forget two of three segments, which readers then get from the server; and do not, once they are back."""
    server = S3Server(tmp_path)
    server.start()
    commands.environment |= {f"AWS_{name.upper()}": value for name, value in KEYS.items()}
    written = [payload for number in range(3) for payload in write(quire_cluster, "orders", number, 200)]
    shown = "".join(f"{payload.decode()}\n" for payload in written)

    told = json.loads(commands.out("archive", "orders", "--to", server.root("log", "a/b"), "--drop-hot", "--json"))
    assert [each["lssn"] for each in told["archived"]] == [1, 2, 3]
    assert ([each["lssn"] for each in told["dropped"]], told["failed"]) == ([1, 2], [])
    assert all(each["file"].startswith("s3://log/a/b") for each in told["archived"])
    assert commands.out("read", "orders") == shown
    assert commands.out("read", "orders", "--from", "2:0:0").splitlines() == shown.splitlines()[200:]

    assert commands.out("archive", "orders", "--restore") == "Stream orders: 2 segments restored.\n"
    server.kill()
    assert commands.out("read", "orders") == shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_archiving_that_follows_ends_in_good_order(
    quire_cluster: LocalCluster, commands: Commands, tmp_path: Path, number: signal.Signals
) -> None:
    """It is told to stop in the middle of a pass: that is finished, so each file in cold storage is known."""
    cold = tmp_path / "cold"
    write(quire_cluster, "orders", 0, 10)
    async with commands.start("archive", "--to", f"file:{cold}", "--follow", "--every", "0.2", "--json") as following:
        assert _lssns(await hear(following, 1)) == [1]
        write(quire_cluster, "orders", 1, 10)
        write(quire_cluster, "payments", 0, 10)
        heard = _lssns(await hear(following, 1))
        if len(heard) == 1:  # It may have looked between the two.
            heard += _lssns(await hear(following, 1))
        assert sorted(heard) == [1, 2]
        for each in range(2, 6):
            write(quire_cluster, "orders", each, 10)
        await eventually(lambda: _has_files(cold, 4), within_s=_PATIENCE_S, what="another file")
        started = below(following.pid)
        following.send_signal(number)
        assert await following.wait() == 0
        assert await hear_errors(following) == "Archiving segments as they complete, until Ctrl-C.\n"
        wait_gone(*started)
    known = cold_segments(quire_cluster, "orders") + cold_segments(quire_cluster, "payments")
    assert len(list(cold.rglob("*.parquet"))) == known


def _lssns(lines: list[bytes]) -> list[int]:
    return [each["lssn"] for line in lines for each in json.loads(line)["archived"]]


async def _has_files(folder: Path, least: int) -> bool:
    return len(list(folder.rglob("*.parquet"))) >= least


# --- Replaying


async def test_a_copy_of_a_stream_that_was_killed_is_finished_by_the_same_command(
    quire_cluster: LocalCluster, commands: Commands
) -> None:
    """Killed while a task writes, or right after: nothing of it is seen until the next run, and then all, once."""
    written = [payload for number in range(4) for payload in write(quire_cluster, "orders", number, 3000)]
    words = ("replay", "copy", "--stream", "orders", "--json")
    await _killed_when_tasks_write(quire_cluster, commands, *words)
    assert count(quire_cluster, "copy") in (0, len(written))
    told = json.loads(commands.out(*words))
    assert (told["records"] + told["steps_before"] > 0, read(quire_cluster, "copy")) == (True, written)
    assert json.loads(commands.out(*words))["records"] == 0
    assert read(quire_cluster, "copy") == written


async def test_files_that_were_half_replayed_are_finished_by_the_same_command(
    quire_cluster: LocalCluster, commands: Commands, tmp_path: Path
) -> None:
    """Sixteen files are a step: it is killed when some steps are done, and goes on behind the last of them."""
    folder, written = tmp_path / "events", []
    folder.mkdir()
    for number in range(6 * 16):
        payloads = [b"%d-%d" % (number, each) for each in range(10)]
        pq.write_table(pa.table({"payload": payloads}), folder / f"{number:03}.parquet")
        written += payloads
    words = ("replay", "events", "--parquet", str(folder), "--json")
    async with commands.start(*words) as replaying:
        await _until(replaying, lambda: count(quire_cluster, "events") > 0)
        await _kill(replaying)
    done = count(quire_cluster, "events")
    assert (done % 160, 0 < done < len(written)) == (0, True)
    assert read(quire_cluster, "events") == written[:done]
    told = json.loads(commands.out(*words))
    assert (told["records"], told["steps_before"]) == (len(written) - done, done // 160)
    assert read(quire_cluster, "events") == written


async def _killed_when_tasks_write(cluster: LocalCluster, commands: Commands, *words: str) -> None:
    ledgers = len(await _ledgers(cluster))
    async with commands.start(*words) as replaying:

        async def has_begun() -> bool:
            assert replaying.returncode is None, await hear_errors(replaying)
            return len(await _ledgers(cluster)) > ledgers

        await eventually(has_begun, within_s=_PATIENCE_S, what="a task has a ledger")
        await _kill(replaying)


async def _until(process: Process, condition: Any) -> None:
    async def is_so() -> bool:
        assert process.returncode is None, await hear_errors(process)
        return bool(condition())

    await eventually(is_so, within_s=_PATIENCE_S, what="the replay is under way")


async def _kill(process: Process) -> None:
    """The command with its JVM, and all that this started."""
    pids = [process.pid, *below(process.pid)]
    for pid in pids:
        kill(pid)
    await process.wait()
    await asyncio.to_thread(wait_gone, *pids)


async def _ledgers(cluster: LocalCluster) -> list[int]:
    import quire

    async with quire.ledgers(cluster.ledgers_uri) as ledgers:
        return [each async for each in ledgers.scan()]


# --- The shell


async def test_a_person_types_statements(quire_cluster: LocalCluster, commands: Commands) -> None:
    """Each line when there is a prompt for it."""
    write(quire_cluster, "orders", 0, 12)
    with commands.type("sql") as terminal:
        shown = {"quire> ": 0, "  ... ": 0}

        async def type_at(prompt: str, line: str) -> None:
            shown[prompt] += 1
            await terminal.see(prompt, times=shown[prompt])
            terminal.type(line)

        await terminal.see("Each of 1 streams is a table.")
        await type_at("quire> ", "help\n")
        await terminal.see("forget the one that was begun")
        await type_at("quire> ", "SELECT count(*) * 100 AS hundreds FROM orders;\n")
        await terminal.see("1200")
        await type_at("quire> ", "SELECT max(entry) AS nothing,\n")
        await type_at("  ... ", "concat('row ', count(*)) AS shown\n")
        await type_at("  ... ", "FROM orders;\n")
        await terminal.see("row 12")
        await type_at("quire> ", "SELECT nope FROM orders;\n")
        await terminal.see("error:")
        await terminal.see("`nope` cannot be resolved")
        await type_at("quire> ", "SELECT forgotten\n")
        await type_at("  ... ", "\x03")
        await type_at("quire> ", "SELECT 6 * 7 AS answer;\n")
        await terminal.see("42")
        await type_at("quire> ", "quit\n")
        assert await terminal.end() == 0
        assert "Traceback" not in terminal.seen
