"""How far a sink came in a stream: its node, and what entries tell that the node does not know yet.

A batch is recorded in one of two ways. Staged segments come into the stream in the transaction that writes the node.
An entry that is appended by a writer carries the batch's tag, and the node follows a moment later. So whoever wants to
know reads the node, and, if it has `since`, the tags from there on.

Invariants:
  OwnedSince   whoever asks whether a batch is there owns the stream, and has completed all segments: nothing can be
               appended behind its back. To note what completed segments tell, nobody has to own it.
  NeverBack    a tag of a batch that is known changes nothing. So `since` may be too low, but never too high.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.sink_tags import decode_sink_tag
from quire.codec.stream_metadata.segment import Segment, lssn_of_name
from quire.codec.stream_metadata.sinks import SinkBatch, SinkState, decode_sink, encode_sink, name_nodes
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import (
    DamagedMetadata,
    NoSuchLedger,
    NoSuchNode,
    NoSuchStream,
    PositionTruncated,
    QuireError,
    Unavailable,
    VersionConflict,
)
from quire.metadata import Create, MetadataStore, Set, Version
from quire.metadata.driver import Op
from quire.metadata.paths import join
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.same_stream import SameStream
from quire.telemetry.events import logger
from quire.types import DLSN, EntryId, Lssn, SlotId

_log = logger("stream")
_TOKEN_BYTES: Final = 8


class StoredSink(NamedTuple):
    """What a sink's node says, and the version to write against; None if there is no node."""

    path: str
    state: SinkState
    version: Version | None

    def write(self, state: SinkState) -> Op:
        data = encode_sink(state)
        return Create(self.path, data) if self.version is None else Set(self.path, data, self.version)


async def read_sink(store: MetadataStore, paths: StreamPaths, batch: SinkBatch) -> StoredSink:
    """Raises `DamagedMetadata`."""
    await store.sync()
    return await _read_at(store, join(paths.sinks, batch.node))


async def _read_at(store: MetadataStore, path: str) -> StoredSink:
    try:
        node = await store.get(path)
    except NoSuchNode:
        return StoredSink(path, SinkState(), None)
    try:
        return StoredSink(path, decode_sink(node.data), node.stat.version)
    except DamagedMetadata as error:
        raise DamagedMetadata(f"{path}: {error}", path=path) from error


async def known_names(store: MetadataStore, paths: StreamPaths, sink: str) -> frozenset[str]:
    """The digests of all names of a sink's batches that its nodes tell of. Raises `DamagedMetadata`."""
    await store.sync()
    try:
        names = set((await store.children(paths.sinks)).names)
    except NoSuchNode:
        return frozenset()
    found = [await _read_at(store, join(paths.sinks, name)) for name in sorted(names & set(name_nodes(sink)))]
    return frozenset(name for each in found for name in each.state.digests)


async def lowest_unsettled(store: MetadataStore, paths: StreamPaths) -> Lssn | None:
    """The first segment in which a sink may still have to look for tags; None if no sink has to.

    No owner of the stream makes it lower: a sink whose node tells everything begins anew behind all completed segments.
    Raises `DamagedMetadata`.
    """
    stored = [await _read_at(store, join(paths.sinks, name)) for name in await _sink_names(store, paths)]
    return min((each.state.since.lssn for each in stored if each.state.since is not None), default=None)


async def _sink_names(store: MetadataStore, paths: StreamPaths) -> tuple[str, ...]:
    await store.sync()
    try:
        return (await store.children(paths.sinks)).names
    except NoSuchNode:
        return ()


async def settle_sinks(context: StreamContext, same: SameStream, password: bytes, *, through: Lssn) -> None:
    """Before segments up to this one go: have the nodes of sinks tell what those segments do.

    Anybody may, whoever owns the stream: completed segments do not change any more, and `since` moves no further than
    to the first one that is not completed. A sink whose entries cannot be read stays as it is; raises `Unavailable`,
    and `NoSuchStream`.
    """
    paths, store = same.paths, same.store
    nodes = StreamNodes(store, paths, same)
    for name in await _sink_names(store, paths):
        stored = await _read_at(store, join(paths.sinks, name))
        since = stored.state.since
        if since is None or since.lssn > through:
            continue
        try:
            state, end = await caught_up_to(context, nodes, stored.state, since, name, password)
            if end > since:
                token = context.runtime.rng.bytes(_TOKEN_BYTES).hex()
                await same.transaction(stored.write(replace(state, since=end, token=token)))
        except (NoSuchStream, Unavailable):
            raise
        except (VersionConflict, NoSuchNode):
            continue  # The sink itself is at it.
        except QuireError as error:
            _log.warning("stream.sink_unsettled", stream=paths.stream, sink=name, error=str(error))


async def caught_up(
    context: StreamContext, nodes: StreamNodes, state: SinkState, node: str, password: bytes
) -> SinkState:
    """The state of a sink's node with what entries tell from `since` on. Where everything is known, as it is."""
    if state.since is None:
        return state
    return (await caught_up_to(context, nodes, state, state.since, node, password))[0]


async def caught_up_to(
    context: StreamContext, nodes: StreamNodes, state: SinkState, since: DLSN, node: str, password: bytes
) -> tuple[SinkState, DLSN]:
    """The same, and the place behind all completed segments from which on tags may come that were not read."""
    lssns = {name: lssn_of_name(name) or Lssn(0) for name in await nodes.segment_names()}
    if lssns and min(lssns.values()) > since.lssn:
        raise _purged(nodes, since)  # Batches may have been in it that nobody knows of.
    wanted = {name: lssn for name, lssn in lssns.items() if lssn >= since.lssn}
    completed: set[Lssn] = set()
    for stored in await nodes.segments(wanted):
        try:
            for tag, first, last in await _tags(context, stored.segment, since, password):
                if tag.node == node and not state.tells_of(tag):
                    state = state.after(tag, first=first, last=last, since=since, token=state.token)
        except NoSuchLedger as error:
            raise _purged(nodes, since) from error
        if stored.segment.completion is not None:
            completed.add(stored.segment.lssn)
    end = since
    for lssn in sorted(wanted.values()):
        if lssn not in completed:
            break
        end = DLSN(Lssn(lssn + 1), EntryId(0), SlotId(0))
    return state, end


async def _tags(
    context: StreamContext, segment: Segment, since: DLSN, password: bytes
) -> list[tuple[SinkBatch, DLSN, DLSN]]:
    """The batches that entries of a segment tell of, with the places of their first and last records."""
    found: list[tuple[SinkBatch, DLSN, DLSN]] = []
    if segment.completion is None or segment.completion.last_dlsn < since:
        return found
    begin = since.entry_id if segment.lssn == since.lssn else 0
    async with context.ledgers.open(segment.ledger_id, password=password) as ledger:
        async for entry_id, payload in ledger.read(max(0, begin), None):
            records = decode_entry(
                payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped, expand_sets=False
            )
            # A batch is an entry of its own, but for control records that others may have put before it.
            for record in records:
                tag = decode_sink_tag(record.payload) if record.is_control else None
                if tag is not None:
                    found.append((tag, record.dlsn.next_slot(), records[-1].dlsn))
    return found


def _purged(nodes: StreamNodes, since: DLSN) -> PositionTruncated:
    return PositionTruncated(
        f"which batches are in stream {nodes.paths.stream!r} cannot be told: entries from "
        f"{DLSN(since.lssn, since.entry_id, SlotId(0))} on were purged before the sink looked at them",
        hint="Begin with a new `sinkId` and checkpoint, behind the records that are known to be there.",
        stream=nodes.paths.stream,
    )
