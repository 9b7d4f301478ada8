"""What commands print: tables for people, JSON for programs, and errors as one sentence and a hint.

Colours and progress appear on a terminal only. Results go to standard output, everything else to standard error, so
that a pipe gets nothing but results.
"""

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from quire.errors import DiskFull, InvalidArgument, QuireError

T = TypeVar("T")

FAILED = 1

_COLUMNS_OF_A_PIPE = 1000


def out() -> Console:
    """For results. Where nobody looks at a terminal, nothing is cut off at its edge."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _COLUMNS_OF_A_PIPE)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False)


def erase_ctrl_c() -> None:
    """Take away the ^C that a terminal shows for the key, so that what is said next begins a line of its own."""
    terminal = sys.__stderr__  # Not what a progress bar puts in its place: that would make a line of it.
    if terminal is not None and terminal.isatty():
        terminal.write("\r\x1b[K")
        terminal.flush()


def print_json(value: object, *, in_one_line: bool = False) -> None:
    sys.stdout.write(json.dumps(value, indent=None if in_one_line else 2, ensure_ascii=False) + "\n")


def say_where(uri: str, *, json: bool, what: str = "log") -> None:
    """Tell a person which log, or cluster, a command changes. Programs have it in the JSON."""
    if not json:
        err().print(f"[dim]{what}: {escape(uri)}[/]", soft_wrap=True)


def print_settings(found: dict[str, object], *, as_json: bool) -> None:
    """What `--set NAME=VALUE` can change, with the defaults."""
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        shown = f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else str(value)
        out().print(f"{name:44} {shown}")


def run(
    work: Coroutine[Any, Any, T],
    *,
    as_json: bool,
    in_lines: bool = False,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a command's work. An error of ours ends the command with a sentence and a hint, never with a traceback.

    With `in_lines` the command's JSON is a line for each thing, and so is that of an error.
    """

    def work_off() -> T:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)

    return checked(work_off, as_json=as_json, in_lines=in_lines)


def checked(call: Callable[[], T], *, as_json: bool, in_lines: bool = False) -> T:
    """What `call` returns. An error of ours ends the command, as in `run`."""
    try:
        return call()
    except QuireError as error:
        report(error, as_json=as_json, in_one_line=in_lines)
        raise typer.Exit(FAILED) from error


def report(error: QuireError, *, as_json: bool, in_one_line: bool = False) -> None:
    """Say what is wrong, what to do about it, and what else is known of it."""
    notes: list[str] = getattr(error, "__notes__", [])
    if as_json:
        told = {
            "kind": type(error).__name__,
            "message": str(error),
            "hint": error.hint,
            "notes": notes,
            "facts": {name: _plain(value) for name, value in error.facts.items()},
            "retryable": error.retryable,
            "outcome": error.outcome.name.lower(),
        }
        print_json({"error": told}, in_one_line=in_one_line)
        return
    console = err()
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    for note in notes:
        console.print(f"[bold]note:[/] {escape(note)}", soft_wrap=True)
    if error.hint:
        console.print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


class NobodyReads(Exception):
    """Whoever read our output has enough, as `head` has. No error: it ends a command quietly."""


def write_bytes(data: bytes, *, at_once: bool) -> None:
    """To standard output; with `at_once` whoever reads that sees it now.

    Raises `NobodyReads`, which is not mistaken for a connection that broke, and `DiskFull` or `InvalidArgument` if the
    output is a file that cannot be written.
    """
    try:
        sys.stdout.buffer.write(data)
        if at_once:
            sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end.
        if isinstance(error, BrokenPipeError):
            raise NobodyReads from error
        kind = DiskFull if error.errno == errno.ENOSPC else InvalidArgument
        raise kind(f"standard output cannot be written: {error.strerror}") from error


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """The block ends quietly when nobody reads what it writes any more."""
    try:
        yield
    except NobodyReads:
        pass


class Counter:
    """Counts what long work has done, for those who watch."""

    def __init__(self, progress: Progress | None, task: Any) -> None:
        self._progress, self._task = progress, task
        self.count = 0

    def step(self, count: int = 1) -> None:
        self.count += count
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
    # What is counted may be written to a file or a pipe: it must not end up here.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        yield Counter(progress, progress.add_task(what, total=None))
