"""The writing half of the data source `quire`: batches of Spark, each of them in a stream once and as a whole.

    df.write.format("quire").option("uri", "file:./data").option("stream", "orders").mode("append").save()
    df.writeStream.format("quire").option("stream", "orders").option("checkpointLocation", "…").start()

Tasks write ledgers beside the stream, each its own, in parallel; the commit makes all of them segments of it in one
step, and notes the batch in the same step (`quire.stream.staging_commit`). A task with few rows sends them along
instead, and a batch that is small as a whole becomes one entry (`quire.stream.staging_inline`). Either way a batch that
comes again is recognised, and an attempt that failed leaves nothing in the stream.

Writers are pickled and sent to other processes: they hold what they were asked for, and nothing that is open.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire.codec.stream_metadata.sinks import NAMED, UNNAMED, SinkBatch
from quire.errors import InvalidArgument, Outcome, QuireError, StreamOwned
from quire.spark.client_cache import Access, borrowed
from quire.spark.explain import explained
from quire.spark.sink_commit import Part, commit_parts, discard_parts, ordered_by, packed
from quire.spark.sink_encoding import Rows, encoded_runs, payload_array, rows_digest, rows_sum, txid_array
from quire.spark.sink_options import INLINE_BYTES_MAX, SinkOptions, sink_options
from quire.stream.namespace import Namespace
from quire.stream.nodes import StreamNodes
from quire.stream.staging import StagedSegment, Staging, stage

BATCH_SINK: Final = "batch"  # Of batch writes without a sinkId.
_NOTHING: Final = "This attempt has put nothing into the stream."  # Tasks write beside it.
_NAMED: Final = "It may be in the stream. Run it again under the same txnId: if it is there, that changes nothing."
_NAMELESS: Final = (
    "It may be in the stream, and a second run would write it twice: look first. A write with the option txnId can be "
    "run again."
)
_QUERY: Final = "Start the query again from its checkpoint: a batch that is in the stream is not written again."
_OWNED: Final = (
    "Only one client at a time writes a stream: close the other one, or wait for it with more seconds of lockTimeout."
)


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the commit."""

    part: Part
    query: str
    txid: int


class _Writing:
    """What batches and streams have in common: the tasks' half."""

    def __init__(self, options: SinkOptions, txid: int) -> None:
        self._options, self._txid = options, txid

    def _write(self, batches: Iterator[pa.RecordBatch], batch: SinkBatch, query: str) -> SinkMessage:
        options, task = self._options, TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        with _told(_NOTHING, _NOTHING), borrowed(options.uri) as access:
            writer = _PartitionWriter(access, options, batch, self._txid)
            part = writer.write(writer.summed(batches) if options.transaction else batches, partition)
        return SinkMessage(part._replace(rows_sum=writer.rows_sum), query, self._txid)


@contextmanager
def _told(fate: str, in_doubt: str) -> Iterator[None]:
    """Errors as Spark shows them, with what became of the write: `fate`, or `in_doubt` if that is not known."""
    try:
        with explained():
            try:
                yield
            except QuireError as error:
                if error.outcome is Outcome.UNKNOWN:
                    error.hint = in_doubt
                elif isinstance(error, StreamOwned):
                    error.hint = _OWNED
                raise
    except QuireError as error:
        if error.outcome is not Outcome.UNKNOWN:
            error.add_note(fate)  # A line of its own, behind the hint.
        raise


class QuireBatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write`: one batch, named by the option `txnId`, or by chance."""

    def __init__(self, options: SinkOptions, txid: int) -> None:
        super().__init__(options, txid)
        number = NAMED if options.transaction else UNNAMED
        name = options.transaction or uuid.uuid4().hex
        self._batch = SinkBatch(options.sink_id or BATCH_SINK, number, transaction=name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._batch, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts, batch = _parts(messages), self._batch
        if self._options.transaction:
            batch = replace(batch, rows=rows_digest(part.rows_sum for part in parts))
        with _told(_NOTHING, _NAMED if self._options.transaction else _NAMELESS):
            commit_parts(self._options, batch, parts, txid=self._txid)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with explained():
            discard_parts(self._options, _parts(messages))


class QuireStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`: batches with numbers. Spark makes another object for each of them, and for each call."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        query = (task.getLocalProperty("sql.streaming.queryId") if task is not None else None) or ""
        number = (task.getLocalProperty("streaming.sql.batchId") if task is not None else None) or "0"
        sink = self._options.sink_id or query
        if not sink:
            raise InvalidArgument("Spark does not say which query this is", hint='Say .option("sinkId", "a-name").')
        return self._write(iterator, SinkBatch(sink, int(number), query), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        parts = _parts(messages)
        told = next((message for message in messages if isinstance(message, SinkMessage)), None)
        if told is None:
            return  # Nobody wrote anything, and nobody says which query it is.
        batch = SinkBatch(self._options.sink_id or told.query, batchId, told.query)
        with _told(_QUERY, _QUERY):
            commit_parts(self._options, batch, parts, txid=told.txid)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with explained():
            discard_parts(self._options, _parts(messages))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> QuireBatchWriter:
    with explained():
        checked = sink_options(options, schema, overwrite=overwrite)
        return QuireBatchWriter(checked, _prepared(checked))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> QuireStreamWriter:
    with explained():
        checked = sink_options(options, schema, overwrite=overwrite)
        return QuireStreamWriter(checked, _prepared(checked))


def _prepared(options: SinkOptions) -> int:
    """Have a stream to write to, and choose the txid of records that bring none: the time, if the stream is not ahead.

    Here, before any task runs, since all tasks of a batch need the same one.
    """
    with borrowed(options.uri) as access:
        return access.run(_prepare(access.namespace, options))


async def _prepare(namespace: Namespace, options: SinkOptions) -> int:
    context = namespace.context
    if options.creates and not await namespace.stream_exists(options.stream):
        await namespace.create_stream(options.stream)
    highest = await StreamNodes(context.store, context.paths(options.stream)).max_txid()
    return max(highest, context.runtime.clock.wall_ms())


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, SinkMessage)]


