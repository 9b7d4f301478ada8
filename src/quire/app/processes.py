"""Which process is meant: a number alone does not say, since numbers are used again.

A `ProcessMark` names one process for good: its number, when it began, in which life of the machine, and where numbers
mean the same (a container has its own). Signals go through a descriptor of the process, which was compared with the
mark after it was opened: they reach this process, or nobody.

    mark = mark_of(pid)                  # None if there is no such process
    mark.is_alive
    with open_process(mark) as process:  # NoSuchProcess if it has ended
        process.signal(signal.SIGTERM)
        await process.wait_ended(within_s=10)
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from quire.values import dataclass

_STARTED: Final = 19  # Which word of /proc/PID/stat behind the command's closing parenthesis: clock ticks since boot.
_STATE: Final = 0
_GONE_STATES: Final = ("Z", "X")  # Ended; only its parent has not taken note.
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process of one machine, never mistaken for another."""

    pid: int
    started: str
    """The machine's life, and the clock tick in it at which the process began."""
    place: str
    """Where process numbers mean the same: the machine, and the namespace of processes on it."""

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """None for anything but what `to_json` made."""
        if not isinstance(value, dict):
            return None
        pid, started, place = value.get("pid"), value.get("started"), value.get("place")
        if type(pid) is not int or pid <= 0 or not isinstance(started, str) or not isinstance(place, str):
            return None
        return cls(pid, started, place)

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started, "place": self.place}

    @property
    def is_here(self) -> bool:
        """Whether this process can tell anything about that one."""
        return self.place == _place()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, here."""
        return self.is_here and mark_of(self.pid) == self

    @property
    def age_s(self) -> float | None:
        """How long it has been running. None if it has ended."""
        if not self.is_alive:
            return None
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int(self.started.rpartition(":")[2])
        return max(0.0, uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


def mark_of(pid: int) -> ProcessMark | None:
    """The process that has this number now."""
    try:
        # The command may contain anything, also parentheses; nothing behind the last one does.
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if words[_STATE] in _GONE_STATES:
        return None
    return ProcessMark(pid, f"{_boot_id()}:{words[_STARTED]}", _place())


def own_mark() -> ProcessMark:
    mark = mark_of(os.getpid())
    if mark is None:
        raise OSError("/proc does not show this process")  # It is needed all over; nothing works without it.
    return mark


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _place() -> str:
    try:
        machine = Path("/etc/machine-id").read_text().strip()  # Unlike its name, it does not change with the network.
    except OSError:
        machine = socket.gethostname()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "pid:[]"  # A kernel without them.
    return f"{machine} {namespace}"


# --- Signals


class NoSuchProcess(Exception):
    """It has ended."""


class OpenProcess:
    """A process to signal and to wait for. See `open_process`."""

    def __init__(self, mark: ProcessMark, descriptor: int) -> None:
        self.mark, self._descriptor = mark, descriptor

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended meanwhile. Raises `PermissionError`."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    @property
    def has_ended(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    async def wait_ended(self, *, within_s: float) -> bool:
        """Whether it ended in time."""
        try:
            async with asyncio.timeout(within_s):
                await _end_of(self._descriptor)
        except TimeoutError:
            return self.has_ended
        return True


async def child_ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child of this process to end. Returns its exit code, negative if a signal ended it."""
    if (code := process.poll()) is not None:
        return code
    descriptor = os.pidfd_open(process.pid)  # Still its number: nobody but us takes note of its end.
    try:
        await _end_of(descriptor)
    finally:
        os.close(descriptor)
    return process.wait()


async def _end_of(descriptor: int) -> None:
    has_ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, has_ended.set)
    try:
        await has_ended.wait()
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def open_process(mark: ProcessMark) -> Iterator[OpenProcess]:
    """Hold on to a process. Raises `NoSuchProcess` if it has ended, even if another one has its number now."""
    try:
        descriptor = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        raise NoSuchProcess from None
    try:
        if not mark.is_alive:  # Only now: from here on the number cannot be given to another one unnoticed.
            raise NoSuchProcess
        yield OpenProcess(mark, descriptor)
    finally:
        os.close(descriptor)


# --- Locks


def holder_of(path: str) -> ProcessMark | None:
    """The process that says in a lock file that it holds it, and really has the file open.

    None if nobody does, or if it is somebody's process into which this user may not look.
    """
    try:
        said = Path(path).read_text(errors="replace")
        lock = os.stat(path)
    except OSError:
        return None
    pid = said.rpartition("process ")[2].rstrip(")\n ")
    if not pid.isdecimal():
        return None
    mark = mark_of(int(pid))
    return mark if mark is not None and _has_open(mark.pid, lock) else None


def _has_open(pid: int, file: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        with suppress(OSError):  # Closed meanwhile.
            if os.path.samestat(os.stat(f"{folder}/{name}"), file):
                return True
    return False


# --- Parents


def stop_with_parent(parent: int) -> bool:
    """Have the system send SIGTERM to this process when the one that started it ends, however that ends.

    False if it has ended already. It is the *thread* that started us whose end counts: parents start children from
    their main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the end of the parent cannot be followed: {os.strerror(number)}")
    return os.getppid() == parent
