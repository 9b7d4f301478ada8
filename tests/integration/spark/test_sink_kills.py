"""Kill -9 while a query writes: Python's workers, the process that commits, the driver with its JVM; at any moment.

Whatever dies is started again from the checkpoint. At each look at the stream all its batches are whole, and at the end
every batch is there once, in order. Each driver that is started writes in another mode than the one before it, so that
entries follow segments and segments follow entries; a writer that was killed with its process stays behind with the
stream's lock until its session ends, and then the next one goes on. `QUIRE_SPARK_ROUNDS` says how many times something
is killed, `QUIRE_SPARK_MASTER` where: with `local-cluster[2,1,1024]` executors are processes of their own, and are
killed, too.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from quire.codec.stream.records import LogRecord
from tests.integration.spark.sink_driver import ROWS
from tests.support.processes import below, command, kill
from tests.support.spark.logs import FolderLog, folder_log
from tests.support.spark.session import worker_python
from tests.support.spark.standalone import is_executor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("QUIRE_SPARK_ROUNDS") or 10)
MODES = ("staged", "inline", "auto")
DRIVER_EVERY = 3  # Rounds: so each mode has workers that are killed, and a driver.
STREAM = "numbers"
_PATIENCE_S = 240.0  # For whatever has to happen next, on a machine that is busy with other things.


class Driver:
    """The process of `sink_driver`, and all that it started."""

    def __init__(self, log: FolderLog, folder: Path) -> None:
        self._log, self._folder = log, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._modes = cycle(MODES)
        self.mode = ""

    def start(self) -> None:
        self.mode = next(self._modes)
        words = [self._log.uri, STREAM, str(self._folder), self.mode]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": worker_python(self._folder),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.getcwd(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder),
        }
        with (self._folder / "driver.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.sink_driver", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """All of it, at once."""
        if self._process is None:
            return
        for pid in [*below(self._process.pid), self._process.pid]:
            kill(pid)
        self._process.wait(20)
        self._process = None

    def kill_worker(self, rng: random.Random) -> bool:
        """One of Python's processes below the JVM, or an executor. Whether there was one."""
        assert self._process is not None
        under = below(self._process.pid)
        workers = [pid for pid in under if "python" in Path(command(pid)[0]).name or is_executor(pid)]
        if workers:
            kill(rng.choice(workers))
        return bool(workers)

    def batch_is_running(self) -> bool:
        """Whether Spark has planned a batch, and has not noted that it is done."""
        return self.newest("offsets") > self.newest("commits")

    def newest(self, kind: str) -> int:
        paths = (self._folder / "checkpoint" / kind).glob("[0-9]*")
        return max((int(path.name) for path in paths), default=-1)

    def check(self) -> None:
        assert self._process is not None
        output = (self._folder / "driver.log").read_text(errors="replace")[-3000:]
        assert self._process.poll() is None, f"the driver ended by itself:\n{output}"