class _PartitionWriter:
    """The rows of one task: kept as long as they are few, else staged."""

    def __init__(self, access: Access, options: SinkOptions, batch: SinkBatch, txid: int) -> None:
        self._access, self._options, self._batch, self._txid = access, options, batch, txid
        self._columns = options.columns
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._last_txid = 0
        self.rows_sum = 0

    def summed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, while `rows_sum` gathers what is in them."""
        payload, txid = self._columns.payload, self._columns.txid
        for batch in batches:
            txids = None if txid is None else batch.column(txid)
            self.rows_sum += rows_sum(payload_array(batch.column(payload), payload), txids)
            yield batch

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Part:
        limit_bytes = self._limit_bytes()
        for batch in batches:
            if not batch.num_rows:
                continue
            self._keep(batch)
            # What is to be ordered has to be here as a whole first.
            if self._columns.order_by is None and self._kept_bytes > limit_bytes:
                return self._stage(batches, partition)
        if not self._kept:
            return Part(partition, None, None, 0, None)
        if self._kept_bytes > limit_bytes:
            return self._stage(iter(()), partition)
        table = self._table()
        return Part(partition, None, packed(table), self._kept_bytes, self._keys(table))

    def _limit_bytes(self) -> int:
        match self._options.mode:
            case "staged":
                return -1
            case "inline":
                return INLINE_BYTES_MAX  # Whether all of them together fit, the commit finds out.
            case _:
                return self._options.inline_bytes

    def _keep(self, batch: pa.RecordBatch) -> None:
        names = dict.fromkeys(name for name in self._columns if name is not None)
        kept = batch.select(list(names))
        payloads = payload_array(kept.column(self._columns.payload), self._columns.payload)
        self._kept.append(kept)
        self._kept_bytes += Rows(payloads, np.zeros(0, np.int64)).record_bytes

    def _table(self) -> pa.Table:
        table = pa.Table.from_batches(self._kept)
        return table if self._columns.order_by is None else ordered_by(table, self._columns.order_by)

    def _keys(self, table: pa.Table) -> tuple[Any, Any] | None:
        if self._columns.order_by is None:
            return None
        column = table.column(self._columns.order_by)
        if column.null_count:
            raise InvalidArgument(f"column {self._columns.order_by!r} orders records, and is NULL in some rows")
        return column[0].as_py(), column[-1].as_py()

    # --- A ledger

    def _stage(self, rest: Iterator[pa.RecordBatch], partition: int) -> Part:
        access, resources = self._access, AsyncExitStack()
        namespace, stream = access.namespace, self._options.stream
        settings = namespace.settings_for(stream, **self._options.overrides)
        table = self._table()
        keys = self._keys(table)
        staging = access.run(resources.enter_async_context(stage(namespace.context, stream, settings, self._batch)))
        try:
            for batch in table.to_batches():
                self._append(staging, batch)
            for batch in rest:
                self._append(staging, batch)
        except BaseException as error:
            kind, trace = type(error), error.__traceback__
            access.run(resources.__aexit__(kind, error, trace))
            raise
        access.run(resources.aclose())
        staged: StagedSegment | None = staging.segment
        return Part(partition, staged, None, 0 if staged is None else staged.bytes, keys)

    def _append(self, staging: Staging, batch: pa.RecordBatch) -> None:
        """Encode here, in the task's thread; the loop's thread sends meanwhile."""
        columns = self._columns
        payloads = payload_array(batch.column(columns.payload), columns.payload)
        if columns.txid is None:
            txids = np.full(len(payloads), self._txid, dtype=np.int64)
        else:
            txids = txid_array(batch.column(columns.txid), columns.txid, last=self._last_txid)
        if not len(payloads):
            return
        self._last_txid = int(txids[-1])
        runs = encoded_runs(Rows(payloads, txids), position=staging.position + 1, entry_bytes=staging.entry_bytes)

        async def append() -> None:
            for run in runs:
                first, last = run.first_txid, run.last_txid
                await staging.append_run(run.data, run.records, first_txid=first, last_txid=last)

        self._access.run(append())


__all__ = ["QuireBatchWriter", "QuireStreamWriter", "SinkMessage", "batch_writer", "stream_writer"]
