"""A shell at a terminal of its own, as a person has one: commands are typed, output is read, Ctrl-C ends them.

What runs at a terminal ends with it. Should the tests themselves be killed, the system hangs up: whatever still runs
there gets SIGHUP, as it would if somebody closed the window.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SIZE: Final = struct.pack("HHHH", 50, 120, 0, 0)  # Rows and columns.
_END: Final = re.compile("\x1e(\\d+)\x1e\n")  # What the shell prints behind each command: its exit code.
_PIECES: Final = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|(\n)|(\r)|([^\x1b\n\r]+)")
_STOP_S: Final = 20.0

# Makes the terminal that is its standard input its own, then becomes the program in the arguments.
_TAKE_TERMINAL: Final = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    output: str
    code: int


def on_screen(printed: str) -> str:
    """What a person sees in the end: a line that was drawn anew, or erased, counts as it is then. Colours do not."""
    lines, row, column = [""], 0, 0
    for numbers, code, newline, carriage_return, text in _PIECES.findall(printed):
        if newline:
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif carriage_return:
            column = 0
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif code == "A":
            row = max(0, row - int(numbers or 1))
        elif code == "K":
            lines[row] = "" if numbers == "2" else lines[row][:column]
    return "\n".join(lines)


class Terminal:
    """One shell. It keeps its folder and its exports from command to command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, _SIZE)
        commands, self._commands = os.pipe()
        self._shell = subprocess.Popen(
            [sys.executable, "-IS", "-c", _TAKE_TERMINAL, "bash", "--norc", f"/dev/fd/{commands}"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=(commands,),
            cwd=folder,
            env=environment,
        )
        os.close(slave)
        os.close(commands)
        self._raw = b""
        self._is_over = False
        self._changed = threading.Condition()
        self._used = 0  # Of the text so far: what was looked at already.
        self.is_busy = False
        self._reading = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reading.start()
        # Ctrl-C is for what runs in the shell. Commands come from a pipe that those need not know of.
        self._send(f"trap : INT; exec {commands}<&-")

    # --- What a person does

    def type(self, command: str) -> None:
        """Begin a command."""
        assert not self.is_busy, f"something else runs when {command!r} is typed"
        self.is_busy = True
        self._send(f"{command}\nprintf '\\036%d\\036\\n' $?")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._master, b"\x03")

    def wait_end(self, *, within_s: float) -> Finished:
        """What the command that runs has printed, from what was looked at before, once it has ended."""
        end = self._wait(lambda: _END.search(self._text(), self._used), within_s, "the command ends")
        finished = Finished(self._text()[self._used : end.start()], int(end[1]))
        self._used, self.is_busy = end.end(), False
        return finished

    def wait_shown(self, pattern: str, *, within_s: float) -> None:
        """Return once the next lines match `pattern`."""
        match = self._wait(
            lambda: re.compile(pattern).match(self._text(), self._used), within_s, f"it shows\n{pattern}"
        )
        self._used = match.end()

    def close(self) -> None:
        """End what runs, by Ctrl-C first, and the shell. Fails if that was not enough."""
        try:
            if self.is_busy and not self._is_over:
                self.interrupt()
                self.wait_end(within_s=_STOP_S)
        finally:
            os.close(self._commands)
            try:
                self._shell.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._shell.pid, signal.SIGKILL)
                self._shell.wait(_STOP_S)
            self._reading.join(_STOP_S)
            os.close(self._master)

    # --- The shell

    def _send(self, lines: str) -> None:
        os.write(self._commands, f"{lines}\n".encode())

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # How Linux says that nobody has the terminal open any more.
                data = b""
            with self._changed:
                self._raw += data
                self._is_over = not data
                self._changed.notify_all()
            if not data:
                return

    def _text(self) -> str:
        return on_screen(self._raw.decode(errors="replace").replace("^C", ""))  # Which is an echo of ours.

    def _wait(self, look: Callable[[], re.Match[str] | None], within_s: float, what: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def is_there() -> bool:
            found.extend(filter(None, [look()]))
            return bool(found) or self._is_over

        with self._changed:
            self._changed.wait_for(is_there, within_s)
        if not found:
            why = "the terminal is gone" if self._is_over else f"{within_s:g} s passed"
            raise AssertionError(f"{why} before {what}\n--- shown so far:\n{self._text()[self._used :]}")
        return found[0]
