"""Ledgers that are written beside a stream, to become segments of it all at once, or to go without a trace.

    async with stage(context, "orders", settings, batch) as staging:
        await staging.append_many(payloads, txids)
    staging.segment              a small value that any process may publish: see `quire.stream.staging_commit`
    await discard(context, "orders", [staging.segment.node])       or delete it

Any number of writers stage at the same time, without the stream's lock. A node beside the stream names each ledger
before it exists, so that none is lost: a sweep finds what nobody came for.

Invariants:
  NamedFirst        a staged ledger is created after the node that names it, under the id that the node has.
  DoomedFirst       a staged ledger is deleted only after its node was marked. Whoever publishes it deletes the node in
                    the version that it read unmarked: so a ledger is published or deleted, never both.
  SealedAsItIs      what `segment` says counts acknowledged entries only, and the ledger is sealed behind them.
"""

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple, TypeVar

from google_crc32c import extend as extend_crc

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import POSITION_MAX, RECORD_HEADER_BYTES
from quire.codec.stream.records import encode_records
from quire.codec.stream.restamping import restamped
from quire.codec.stream_metadata.sinks import SinkBatch, StagedNode, decode_staged, encode_staged
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import (
    DamagedEntry,
    InvalidArgument,
    LedgerExists,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
    NoSuchStream,
    QuireError,
    StagedGone,
    TxidOutOfOrder,
    VersionConflict,
)
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import Create, MetadataStore, Version
from quire.metadata.paths import join
from quire.stream.append_rules import check_txids, checked_records
from quire.stream.context import StreamContext
from quire.stream.same_stream import missing
from quire.stream.segments import Written
from quire.stream.settings import StreamSettings
from quire.stream.settling import settle
from quire.telemetry.events import logger
from quire.types import EntryId, LedgerId, SlotId

T = TypeVar("T")
R = TypeVar("R")

_log = logger("stream")
_RANDOM_BYTES: Final = 16
_AT_ONCE: Final = 64  # Staged ledgers that are looked at, or deleted, together: there may be thousands.

STAGED_TTL_S: Final = 86_400.0
"""How old a staged ledger is before nobody is expected to come for it, unless something else is said."""


class StagedSegment(NamedTuple):
    """A sealed ledger with records in it that is no segment yet. A plain value: it may go to another process."""

    node: str  # The name of the node that keeps it from being lost.
    ledger: int
    records: int
    bytes: int  # Of records with their headers.
    first_txid: int
    last_txid: int
    last_entry: int
    last_slot: int
    crc: int  # CRC-32C of all entries, one after the other.

    @property
    def written(self) -> Written:
        last = EntryId(self.last_entry), SlotId(self.last_slot)
        return Written(LedgerId(self.ledger), self.first_txid, self.last_txid, self.records, *last)


class Staging:
    """A staged ledger while it is written."""

    def __init__(self, stream: str, node: str, ledger: LedgerWriter, settings: StreamSettings) -> None:
        self._stream, self._node, self._ledger, self._settings = stream, node, ledger, settings
        self.position = 0  # Of the last record.
        self._bytes = self._crc = 0
        self._first_txid = self._last_txid = -1
        self._last_slot = -1
        self._is_sealed = False

    @property
    def entry_bytes(self) -> int:
        """How many bytes of records an entry should have."""
        return self._settings.entry_bytes

    @property
    def segment(self) -> StagedSegment | None:
        """What was staged, once the block has ended; None if that is nothing."""
        if not self._is_sealed or not self.position:
            return None
        return StagedSegment(
            self._node,
            self._ledger.id,
            self.position,
            self._bytes,
            self._first_txid,
            self._last_txid,
            self._ledger.last_add_confirmed,
            self._last_slot,
            self._crc,
        )

    async def append_many(self, payloads: Sequence[bytes], txids: Sequence[int]) -> None:
        """Append records behind those before, in as many entries as they need. Raises as a stream's writer does."""
        records = checked_records(payloads)
        if len(txids) != len(records):
            raise InvalidArgument(f"{len(records)} records have {len(txids)} txids", hint="Give one for each.")
        if not records:
            return
        check_txids(self._stream, txids, last_txid=max(0, self._last_txid))
        begin = size_bytes = 0
        for end, payload in enumerate(records):
            size = RECORD_HEADER_BYTES + len(payload)
            if size_bytes and size_bytes + size > self.entry_bytes:
                await self._append(records[begin:end], txids[begin:end])
                begin, size_bytes = end, 0
            size_bytes += size
        await self._append(records[begin:], txids[begin:])

    async def _append(self, records: Sequence[bytes], txids: Sequence[int]) -> None:
        run = encode_records(records, txids, position=self.position + 1)
        await self.append_run(run, len(records), first_txid=txids[0], last_txid=txids[-1])

    async def append_run(self, run: bytes | memoryview, records: int, *, first_txid: int, last_txid: int) -> None:
        """Append one entry of encoded records, whose positions follow `position`. They are sent when this returns."""
        if first_txid < self._last_txid:
            raise TxidOutOfOrder(
                f"txid {first_txid} comes behind {self._last_txid} in a staged segment of stream {self._stream!r}",
                stream=self._stream,
                txid=first_txid,
                last_txid=self._last_txid,
            )
        if self.position + records > POSITION_MAX:
            raise InvalidArgument(
                f"a segment takes {POSITION_MAX} records at most", hint="Use more partitions: each becomes a segment."
            )
        entry = encode_entry([run], compression=self._settings.codec)
        await self._ledger.enqueue([entry])
        if not self.position:
            self._first_txid = first_txid
        self.position, self._last_txid, self._last_slot = self.position + records, last_txid, records - 1
        self._bytes += len(run)
        self._crc = extend_crc(self._crc, entry)

    def on_sealed(self) -> None:
        self._is_sealed = True


