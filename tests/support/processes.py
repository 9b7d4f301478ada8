"""Processes and what is below them, for those who stop or kill parts of a program: found by who started whom. Linux."""

import os
import signal
from pathlib import Path


def children_of(*parents: int) -> list[int]:
    return [pid for pid, parent in _parents().items() if parent in parents]


def below(root: int) -> list[int]:
    """Everything that a process started, and what that did; those farthest from it first."""
    parents = _parents()
    found, waiting = [], [root]
    while waiting:
        above = waiting.pop()
        children = [pid for pid, parent in parents.items() if parent == above]
        found += children
        waiting += children
    return found[::-1]


def command(pid: int) -> list[str]:
    """The words that it was started with; none of them if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]


def kill(pid: int) -> bool:
    """`kill -9`. Whether it was there."""
    return sent(pid, signal.SIGKILL)


def sent(pid: int, number: signal.Signals) -> bool:
    """Whether there was a process for this signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Neither stopped nor dead."""
    try:
        return _stat(pid)[0] not in ("T", "Z")
    except OSError:
        return False


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except OSError:
                pass  # It has ended.
    return parents


def _stat(pid: int) -> list[str]:
    """What the kernel tells of it behind its name: its state, its parent, and more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
