"""`quire ledger` and `quire.ledgers` against three bookies that run as processes, as a user starts them."""

import asyncio
import json
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_bookie_command import Running
from tests.support.documents import ROOT, blocks
from tests.support.quire_command import quire_output, run_quire
from tests.support.waiting import eventually

import quire
from quire.errors import LedgerFenced, NoSuchLedger, NotEnoughBookies
from quire.ledger.bookies.health import HealthSettings
from quire.ledger.bookies.placing import PlacementSettings
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.settings import LedgerSettings


@pytest.fixture
async def uri(tmp_path: Path) -> AsyncIterator[str]:
    """A cluster of three bookies in a folder."""
    found = f"sqlite:{tmp_path}/metadata.db"
    command(found, "metadata", "init", found)
    async with AsyncExitStack() as stack:
        started = []
        for number in range(3):
            folder = tmp_path / f"b{number}"
            folder.mkdir()
            options = (
                "--data",
                str(folder / "data"),
                "--listen",
                "127.0.0.1:0",
                "--id",
                f"b{number}",
                "--admin",
                "none",
            )
            bookie = Running(folder, "bookie", "run", "--metadata", found, *options)
            stack.callback(bookie.end)
            started.append(bookie)
        for bookie in started:
            await bookie.ready()
        yield found


def command(uri: str, *words: str, lines: str = "", code: int = 0) -> str:
    return quire_output(*words, data=lines.encode(), code=code, environment={"QUIRE_METADATA": uri})


