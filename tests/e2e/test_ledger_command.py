"""`quire ledger` and `quire.ledgers` against three bookies that run as processes, as a user starts them."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_bookie_command import Running

import quire
from quire.errors import LedgerFenced, NoSuchLedger


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
    done = subprocess.run(
        [sys.executable, "-m", "quire", *words],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"QUIRE_METADATA": uri},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def asked(uri: str, *words: str) -> Any:
    return json.loads(command(uri, *words, "--json"))


async def test_lines_become_entries_and_come_back(uri: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(2500))
    assert command(uri, "ledger", "write", lines=lines) == "Ledger 0 has 2500 entries.\n"
    assert command(uri, "ledger", "read", "0") == lines
    assert command(uri, "ledger", "read", "0", "--from", "2499") == "line 2499\n"
    assert asked(uri, "ledger", "list") == {"ledgers": [0]}
    shown = asked(uri, "ledger", "show", "0")
    assert (shown["state"], shown["entries"], shown["length"]) == ("closed", 2500, len(lines) - 2500)
    assert "there is no ledger 7" in command(uri, "ledger", "read", "7", code=1)
    command(uri, "ledger", "delete", "0")
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
