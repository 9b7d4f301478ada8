"""`quire` as a user runs it: to its end, in the background with pipes, or at a terminal."""

import asyncio
import os
import pty
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.support.quire_command import run_quire
from tests.support.servers.becoming import at_terminal
from tests.support.waiting import eventually

_LONGEST_S = 60


def environment(folder: Path, uri: str | None = None) -> dict[str, str]:
    """Where no cluster of this machine's user is found, and nothing of its settings."""
    found = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    return found if uri is None else found | {"QUIRE_URI": uri}


class Commands:
    """Commands in one folder, on one log."""

    def __init__(self, folder: Path, uri: str | None = None, *, longest_s: float = _LONGEST_S) -> None:
        self.folder, self.environment = folder, environment(folder, uri)
        self._longest_s = longest_s

    def attempt(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one to its end, whatever that is."""
        return run_quire(*words, data=data, folder=self.folder, environment=self.environment, within_s=self._longest_s)

    def run(self, *words: str, data: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        """Run one to its end, which has to have this exit code."""
        done = self.attempt(*words, data=data)
        assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def out(self, *words: str, data: bytes = b"", code: int = 0) -> str:
        return self.run(*words, data=data, code=code).stdout.decode()

    def err(self, *words: str, data: bytes = b"", code: int = 0) -> str:
        return self.run(*words, data=data, code=code).stderr.decode()

    def completions(self, line: str) -> list[str]:
        """What bash offers when Tab is pressed behind `line`."""
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_QUIRE_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [Path(sys.executable).parent / "quire"],  # The script: completion goes by the name of the program.
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=True,
            cwd=self.folder,
            env=self.environment | words,
        )
        assert done.stderr == ""
        return done.stdout.split()

    @asynccontextmanager
    async def start(self, *words: str, stdout: int = PIPE) -> AsyncIterator[Process]:
        """One under way, with pipes to it and from it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quire", *words),
            stdin=PIPE,
            stdout=stdout,
            stderr=PIPE,
            cwd=self.folder,
            env=self.environment,
        )
        try:
            async with asyncio.timeout(self._longest_s):
                yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @contextmanager
    def type(self, *words: str) -> "Iterator[Terminal]":
        """One at a terminal of its own."""
        master, slave = pty.openpty()
        try:
            process = subprocess.Popen(
                at_terminal([sys.executable, "-m", "quire", *words]),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=self.folder,
                env=self.environment | {"TERM": "xterm", "COLUMNS": "200"},
                start_new_session=True,
            )
            os.close(slave)
            try:
                yield Terminal(master, process, self._longest_s)
            finally:
                process.kill()
                process.wait(_LONGEST_S)
        finally:
            os.close(master)


class Terminal:
    """What a person at a terminal sees and types."""

    def __init__(self, master: int, process: "subprocess.Popen[bytes]", longest_s: float) -> None:
        self._master, self._process, self._longest_s = master, process, longest_s
        os.set_blocking(master, False)
        self.seen = ""

    def _look(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        except (BlockingIOError, OSError):
            return  # Nothing now; or, on Linux, nobody is there any more.

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def see(self, text: str, *, times: int = 1) -> None:
        """Return once `text` is there, so many times."""

        async def is_there() -> bool:
            has_ended = self._process.poll() is not None
            self._look()
            is_seen = self.seen.count(text) >= times
            assert is_seen or not has_ended, f"it ended with {self._process.returncode} before {text!r}: {self.seen!r}"
            return is_seen

        await eventually(is_there, within_s=self._longest_s, what=f"{text!r} in {self.seen!r}")

    async def end(self) -> int:
        """The exit code, once it has ended."""

        async def has_ended() -> bool:
            self._look()
            return self._process.poll() is not None

        await eventually(has_ended, within_s=self._longest_s, what=f"the command ends: {self.seen!r}")
        self._look()
        return self._process.wait()


async def say(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    await process.stdin.drain()


async def hear(process: Process, lines: int) -> list[bytes]:
    assert process.stdout is not None
    return [await process.stdout.readline() for _ in range(lines)]


async def hear_errors(process: Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode()
