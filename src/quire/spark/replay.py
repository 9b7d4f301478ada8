"""Records into a stream, once: from another stream, from Parquet files, or from any dataframe.

    replay_stream(spark, uri, "orders", "orders-copy", checkpoint="/var/lib/replay/orders")
    replay_parquet(spark, uri, "/data/events", "events")
    replay_frame(spark, uri, frame, "events", name="backfill-2025")

Each has a name, under which the target knows what it has got (`sinks/<name>…`). Whatever ends a replay, the same call
goes on with it, and one that is done changes nothing.

  a stream     is a streaming query: its checkpoint says how far it came, and the target which batches it has.
  Parquet      is read in the order of the files' names, some files at a time; the target remembers these steps, so that
               nothing else has to be kept.
  a dataframe  is one transaction: all of it, or nothing.

Invariants:
  InOrder    records come in the order of the source: that of the stream, or of the files and of the rows in them.
  Once       a step, batch or frame is in the target once, however often it is replayed.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from quire.codec.stream_metadata.names import stream_name
from quire.codec.stream_metadata.sinks import SinkBatch
from quire.errors import InvalidArgument
from quire.spark.client_cache import borrowed, direct_uri
from quire.spark.failures import spark_errors, told_by
from quire.stream.namespace import Namespace
from quire.stream.staging_sinks import known_names
from quire.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_FILES: Final = 16
BATCH_BYTES: Final = "256m"

OnRecords = Callable[[int], None]
"""Called with how many records were replayed since the last call."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did, now and in calls before."""

    stream: str
    name: str
    records: int
    """Of this call."""
    steps: int
    """Batches, steps or transactions of this call."""
    steps_before: int
    """Those that were in the stream before it."""


# --- A stream


def replay_stream(
    spark: "SparkSession",
    uri: str,
    source: str,
    target: str,
    *,
    checkpoint: str,
    name: str | None = None,
    source_uri: str | None = None,
    start: str = "earliest",
    follow: bool = False,
    new_txids: bool = False,
    batch_bytes: str = BATCH_BYTES,
    on_records: OnRecords | None = None,
    until: Callable[[], bool] | None = None,
) -> ReplayReport:
    """Copy a stream, or several, as far as they have records now; with `follow`, until `until` answers true.

    `checkpoint` is a folder for this replay alone. With `new_txids` records get new ones, as they must where several
    streams come together. Raises `SinkTaken` if the name was used with another checkpoint.
    """
    name = name or f"replay:{source}"
    options = {"uri": direct_uri(source_uri or uri), "stream": source, "start": start, "columns": "txid,payload"}
    if not follow:
        options["maxBytesPerTrigger"] = batch_bytes
    frame = spark.readStream.format("quire").options(**options).load()
    if new_txids:
        frame = frame.select("payload")
    writing = frame.writeStream.format("quire").option("uri", direct_uri(uri)).option("stream", stream_name(target))
    # Of what is there now batches are large. What comes later comes in small ones, which become entries.
    writing = writing.option("sinkId", name).option("mode", "auto" if follow else "staged")
    writing = writing.option("checkpointLocation", checkpoint)
    try:
        query: Any = (writing if follow else writing.trigger(availableNow=True)).start()
        seen = _Progress(on_records)
        try:
            while not query.awaitTermination(_LOOK_S):
                seen.look(query)
                if until is not None and until():
                    if follow:  # Else batches are large, and nobody wants to wait for one.
                        _finish_batch(query, seen)
                    break
        finally:
            query.stop()
        seen.look(query)
    except spark_errors() as error:
        raise told_by(error) from error
    return ReplayReport(target, name, seen.records, seen.batches, seen.first_batch)


_LOOK_S: Final = 0.5
_FINISH_LOOK_S: Final = 0.05
_FINISH_S: Final = 60.0


def _finish_batch(query: Any, seen: "_Progress") -> None:
    """Let a query end the batch that it is at, if it does so in time. One that is cut off is done again by the next
    replay, and is in the target once all the same; but nobody would have told of it."""
    before, ends_s = seen.batches, time.monotonic() + _FINISH_S
    while time.monotonic() < ends_s:
        # Spark tells of a batch before it is at none, and says that there is data until it has looked for more.
        status = query.status
        seen.look(query)
        is_at_none = not (status["isTriggerActive"] and status["isDataAvailable"])
        if is_at_none or seen.batches > before or query.awaitTermination(_FINISH_LOOK_S):
            return


class _Progress:
    """What a query tells of its batches, each of them once."""

    def __init__(self, on_records: OnRecords | None) -> None:
        self._on_records = on_records
        self._last = -1
        self.records = self.batches = self.first_batch = 0

    def look(self, query: Any) -> None:
        for told in query.recentProgress:
            # Of all sources: the sum that Spark has for it is missing behind Spark Connect.
            number, rows = told["batchId"], sum(source["numInputRows"] for source in told["sources"])
            if number <= self._last or not rows:
                continue
            if self._last < 0:
                self.first_batch = number
            self._last = number
            self.records, self.batches = self.records + rows, self.batches + 1
            if self._on_records is not None:
                self._on_records(rows)


