"""Bookies and autorecovery as processes of their own, over metadata in one SQLite file."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from quire.metadata import init_cluster, open_store, parse_uri
from quire.runtime import real_runtime
from tests.support.waiting import eventually

SESSION_S = "4"  # How soon a dead process is noticed; long enough for a busy machine.


class Process:
    """One `quire …` process that writes events to a log."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self._words = folder, name, words
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "QUIRE_METADATA": ""},
            )
        return self

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in found if event["event"] == kind]

    def is_serving(self, kind: str) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended: {self.log.read_text()[-3000:]}"
        return bool(self.events(kind))

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, self.log.read_text()[-3000:]


class RealCluster:
    """Some bookies over one metadata file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:{folder}/metadata.db"
        self.processes: dict[str, Process] = {}

    async def start(self, bookies: int, *settings: str) -> None:
        parsed = parse_uri(self.uri)
        async with open_store(parsed) as store:
            await init_cluster(store, parsed, real_runtime())
        await self.add_bookies(range(1, bookies + 1), *settings)

    async def add_bookies(self, numbers: Iterable[int], *settings: str) -> None:
        names = [f"bookie-{number}" for number in numbers]
        for name in names:
            words = ["bookie", "run", "--metadata", self.uri, "--data", f"{self.folder}/{name}/data", "--id", name]
            words += ["--listen", "127.0.0.1:0", "--session", SESSION_S, *_set(settings)]
            self.processes[name] = Process(self.folder / name, name, *words).launch()
        for name in names:
            await self._serving(name, "bookie.serving")

    def command(self, *words: str) -> "subprocess.Popen[bytes]":
        """A command of an operator on this cluster, under way. It answers in JSON."""
        return subprocess.Popen(
            [sys.executable, "-m", "quire", *words, "--metadata", self.uri, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=self.folder,
        )

    async def run(self, *words: str) -> dict[str, Any]:
        """The same, to its end."""
        with self.command(*words) as process:
            printed, _ = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, printed.decode()
        told: dict[str, Any] = json.loads(printed)
        return told

    async def start_autorecovery(self, *settings: str, name: str = "autorecovery") -> None:
        words = ["autorecovery", "run", "--metadata", self.uri, "--name", name, "--session", SESSION_S]
        self.processes[name] = Process(self.folder / name, name, *words, *_set(settings)).launch()
        await self._serving(name, "autorecovery.serving")

    async def _serving(self, name: str, event: str) -> None:
        async def serves() -> bool:
            return self.processes[name].is_serving(event)

        await eventually(serves, within_s=90.0, what=f"{name} serves")

    def lose(self, name: str) -> None:
        """The bookie dies, and its disk with it."""
        self.processes.pop(name).kill()
        shutil.rmtree(self.folder / name)

    async def metric(self, process: str, name: str) -> float:
        """One number that a process exposes."""
        (event,) = self.processes[process].events("admin.listening")
        url = f"http://{event['host']}:{event['port']}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        found = re.search(rf"^{name}(?:{{}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        assert found is not None, f"{name} is not in {text[:2000]}"
        return float(found[1])

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def stop(self) -> None:
        """Autorecovery first, which uses the others."""
        for process in reversed(list(self.processes.values())):
            process.stop()


def _set(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@contextmanager
def real_cluster(folder: Path) -> Iterator[RealCluster]:
    cluster = RealCluster(folder)
    try:
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()