@asynccontextmanager
async def running(uri: str, *words: str) -> AsyncIterator[Process]:
    """A command under way, with pipes to it and from it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire", *words),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={"QUIRE_METADATA": uri, "PYTHONUNBUFFERED": "1"},
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def say(process: Process, text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode())
    await process.stdin.drain()


async def hear(process: Process, lines: int) -> list[str]:
    assert process.stdout is not None
    return [(await process.stdout.readline()).decode() for _ in range(lines)]


def asked(uri: str, *words: str) -> Any:
    return json.loads(command(uri, *words, "--json"))


async def test_lines_become_entries_and_come_back(uri: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(2500))
    assert command(uri, "ledger", "write", lines=lines) == f"Ledger 0 has 2500 entries.\ncluster: {uri}\n"
    assert command(uri, "ledger", "read", "0") == lines
    assert command(uri, "ledger", "read", "0", "--from", "2499") == "line 2499\n"
    assert asked(uri, "ledger", "list") == {"ledgers": [0]}
    shown = asked(uri, "ledger", "show", "0")
    assert (shown["state"], shown["entries"], shown["length"]) == ("closed", 2500, len(lines) - 2500)
    assert "there is no ledger 7" in command(uri, "ledger", "read", "7", code=1)
    assert command(uri, "ledger", "delete", "0") == f"Ledger 0 is deleted.\ncluster: {uri}\n"
    assert asked(uri, "ledger", "list") == {"ledgers": []}
    assert "there is no ledger 0" in command(uri, "ledger", "delete", "0", code=1)


async def test_a_program_writes_while_an_operator_recovers(uri: str) -> None:
    async with quire.ledgers(uri) as ledgers:
        async with ledgers.create() as ledger:
            assert await ledger.append(b"first") == 0
            async with ledgers.open(ledger.id, recover=False) as reader:
                assert [entry.payload async for entry in reader.read_unconfirmed(0, 0)] == [b"first"]
            await ledger.append(b"second")
            assert asked(uri, "ledger", "recover", str(ledger.id))["entries"] == 2
            with pytest.raises(LedgerFenced):
                await ledger.append(b"too late")
        async with ledgers.open(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"first", b"second"]
        await ledgers.delete(ledger.id)
        with pytest.raises(NoSuchLedger):
            async with ledgers.open(ledger.id):
                pass


async def test_a_ledger_is_created_as_asked_and_shown(uri: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pw\n")
    options = ("--ledger-id", "77", "--custom", "owner=me", "--custom", "odd=[red]a=b", "--digest", "mac")
    quorums = ("--ensemble", "2", "--write-quorum", "2", "--ack-quorum", "1")
    made = asked(uri, "ledger", "create", *options, *quorums, "--password-file", str(password))
    assert made["ledger"] == 77
    assert made["state"] == "closed"
    assert made["custom"] == {"owner": "me", "odd": "[red]a=b"}
    assert (made["ensemble"], made["write_quorum"], made["ack_quorum"], made["digest"]) == (2, 2, 1, "mac")
    shown = command(uri, "ledger", "show", "77")
    assert "Ledger 77  closed" in shown
    assert "custom   odd = [red]a=b" in shown
    (listed,) = asked(uri, "ledger", "list", "--long")["ledgers"]
    assert {"metadata": uri, **listed} == made
    assert "2/2/1" in command(uri, "ledger", "list", "-l")
    assert command(uri, "ledger", "read", "77", "--password-file", str(password)) == ""
    assert "hint: Use the password" in command(uri, "ledger", "read", "77", code=1)


@pytest.mark.extended
async def test_what_cannot_be_is_one_sentence_and_an_exit_code(uri: str) -> None:
    command(uri, "ledger", "create", "--ledger-id", "5")
    for words, said in (
        (("create", "--ledger-id", "5"), "ledger 5 exists already"),
        (("create", "--custom", "nothing"), "hint: Write --custom owner=me"),
        (("create", "--digest", "md5"), "there is no digest 'md5'"),
        (("create", "--ensemble", "4"), "hint: Start more bookies"),
        (("create", "--ack-quorum", "4"), "do not fit together"),
        (("read", "5", "--follow", "--to", "3"), "--follow has no last entry"),
        (("read", "5", "--to", "3"), "the last confirmed one is -1"),
        (("recover", "6"), "there is no ledger 6"),
    ):
        text = command(uri, "ledger", *words, code=1)
        assert text.startswith("error: ")
        assert said in text
    failed = json.loads(command(uri, "ledger", "create", "--ledger-id", "5", "--json", code=1))["error"]
    assert (failed["kind"], failed["retryable"], failed["outcome"]) == ("LedgerExists", False, "not_applied")
    command(uri, "ledger", "read", "minus-one", code=2)


@pytest.mark.extended
async def test_a_follower_sees_each_line_when_it_is_written_until_the_ledger_is_sealed(uri: str) -> None:
    async with running(uri, "ledger", "write", "--ledger-id", "9") as writer:
        await say(writer, "one\ntwo\n")
        await eventually(lambda: exists(uri, "9"), within_s=30, what="the ledger is there")
        async with running(uri, "ledger", "read", "9", "--follow") as follower:
            assert await hear(follower, 2) == ["one\n", "two\n"]
            await say(writer, "three\nfo")
            assert await hear(follower, 1) == ["three\n"]
            await say(writer, "ur")
            assert writer.stdin is not None
            writer.stdin.close()
            assert await hear(follower, 1) == ["four\n"]
            assert await follower.wait() == 0
        assert await hear(writer, 1) == ["Ledger 9 has 4 entries.\n"]
        assert await writer.wait() == 0


async def exists(uri: str, ledger: str) -> bool:
    done = await asyncio.to_thread(run_quire, "ledger", "show", ledger, environment={"QUIRE_METADATA": uri})
    return done.returncode == 0


@pytest.mark.extended
async def test_ctrl_c_ends_the_input_and_seals_what_was_written(uri: str) -> None:
    async with running(uri, "ledger", "write", "--ledger-id", "9") as writer:
        await say(writer, "one\ntwo\n")

        async def is_written() -> bool:
            async with quire.ledgers(uri) as ledgers, ledgers.open(9, recover=False) as reader:
                return reader.last_add_confirmed == 1

        await eventually(lambda: exists(uri, "9"), within_s=30, what="the ledger is there")
        await eventually(is_written, within_s=30, what="both lines are confirmed")
        writer.send_signal(signal.SIGINT)
        assert await hear(writer, 1) == ["Ledger 9 has 2 entries.\n"]
        assert await writer.wait() == 0
    assert asked(uri, "ledger", "show", "9")["entries"] == 2


@pytest.mark.extended
async def test_a_reader_that_has_enough_is_no_error(uri: str) -> None:
    command(uri, "ledger", "write", lines="line\n" * 50_000)
    async with running(uri, "ledger", "read", "0") as reading:
        assert await hear(reading, 2) == ["line\n"] * 2
        assert reading.stdout is not None
        reading.stdout._transport.close()  # type: ignore[attr-defined]
        assert await reading.wait() == 0
        assert reading.stderr is not None
        assert await reading.stderr.read() == b""


def write_file(uri: str, path: Path) -> None:
    """A file is no pipe: the event loop cannot wait for it."""
    with path.open("rb") as lines:
        words = [sys.executable, "-m", "quire", "ledger", "write"]
        subprocess.run(words, stdin=lines, check=True, env={"QUIRE_METADATA": uri}, timeout=60, capture_output=True)


@pytest.mark.extended
async def test_payloads_that_are_no_text_come_through(uri: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\x00\xff\nplain \xc3\xa9\n")
    write_file(uri, tmp_path / "lines")
    first, second = command(uri, "ledger", "read", "0", "--json").splitlines()
    assert json.loads(first) == {"entry": 0, "payload_base64": "AP8="}
    assert json.loads(second) == {"entry": 1, "payload": "plain é"}


# --- The guide

GUIDE = "docs/guide/ledgers.md"


async def test_the_programs_of_the_guide_work(uri: str, tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    for block in blocks(GUIDE, "python"):
        exec(compile(block, GUIDE, "exec"), shown)
    assert await shown["write_and_read"](uri) == [b"first", b"second", b"third"]
    ledger_id = await shown["write_in_any_order"](uri, {2: b"c", 0: b"a", 1: b"b"})
    assert await shown["follow"](uri, ledger_id) == [b"a", b"b", b"c"]
    racks = tmp_path / "racks.txt"
    racks.write_text("b0 /rack-1\nb1 /rack-2\nb2 /rack-3\n")
    assert await shown["spread"](uri, str(racks)) == ledger_id + 1
    racks.write_text("b0 /rack-1\nb1 /rack-1\nb2 /rack-1\n")
    with pytest.raises(NotEnoughBookies):
        await shown["spread"](uri, str(racks))


def test_every_setting_and_its_default_is_in_the_guide() -> None:
    text = (ROOT / GUIDE).read_text()
    for kind, prefix in (
        (LedgerSettings, ""),
        (PlacementSettings, ""),
        (PoolSettings, ""),
        (HealthSettings, "health."),
    ):
        for setting in fields(kind):
            if setting.name in ("channel", "health"):
                continue  # These have fields of their own.
            default = setting.default
            number = isinstance(default, int) and not isinstance(default, bool)
            shown = f"{default:_}" if number else repr(default)
            assert f"| `{prefix}{setting.name}` | `{shown}` |" in text, f"{kind.__name__}.{setting.name}"
