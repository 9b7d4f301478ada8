"""Small batches, each of them one entry of the stream, appended by a writer that stays open.

A segment for each batch would be too much metadata where batches come ten times a second. So the entry itself says
which batch it is, in a control record before its records (decision 0013 has the same for producers), and the sink's
node follows. Whoever opens the next writer reads the node, and the tags behind what it knows.

Invariants:
  OneEntry       an entry is stored as a whole or not at all, and so is a batch.
  SinceFirst     before the first batch is appended, the sink's node says from where on tags have to be read.
  OwnedSince     nothing is appended unless the writer, since it took the stream over, knows of every batch in it.
  DoubtStays     while it is unknown whether an entry is in the stream, nothing else is appended, and no node says that
                 tags need not be read: whoever comes next finds out by them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from quire.codec.stream.sink_tags import encode_sink_tag
from quire.codec.stream_metadata.sinks import SinkBatch, SinkState, encode_sink
from quire.errors import AppendCancelled, NodeExists, NoSuchNode, QuireError, VersionConflict
from quire.stream.context import StreamContext
from quire.stream.lock import others_wait
from quire.stream.ownership import open_stream_writer
from quire.stream.record_queue import TrackedCall
from quire.stream.settings import StreamSettings
from quire.stream.settling import settle
from quire.stream.staging import make_folder
from quire.stream.staging_commit import Committed
from quire.stream.staging_sinks import StoredSink, caught_up, read_sink
from quire.stream.writer import StreamWriter
from quire.telemetry.events import logger
from quire.types import DLSN, EntryId, SlotId

_log = logger("stream")
_TOKEN_BYTES: Final = 8


class _Tag:
    """What is stored beside the records of a batch."""

    def __init__(self, batch: SinkBatch) -> None:
        self._payload = encode_sink_tag(batch)

    @property
    def size_bytes(self) -> int:
        return len(self._payload)

    def payload(self, begin: int, end: int) -> bytes:
        return self._payload


class InlineSink:
    """A stream that is owned, and takes batches. Made by `open_inline_sink`. One batch at a time."""

    def __init__(self, context: StreamContext, writer: StreamWriter, settings: StreamSettings) -> None:
        self._context, self._writer, self._settings = context, writer, settings
        self._nodes, self._paths = writer.nodes, writer.nodes.paths
        self._sinks: dict[str, StoredSink] = {}  # By the name of the node.
        self._in_doubt: SinkBatch | None = None  # Handed to the writer, and it is not known what became of it.

    @property
    def is_over(self) -> bool:
        """Whether it takes no more batches: open another one."""
        return self._in_doubt is not None or self._writer.problem is not None or self._writer.is_closed

    async def is_wanted(self) -> bool:
        """Whether another client waits for the stream. Close this one then: batches may come for ever."""
        return await others_wait(self._context.store, self._paths.lock)

    async def commit(self, batch: SinkBatch, payloads: Sequence[bytes], txids: Sequence[int] | None) -> Committed:
        """Append a batch as one entry, unless it is there. Without txids all records get the time in milliseconds.

        Raises `RecordTooLarge`, `TxidOutOfOrder`, `SinkTaken` and `SinkFull` (nothing was appended), and what appending
        raises: then, or if it is cancelled, open another one, which finds out whether the batch is there. This one
        raises `AppendCancelled` from then on.
        """
        if self._in_doubt is not None:
            raise AppendCancelled(
                f"{batch.shown} was not sent: whether {self._in_doubt.shown} is in stream {self._writer.stream!r} is "
                "not known here",
                hint="Close this sink and open another one, which finds out, then commit both again.",
                stream=self._writer.stream,
            )
        known = self._sinks.get(batch.node)
        if known is None:
            known = await self._load(batch)
        if known.state.has(batch):
            return Committed(False, known.state.first, known.state.last)
        first = last = None
        if payloads:
            first, last = await self._append(batch, payloads, txids)
        since = known.state.since if last is None else last.next_entry()
        await self._note(batch.node, known.state.after(batch, first=first, last=last, since=since, token=self._token()))
        return Committed(True, first, last)

    async def _append(
        self, batch: SinkBatch, payloads: Sequence[bytes], txids: Sequence[int] | None
    ) -> tuple[DLSN, DLSN]:
        done: asyncio.Future[TrackedCall] = asyncio.get_running_loop().create_future()

        def on_settled(call: TrackedCall) -> None:
            if not done.done():
                done.set_result(call)

        self._writer.append_tracked(payloads, on_settled, txids=txids, tag=_Tag(batch), is_whole=True)
        self._in_doubt = batch
        await self._writer.flush()
        call = await done
        if call.error is not None:
            raise call.error
        self._in_doubt = None
        (run,) = call.runs
        first = DLSN(run.lssn, run.entry_id, SlotId(run.first_slot))
        return first, DLSN(run.lssn, run.entry_id, SlotId(run.first_slot + run.records - 1))

    # --- The sink's node

    async def _load(self, batch: SinkBatch) -> StoredSink:
        """How far the sink came. From here on its node says that tags from our first segment on have to be read."""
        token = self._token()

        async def attempt(_: object) -> StoredSink:
            stored = await read_sink(self._context.store, self._paths, batch)
            if stored.state.token == token:
                return stored  # The answer that was lost was a yes.
            password = self._settings.password
            state = await caught_up(self._context, self._nodes, stored.state, batch.node, password)
            since = DLSN(self._writer.epoch, EntryId(0), SlotId(0))
            if stored.version is None:
                await make_folder(self._context.store, self._paths, self._paths.sinks)
            return await self._write(stored, replace(state, since=since, token=token))

        races = (VersionConflict, NodeExists, NoSuchNode)
        known = await settle(self._context.store, attempt, races=races, shown=f"sink {batch.sink!r}")
        self._sinks[batch.node] = known
        return known

    async def _write(self, stored: StoredSink, state: SinkState) -> StoredSink:
        (written,) = await self._nodes.same.transaction(stored.write(state))
        assert written is not None
        return StoredSink(stored.path, state, written.version)

    async def _note(self, sink: str, state: SinkState) -> None:
        """Have the node say what the entry says. If that fails, whoever comes next reads the entry."""
        known = self._sinks[sink]
        self._sinks[sink] = known._replace(state=state)
        try:
            self._sinks[sink] = await self._write(known, state)
        except QuireError as error:
            _log.warning("stream.sink_note_failed", stream=self._writer.stream, sink=sink, error=str(error))
            await self._refind(sink, encode_sink(state))

    async def _refind(self, sink: str, data: bytes) -> None:
        """The version of a node whose write failed. Where another client wrote it, its version must not serve us."""
        try:
            node = await self._context.store.get(self._sinks[sink].path)
        except QuireError:
            return
        if node.data == data:
            self._sinks[sink] = self._sinks[sink]._replace(version=node.stat.version)

    async def settle(self) -> None:
        """Nothing is appended any more, nor in doubt: nodes that tell everything need no tags to be read after them."""
        for sink, known in list(self._sinks.items()):
            await self._note(sink, replace(known.state, since=None, token=self._token()))

    def _token(self) -> str:
        return self._context.runtime.rng.bytes(_TOKEN_BYTES).hex()


@asynccontextmanager
async def open_inline_sink(context: StreamContext, stream: str, settings: StreamSettings) -> AsyncIterator[InlineSink]:
    """Own a stream for batches, for the block. Raises what opening a stream's writer raises."""
    async with open_stream_writer(context, stream, settings) as writer:
        sink = InlineSink(context, writer, settings)
        yield sink
        if not sink.is_over:
            await sink.settle()
