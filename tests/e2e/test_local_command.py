"""`quire up`, `quire status` and `quire down` as a user has them: real processes, looked at, killed and stopped.

Whatever happens to a cluster, two things are so afterwards: what was acknowledged is there, and no process is left.
"""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.quire_process import Commands
from tests.support.private_files import shared_with_others
from tests.support.servers.local_cluster import LocalCluster, quire_command, wait_gone
from tests.support.waiting import eventually

from quire.app.processes import mark_of

ONE = "--bookies=1"  # Enough wherever nothing is written.

# What Python loads first: a bookie that never hears that it should stop, as one that hangs would not.
_DEAF = """
import signal, sys
if "quire.app.bookie_process" in sys.orig_argv:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
"""

_SLOW = """
import sys, threading
if "quire.app.bookie_process" in sys.orig_argv:
    threading.Event().wait(60)  # SIGTERM ends it here as anywhere.
"""


def told(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    """What a command prints that is given in another terminal, in the folder that has the cluster's data folder."""
    return quire_command(*arguments, folder=cluster.folder, state=cluster.folder, code=code)


def asked(cluster: LocalCluster, *arguments: str, code: int = 0) -> Any:
    return json.loads(told(cluster, *arguments, "--json", code=code))


def assert_nothing_runs(cluster: LocalCluster, *pids: int) -> None:
    """Nor does anything say that something would."""
    assert [pid for pid in pids if mark_of(pid) is not None] == []
    assert not (cluster.data / "cluster.json").exists()
    assert asked(cluster, "status", code=1)["running"] is False


async def records_of(cluster: LocalCluster, stream: str, count: int) -> list[bytes]:
    async with cluster.connect() as client, client.open_reader(stream) as reader:
        return [(await anext(reader)).payload for _ in range(count)]


# --- As a person sees it


async def test_a_person_starts_it_uses_it_and_stops_it_with_ctrl_c(tmp_path: Path) -> None:
    """What runs where is a short table, other commands find the cluster by themselves, and Ctrl-C ends all of it."""
    commands = Commands(tmp_path)
    with commands.type("up") as terminal:
        await terminal.see("Stop it   Ctrl-C, or quire down")
        assert "3 bookies, 1 write proxy and 1 read proxy run" in terminal.seen
        assert "\x1b[32mup\x1b[0m" in terminal.seen, "colours are for terminals"
        status = json.loads(await asyncio.to_thread(commands.out, "status", "--json"))
        shown = [each for each in status["services"] if each["kind"] != "autorecovery"]  # That comes a little later.
        assert len(shown) == 5
        for service in shown:
            (row,) = [line for line in terminal.seen.splitlines() if line.startswith(service["name"])]
            assert service["address"] in row
            assert str(service["pid"]) in row
            assert f"quire-data/logs/{service['name']}.log" in row
        assert status["uri"] in terminal.seen
        await asyncio.to_thread(commands.run, "write", "greetings", data=b"hello\nworld\n")
        assert await asyncio.to_thread(commands.out, "read", "greetings") == "hello\nworld\n"
        assert shared_with_others(tmp_path / "quire-data") == []
        terminal.type("\x03")
        assert await terminal.end() == 0
    assert "Stopping (Ctrl-C) …" in terminal.seen
    assert terminal.seen.splitlines()[-1] == "Stopped. Everything is in quire-data."
    assert [bookie["pid"] for bookie in status["services"] if mark_of(bookie["pid"]) is not None] == []
    assert commands.out("read", "greetings") == "hello\nworld\n", "without a cluster the command serves the folder"


# --- Crashes


async def test_a_bookie_that_is_killed_comes_back_while_writes_go_on(tmp_path: Path) -> None:
    """Method: append one record after the other, and meanwhile kill -9 one of three bookies."""
    with LocalCluster(tmp_path) as cluster:
        written: list[bytes] = []
        async with cluster.connect() as client, client.open_writer("orders") as writer:

            async def write_for_ever() -> None:
                while True:
                    payload = str(len(written)).encode()
                    await writer.append(payload)
                    written.append(payload)

            writing = asyncio.create_task(write_for_ever())
            os.kill(cluster.bookie_pids()["bookie-2"], signal.SIGKILL)
            ended = await asyncio.to_thread(cluster.wait_for, "ended", service="bookie-2")
            assert ended["why"] == "it was ended by SIGKILL"
            await _grows(written, by=20, writing=writing)
            back = await asyncio.to_thread(cluster.wait_for, "restarted", service="bookie-2")
            assert back["address"] == _address(cluster, "bookie-2"), "what people wrote down stays right"
            assert back["pid"] != cluster.bookie_pids()["bookie-2"]
            await _grows(written, by=20, writing=writing)
            writing.cancel()
            await asyncio.wait([writing])
        assert await records_of(cluster, "orders", len(written)) == written
        status = asked(cluster, "status")
        assert [bookie["restarts"] for bookie in status["services"]] == [0, 1, 0]


async def _grows(written: list[bytes], *, by: int, writing: asyncio.Task[None]) -> None:
    enough = len(written) + by

    async def is_enough() -> bool:
        assert not writing.done(), writing.exception()
        return len(written) >= enough

    await eventually(is_enough, within_s=60, what=f"{by} more records are acknowledged")


def _address(cluster: LocalCluster, name: str) -> str:
    (found,) = [bookie["address"] for bookie in cluster.wait_for("started")["services"] if bookie["name"] == name]
    return str(found)


@pytest.mark.extended
async def test_bookies_stop_when_their_supervisor_is_killed_and_the_next_one_has_everything(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.start()
    bookies = cluster.bookie_pids().values()
    async with cluster.connect() as client, client.open_writer("orders") as writer:
        await writer.append_many([b"paid", b"sent"])
        cluster.kill()
        wait_gone(*bookies)
    with cluster:
        assert await records_of(cluster, "orders", 2) == [b"paid", b"sent"]
        async with cluster.connect() as client, client.open_writer("orders") as writer:
            await writer.append(b"received")


@pytest.mark.extended
def test_what_an_earlier_run_left_behind_is_told_and_stopped(tmp_path: Path) -> None:
    """Method: a bookie stands still (SIGSTOP) when its supervisor is killed, so that it does not hear of it."""
    cluster = LocalCluster(tmp_path)
    cluster.start()
    pids = cluster.bookie_pids()
    os.kill(pids["bookie-2"], signal.SIGSTOP)
    cluster.kill()
    wait_gone(pids["bookie-1"], pids["bookie-3"])
    left = f"bookie-2 (process {pids['bookie-2']})"

    status = asked(cluster, "status", "--data=quire-data", code=1)
    assert status["running"] is False
    assert [(bookie["name"], bookie["state"]) for bookie in status["services"]] == [("bookie-2", "left over")]

    printed = told(cluster, "up", "--data=quire-data", code=1).splitlines()
    assert printed == [
        f"note: waiting for {left} of an earlier run to stop",
        f"error: an earlier run left something behind in '{cluster.data}': {left}",
        f"hint: `quire down --data {cluster.data}` stops what is left.",
    ]
    assert told(cluster, "down", "--data=quire-data") == f"Stopped the left-over {left} in quire-data.\n"
    assert_nothing_runs(cluster, *pids.values())
    with cluster:
        assert all(bookie["state"] == "up" for bookie in cluster.wait_for("started")["services"])


# --- The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM is what service managers send, SIGHUP what comes when the terminal's window is closed."""
    cluster = LocalCluster(tmp_path, ONE)
    cluster.start()
    pids = cluster.bookie_pids().values()
    cluster.stop(number)
    assert [event["event"] for event in cluster.events()[-2:]] == ["stopping", "stopped"]
    assert_nothing_runs(cluster, *pids)


async def test_a_signal_during_the_start_stops_what_has_been_started(tmp_path: Path) -> None:
    """Method: the signal comes as soon as a bookie is a process. None of them serves before."""
    (tmp_path / "sitecustomize.py").write_text(_SLOW)
    cluster = LocalCluster(tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    cluster.launch()

    async def has_begun() -> bool:
        return (cluster.data / "cluster.json").exists()

    await eventually(has_begun, what="a bookie is a process")
    await asyncio.to_thread(cluster.stop)
    events = [event["event"] for event in cluster.events()]
    assert events == ["stopping", "stopped"]
    assert_nothing_runs(cluster)
    assert told(cluster, "down", "--data=data", code=1).startswith("error: no local cluster runs in")


def test_whoever_presses_ctrl_c_again_does_not_wait_for_a_bookie_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_DEAF)
    cluster = LocalCluster(tmp_path, ONE, variables={"PYTHONPATH": str(tmp_path)})
    cluster.start()
    (pid,) = cluster.bookie_pids().values()
    os.kill(cluster.pid, signal.SIGINT)
    cluster.wait_for("stopping", signal="SIGINT")
    cluster.stop()
    (killed,) = [event for event in cluster.events() if event["event"] == "killed"]
    assert (killed["service"], killed["pid"]) == ("bookie-1", pid)
    assert_nothing_runs(cluster, pid)


@pytest.mark.extended
async def test_a_cluster_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """Method: read that it has started, as `head` would, and close the pipe; then kill a bookie, of which it tells."""
    commands = Commands(tmp_path)
    read_end, write_end = os.pipe()
    alone = (ONE, "--write-proxies=0", "--read-proxies=0", "--no-autorecovery")
    async with commands.start("up", "--json", *alone, stdout=write_end) as up:
        os.close(write_end)
        started = await asyncio.to_thread(_first, read_end, "started")
        (bookie,) = started["services"]
        os.kill(bookie["pid"], signal.SIGKILL)

        async def is_back() -> bool:
            answer = await asyncio.to_thread(commands.attempt, "status", "--json")
            (bookie,) = json.loads(answer.stdout)["services"]
            return bool(bookie["restarts"] == 1 and bookie["state"] == "up")

        await eventually(is_back, within_s=60, what="the bookie is back")
        await asyncio.to_thread(commands.run, "down")
        assert await up.wait() == 0


def _first(pipe: int, event: str) -> Any:
    """Of all events that come through a pipe, which is closed then."""
    with open(pipe, "rb") as lines:
        return next(found for line in lines if (found := json.loads(line))["event"] == event)


# --- From another terminal


def test_status_and_down_work_from_another_terminal(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.start()
    supervisor, pids = cluster.pid, cluster.bookie_pids()

    status = asked(cluster, "status")
    assert status["running"] is True
    assert (status["pid"], status["data"], status["uri"]) == (supervisor, str(cluster.data), cluster.uri)
    assert {bookie["name"]: bookie["pid"] for bookie in status["services"]} == pids
    assert {bookie["state"] for bookie in status["services"]} == {"up"}
    assert status["streams"] == 0

    printed = told(cluster, "status")
    assert printed.startswith(f"quire-data  process {supervisor}, for ")
    assert "\x1b" not in printed, "colours are for terminals"
    for name, pid in pids.items():
        assert any(line.startswith(name) and str(pid) in line for line in printed.splitlines())

    assert told(cluster, "down") == f"Stopped the local cluster (process {supervisor}) in quire-data.\n"
    cluster.wait_ended()
    assert_nothing_runs(cluster, *pids.values())
    assert told(cluster, "status", code=1) == "No local cluster runs.\nhint: Start one with `quire up`.\n"
    assert told(cluster, "down", code=1) == "error: no local cluster runs\nhint: Start one with `quire up`.\n"


@pytest.mark.extended
def test_a_bookie_that_answers_nobody_makes_status_say_so(tmp_path: Path) -> None:
    """Method: it stands still for a while (SIGSTOP), as on a machine that has no memory left."""
    with LocalCluster(tmp_path, ONE) as cluster:
        (pid,) = cluster.bookie_pids().values()
        os.kill(pid, signal.SIGSTOP)
        status = asked(cluster, "status", code=1)
        os.kill(pid, signal.SIGCONT)
        assert [(bookie["state"], bookie["problem"]) for bookie in status["services"]] == [
            ("silent", "its admin API does not answer within 3 s")
        ]
        assert "silent" not in told(cluster, "status")
