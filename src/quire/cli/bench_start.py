"""`quire bench start`: how long a new user waits for the first record that is safe.

Each figure is that of a program of its own, as a user would start it, and is measured by that program: the time that
Python itself takes to start is not ours. Before the first round one run is not counted, so that Python has compiled
what it loads, as an installation does.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from quire.cli.output import counting, out, print_json, report
from quire.errors import QuireError, Unavailable

_DEADLINE_S: Final = 60.0

# From `import quire` to an append that is on disk, and the most memory that the process had by then.
_FIRST_APPEND: Final = """
import time; began_s = time.perf_counter()
import asyncio, resource, sys
import quire
async def main():
    async with quire.connect(sys.argv[1]) as client, client.open_writer("start") as writer:
        await writer.append(b"first")
        print((time.perf_counter() - began_s) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
asyncio.run(main())
"""

# Writes until it is killed, and says so when there is something to bring back.
_KILLED: Final = """
import asyncio, sys
import quire
async def main():
    async with quire.connect(sys.argv[1]) as client, client.open_writer("start") as writer:
        for call in range(1_000_000):
            await writer.append_many([b"x" * 100] * 100)
            if call == 200:
                print("20,000 records", flush=True)
asyncio.run(main())
"""

# From opening a log to its end: its first record read, and one more appended.
_REOPEN: Final = """
import asyncio, resource, sys, time
import quire.embedded
async def main():
    began_s = time.perf_counter()
    async with quire.connect(sys.argv[1]) as client:
        async with client.open_reader("start") as reader:
            await anext(reader)
        async with client.open_writer("start") as writer:
            await writer.append(b"more")
        print((time.perf_counter() - began_s) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
asyncio.run(main())
"""

# The fixtures of the pytest plug-in, from their set-up to the first record.
_TEST_LOG: Final = """
import asyncio, pathlib, resource, sys, time
import quire.embedded, quire.testing.local
async def main(log):
    async with log.connect() as client, client.open_writer("start") as writer:
        await writer.append(b"first")
began_s = time.perf_counter()
with quire.testing.local_log(pathlib.Path(sys.argv[1])) as log:
    asyncio.run(main(log))
    print((time.perf_counter() - began_s) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_TEST_CLUSTER: Final = """
import pathlib, resource, sys, time
import quire.embedded, quire.sync, quire.testing.local
began_s = time.perf_counter()
with quire.testing.local_cluster(pathlib.Path(sys.argv[1])) as cluster:
    print((time.perf_counter() - began_s) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that was waited for, some times over."""

    what: str
    budget_ms: float
    median_ms: float
    longest_ms: float
    memory_mb: float | None
    rounds_ms: tuple[float, ...]


def start(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure how long it takes from nothing to the first record that is safe: in a folder, and with `quire up`."""
    measures: list[tuple[str, float, Callable[[Path], tuple[float, float | None]]]] = [
        ("import to first append, file:", 300, lambda folder: _program(_FIRST_APPEND, f"file:{folder}/log")),
        ("open again after kill -9, file:", 1000, _reopen),
        ("quire up to first append", 3000, _up),
        ("fixture quire_log, with a record", 100, lambda folder: _program(_TEST_LOG, str(folder / "log"))),
        ("fixture quire_cluster", 100, lambda folder: _program(_TEST_CLUSTER, str(folder / "cluster"))),
    ]
    waits: list[Wait] = []
    try:
        with counting("programs started:", quiet=json) as counter:
            for what, budget_ms, measure in measures:
                figures = []
                for _ in range(rounds + 1):
                    with tempfile.TemporaryDirectory(prefix="quire-start-") as folder:
                        figures.append(measure(Path(folder)))
                    counter.step()
                waits.append(_wait(what, budget_ms, figures[1:]))
    except QuireError as error:
        report(error, as_json=json)
        raise typer.Exit(1) from error
    if json:
        print_json({"rounds": rounds, "waits": [asdict(wait) for wait in waits]})
    else:
        out().print(_table(waits))


def _wait(what: str, budget_ms: float, figures: list[tuple[float, float | None]]) -> Wait:
    times_ms = tuple(ms for ms, _ in figures)
    memories = [memory for _, memory in figures if memory is not None]
    return Wait(
        what, budget_ms, statistics.median(times_ms), max(times_ms), max(memories) if memories else None, times_ms
    )


def _table(waits: list[Wait]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("from nothing", no_wrap=True)
    for column in ("median ms", "longest ms", "budget ms", "memory MB"):
        table.add_column(column, justify="right")
    for wait in waits:
        memory = "" if wait.memory_mb is None else f"{wait.memory_mb:.0f}"
        table.add_row(wait.what, f"{wait.median_ms:.0f}", f"{wait.longest_ms:.0f}", f"{wait.budget_ms:.0f}", memory)
    return table


# --- Programs


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _program(text: str, *arguments: str) -> tuple[float, float]:
    """Run a program that prints milliseconds and megabytes."""
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise Unavailable(f"a program that was to be measured failed: {done.stderr.strip()[-2000:]}")
    ms, megabytes = map(float, done.stdout.split())
    return ms, megabytes


def _reopen(folder: Path) -> tuple[float, float]:
    uri = f"file:{folder}/log"
    with _running([sys.executable, "-c", _KILLED, uri]) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Unavailable("the program that was to be killed ended by itself")
        process.kill()
    return _program(_REOPEN, uri)


def _up(folder: Path) -> tuple[float, None]:
    """Until an append through the cluster's URI was acknowledged by two bookies, looked for in short turns."""
    from quire import sync
    from quire.embedded import DataFolder
    from quire.metadata import StoreSettings

    looking = StoreSettings(create_missing=False)  # It is not for us to make the file.
    data = DataFolder(str(folder / "data"))
    began_s = time.perf_counter()
    with _running([sys.executable, "-m", "quire", "up", "--data", data.path, "--json"], end=signal.SIGINT) as process:
        while True:
            try:
                with (
                    sync.connect(str(data.streams()), store_settings=looking) as client,
                    client.open_writer("start") as writer,
                ):
                    writer.append(b"first")
                return (time.perf_counter() - began_s) * 1000, None
            except QuireError as error:
                if process.poll() is not None or time.perf_counter() > began_s + _DEADLINE_S:
                    raise Unavailable(f"no record could be appended after `quire up`: {error}") from error
            time.sleep(0.02)


@contextmanager
def _running(command: list[str], *, end: signal.Signals = signal.SIGKILL) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the block."""
    with subprocess.Popen(  # noqa: S603
        command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(end)
            try:
                process.communicate(timeout=_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
