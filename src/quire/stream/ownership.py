"""Becoming the writer of a stream, and remaining it.

The lock comes first: it keeps two writers from shutting each other out again and again. Then the stream's nodes are
read, and every segment in progress is recovered, which fences whoever wrote it. From there on the versions of these
nodes and the fences are what counts: a writer that lost its lock without knowing can do no harm.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream_metadata.names import stream_name
from quire.errors import (
    LockLost,
    MetadataUnavailable,
    QuireError,
    SessionExpired,
    StreamSealed,
    Unavailable,
    WriterFenced,
)
from quire.ledger.deadlines import Deadline
from quire.metadata import HeldLock
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.lock import hold_stream_lock
from quire.stream.nodes import StreamNodes
from quire.stream.segments import StreamSegments
from quire.stream.settings import StreamSettings
from quire.stream.writer import StreamWriter
from quire.telemetry.events import logger

_log = logger("stream")
_RETRY_S: Final = 1.0
_RACE_S: Final = 0.05


@asynccontextmanager
async def open_stream_writer(
    context: StreamContext, stream: str, settings: StreamSettings, *, sample: Callable[[], StreamSettings] | None = None
) -> AsyncIterator[StreamWriter]:
    """The writer of a stream, for the block. Its segment is completed when the block ends.

    `sample` gives the settings anew for each segment, where they may change. Raises `StreamOwned` if another client
    does not give up the stream within `lock_timeout_s`, `StreamSealed`, `NoSuchStream` unless it may be created,
    `InvalidName`, `RecoveryFailed` and the like if the last writer's segment cannot be recovered.
    """
    paths = context.paths(stream_name(stream))
    nodes = StreamNodes(context.store, paths)
    deadline = Deadline(settings.call_timeout_s + (settings.lock_timeout_s if settings.write_lock else 0))

    def late() -> QuireError:
        return MetadataUnavailable(
            f"the writer of stream {paths.stream!r} was not open within {deadline.timeout_s:g} s",
            hint="Check that metadata store and bookies can be reached, then open it again.",
            stream=paths.stream,
        )

    async with AsyncExitStack() as resources:
        async with deadline.or_raise(late):
            if settings.create_if_missing and await context.store.exists(paths.allocation) is None:
                await create_stream(context.store, paths, context.runtime.rng)
            lock = await _take_lock(context, resources, paths.stream, settings) if settings.write_lock else None
            segments, last_txid = await _take_over(context, nodes, settings, lock)
            if last_txid == TXID_MAX:
                raise StreamSealed(f"stream {paths.stream!r} has ended", stream=paths.stream)
        writer = StreamWriter(context, segments, sample or (lambda: settings), last_txid)
        keeping = None
        if lock is not None:
            keeping = asyncio.create_task(_keep_lock(context, resources, writer, lock, settings), name="keep the lock")
        drain = False
        try:
            with context.metrics.open(context.metrics.writers):
                yield writer
            drain = True
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.wait([keeping])
            await _close(writer, drain=drain)


class Taken(NamedTuple):
    """A stream that was taken over. One that has ended takes nothing more, but may be looked at."""

    segments: StreamSegments
    is_sealed: bool


@asynccontextmanager
async def own_stream(
    context: StreamContext, stream: str, settings: StreamSettings
) -> AsyncIterator[Callable[[], Awaitable[Taken]]]:
    """Own a stream as its writer does, without writing to it. What is yielded takes it over, and may be called again
    after `WriterFenced`: whoever wrote before is shut out, and what it left is completed.

    Raises what `open_stream_writer` raises, but for `StreamSealed`. How long the block takes is for the caller to say.
    """
    paths = context.paths(stream_name(stream))
    async with AsyncExitStack() as resources:
        lock = await _take_lock(context, resources, paths.stream, settings) if settings.write_lock else None

        async def take_over() -> Taken:
            segments, last_txid = await _take_over(context, StreamNodes(context.store, paths), settings, lock)
            return Taken(segments, last_txid == TXID_MAX)

        yield take_over


async def _close(writer: StreamWriter, *, drain: bool) -> None:
    """Wait until the writer is closed, also if we are cancelled meanwhile: it needs what is let go of after it."""
    cancelled: asyncio.CancelledError | None = None
    while not writer.is_closed:
        try:
            await writer.aclose(drain=drain)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _take_over(
    context: StreamContext, nodes: StreamNodes, settings: StreamSettings, lock: HeldLock | None
) -> tuple[StreamSegments, int]:
    """Become the writer: fence the one before, and complete what it left. Returns the highest txid, too.

    Raises `LockLost`, or without a lock `WriterFenced`, if another client may have become the owner meanwhile: to claim
    the stream again would shut that one out.
    """
    clock = context.runtime.clock
    while True:
        segments = StreamSegments(context, await nodes.guarded(clock, timeout_s=settings.call_timeout_s))
        try:
            return segments, await segments.recover(settings.password, lock)
        except WriterFenced:
            if lock is None:
                raise
            await lock.prove(context.store)  # Still ours: the last owner changed segments just now.
            await clock.sleep(_RACE_S)


async def _take_lock(
    context: StreamContext, resources: AsyncExitStack, stream: str, settings: StreamSettings, *, wait: bool = True
) -> HeldLock:
    return await resources.enter_async_context(
        hold_stream_lock(
            context,
            context.paths(stream).lock,
            timeout_s=settings.lock_timeout_s if wait else 0,
            shown=f"stream {stream!r}",
        )
    )


async def _keep_lock(
    context: StreamContext, resources: AsyncExitStack, writer: StreamWriter, lock: HeldLock, settings: StreamSettings
) -> None:
    """Take the lock again when it is lost with its session. If somebody else has it by then, the writer is over."""
    while True:
        await lock.wait_lost()
        context.metrics.lost_locks.add()
        _log.warning("stream.lock_lost", stream=writer.stream)
        while lock.lost:
            try:
                lock = await _take_lock(context, resources, writer.stream, settings, wait=False)
            except (SessionExpired, LockLost, Unavailable):
                await context.runtime.clock.sleep(_RETRY_S)
            except QuireError as error:  # Somebody else has it, or the stream is gone.
                writer.on_lock_taken(error)
                return