# --- Files


def replay_parquet(
    spark: "SparkSession",
    uri: str,
    path: str,
    target: str,
    *,
    name: str | None = None,
    files_per_step: int = STEP_FILES,
    new_txids: bool = False,
    on_records: OnRecords | None = None,
) -> ReplayReport:
    """Copy the rows of Parquet files: the columns `payload` and `txid`, or all columns as JSON if there is no payload.

    The files must not change until the replay is done: a step is known by the names of its files.
    """
    try:
        files = sorted(spark.read.option("recursiveFileLookup", "true").parquet(path).inputFiles())
    except spark_errors() as error:
        raise told_by(error) from error
    name = name or f"replay:{path}"
    steps = [files[begin : begin + files_per_step] for begin in range(0, len(files), files_per_step)]
    names = [_step_name(number, some) for number, some in enumerate(steps)]
    done = _done(uri, target, name, names)
    records = 0
    for number in range(done, len(steps)):
        frame = reduce(lambda one, other: one.unionByName(other), (spark.read.parquet(file) for file in steps[number]))
        count = _write(frame, uri, target, name, names[number], new_txids=new_txids)
        records += count
        if on_records is not None:
            on_records(count)
    return ReplayReport(target, name, records, len(steps) - done, done)


def _step_name(number: int, files: Sequence[str]) -> str:
    """The same for the same files, whichever process asks."""
    return f"{number}-{hashlib.sha256(chr(10).join(files).encode()).hexdigest()[:24]}"


def _done(uri: str, target: str, name: str, steps: Sequence[str]) -> int:
    """How many of the steps are in the target. Raises `InvalidArgument` if it got others under this name."""
    with borrowed(uri) as access:
        known = access.run(_transactions(access.namespace, target, name))
    if known - {SinkBatch(name, transaction=step).digest for step in steps}:
        raise InvalidArgument(
            f"stream {target!r} has steps of {name!r} from other files, or from other numbers of them",
            hint="The files changed since. Replay what is new under another name, with --name.",
            stream=target,
        )
    return len(known)  # One came after the other, from the first one on.


async def _transactions(namespace: Namespace, stream: str, sink: str) -> frozenset[str]:
    if not await namespace.stream_exists(stream):
        return frozenset()
    context = namespace.context
    return await known_names(context.store, context.paths(stream_name(stream)), sink)


# --- A dataframe


def replay_frame(
    spark: "SparkSession",
    uri: str,
    frame: "DataFrame",
    target: str,
    *,
    name: str,
    order_by: Sequence[str] = (),
    new_txids: bool = False,
) -> ReplayReport:
    """Append a dataframe under a name, once, as one transaction; in the order of columns, or as it is partitioned.

    Columns are those of `replay_parquet`.
    """
    if _done_frame(uri, target, name):
        return ReplayReport(target, name, 0, 0, 1)
    ordered = frame.orderBy(*order_by) if order_by else frame
    count = _write(ordered, uri, target, name, "all", new_txids=new_txids)
    return ReplayReport(target, name, count, 1, 0)


def _done_frame(uri: str, target: str, name: str) -> bool:
    with borrowed(uri) as access:
        return bool(access.run(_transactions(access.namespace, target, name)))


def _write(frame: "DataFrame", uri: str, target: str, sink: str, transaction: str, *, new_txids: bool) -> int:
    from pyspark.sql import Observation, functions

    counted = Observation()
    records = as_records(frame, new_txids=new_txids).observe(counted, functions.count(functions.lit(1)).alias("rows"))
    writing = records.write.format("quire").mode("append").option("uri", direct_uri(uri))
    writing = writing.option("stream", stream_name(target)).option("sinkId", sink).option("txnId", transaction)
    try:
        writing.option("mode", "staged").save()
    except spark_errors() as error:
        raise told_by(error) from error
    return int(counted.get["rows"])


def as_records(frame: "DataFrame", *, new_txids: bool = False) -> "DataFrame":
    """The columns of records: payload, or all columns as JSON, and the txid if there is one."""
    from pyspark.sql import functions

    kinds = {name.lower(): kind for name, kind in frame.dtypes}
    payload = next((name for name in ("payload", "value") if kinds.get(name) in ("binary", "string")), None)
    with_txid = not new_txids and kinds.get("txid") == "bigint"
    others = [name for name in frame.columns if not (with_txid and name.lower() == "txid")]
    if payload is None and not others:
        raise InvalidArgument("there is no column to make payloads of", hint="Have a column payload, or others.")
    chosen = functions.col(payload) if payload else functions.to_json(functions.struct(*others))
    return frame.select(chosen.alias("payload"), *(["txid"] if with_txid else []))


def default_checkpoint(uri: str, source: str, target: str, name: str) -> str:
    """Where the checkpoint of a replay is if nobody says: below `$XDG_STATE_HOME/quire/replays`, on this machine."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    which = hashlib.sha256("\0".join((direct_uri(uri), source, target, name)).encode()).hexdigest()[:32]
    return os.path.join(state, "quire", "replays", which)
