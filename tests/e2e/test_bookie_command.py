"""`quire bookie` as an operator uses it: processes, exit codes, and sentences instead of tracebacks."""

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.quire_command import quire_output
from tests.support.waiting import eventually

from quire.telemetry.names import DECLARED

ROOT = Path(__file__).parents[2]


def quire(*args: str, code: int = 0, folder: Path | None = None) -> str:
    return quire_output(*args, code=code, folder=folder)


class Running:
    """A bookie that this test started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "bookie.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def ready(self) -> dict[str, Any]:
        """The event that tells that it serves."""

        async def is_serving() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            return any(event["event"] == "bookie.serving" for event in self.events())

        await eventually(is_serving, within_s=30, what="the bookie serves")
        return next(event for event in self.events() if event["event"] == "bookie.serving")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(20)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(20)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    quire("metadata", "init", f"sqlite:{tmp_path}/metadata.db")
    return f"sqlite:{tmp_path}/metadata.db"


@pytest.fixture
async def bookie(tmp_path: Path, uri: str) -> AsyncIterator[Running]:
    running = Running(tmp_path, *run_arguments(tmp_path, uri))
    try:
        await running.ready()
        yield running
    finally:
        running.end()


def run_arguments(folder: Path, uri: str, *more: str, data: str = "data") -> tuple[str, ...]:
    options = ("--data", str(folder / data), "--id", "b1", "--listen", "127.0.0.1:0", *more)
    return ("bookie", "run", "--metadata", uri, *options)


async def test_a_bookie_runs_tells_how_it_is_and_stops(bookie: Running, uri: str) -> None:
    text = quire("bookie", "status", "--metadata", uri)
    assert "b1  writable" in text
    (status,) = json.loads(quire("bookie", "status", "--metadata", uri, "--json"))["bookies"]
    assert (status["bookie_id"], status["ok"], status["readonly"]) == ("b1", True, False)
    assert bookie.stop() == 0
    assert bookie.events()[-1]["event"] == "bookie.stopped"
    assert "b1  down" in quire("bookie", "status", "--metadata", uri, code=1)


async def test_ctrl_c_is_an_orderly_end(bookie: Running, tmp_path: Path) -> None:
    assert bookie.stop(signal.SIGINT) == 0
    assert not (tmp_path / "data" / "DIRTY").exists()


async def test_a_second_process_in_the_same_folder_is_refused(bookie: Running, uri: str, tmp_path: Path) -> None:
    text = quire(*run_arguments(tmp_path, uri), code=1)
    assert "process" in text
    assert "Stop that process first" in text


async def test_an_emptied_disk_is_refused(bookie: Running, uri: str, tmp_path: Path) -> None:
    bookie.stop()
    (tmp_path / "data").rename(tmp_path / "moved")
    text = quire(*run_arguments(tmp_path, uri), code=1)
    assert "has no file VERSION" in text
    assert "hint:" in text
    (tmp_path / "data" / "LOCK").unlink()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "nowhere"), "is not HOST:PORT"),
        (("--listen", "0.0.0.0:0"), "--advertise"),
        (("--set", "garbage.intervall_s=1"), "Did you mean garbage.interval_s?"),
        (("--id", "not/a/name"), "not/a/name"),
        (("--tls-certificate", "/nonexistent.pem"), "the TLS certificate cannot be used"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(arguments: tuple[str, ...], said: str, uri: str, tmp_path: Path) -> None:
    assert said in quire(*run_arguments(tmp_path, uri, *arguments), code=1)


def test_a_cluster_that_is_not_set_up_is_told(tmp_path: Path) -> None:
    text = quire(*run_arguments(tmp_path, f"sqlite:{tmp_path}/other.db"), code=1)
    assert "quire metadata init" in text


def test_a_folder_that_cannot_be_written_is_told(uri: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "the bookie cannot use its directories" in quire(*run_arguments(tmp_path, uri, data="file/data"), code=1)


async def test_read_only_by_an_operator_is_announced_and_kept(bookie: Running, uri: str, tmp_path: Path) -> None:
    (status,) = json.loads(quire("metadata", "show", uri, "--json"))["bookies"]
    (admin,) = [each for each in status["endpoints"] if each["protocol"] == "http"]
    url = f"http://{admin['host']}:{admin['port']}"
    fetch(urllib.request.Request(f"{url}/api/v1/bookie/state/readonly", b'{"readOnly": true}', method="PUT"))

    async def is_announced() -> bool:
        return bool(json.loads(quire("metadata", "show", uri, "--json"))["bookies"][0]["state"] == "readonly")

    await eventually(is_announced, what="the bookie is in the read-only list")
    assert "an operator" in quire("bookie", "status", "--metadata", uri)
    assert "bookie_SERVER_STATUS 0.0" in fetch(urllib.request.Request(f"{url}/metrics"))
    bookie.stop()
    again = Running(tmp_path, *run_arguments(tmp_path, uri))
    try:
        await eventually(lambda: serves_again(again), within_s=30, what="it serves again")
        assert again.events()[-1]["mode"] == "read_only"
    finally:
        again.end()


def fetch(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def serves_again(running: Running) -> bool:
    return [event["event"] for event in running.events()].count("bookie.serving") == 2


def test_settings_are_listed() -> None:
    text = quire("bookie", "settings")
    assert re.search(r"^garbage\.interval_s +600\.0$", text, re.MULTILINE)
    assert json.loads(quire("bookie", "settings", "--json"))["storage.cache_bytes_max"] == 32 << 20


def commands(document: str) -> Iterator[list[str]]:
    """The commands that a document shows, each on a line of its own."""
    for line in re.findall(r"^ {4}quire (.+)$", (ROOT / document).read_text(), re.MULTILINE):
        yield shlex.split(line, comments=True)


async def test_the_commands_of_the_documents_work(tmp_path: Path) -> None:
    """Those of the page on bookies, in order, in one folder; `run` stays while the others are tried."""
    shown = list(commands("docs/operate/bookie.md"))
    assert [words[:2] for words in shown] == [["metadata", "init"], ["bookie", "run"], ["bookie", "status"]]
    running: Running | None = None
    try:
        for words in shown:
            if words[:2] == ["bookie", "run"]:
                anywhere = ["127.0.0.1:0" if word == "127.0.0.1:3181" else word for word in words]
                running = Running(tmp_path, *anywhere)
                await running.ready()
            else:
                quire(*words, folder=tmp_path)
    finally:
        if running is not None:
            running.end()


def test_every_metric_is_in_the_reference() -> None:
    described = set(re.findall(r"^\| `(\w+)` ", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    assert described == set(DECLARED)
