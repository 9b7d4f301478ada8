"""`python -m benchmarks start`: how long a new user waits for the first record that is safe.

Each figure is that of a program of its own, as a user would start it, and is measured by that program: the time that
Python itself takes to start is not ours. Before the first round one run is not counted, so that Python has compiled
what it loads, as an installation does. The rounds take turns, so that a moment in which the machine has other things to
do is nobody's own; a last row says how fast it was: what Python needs to load a part of itself.
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
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.table import Table

from quire.cli.output import counting, out, print_json, report
from quire.errors import QuireError, Unavailable
from quire.values import dataclass

_DEADLINE_S: Final = 60.0

# What each program begins with. The most memory that it ever had is asked of the system: what `resource` tells is also
# that of whoever started it.
_MEASURED: Final = """
import time
def now():
    return time.perf_counter(), time.process_time()
def tell(began, ended):
    with open("/proc/self/status") as status:
        memory_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print((ended[0] - began[0]) * 1000, (ended[1] - began[1]) * 1000, memory_kb / 1024)
"""

# From `import quire` to an append that is on disk.
_FIRST_APPEND: Final = f"""{_MEASURED}
began = now()
import asyncio, sys
import quire
async def main():
    async with quire.connect(sys.argv[1]) as client, client.open_writer("start") as writer:
        await writer.append(b"first")
        tell(began, now())
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
_REOPEN: Final = f"""{_MEASURED}
import asyncio, sys
import quire.embedded.log
async def main():
    began = now()
    async with quire.connect(sys.argv[1]) as client:
        async with client.open_reader("start") as reader:
            await anext(reader)
        async with client.open_writer("start") as writer:
            await writer.append(b"more")
        tell(began, now())
asyncio.run(main())
"""

# The fixtures of the pytest plug-in, from their set-up to a client that is connected, in the second test of a session:
# the first one also loads what all of them need.
_TEST_LOG: Final = f"""{_MEASURED}
import pathlib, sys
import quire.testing
for test in ("first", "second"):
    began = now()
    with quire.testing.local_log(pathlib.Path(sys.argv[1], test)) as log, log.connect_sync() as client:
        ended = now()
tell(began, ended)
"""
_TEST_CLUSTER: Final = f"""{_MEASURED}
import pathlib, sys
import quire.testing
for test in ("first", "second"):
    began = now()
    with quire.testing.local_cluster(pathlib.Path(sys.argv[1], test)) as cluster, cluster.connect_sync() as client:
        ended = now()
tell(began, ended)
"""

# How fast the machine is just now.
_YARDSTICK: Final = f"""{_MEASURED}
began = now()
import asyncio
tell(began, now())
"""


class Figure(NamedTuple):
    """One round. CPU and memory only where it is a single process whose they are."""

    ms: float
    cpu_ms: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing to wait for, and what it may take."""

    what: str
    run: Callable[[Path], Figure]
    budget_ms: float | None = None
    budget_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that was waited for, some times over."""

    what: str
    fastest_ms: float
    median_ms: float
    longest_ms: float
    cpu_ms: float | None
    """The fastest round's: what other programs do to the machine is least in it."""
    budget_ms: float | None
    memory_mb: float | None
    budget_mb: float | None
    rounds_ms: tuple[float, ...]


def _measures() -> list[Measure]:
    return [
        Measure(
            "import to first append, file:",
            lambda folder: _program(_FIRST_APPEND, f"file:{folder}/log"),
            budget_ms=300,
            budget_mb=100,
        ),
        Measure("open again after kill -9, file:", _reopen, budget_ms=1000, budget_mb=100),
        Measure("quire up to first append", _up, budget_ms=3000),
        Measure("fixture quire_log, connected", lambda folder: _program(_TEST_LOG, str(folder / "log")), budget_ms=100),
        Measure(
            "fixture quire_cluster, connected",
            lambda folder: _program(_TEST_CLUSTER, str(folder / "cluster")),
            budget_ms=100,
        ),
        Measure("for comparison: import asyncio", lambda _: _program(_YARDSTICK)),
    ]


def start(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure how long it takes from nothing to the first record that is safe: in a folder, and with `quire up`."""
    measures = _measures()
    figures: list[list[Figure]] = [[] for _ in measures]
    try:
        with counting("programs started:", quiet=json) as counter:
            for _ in range(rounds + 1):
                for measure, found in zip(measures, figures, strict=True):
                    with tempfile.TemporaryDirectory(prefix="quire-start-") as folder:
                        found.append(measure.run(Path(folder)))
                    counter.step()
    except QuireError as error:
        report(error, as_json=json)
        raise typer.Exit(1) from error
    waits = [_wait(measure, found[1:]) for measure, found in zip(measures, figures, strict=True)]
    if json:
        print_json({"rounds": rounds, "waits": [asdict(wait) for wait in waits]})
    else:
        out().print(_table(waits))


def _wait(measure: Measure, figures: list[Figure]) -> Wait:
    times_ms = tuple(figure.ms for figure in figures)
    memories = [figure.memory_mb for figure in figures if figure.memory_mb is not None]
    return Wait(
        measure.what,
        min(times_ms),
        statistics.median(times_ms),
        max(times_ms),
        min(figures).cpu_ms,
        measure.budget_ms,
        max(memories) if memories else None,
        measure.budget_mb,
        times_ms,
    )


def _table(waits: list[Wait]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("from nothing", no_wrap=True)
    for column in ("fastest ms", "median ms", "longest ms", "CPU ms", "budget ms", "memory MB", "budget MB"):
        table.add_column(column, justify="right")
    for wait in waits:
        times_ms = (wait.fastest_ms, wait.median_ms, wait.longest_ms, wait.cpu_ms, wait.budget_ms)
        table.add_row(wait.what, *map(_shown, (*times_ms, wait.memory_mb, wait.budget_mb)))
    return table


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.0f}"


# --- Programs


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _program(text: str, *arguments: str) -> Figure:
    """Run a program that prints what it measured."""
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(  # noqa: S603
        command, env=_environment(), capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"a program that was to be measured failed: {done.stderr.strip()[-2000:]}")
    return Figure(*map(float, done.stdout.split()))


def _reopen(folder: Path) -> Figure:
    uri = f"file:{folder}/log"
    with _running([sys.executable, "-c", _KILLED, uri]) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Unavailable("the program that was to be killed ended by itself")
        process.kill()
    return _program(_REOPEN, uri)


def _up(folder: Path) -> Figure:
    """Until an append through the cluster's URI was acknowledged by two bookies, looked for in short turns."""
    from quire import sync
    from quire.embedded.folder import DataFolder
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
                return Figure((time.perf_counter() - began_s) * 1000)
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
