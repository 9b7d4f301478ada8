"""Processes that are killed, stopped in their tracks and started again while others rely on them.

None outlives the tests, not even when those are killed: on Linux the kernel ends each together with the thread that
started it.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port

_ROOT: Final = Path(__file__).parents[3]
_LOG_SHOWN_CHARACTERS: Final = 3_000
_NICE: Final = 5  # There are ten of them at once, and they can wait: other tests on the same machine cannot.


class Process:
    """One program that may run, be paused, or be dead. Signals go to its own process id only."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.lives = 0

    def command(self) -> list[str]:
        """The command line of its next life, without the interpreter."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """Whether it is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def died_by_itself(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        self.lives += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_us([sys.executable, *self.command()], nice=_NICE),
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def pause(self) -> None:
        """Stop it in its tracks, with all its connections open."""
        self._send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._send(signal.SIGCONT)
        self.is_paused = False

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would. Fine if it does not run."""
        process, self._process, self.is_paused = self._process, None, False
        if process is not None:
            process.kill()
            process.wait(10)

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_SHOWN_CHARACTERS:] if self.log.exists() else ""


class BookieProcess(Process):
    """`quire bookie run`. It keeps its name, port and folders for life."""

    def __init__(self, name: str, folder: Path, uri: str, *, session_s: float) -> None:
        super().__init__(name, folder)
        self._folder, self._uri, self._session_s, self.port = folder, uri, session_s, free_port()

    def command(self) -> list[str]:
        return [
            *("-m", "quire", "bookie", "run", "--metadata", self._uri, "--id", self.name, "--admin", "none"),
            *("--data", str(self._folder / self.name), "--listen", f"127.0.0.1:{self.port}"),
            *("--session", str(self._session_s)),
        ]


class ClientProcess(Process):
    """One of the roles of `chaos_client`. Each life has a diary of its own."""

    def __init__(self, role: str, name: str, folder: Path, uri: str, *, seed: int) -> None:
        super().__init__(name, folder)
        self.role, self._folder, self._uri, self._seed = role, folder, uri, seed

    @property
    def author(self) -> str:
        """The name of its present life."""
        return f"{self.name}.{self.lives}"

    @property
    def diaries(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self.name}.*.diary"))

    def command(self) -> list[str]:
        return [
            *("-m", "tests.support.programs.chaos_client", self.role, "--metadata", self._uri),
            *("--author", self.author, "--diary", str(self._folder / f"{self.author}.diary")),
            *("--seed", str(self._seed + self.lives)),
        ]
