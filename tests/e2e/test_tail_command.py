"""`quire` on a cluster: readers that follow writers of other processes, names that the shell completes, and clusters
that are found without a word.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.quire_process import Commands, hear, hear_errors, say
from tests.support.servers.killable import BookieProcess
from tests.support.servers.local_cluster import LocalCluster
from tests.support.servers.ports import free_port
from tests.support.servers.sqlite_bookie import new_cluster
from tests.support.waiting import eventually

from quire.app.running import announced
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[str]:
    """A cluster of one bookie: there, a stream has one copy."""
    uri = await new_cluster(real_runtime(), tmp_path)
    await create_namespace(f"distributedlog+sqlite:{tmp_path}/metadata.db/default")
    bookie = BookieProcess("b1", tmp_path, uri, session_s=5.0)
    bookie.start()
    try:
        yield uri
    finally:
        bookie.kill()


@pytest.fixture
async def log(metadata: str, tmp_path: Path) -> Commands:
    commands = Commands(tmp_path, f"distributedlog+sqlite:{tmp_path}/metadata.db/default")

    async def can_write() -> bool:
        done = await asyncio.to_thread(commands.attempt, "write", "ready", "--json", data=b"yes\n")
        return done.returncode == 0

    await eventually(can_write, within_s=60, what="the bookie takes records")
    return commands


async def test_what_one_process_writes_another_sees_at_once(log: Commands) -> None:
    log.run("write", "s", data=b"before\n")
    async with log.start("tail", "s") as tailing, log.start("tail", "s", "--from", "earliest", "--json") as all_of_it:
        assert json.loads((await hear(all_of_it, 1))[0])["payload"] == "before"
        async with log.start("write", "s", "--txid", "2" + 12 * "0") as writing:
            await say(writing, b"one\n")
            assert json.loads((await hear(all_of_it, 1))[0])["payload"] == "one"
            await say(writing, b"two\nthr")
            seen = json.loads((await hear(all_of_it, 1))[0])
            assert (seen["payload"], seen["txid"]) == ("two", 2_000_000_000_001)
            # The writer goes on; whoever reads what is there now does not wait for it.
            assert log.out("read", "s") == "before\none\ntwo\n"
            assert log.out("read", "s", "--from", f">{seen['dlsn']}") == ""
            shown = json.loads(log.out("stream", "show", "s", "--json"))
            assert f"/{writing.pid}" in shown["writer"]
            assert shown["segments"][-1]["state"] == "in progress"
            assert f"/{writing.pid}" in log.err("write", "s", "--timeout", "1", data=b"x\n", code=1)
            writing.send_signal(signal.SIGINT)
            assert await writing.wait() == 0
            assert (await hear_errors(writing)).startswith("3 records, up to 2:")
        assert json.loads((await hear(all_of_it, 1))[0])["payload"] == "thr"
        heard = await hear(tailing, 1)
        while heard[-1] != b"thr\n":  # It may have begun at any time since it was started.
            heard += await hear(tailing, 1)
        assert heard == [b"before\n", b"one\n", b"two\n", b"thr\n"][-len(heard) :]
        for process in (tailing, all_of_it):
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            assert await hear_errors(process) == ""


@pytest.mark.extended
async def test_every_read_has_all_that_was_acknowledged_before_it(log: Commands) -> None:
    """Method: a writer that stays open, and a read after each line that somebody else saw."""
    async with log.start("write", "s", "--create") as writing:
        await say(writing, b"0\n")
        await eventually(lambda: exists(log, "s"), within_s=60, what="the stream is there")
        async with log.start("tail", "s", "--from", "earliest") as tailing:
            for number in range(5):
                assert await hear(tailing, 1) == [b"%d\n" % number]
                assert log.out("read", "s") == "".join(f"{each}\n" for each in range(number + 1))
                await say(writing, b"%d\n" % (number + 1))


async def exists(log: Commands, stream: str) -> bool:
    done = await asyncio.to_thread(log.attempt, "stream", "show", stream, data=b"")
    return done.returncode == 0


@pytest.mark.extended
async def test_a_subscription_goes_on_where_it_stopped(log: Commands) -> None:
    log.run("write", "s", data=b"a\nb\nc\nd\n")
    follow = ("tail", "s", "--from", "earliest", "--subscription", "billing")
    assert log.out(*follow, "--limit", "1") == "a\n"
    assert log.out(*follow, "--limit", "2") == "b\nc\n"
    async with log.start(*follow) as tailing:
        assert await hear(tailing, 1) == [b"d\n"]
        tailing.send_signal(signal.SIGINT)
        assert await tailing.wait() == 0
    shown: dict[str, Any] = json.loads(log.out("stream", "show", "s", "--json"))
    assert shown["subscriptions"] == {"billing": "1:0:4"}
    assert "reader   billing, goes on at 1:0:4" in log.out("stream", "show", "s")


@pytest.mark.extended
async def test_ctrl_c_at_a_terminal_ends_what_is_typed_and_what_is_followed(log: Commands) -> None:
    log.run("stream", "create", "s")
    async with log.start("tail", "s", "--from", "earliest") as tailing:
        with log.type("write", "s") as terminal:
            await terminal.see("Ctrl-D ends the input")
            terminal.type("one\ntwo\n")
            assert await hear(tailing, 2) == [b"one\n", b"two\n"]
            terminal.type("\x03")
            assert await terminal.end() == 0
            assert "2 records, up to 1:" in terminal.seen
    with log.type("tail", "s", "--from", "earliest") as terminal:
        await terminal.see("two\n")
        terminal.type("\x03")
        assert await terminal.end() == 0
        assert terminal.seen == "one\ntwo\n^C\r\x1b[K", "the echo of the key is taken away again"


# --- Without a word about where


@pytest.fixture
def anywhere(log: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """Commands in the folder of a cluster, which runs as `quire up` announces it."""
    uri = log.environment["QUIRE_URI"]
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "quire-data").symlink_to(tmp_path)
    commands = Commands(folder)
    monkeypatch.setenv("XDG_STATE_HOME", commands.environment["XDG_STATE_HOME"])
    with announced(str(tmp_path), uri):
        yield commands


async def test_the_cluster_that_runs_is_found(anywhere: Commands) -> None:
    assert anywhere.out("stream", "list") == "ready\n"
    assert anywhere.out("read", "ready").split()[-1] == "yes"
    assert json.loads(anywhere.out("ledger", "list", "--json"))["ledgers"] != []
    assert "b1  registered" in anywhere.out("bookie", "status")


async def test_a_cluster_in_another_folder_is_left_alone(anywhere: Commands) -> None:
    """Not even if it is the only one: what is written without a word about where stays in the folder one stands in."""
    (anywhere.folder / "quire-data").unlink()
    refused = anywhere.err("write", "ready", data=b"lost\n", code=1)
    assert refused.startswith("error: no log is named, and none is in ./quire-data; a local cluster runs in ")
    assert "hint: Say which one you mean with --uri or QUIRE_URI: " in refused
    assert not (anywhere.folder / "quire-data").exists()
    told = anywhere.err("write", "ready", "--uri", "file:./quire-data", data=b"mine\n")
    assert told == "1 record, up to 1:0:0, was written to ready at file:./quire-data\n"
    assert anywhere.err("write", "ready", data=b"mine, too\n").endswith("at file:./quire-data\n")
    assert anywhere.out("read", "ready") == "mine\nmine, too\n"


async def test_names_of_streams_are_completed(anywhere: Commands) -> None:
    anywhere.run("stream", "create", "orders", "orders-old", "payments")
    completed = anywhere.completions
    assert completed("quire read or") == ["orders", "orders-old"]
    assert completed("quire stream show p") == ["payments"]
    assert completed("quire stream delete orders pay") == ["payments"]
    assert completed("quire tail nothing") == []
    assert completed("quire read --uri file:./other or") == []
    assert completed("quire read --uri nonsense or") == []
    assert completed("quire st") == ["stream", "status"]
    assert "--from" in completed("quire read --")
    anywhere.environment["QUIRE_URI"] = "file:./new"
    assert completed("quire read or") == []
    assert not (anywhere.folder / "new").exists()


@pytest.mark.extended
def test_names_of_streams_are_completed_where_proxies_serve(tmp_path: Path) -> None:
    """With what `quire up` announces, with the URI of its proxies in the environment, and with one that nobody serves.

    Method: a cluster as `quire up` starts it, and bash's question in its folder.
    """
    with LocalCluster(tmp_path, proxies=1) as cluster:
        commands = Commands(tmp_path)
        commands.environment["XDG_STATE_HOME"] = str(tmp_path)
        commands.run("stream", "create", "orders", "orders-old", "payments")
        assert cluster.uri.startswith("quire://")
        assert json.loads(commands.out("status", "--json"))["uri"] == cluster.uri, "that is what commands find"
        assert commands.completions("quire read or") == ["orders", "orders-old"]
        assert commands.completions(f"quire read --uri {cluster.uri} p") == ["payments"]
        commands.environment["QUIRE_URI"] = cluster.uri
        assert commands.completions("quire tail or") == ["orders", "orders-old"]
        assert commands.completions("quire tail nothing") == []
        commands.environment["QUIRE_URI"] = f"quire://127.0.0.1:{free_port()}/default"
        assert commands.completions("quire tail or") == []
