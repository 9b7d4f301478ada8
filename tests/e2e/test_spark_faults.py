"""Kill -9 on a real Spark cluster while a query writes: executors, the driver, or both; at any moment of a batch.

A master and two workers, three bookies, the driver: each is a process of its own, and each executor a JVM below its
worker. A driver that was killed is started again from its checkpoint, and writes in another mode
than the one before: batches as segments, as entries, and some as these and some as those. All the while a reader
follows the stream, and checks that it never meets half a batch (`tests/support/spark/live_batches.py`).

`QUIRE_SPARK_ROUNDS` says how many times something is killed; `QUIRE_SPARK_SEED` repeats what a run did, as far as
processes let it. Python's workers alone are killed in `tests/integration/spark/test_sink_kills.py`.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import pytest
from tests.support.processes import below, kill
from tests.support.servers.local_cluster import LocalCluster
from tests.support.spark.batch_driver import size_of
from tests.support.spark.live_batches import BatchesInOrder, LiveBatches
from tests.support.spark.logs import FolderLog
from tests.support.spark.standalone import StandaloneCluster
from tests.support.waiting import at_a_random_moment, eventually

from quire.spark.client_cache import borrowed

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("QUIRE_SPARK_ROUNDS") or (60 if os.environ.get("QUIRE_TEST_LONG") else 10))
SEED = int(os.environ.get("QUIRE_SPARK_SEED") or 0) or random.SystemRandom().randrange(1, 1 << 32)
STREAM = "batches"
_PATIENCE_S = 240.0  # For whatever has to happen next, on a machine that is busy with other things.
MODES = ("staged", "inline", "auto")
KINDS = [*islice(cycle(("executor", "executors", "executor", "driver", "executor", "both")), ROUNDS)]


class Driver:
    """The process of `tests.support.spark.batch_driver`, with its JVM and its helpers."""

    def __init__(self, uri: str, spark: StandaloneCluster, folder: Path) -> None:
        self._uri, self._spark, self.folder = uri, spark, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._modes = cycle(MODES)
        self.mode = ""

    def start(self) -> None:
        self.mode = next(self._modes)
        words = [self._uri, STREAM, self._spark.master, str(self.folder), self.mode]
        conf = [f"{name}={value}" for name, value in {**self._spark.settings, "spark.driver.memory": "1g"}.items()]
        with (self.folder / "driver.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.batch_driver", *words, *conf],
                env=self._spark.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """All of it, at once. Executors are below their workers: they notice."""
        if self._process is not None:
            for pid in [*below(self._process.pid), self._process.pid]:
                kill(pid)
            self._process.wait(20)
            self._process = None

    def check(self) -> None:
        assert self._process is not None
        output = (self.folder / "driver.log").read_text(errors="replace")[-3000:]
        assert self._process.poll() is None, f"the driver ended by itself:\n{output}"

    def batch_is_running(self) -> bool:
        """Whether Spark has planned a batch, and has not noted that it is done."""
        return _newest(self.folder / "checkpoint" / "offsets") > _newest(self.folder / "checkpoint" / "commits")


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


class Killing:
    """The rounds."""

    def __init__(self, log: FolderLog, spark: StandaloneCluster, driver: Driver, live: LiveBatches) -> None:
        self._log, self._spark, self._driver, self._live = log, spark, driver, live
        self._rng = random.Random(SEED)
        self.executors = 0
        self.drivers: list[str] = []  # In which mode each of them wrote.

    def round(self, kind: str) -> None:
        if kind != "driver":
            self.until(lambda: bool(self._spark.executor_pids()), "an executor to kill")
        self._wait_for_a_moment()
        if kind in ("driver", "both"):
            self._driver.kill()
            self.drivers.append(self._driver.mode)
        if kind != "driver":
            pids = self._spark.executor_pids()
            chosen = self._rng.sample(pids, min(1, len(pids))) if kind == "executor" else pids
            self.executors += sum(map(kill, chosen))
        if kind in ("driver", "both"):
            self._driver.start()
        seen = self._live.batches
        self.until(lambda: self._live.batches > seen, f"another batch after the end of: {kind}")

    def _wait_for_a_moment(self) -> None:
        match self._rng.randrange(3):
            case 0 if self._driver.mode == "staged":  # A task has begun its ledger, or the commit is about to come.
                self.until(lambda: self._log.nodes(STREAM, "staged") != [], "a staged ledger")
            case 1 if self._driver.mode == "staged":  # A batch was published. Spark does not know, or has just heard.
                seen = self._live.listed_batches
                self.until(lambda: self._live.listed_batches > seen, "a batch")
            case 1:  # The same for a batch that may be an entry.
                seen = self._live.batches
                self.until(lambda: self._live.batches > seen, "a batch")
            case _:
                self.until(self._driver.batch_is_running, "a batch that runs")
                asyncio.run(at_a_random_moment(0.5, self._rng.random()))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self._live.check()
            self._driver.check()
            return condition()

        wait_until(is_so, what)


@contextmanager
def everything(folder: Path) -> Iterator[tuple[FolderLog, StandaloneCluster]]:
    with LocalCluster(folder) as cluster, StandaloneCluster(folder / "spark") as spark:
        uri = str(cluster.wait_for("started")["direct_uri"])
        with borrowed(uri) as access:
            access.run(access.namespace.create_stream(STREAM))
            yield FolderLog(uri, access), spark


def test_no_batch_is_lost_doubled_or_seen_in_part_whoever_dies(tmp_path: Path) -> None:
    print(f"QUIRE_SPARK_SEED={SEED}")
    folder = tmp_path / "driver"
    folder.mkdir()
    with everything(tmp_path) as (log, spark):
        driver = Driver(log.uri, spark, folder)
        with LiveBatches(log.uri, STREAM) as live:
            killing = Killing(log, spark, driver, live)
            try:
                driver.start()
                killing.until(lambda: live.batches >= 1, "the first batch")
                for kind in KINDS:
                    killing.round(kind)
            finally:
                driver.kill()
            wait_until(lambda: not spark.executor_pids(), "executors end with their driver")
            log.complete(STREAM)
            in_order = BatchesInOrder()
            for record in log.records(STREAM):
                in_order.on_record(record.payload)
            assert in_order.is_between_batches
            wait_until(lambda: live.batches == in_order.whole, "the reader has come to the end")
        assert live.is_between_batches
        assert in_order.whole > _newest(folder / "checkpoint" / "commits"), "a batch that Spark has noted is not there"
        assert log.nothing_is_left(STREAM)
    told = f"{killing.executors} executors and drivers killed while they wrote {', '.join(killing.drivers)}"
    print(f"{told}; {live.batches} batches were whole in {live.listings} listings, {live.entries} of them entries")
    assert live.entries > 0
    assert {*killing.drivers} == {*MODES} or ROUNDS < 10
    assert len(killing.drivers) == sum(kind in ("driver", "both") for kind in KINDS)
    assert killing.executors >= sum(kind in ("executor", "executors") for kind in KINDS) * 3 // 4


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([0, 1, 1], "a record of batch 1 while batch 2"),
        ([0, 2], "a record of batch 2 while batch 1 lacks 0"),
        ([0, -1, 2], "a record of batch 2 while batch 1 lacks 1 "),
    ],
    ids=["twice", "lost", "half"],
)
def test_the_reader_would_notice(batches: list[int], said: str) -> None:
    """A negative number stands for a batch without its last record."""
    payloads = [
        b"%d %d %d" % (abs(batch), size_of(abs(batch)), number)
        for batch in batches
        for number in range(size_of(abs(batch)) - (batch < 0))
    ]
    with pytest.raises(AssertionError, match=said):
        [*map(BatchesInOrder().on_record, payloads)]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    async def is_so() -> bool:
        return condition()

    asyncio.run(eventually(is_so, within_s=_PATIENCE_S, what=f"{what} (seed {SEED})"))
