"""Publish staged ledgers: all of a batch become segments of a stream in one step, once, however often it is asked for.

Whoever publishes owns the stream for that moment, as a writer does: it takes the lock, shuts out whoever wrote before,
and completes what that one left. Then one transaction creates the nodes of all segments, moves the stream's highest
LSSN and txid, says in the sink's node that the batch is there, and deletes the nodes of the staged ledgers.

Where that is more than the metadata store takes in one transaction, neighbouring ledgers are copied into few first,
beside the stream as they are. Readers of Apache's would see segments that come one after the other, and segments that
are prepared behind another one: only a single transaction is one step for them.

Invariants:
  AllOrNothing      a reader sees all of a batch, or nothing: its segments appear in one transaction.
  OnceOnly          the sink's node is written in the version that was read when the batch was not yet in it.
  OwnLedgersOnly    a ledger is published only while its staged node is there, unmarked: nobody deletes it after that.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from quire.codec.stream_metadata.segment import Segment
from quire.codec.stream_metadata.sinks import SinkBatch, encode_sink
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import (
    LockLost,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    QuireError,
    RequestTooLarge,
    SessionExpired,
    StreamOwned,
    StreamSealed,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.ledger.deadlines import Deadline
from quire.metadata import Delete
from quire.metadata.driver import Op
from quire.metadata.paths import join
from quire.stream.context import StreamContext
from quire.stream.ownership import Taken, own_stream
from quire.stream.segments import StreamSegments
from quire.stream.settings import StreamSettings
from quire.stream.staging import (
    StagedSegment,
    discard,
    discard_quietly,
    gone,
    make_folder,
    read_staged,
    restage,
    some_at_once,
    staged_names,
)
from quire.stream.staging_sinks import StoredSink, caught_up, read_sink
from quire.telemetry.events import logger
from quire.types import DLSN, EntryId, SlotId

_log = logger("stream")
_RACE_S: Final = 0.05
_TOKEN_BYTES: Final = 8
_SEGMENTS_MAX: Final = 32  # Of a batch that had too many: so many fit into a transaction of every store.


class Committed(NamedTuple):
    """What became of a batch, and where its first and last records are: None if it has none, or nobody knows."""

    is_new: bool  # False: it was there before.
    first: DLSN | None
    last: DLSN | None


async def commit_staged(
    context: StreamContext,
    stream: str,
    batch: SinkBatch,
    staged: Sequence[StagedSegment],
    settings: StreamSettings,
    *,
    may_restamp: bool = False,
) -> Committed:
    """Make `staged` the next segments of the stream, in this order. A batch that is there already changes nothing.

    Its own staged ledgers, and what earlier attempts left of it, are deleted then. Raises `StreamOwned` if a writer
    does not give up the stream within `lock_timeout_s`, `TxidOutOfOrder`, `SinkTaken`, `SinkFull`, `StagedGone`,
    `StreamSealed`, `NoSuchStream`, `RequestTooLarge` if the metadata store takes less at once than any should: then
    nothing is in the stream. `MetadataOutcomeUnknown` says that it may be: ask again, or `discard`, which deletes only
    what is not.

    With `may_restamp` txids mean nothing but the time of writing: if another writer's are higher by now, the records
    are copied, with one that fits. More ledgers than the metadata store takes at once are copied into few. Both happens
    while the stream is ours: a writer that overtakes would have them copied again. Copying, and reading what an earlier
    owner left untold, takes as long as it takes: settings bound the time of all other steps.
    """
    deadline = Deadline(settings.call_timeout_s + (settings.lock_timeout_s if settings.write_lock else 0))
    trouble: QuireError | None = None

    def late() -> QuireError:
        why = f": {trouble}" if trouble is not None else ""
        return MetadataOutcomeUnknown(
            f"whether {batch.shown} is in stream {stream!r} could not be told within {deadline.timeout_s:g} s{why}",
            hint="Commit it again: if it is there, that changes nothing.",
            stream=stream,
        )

    commit = _Commit(context, context.paths(stream), batch, staged, settings, may_restamp, deadline)
    try:
        async with deadline.or_raise(late):
            done: Committed | None = None
            while done is None:
                try:
                    async with own_stream(context, stream, settings) as take_over:
                        while done is None:
                            try:
                                done = await commit.attempt(await take_over())
                            except (WriterFenced, SessionExpired, MetadataOutcomeUnknown, MetadataUnavailable) as error:
                                # Another writer without a lock, a sweep, or a lost answer of our own: look again.
                                trouble = error
                                await context.runtime.clock.sleep(_RACE_S)
                except LockLost as error:  # The session ended. Another client may own the stream: wait for it.
                    trouble = error
                except StreamOwned as error:
                    if trouble is None:
                        raise
                    raise late() from error  # An attempt before may have published it.
    except (Exception, asyncio.CancelledError):
        await discard_quietly(context, stream, commit.copies)  # Nobody else knows of them.
        raise
    await tidy(context, stream, batch)
    return done


class _Commit:
    """One batch on its way into a stream."""

    def __init__(
        self,
        context: StreamContext,
        paths: StreamPaths,
        batch: SinkBatch,
        staged: Sequence[StagedSegment],
        settings: StreamSettings,
        may_restamp: bool,
        deadline: Deadline,
    ) -> None:
        self._context, self._paths, self._batch = context, paths, batch
        self._staged, self._settings, self._may_restamp = staged, settings, may_restamp
        self._deadline = deadline
        self.copies: list[str] = []  # The nodes of staged ledgers that were made here.

    async def attempt(self, taken: Taken) -> Committed:
        batch, segments = self._batch, taken.segments
        sink = await self._known(segments)
        state = sink.state
        if state.has(batch):
            return Committed(False, state.first, state.last)
        if taken.is_sealed:
            raise StreamSealed(f"stream {segments.stream!r} has ended", stream=segments.stream)
        if sink.version is None:
            await self._make_folder()
        following = await self._following(segments)
        done = [segment.completion for segment in following if segment.completion is not None]
        first = DLSN(following[0].lssn, EntryId(0), SlotId(0)) if following else None
        last = done[-1].last_dlsn if done else None
        new = state.after(batch, first=first, last=last, since=None, token=self._token())
        ops: list[Op] = [sink.write(new), *await self._taken_off()]
        try:
            await segments.publish(following, ops, (sink.path, encode_sink(new)))
        except RequestTooLarge as error:
            groups = _few(self._staged)
            if len(groups) < len(self._staged):
                _log.info("stream.merged", stream=segments.stream, sink=batch.sink, ledgers=len(self._staged))
                await self._copy(groups)
                return await self.attempt(taken)
            raise RequestTooLarge(
                f"{batch.shown} has {len(self._staged)} segments, which is more than the metadata store takes in one "
                f"step: {error}",
                hint="Raise the store's limits (of etcd: --max-txn-ops), or write fewer partitions. Each is a segment.",
                segments=len(self._staged),
            ) from error
        return Committed(True, first, last)

    async def _known(self, segments: StreamSegments) -> StoredSink:
        """How far the sink came. What tags tell is noted, so that they are read once, however this commit ends."""
        sink = await read_sink(self._context.store, self._paths, self._batch)
        if sink.state.since is None:
            return sink
        password = self._settings.password
        with self._deadline.suspended():
            state = await caught_up(self._context, segments.nodes, sink.state, self._batch.node, password)
        state = replace(state, since=None, token=self._token())  # Guarded: nobody else can append tags meanwhile.
        await segments.publish([], [sink.write(state)], (sink.path, encode_sink(state)))
        return await read_sink(self._context.store, self._paths, self._batch)

    def _token(self) -> str:
        return self._context.runtime.rng.bytes(_TOKEN_BYTES).hex()

    async def _following(self, segments: StreamSegments) -> list[Segment]:
        try:
            return segments.following([each.written for each in self._staged], self._settings)
        except TxidOutOfOrder:
            if not self._may_restamp:
                raise
        txid = max(segments.max_txid, self._context.runtime.clock.wall_ms())
        _log.info("stream.restamped", stream=segments.stream, sink=self._batch.sink, txid=txid)
        await self._copy(_few(self._staged), txid)
        return segments.following([each.written for each in self._staged], self._settings)

    async def _copy(self, groups: Sequence[Sequence[StagedSegment]], txid: int | None = None) -> None:
        """Have a ledger for each group of ledgers, with this txid, or with those that they have."""
        context, stream, settings = self._context, self._paths.stream, self._settings
        staged: list[StagedSegment] = []
        with self._deadline.suspended():
            for group in groups:
                if len(group) == 1 and txid is None:
                    staged.append(group[0])
                    continue
                staged.append(await restage(context, stream, settings, self._batch, group, txid))
                self.copies.append(staged[-1].node)
        self._staged = staged  # The others go when the batch is in the stream, with all that attempts left of it.

    async def _taken_off(self) -> list[Op]:
        """The nodes of the staged ledgers go with the transaction, if they are as they are now."""

        async def taken_off(each: StagedSegment) -> Op:
            found = await read_staged(self._context.store, self._paths, each.node)
            if found is None or found[0].ledger != each.ledger:
                raise gone(self._paths, each.node)
            return Delete(join(self._paths.staged, each.node), found[1])

        return await some_at_once(taken_off, self._staged)

    async def _make_folder(self) -> None:
        try:
            await make_folder(self._context.store, self._paths, self._paths.sinks)
        except MetadataOutcomeUnknown:
            pass  # It is there, or the transaction is refused.


def _few(staged: Sequence[StagedSegment]) -> list[list[StagedSegment]]:
    """Neighbours together if there are more than `_SEGMENTS_MAX`: no more groups than that, and what is large alone."""
    if len(staged) <= _SEGMENTS_MAX:
        return [[each] for each in staged]
    # Two groups that follow each other have more than this together. Hence there are fewer than the limit.
    room = 2 * sum(each.bytes for each in staged) // _SEGMENTS_MAX
    groups: list[list[StagedSegment]] = [[]]
    size_bytes = 0
    for each in staged:
        if groups[-1] and size_bytes + each.bytes > room:
            groups.append([])
            size_bytes = 0
        groups[-1].append(each)
        size_bytes += each.bytes
    return groups


async def tidy(context: StreamContext, stream: str, batch: SinkBatch) -> None:
    """Delete what attempts left of a batch that is in the stream, and of those before it: nobody publishes that."""
    try:
        names = await staged_names(context.store, context.paths(stream))
        await discard(context, stream, filter(functools.partial(_is_over, batch), names), sink=batch.sink)
    except QuireError as error:
        _log.warning("stream.staged_left", stream=stream, sink=batch.sink, error=str(error))


def _is_over(batch: SinkBatch, name: str) -> bool:
    """Whether a staged node, by its name, is of this batch or of one before it."""
    if name.startswith(batch.staged_prefix):
        return True
    sink, number, _ = [*name.split("-"), "", ""][:3]
    is_numbered = batch.number >= 0 and number.isdecimal()
    return is_numbered and batch.staged_prefix.startswith(f"{sink}-") and int(number) <= batch.number
