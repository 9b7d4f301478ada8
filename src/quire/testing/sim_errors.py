"""How a simulation fails, and where its tasks were at that moment. Every message carries the seed that repeats it."""

import asyncio
import os
from collections.abc import Iterable
from typing import Any


class SimError(Exception):
    """The simulation itself came to a bad end. Raised outside the simulated tasks, so none of them can swallow it."""


class SimDeadlock(SimError):
    """Nothing is ready and nothing is scheduled: the tasks that are left wait for one another, or for nobody."""


class SimStuck(SimError):
    """The run went past its limit of virtual time or of steps: something spins, retries for ever, or never ends."""


class SimUnhandled(SimError):
    """A callback raised, or a task failed and nobody awaited it. In production this would be one line in a log."""


class SimRefused(RuntimeError):
    """Simulated code asked for something real: a socket, a thread, a signal, a child process.

    Raised inside the simulated code, at the call, since that is the line to change.
    """


def describe_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    """One line per task: its name and the chain of awaits down to where it waits."""
    lines = [f"  {task.get_name()}: {waiting_place(task)}" for task in tasks]
    return "\n".join(lines) or "  (no tasks)"


def waiting_place(task: "asyncio.Task[Any]") -> str:
    """The functions that a task is suspended in, outermost first, each with file and line."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = _attribute(awaited, "frame")
        if frame is not None:
            file = os.path.basename(frame.f_code.co_filename)
            places.append(f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})")
        awaited = _attribute(awaited, "await", "yieldfrom")
    return " > ".join(places) or "finished"


def _attribute(awaited: Any, *names: str) -> Any:
    """`cr_frame`, `gi_frame` or `ag_frame`: the same fact under three names, for three kinds of suspended function."""
    for name in names:
        for prefix in ("cr_", "gi_", "ag_"):
            found = getattr(awaited, prefix + name, None)
            if found is not None:
                return found
    return None
