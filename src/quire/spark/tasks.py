"""Many pieces of work, each done by one task of Spark, and what came of each: what the jobs of this package stand on.

    results = run_tasks(spark, uri, copy_segment, pieces, on_progress=print)

`work(access, piece)` runs in Python's workers, with the client of `uri` borrowed (`quire.spark.client_cache`). Pieces
and results are what JSON can say: they pass through the JVM, and a person can read them in Spark's logs. `work` is a
function of a module, so that executors find it by its name.

An error of ours is a result, too: the driver raises it as the error that it was, instead of a traceback of Spark's. A
task that dies for other reasons is tried again by Spark, so `work` may be called more than once for a piece.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quire import errors
from quire.errors import QuireError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire.spark.client_cache import Access

Piece: TypeAlias = Mapping[str, Any]
Work: TypeAlias = "Callable[[Access, Piece], Piece]"
OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many tasks are done, and how many there are."""

_LOOK_S: Final = 0.2


def run_tasks(
    spark: "SparkSession", uri: str, work: Work, pieces: Sequence[Piece], *, on_progress: OnProgress | None = None
) -> list[Any]:
    """What `work` returned for each piece, in order. Raises the first error of ours, once all tasks have ended."""
    results = try_tasks(spark, uri, work, pieces, on_progress=on_progress)
    for result in results:
        if isinstance(result, QuireError):
            raise result
    return results


def try_tasks(
    spark: "SparkSession", uri: str, work: Work, pieces: Sequence[Piece], *, on_progress: OnProgress | None = None
) -> list[Any | QuireError]:
    """The same with errors of ours among the results: for pieces that have nothing to do with each other."""
    if not pieces:
        return []
    told = [json.dumps(piece) for piece in pieces]

    def in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from quire.spark.client_cache import borrowed

        for batch in batches:
            numbers = batch.column(0).to_pylist()
            with borrowed(uri) as access:
                results = [_result(work, access, json.loads(told[number])) for number in numbers]
            yield pa.RecordBatch.from_pydict({"number": pa.array(numbers, pa.int64()), "result": results})

    frame = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(in_worker, "number BIGINT, result STRING")
    with _watching(spark, len(pieces), on_progress):
        rows = frame.collect()
    results = [json.loads(row["result"]) for row in sorted(rows, key=lambda row: row["number"])]
    return [_error(result["error"]) if "error" in result else result["value"] for result in results]


def _result(work: Work, access: "Access", piece: Piece) -> str:
    try:
        return json.dumps({"value": work(access, piece)})
    except QuireError as error:
        facts = {name: value for name, value in error.facts.items() if isinstance(value, bool | int | str)}
        told = {"kind": type(error).__name__, "message": str(error), "hint": error.hint, "facts": facts}
        return json.dumps({"error": told})


def _error(told: Mapping[str, Any]) -> QuireError:
    kind = getattr(errors, told["kind"], QuireError)
    error: QuireError = kind(told["message"], hint=told["hint"], **told["facts"])
    return error


@contextmanager
def _watching(spark: "SparkSession", total: int, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell how far the tasks are while the block waits for them. Behind Spark Connect that cannot be seen."""
    if on_progress is None:
        yield
        return
    on_progress(0, total)
    with watching_stages(spark, on_progress, tasks=total):
        yield
    on_progress(total, total)


@contextmanager
def watching_stages(spark: "SparkSession", on_progress: OnProgress, *, tasks: int | None = None) -> Iterator[None]:
    """Tell how far the stages are that run during the block: all of them, or those that have so many tasks."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tasks, on_progress, over), name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: "SparkSession", tasks: int | None, on_progress: OnProgress, over: threading.Event) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception as error:  # Which one depends on the kind of client.
        del error
        return
    while not over.wait(_LOOK_S):
        active = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in active if stage is not None and tasks in (None, stage.numTasks)]
        done = sum(stage.numCompletedTasks for stage in stages)
        total = sum(stage.numTasks for stage in stages) if tasks is None else tasks
        if done or (stages and tasks is None):
            on_progress(min(done, total), total)
