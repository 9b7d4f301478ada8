"""What a commit of Spark's does with what tasks sent: publish ledgers, or append an entry.

Spark calls it in a process of its own, which stays for the next batch. So the writer for small batches is kept open
here, and the stream's lock with it, until there was no batch for a while or another client waits for the stream.
"""

import atexit
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.codec.stream_metadata.sinks import SinkBatch
from quire.errors import (
    AppendCancelled,
    AppendOutcomeUnknown,
    InvalidArgument,
    QuireError,
    RecordTooLarge,
    StreamSealed,
    WriterFenced,
)
from quire.spark.client_cache import Access, borrowed
from quire.spark.sink_encoding import Rows, encoded_runs, payload_array, txid_array
from quire.spark.sink_options import INLINE_BYTES_MAX, SinkOptions
from quire.stream.staging import StagedSegment, discard, discard_quietly, stage, sweep
from quire.stream.staging_commit import Committed, commit_staged
from quire.stream.staging_inline import InlineSink, open_inline_sink

IDLE_S: Final = 5.0
_TRIES: Final = 3
_SWEEP_EVERY_S: Final = 3600.0


class Part(NamedTuple):
    """What one task wrote."""

    partition: int
    staged: StagedSegment | None  # A ledger,
    table: bytes | None  # or rows, as Arrow sends them.
    record_bytes: int
    keys: tuple[Any, Any] | None  # The lowest and the highest of the column that orders.
    rows_sum: int = 0  # Of a batch that has a name: `quire.spark.sink_encoding.rows_sum`.


def commit_parts(options: SinkOptions, batch: SinkBatch, parts: Sequence[Part], *, txid: int) -> Committed:
    """Make all parts one batch of the stream, in order. If it raises, nothing is in the stream, or nobody knows."""
    ordered = in_order(parts, options)
    with borrowed(options.uri) as access:
        is_small = batch.number >= 0 and all(part.staged is None for part in ordered)
        total_bytes = sum(part.record_bytes for part in ordered)
        limit_bytes = INLINE_BYTES_MAX if options.mode == "inline" else options.inline_bytes
        # A write that is no query's comes once: nothing is gained by a writer that stays open for the next one.
        if options.mode == "inline" and total_bytes > limit_bytes:
            raise RecordTooLarge(
                f"{batch.shown} has {total_bytes} bytes, and one entry {limit_bytes} at most",
                hint="Use mode=auto or mode=staged, or smaller batches.",
                bytes=total_bytes,
                bytes_max=limit_bytes,
            )
        is_frequent = options.mode == "inline" or _writers.has(options)
        if is_small and total_bytes <= limit_bytes and options.mode != "staged" and (ordered or is_frequent):
            done = _commit_inline(options, batch, ordered)
        else:
            _writers.close(options)
            done = access.run(_commit_staged(access, options, batch, ordered, txid))
        _sweeps.maybe(access, options)  # Also after small batches: larger ones of the same query may have been lost.
        return done


def in_order(parts: Sequence[Part], options: SinkOptions) -> list[Part]:
    """Parts with rows in the order in which they come into the stream. Raises `InvalidArgument` if ranges overlap."""
    some = sorted((part for part in parts if part.record_bytes), key=lambda part: part.partition)
    column = options.columns.order_by
    if column is None or all(part.staged is None for part in some):
        return some  # Rows that are here are ordered here.
    by_key = sorted(some, key=lambda part: part.keys or (None, None))
    for before, after in itertools.pairwise(by_key):
        assert before.keys is not None
        assert after.keys is not None
        if after.keys[0] < before.keys[1]:
            raise InvalidArgument(
                f"partitions overlap in {column!r}: one ends with {before.keys[1]!r}, another begins with "
                f"{after.keys[0]!r}",
                hint=f'Partition the frame by ranges first: df.repartitionByRange("{column}").',
            )
    return by_key


def discard_parts(options: SinkOptions, parts: Iterable[Part]) -> None:
    """Delete ledgers that did not become segments. What is in the stream stays."""
    names = [part.staged.node for part in parts if part.staged is not None]
    if names:
        with borrowed(options.uri) as access:
            access.run(discard(access.namespace.context, options.stream, names))


# --- Rows that came with the messages