@asynccontextmanager
async def stage(
    context: StreamContext, stream: str, settings: StreamSettings, batch: SinkBatch
) -> AsyncIterator[Staging]:
    """A new staged ledger, for the block; sealed when it ends, and deleted if that fails, or the block does.

    Raises `NoSuchStream`, `NotEnoughBookies`, `StagedGone` if somebody discards it meanwhile, and what appending to a
    ledger raises. Whatever happens, nothing of the stream has changed.
    """
    paths = context.paths(stream)
    name = f"{batch.staged_prefix}{context.runtime.rng.bytes(_RANDOM_BYTES).hex()}"
    try:
        async with AsyncExitStack() as resources:
            ledger = await _create(context, resources, paths, name, settings, batch)
            staging = Staging(stream, name, ledger, settings)
            yield staging
            await ledger.close()
        if staging.position:
            staging.on_sealed()
        else:
            await discard(context, stream, [name])
    except LedgerExists:  # Somebody chose this id by hand: the ledger is not ours, and must not go with the node.
        await settle_gone(context.store, join(paths.staged, name))
        raise
    except NoSuchStream:
        raise
    except NoSuchLedger as error:  # Somebody else discarded this one, or the one that it is copied from.
        await discard_quietly(context, stream, [name])
        raise gone(paths, name) from error
    except (Exception, asyncio.CancelledError):
        await discard_quietly(context, stream, [name])
        raise


async def _create(
    context: StreamContext,
    resources: AsyncExitStack,
    paths: StreamPaths,
    name: str,
    settings: StreamSettings,
    batch: SinkBatch,
) -> LedgerWriter:
    """The node, then the ledger. A sweep may come in between: then the ledger would be nobody's, and goes again."""
    ledger_id = await context.ledgers.ledgers_metadata.new_id()
    node = StagedNode(ledger_id, batch.sink, context.runtime.clock.wall_ms())
    await _announce(context.store, paths, name, encode_staged(node))
    creating = context.ledgers.create(
        ensemble=settings.ensemble,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        digest=settings.digest,
        password=settings.password,
        ledger_id=ledger_id,
    )
    ledger = await resources.enter_async_context(creating)
    if await read_staged(context.store, paths, name) is None:
        await context.ledgers.delete(ledger_id)
        raise gone(paths, name)
    return ledger


async def read_staged(store: MetadataStore, paths: StreamPaths, name: str) -> tuple[StagedNode, Version] | None:
    """A node whose ledger may be published, and its version; None if it is gone, or about to go."""
    await store.sync()
    try:
        node = await store.get(join(paths.staged, name))
    except NoSuchNode:
        return None
    staged = decode_staged(node.data)
    return None if staged.doomed else (staged, node.stat.version)


async def _announce(store: MetadataStore, paths: StreamPaths, name: str, data: bytes) -> None:
    path = join(paths.staged, name)

    async def attempt(doubt: object) -> None:
        if doubt is not None and await store.exists(path) is not None:
            return  # Nobody else has this name.
        try:
            await store.create(path, data)
        except NoSuchNode:
            await make_folder(store, paths, paths.staged)
            await store.create(path, data)

    await settle(store, attempt, races=(NoSuchNode,), shown=f"a staged ledger of stream {paths.stream!r}")


