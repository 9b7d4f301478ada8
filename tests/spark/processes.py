"""Processes and what is below them, for tests that kill parts of Spark: found by who started whom."""

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


def is_executor(pid: int) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in command(pid))


def kill(pid: int) -> bool:
    """`kill -9`. Whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                pass  # It has ended.
    return parents
