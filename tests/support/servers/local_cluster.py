"""A local cluster as a user starts it: `quire up`, as a process of its own.

It never outlives the tests: it is killed with them, and its bookies stop when it ends.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import quire
from quire.app.processes import mark_of
from tests.support.quire_command import quire_output
from tests.support.servers.becoming import hearing_hangups

_DEADLINE_S: Final = 60.0
_LOOK_S: Final = 0.02


def environment(state: Path) -> dict[str, str]:
    """What commands see: clusters of these tests only, and none of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return {**kept, "XDG_STATE_HOME": str(state), "COLUMNS": "200"}


class LocalCluster:
    """One `quire up --json`, over `folder / "quire-data"` unless told otherwise: commands in `folder` find it."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        data: Path | None = None,
        proxies: int = 0,
        autorecovery: bool = False,
        usual_ports: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """With so many write proxies, and as many read proxies. Autorecovery is one more process: few tests need it."""
        self.folder, self.data = folder, data or folder / "quire-data"
        counts: tuple[str, ...] = ("--write-proxies", str(proxies), "--read-proxies", str(proxies))
        counts += () if usual_ports else ("--proxy-port", "0")
        self._options = (*counts, *options, *(() if autorecovery else ("--no-autorecovery",)))
        self._environment = {**environment(folder), **(variables or {})}
        self._output = folder / "up.json"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self.stop()

    # --- Life and death

    def start(self) -> None:
        """Return when everything runs."""
        self.launch()
        self.wait_for("started")

    def launch(self) -> None:
        """Start it and return at once."""
        assert self._process is None
        command = [sys.executable, "-m", "quire", "up", "--data", str(self.data), "--json", *self._options]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                hearing_hangups(command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """In good order."""
        self._running.send_signal(number)
        self.wait_ended()

    def wait_ended(self) -> None:
        """For one that something else has stopped: it ended in good order, and nothing of it is left."""
        code = self._running.wait(_DEADLINE_S)
        self._process = None
        assert code == 0, self._output.read_text()
        assert self.events()[-1]["event"] == "stopped"

    def kill(self) -> None:
        """As a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_DEADLINE_S)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    # --- What it says

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def uri(self) -> str:
        return str(self.wait_for("started")["uri"])

    def connect(self, **options: Any) -> Any:
        return quire.connect(self.uri, **options)

    def bookie_pids(self) -> dict[str, int]:
        """The processes of the first start."""
        return {bookie["name"]: bookie["pid"] for bookie in self.wait_for("started")["services"]}

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str, **facts: object) -> dict[str, Any]:
        """The first event of this kind with these facts."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while True:
            for each in self.events():
                if each.get("event") == event and facts.items() <= each.items():
                    return each
            assert self._running.poll() is None, f"it ended: {self._output.read_text()}"
            assert time.monotonic() < deadline_s, f"no {event} {facts}: {self._output.read_text()}"
            time.sleep(_LOOK_S)


def wait_gone(*pids: int) -> None:
    """Return when none of the processes runs any more."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while left := [pid for pid in pids if mark_of(pid) is not None]:
        assert time.monotonic() < deadline_s, f"still running: {left}"
        time.sleep(_LOOK_S)


def quire_command(
    *arguments: str, folder: Path, state: Path, code: int = 0, variables: Mapping[str, str] | None = None
) -> str:
    """What a command prints, that ends with this exit code."""
    chosen = {**environment(state), **(variables or {})}
    return quire_output(*arguments, code=code, folder=folder, environment=chosen, within_s=_DEADLINE_S)