class Watch:
    """What is in the stream, looked at again and again, and read on by a reader that stays: never half a batch."""

    def __init__(self, log: FolderLog, driver: Driver) -> None:
        self._log, self._driver = log, driver
        self.batches = 0
        self._last: tuple[str, ...] = ()
        self._tailed: list[LogRecord] = []
        self._tailing: asyncio.Task[None] = log.access.run(self._tail())

    async def _tail(self) -> "asyncio.Task[None]":
        async def tail() -> None:
            async with self._log.access.namespace.open_reader(STREAM) as reader:
                async for records in reader.batches():
                    self._tailed += records

        return asyncio.create_task(tail(), name="tail")

    def tailed(self, count: int) -> list[LogRecord]:
        """All that the reader has shown, once it came so far."""

        async def has_come() -> bool:
            return len(self._tailed) >= count or self._tailing.done()

        asyncio.run(eventually(has_come, within_s=_PATIENCE_S, what=f"the reader has shown {count} records"))
        self._log.access.run(self._stop())
        return self._tailed

    async def _stop(self) -> None:
        self._tailing.cancel()
        await asyncio.wait([self._tailing])

    def look(self) -> int:
        """How many batches the sink's node tells of. Segments of a batch appear in one step, so a listing that has some
        of them and lacks others would show records that are no whole batch. So would a segment that was completed in
        the middle of a batch which is an entry of it.
        """
        noted = re.search(r'"batch":(\d+)', _sink_node(self._log))
        self.batches = max(self.batches, int(noted[1]) + 1 if noted else 0)
        names = tuple(self._log.nodes(STREAM, "ledgers"))
        if names == self._last:
            return self.batches
        self._last = names
        info = self._log.info(STREAM)
        if all(segment.is_completed for segment in info.segments):  # Of others nobody has counted the records.
            assert info.record_count % ROWS == 0, f"half a batch is visible: {info.record_count} records"
        return self.batches

    def until(self, condition: Callable[[], bool], what: str) -> None:
        async def is_so() -> bool:
            self.look()
            self._driver.check()
            return condition()

        asyncio.run(eventually(is_so, within_s=_PATIENCE_S, what=what))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FolderLog]:
    with folder_log(tmp_path / "log") as log:
        log.access.run(log.access.namespace.create_stream(STREAM))
        yield log


def test_no_batch_is_lost_doubled_or_halved_whatever_is_killed(log: FolderLog, tmp_path: Path) -> None:
    rng = random.Random(8)
    folder = tmp_path / "driver"
    folder.mkdir()
    driver = Driver(log, folder)
    watch = Watch(log, driver)
    killed: Counter[str] = Counter()
    try:
        driver.start()
        watch.until(lambda: watch.look() >= 1, "the first batch")
        for number in range(1, ROUNDS + 1):
            _wait_for_a_moment(log, watch, driver, rng)
            if number % DRIVER_EVERY:
                watch.until(lambda: driver.kill_worker(rng), "a worker to kill")
                killed[f"worker, {driver.mode}"] += 1
            else:
                driver.kill()
                killed[f"driver, {driver.mode}"] += 1
                driver.start()
            seen = watch.look()
            # Two, as in mode `auto` one of them is an entry, and the other one a segment.
            watch.until(lambda: watch.look() > seen + 1, f"batches after kill {number}")  # noqa: B023 - called here
    finally:
        driver.kill()
    assert {*killed} >= {f"{who}, {mode}" for who in ("worker", "driver") for mode in MODES} or ROUNDS < 9
    log.complete(STREAM)
    records = log.records(STREAM)
    assert _numbers_of(records) == [*range(len(records))]
    assert len(records) % ROWS == 0
    assert watch.tailed(len(records)) == records
    assert len(records) >= ROWS * (driver.newest("commits") + 1), "a batch that Spark has noted is not in the stream"
    assert log.nothing_is_left(STREAM)


def _wait_for_a_moment(log: FolderLog, watch: Watch, driver: Driver, rng: random.Random) -> None:
    """One of those at which a kill could do harm."""
    match rng.randrange(3):
        case 0 if driver.mode == "staged":  # A task writes.
            watch.until(lambda: log.nodes(STREAM, "staged") != [], "a staged ledger")
        case 0:  # A task writes, or the batch is on its way into the stream.
            watch.until(driver.batch_is_running, "a batch that runs")
        case 1:  # A batch was committed, and Spark does not know yet, or has just been told.
            seen = watch.look()
            watch.until(lambda: watch.look() > seen, "a batch")
        case _:
            pass  # Whatever happens right now.


def _numbers_of(records: list[LogRecord]) -> list[int]:
    """Batch by batch, those of a batch in the order of numbers: which partition has which is Spark's business."""
    numbers = [int(record.payload) for record in records]
    return [number for first in range(0, len(numbers), ROWS) for number in sorted(numbers[first : first + ROWS])]


def _sink_node(log: FolderLog) -> str:
    context = log.access.namespace.context
    names = log.nodes(STREAM, "sinks")
    if not names:
        return ""
    return log.access.run(context.store.get(f"{context.paths(STREAM).sinks}/{names[0]}")).data.decode()
