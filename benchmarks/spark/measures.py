"""What is measured of Spark: the source beside Spark's own Parquet reader, the sink, archiving, micro-batches.

Each size is written by the sink, read by the source, and read as Parquet, in turns within one session and after turns
that do not count: a JVM gets faster for minutes. Reads end in Spark's `noop` sink, so that only reading is measured.
So do, once, the rows that are made for the sink: what it takes beyond that is the sink's own.

Rates are by the clock. CPU is that of the driver, its JVM and all Python workers together, without the bookies: it
holds on a busy machine where rates do not.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire import sync
from quire.spark.archive import archive
from quire.spark.client_cache import borrowed
from quire.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, SINK, SOURCE, PARQUET, ARCHIVE = "rows alone", "sink", "source", "Parquet", "archive"
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_CHUNK: Final = 128  # Characters that one hash gives to a payload.
_WARM_UP_RECORDS: Final = 50_000
_WARM_UP_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One size."""

    records: int
    record_bytes: int
    segments: int
    name: str = "bench"

    @property
    def stream(self) -> str:
        return f"{self.name}-{self.records}-{self.record_bytes}-{self.segments}"


@dataclass(frozen=True, slots=True)
class Rate:
    """The median of some turns."""

    what: str
    records: int
    record_bytes: int
    segments: int
    records_per_s: float
    mb_per_s: float
    cpu_us_per_record: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Micro-batches of a query that follows a stream, at so many records a second."""

    rate: int
    batches: int
    trigger_ms_p50: float
    trigger_ms_p99: float
    age_ms_p50: float
    """How old records are when their batch begins to be read."""


class SparkBench:
    """All measurements in one session, against one log."""

    def __init__(self, spark: "SparkSession", uri: str, folder: Path, *, rounds: int, excluded_pid: int) -> None:
        self._spark, self._uri, self._folder, self._rounds = spark, uri, folder, rounds
        self._excluded_pid = excluded_pid

    def warm_up(self, case: Case) -> None:
        """Everything once, with a few of such records, so that neither Spark nor Python's processes have to start."""
        self.sizes(Case(min(case.records, _WARM_UP_RECORDS), case.record_bytes, case.segments, name="warm-up"))

    def sizes(self, case: Case) -> list[Rate]:
        """Sink, source, Parquet and archive for one size."""
        made = self._turn(lambda: _read(self._rows(case)))
        sunk = self._turn(lambda: self._sink(case))
        source = self._spark.read.format("quire").option("uri", self._uri).option("stream", case.stream).load()
        source = source.select("segment", "entry", "slot", "txid", "payload")
        files = str(self._folder / case.stream)
        source.write.mode("overwrite").parquet(files)
        parquet = self._spark.read.parquet(files)
        turns: dict[str, list[tuple[float, float]]] = {SOURCE: [], PARQUET: []}
        for number in range(self._rounds + 1):
            for what, frame in ((SOURCE, source), (PARQUET, parquet)):
                turn = self._turn(lambda read=frame: _read(read))  # type: ignore[misc]
                if number:
                    turns[what].append(turn)
        root = f"file:{self._folder}/cold"
        archived = self._turn(lambda: archive(self._spark, self._uri, root, [case.stream]))
        rates = [_rate(ROWS, case, [made]), _rate(SINK, case, [sunk])] + [
            _rate(what, case, turns[what]) for what in (SOURCE, PARQUET)
        ]
        return [*rates, _rate(ARCHIVE, case, [archived])]

    def _sink(self, case: Case) -> None:
        writing = self._rows(case).write.format("quire").mode("append").option("uri", self._uri)
        writing.option("stream", case.stream).option("mode", "staged").option("txnId", "bench").save()

    def _rows(self, case: Case) -> "DataFrame":
        """As many partitions as segments are asked for. Payloads are digits of hashes, which compress to a half."""
        hashes = -(-case.record_bytes // _CHUNK)
        parts = ", ".join(f"sha2(CAST(id * {hashes} + {each} AS STRING), 512)" for each in range(hashes))
        frame = self._spark.range(0, case.records, 1, case.segments)
        return frame.selectExpr(f"substring(concat({parts}), 1, {case.record_bytes}) AS payload", "id AS txid")

    def _turn(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds by the clock, and of CPU."""
        began_s, began_cpu_s = time.monotonic(), self._cpu_s()
        work()
        return time.monotonic() - began_s, self._cpu_s() - began_cpu_s

    def _cpu_s(self) -> float:
        return tree_cpu_s(os.getpid(), without=self._excluded_pid)

    # --- Micro-batches

    def latency(self, rate: int, seconds: float) -> Latency:
        """A query follows a stream that gets `rate` records a second, each with the time as its txid."""
        with borrowed(self._uri) as access:
            access.run(access.namespace.create_stream("bench-live"))
        frame = self._spark.readStream.format("quire").option("uri", self._uri).option("stream", "bench-live").load()
        aged = frame.selectExpr("unix_millis(current_timestamp()) - txid AS age_ms")
        ages: list[float] = []

        def look(batch: "DataFrame", _: int) -> None:
            found = batch.agg({"age_ms": "avg"}).collect()[0][0]
            if found is not None:
                ages.append(float(found))

        query: Any = aged.writeStream.foreachBatch(look).trigger(processingTime="0 seconds").start()
        try:
            with _feeding(self._uri, rate):
                query.awaitTermination(seconds)
        finally:
            query.stop()
        told = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
        took, ages = sorted(told[_WARM_UP_BATCHES:] or told), ages[_WARM_UP_BATCHES:] or ages
        return Latency(
            rate,
            len(took),
            statistics.median(took) if took else 0.0,
            took[int(len(took) * 0.99)] if took else 0.0,
            statistics.median(ages) if ages else 0.0,
        )


def _read(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _rate(what: str, case: Case, turns: Sequence[tuple[float, float]]) -> Rate:
    took_s = statistics.median(each[0] for each in turns)
    cpu_s = statistics.median(each[1] for each in turns)
    return Rate(
        what,
        case.records,
        case.record_bytes,
        case.segments,
        case.records / took_s,
        case.records * case.record_bytes / took_s / 1e6,
        cpu_s / case.records * 1e6,
    )


@contextmanager
def _feeding(uri: str, rate: int) -> Iterator[None]:
    """Append records while the block runs, from a thread."""
    over = threading.Event()

    def feed() -> None:
        with sync.connect(uri) as client, client.open_writer("bench-live") as writer:
            while not over.wait(0.01):
                writer.append_many([b"x" * 100] * max(1, rate // 100))

    thread = threading.Thread(target=feed, name="feed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def parent_of(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tree_cpu_s(root: int, *, without: int = 0) -> float:
    """CPU of a process and all below it, those that ended included, without one of its children and what is below."""
    times, below = {}, dict[int, list[int]]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended just now.
        pid, parent = int(entry.name), int(fields[1])
        times[pid] = sum(map(int, fields[11:15])) / _TICKS_A_SECOND
        below.setdefault(parent, []).append(pid)
    total, left = 0.0, [root]
    while left:
        pid = left.pop()
        if pid != without:
            total += times.get(pid, 0.0)
            left += below.get(pid, [])
    return total