async def make_folder(store: MetadataStore, paths: StreamPaths, folder: str) -> None:
    """A node that other nodes of a stream are below. Raises `NoSuchStream`: nothing is left of one that is deleted."""
    try:
        await store.transaction(Create(folder))
    except NodeExists:
        pass
    except NoSuchNode as error:
        raise missing(paths.stream) from error


def gone(paths: StreamPaths, name: str) -> StagedGone:
    """The error for a staged ledger that somebody deleted."""
    return StagedGone(f"staged ledger {name} of stream {paths.stream!r} was deleted", stream=paths.stream, node=name)


async def restage(
    context: StreamContext,
    stream: str,
    settings: StreamSettings,
    batch: SinkBatch,
    staged: Sequence[StagedSegment],
    txid: int | None,
) -> StagedSegment:
    """The records of staged ledgers, one ledger after the other, in a new one: all with this txid, or with their own.
    The ledgers that they are copied from stay as they are.
    """
    async with stage(context, stream, settings, batch) as staging:
        for each in staged:
            async with context.ledgers.open(each.ledger, password=settings.password) as ledger:
                async for _, payload in ledger.read():
                    run, records, first, last = restamped(bytes(payload), position=staging.position + 1, txid=txid)
                    await staging.append_run(run, records, first_txid=first, last_txid=last)
    segment, records = staging.segment, sum(each.records for each in staged)
    if segment is None or segment.records != records:
        shown = ", ".join(str(each.ledger) for each in staged)
        raise DamagedEntry(f"staged ledgers {shown} do not have the {records} records that they had")
    return segment


# --- Letting go of them


async def discard(context: StreamContext, stream: str, names: Iterable[str], *, sink: str | None = None) -> int:
    """Delete staged ledgers, unless they are published. With `sink`, only that sink's. Returns how many went.

    Fine if they are gone. Raises what the metadata store raises; then a sweep finds what is left.
    """
    paths, store = context.paths(stream), context.store

    async def attempt(path: str, _: object) -> bool:
        try:
            node = await store.get(path)
        except NoSuchNode:
            return False  # Published, or deleted.
        staged, version = decode_staged(node.data), node.stat.version
        if sink is not None and staged.sink != sink:
            return False
        if not staged.doomed:
            doomed = encode_staged(StagedNode(staged.ledger, staged.sink, staged.at_ms, doomed=True))
            version = (await store.set(path, doomed, expected=version)).version
        await context.ledgers.delete(staged.ledger)
        await store.delete(path, expected=version)
        return True

    async def discarded(name: str) -> bool:
        attempting = functools.partial(attempt, join(paths.staged, name))
        return await settle(store, attempting, races=(VersionConflict, NoSuchNode), shown=f"staged ledger {name}")

    return sum(await some_at_once(discarded, names))


async def some_at_once(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """What `work` gives for each item. All that was begun has ended when this returns, or raises the first error."""
    found: list[R] = []
    rest = iter(items)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        done = await asyncio.gather(*map(work, some), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
            found.append(each)
    return found


async def sweep(context: StreamContext, stream: str, *, older_than_s: float) -> int:
    """Delete staged ledgers that nobody came for, and those of which somebody began to. Returns how many went.

    The time is that of the clocks of those who staged them. It decides what is given up, never what is published.
    """
    paths, before_ms = context.paths(stream), context.runtime.clock.wall_ms() - round(older_than_s * 1000)
    old: list[str] = []
    for name in await staged_names(context.store, paths):
        try:
            staged = decode_staged((await context.store.get(join(paths.staged, name))).data)
        except NoSuchNode:
            continue
        if staged.doomed or staged.at_ms <= before_ms:
            old.append(name)
    return await discard(context, stream, old)


async def staged_names(store: MetadataStore, paths: StreamPaths) -> tuple[str, ...]:
    await store.sync()
    try:
        return (await store.children(paths.staged)).names
    except NoSuchNode:
        return ()


async def settle_gone(store: MetadataStore, path: str) -> None:
    """Delete a node, whatever it holds."""

    async def attempt(_: object) -> None:
        try:
            await store.delete(path, expected=(await store.get(path)).stat.version)
        except NoSuchNode:
            pass

    await settle(store, attempt, races=(VersionConflict,), shown=path)


async def discard_quietly(context: StreamContext, stream: str, names: Sequence[str]) -> None:
    """The same where an error is under way: what cannot be deleted now a sweep finds."""
    try:
        await discard(context, stream, names)
    except QuireError as error:
        _log.warning("stream.staged_left", stream=stream, nodes=" ".join(names), error=str(error))