def packed(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _rows(options: SinkOptions, tables: Sequence[bytes], *, txid: int | None) -> tuple[pa.Array, Any]:
    """Payloads and txids of all tables, in order. Without a column of txids all have `txid`, if that is not None."""
    columns = options.columns
    table = pa.concat_tables([pa.ipc.open_stream(each).read_all() for each in tables])
    if columns.order_by is not None:
        table = ordered_by(table, columns.order_by)
    payloads = payload_array(table.column(columns.payload), columns.payload)
    if columns.txid is not None:
        return payloads, txid_array(table.column(columns.txid), columns.txid)
    return payloads, None if txid is None else np.full(len(payloads), txid, dtype=np.int64)


def ordered_by(table: pa.Table, column: str) -> pa.Table:
    """Stable, nulls first."""
    order = pc.sort_indices(table, sort_keys=[(column, "ascending")], null_placement="at_start")
    return table.take(order)


# --- As segments


async def _commit_staged(
    access: Access, options: SinkOptions, batch: SinkBatch, parts: Sequence[Part], txid: int
) -> Committed:
    """Rows between ledgers become ledgers of their own, as few as keep the order."""
    context, settings = access.namespace.context, access.namespace.settings_for(options.stream, **options.overrides)
    staged: list[StagedSegment] = []
    ours: list[str] = []
    try:
        for is_rows, group in itertools.groupby(parts, lambda part: part.staged is None):
            if not is_rows:
                staged += [part.staged for part in group if part.staged is not None]
                continue
            payloads, txids = _rows(options, [part.table for part in group if part.table is not None], txid=txid)
            async with stage(context, options.stream, settings, batch) as staging:
                for run in encoded_runs(Rows(payloads, txids), position=1, entry_bytes=staging.entry_bytes):
                    first, last = run.first_txid, run.last_txid
                    await staging.append_run(run.data, run.records, first_txid=first, last_txid=last)
            if staging.segment is not None:
                staged.append(staging.segment)
                ours.append(staging.segment.node)
        is_free = options.columns.txid is None
        return await commit_staged(context, options.stream, batch, staged, settings, may_restamp=is_free)
    except QuireError:
        await discard_quietly(context, options.stream, ours)  # Nobody else knows of them.
        raise


# --- As one entry


def _commit_inline(options: SinkOptions, batch: SinkBatch, parts: Sequence[Part]) -> Committed:
    payloads: list[bytes] = []
    txids: list[int] | None = None
    if tables := [part.table for part in parts if part.table is not None]:
        rows, numbers = _rows(options, tables, txid=None)
        payloads, txids = rows.to_pylist(), None if numbers is None else numbers.tolist()
    for tries in itertools.count(1):
        try:
            return _writers.commit(options, batch, payloads, txids)
        except StreamSealed:
            # There may be no more writers, but the batch may be there: if it is not, this raises the same.
            with borrowed(options.uri) as access:
                return access.run(_commit_staged(access, options, batch, (), 0))
        except (AppendCancelled, AppendOutcomeUnknown, WriterFenced):
            if tries == _TRIES:
                raise
    raise AssertionError("unreachable")


class _OpenWriter:
    """A writer that is open, with the client that it needs."""

    def __init__(self, options: SinkOptions) -> None:
        self._client = ExitStack()
        self._resources = AsyncExitStack()
        self._access = self._client.enter_context(borrowed(options.uri))
        namespace = self._access.namespace
        settings = namespace.settings_for(options.stream, **options.overrides)
        try:
            self.sink: InlineSink = self._access.run(
                self._resources.enter_async_context(open_inline_sink(namespace.context, options.stream, settings))
            )
        except BaseException:
            self._client.close()
            raise

    def commit(self, batch: SinkBatch, payloads: Sequence[bytes], txids: Sequence[int] | None) -> Committed:
        return self._access.run(self.sink.commit(batch, payloads, txids))

    def is_wanted(self) -> bool:
        return self._access.run(self.sink.is_wanted())

    def close(self) -> None:
        with self._client:
            self._access.run(self._resources.aclose())


class _Writers:
    """The writers that this process has open, one for a stream."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[tuple[str, str], tuple[_OpenWriter, threading.Timer]] = {}

    def commit(
        self, options: SinkOptions, batch: SinkBatch, payloads: Sequence[bytes], txids: Sequence[int] | None
    ) -> Committed:
        key = options.uri, options.stream
        with self._lock:
            writer = self._take(key) or _OpenWriter(options)
            try:
                done = writer.commit(batch, payloads, txids)
            except BaseException:
                writer.close()
                raise
            if writer.is_wanted():
                writer.close()  # The next batch waits in the same queue, behind those who wait now.
                return done
            timer = threading.Timer(IDLE_S, self._close_idle, [key, writer])
            timer.daemon = True
            timer.start()
            self._open[key] = writer, timer
            return done

    def has(self, options: SinkOptions) -> bool:
        return (options.uri, options.stream) in self._open

    def _take(self, key: tuple[str, str]) -> _OpenWriter | None:
        found = self._open.pop(key, None)
        if found is None:
            return None
        writer, timer = found
        timer.cancel()
        if not writer.sink.is_over:
            return writer
        writer.close()
        return None

    def _close_idle(self, key: tuple[str, str], writer: _OpenWriter) -> None:
        with self._lock:
            if key in self._open and self._open[key][0] is writer:
                del self._open[key]
                writer.close()

    def close(self, options: SinkOptions) -> None:
        """Give up the stream: somebody else in this process wants to own it."""
        with self._lock:
            writer = self._take((options.uri, options.stream))
            if writer is not None:
                writer.close()

    def close_all(self) -> None:
        with self._lock:
            for key in list(self._open):
                writer = self._take(key)
                if writer is not None:
                    writer.close()


class _Sweeps:
    """Looks for lost ledgers, now and then. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._swept_s: dict[tuple[str, str], float] = {}

    def maybe(self, access: Access, options: SinkOptions) -> None:
        key, context = (options.uri, options.stream), access.namespace.context
        now_s = self._clock()
        if now_s - self._swept_s.get(key, -_SWEEP_EVERY_S) < _SWEEP_EVERY_S:
            return
        self._swept_s[key] = now_s
        try:
            access.run(sweep(context, options.stream, older_than_s=options.staged_ttl_s))
        except QuireError:
            pass  # The batch is in the stream. The next sweep tries again.


_writers, _sweeps = _Writers(), _Sweeps()


def _forget_after_fork() -> None:
    global _writers, _sweeps
    _writers, _sweeps = _Writers(), _Sweeps()


os.register_at_fork(after_in_child=_forget_after_fork)


def close_writers() -> None:
    """Close every writer of this process."""
    _writers.close_all()


atexit.register(close_writers)
