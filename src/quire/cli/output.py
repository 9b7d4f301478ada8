"""What commands print: tables for people, JSON for programs, and errors as one sentence and a hint.

Colours and progress appear on a terminal only. Results go to standard output, everything else to standard error, so
that a pipe gets nothing but results.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from quire.errors import QuireError

T = TypeVar("T")

FAILED = 1


def out() -> Console:
    return Console(file=sys.stdout, highlight=False)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False)


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def run(
    work: Coroutine[Any, Any, T], *, as_json: bool, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Run a command's work. An error of ours ends the command with a sentence and a hint, never with a traceback."""
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)
    except QuireError as error:
        report(error, as_json=as_json)
        raise typer.Exit(FAILED) from error


def report(error: QuireError, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "error": {
                    "kind": type(error).__name__,
                    "message": str(error),
                    "hint": error.hint,
                    "retryable": error.retryable,
                    "outcome": error.outcome.name.lower(),
                }
            }
        )
        return
    console = err()
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)


class Counter:
    """Counts what long work has done, for those who watch."""

    def __init__(self, progress: Progress | None, task: Any) -> None:
        self._progress, self._task = progress, task
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self._progress is not None:
            self._progress.update(self._task, completed=self.count)


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Counter]:
    """Show a running count on a terminal while the block works."""
    console = err()
    if quiet or not console.is_terminal:
        yield Counter(None, None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Counter(progress, progress.add_task(what, total=None))
