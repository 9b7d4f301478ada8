"""Archiving: completed segments are copied to cold storage, and later their ledgers may go.

    segments = await archivable_segments(context, "orders")              # needs the metadata
    cold = await archive_segment(context, "orders", segment, root)       # needs bookies and cold storage
    await publish_archived(context, "orders", cold)                      # needs the metadata
    await drop_hot(context, "orders", DropPolicy(older_than_s=86400))    # see `quire.stream.cold_moves`

The second step can be done in other processes, for many segments at once: what goes in and comes out can be pickled,
and until it is published a file means nothing to anybody. `archive_stream` does all of it here.

Invariants:
  WrittenOnce      a file gets a name of its own, and is never changed.
  SeenFirst        a segment is published after its file was read back.
  OneWins          of several who archive a segment one is published; the files of the others are deleted.
"""

import asyncio
import re
from collections import deque
from contextlib import aclosing
from typing import Final

from quire.codec.cold import ColdSegment
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import CONTROL, END_OF_STREAM
from quire.codec.stream_metadata.names import stream_name
from quire.codec.stream_metadata.segment import UNASSIGNED_LSSN, Segment
from quire.cold.parquet_rows import Rows
from quire.cold.parquet_writer import GROUP_BYTES, SegmentFile
from quire.cold.store import ColdStore
from quire.cold.stores import normal_root
from quire.errors import (
    ColdUnavailable,
    DamagedEntry,
    DamagedMetadata,
    InvalidArgument,
    NoSuchColdObject,
    NoSuchNode,
    NoSuchStream,
    QuireError,
)
from quire.stream.cold_nodes import RACES, ColdNodes, cold_names, read_cold
from quire.stream.cold_segments import discard_file, report_left
from quire.stream.context import StreamContext
from quire.stream.damage import place_of, unreadable
from quire.stream.nodes import StoredSegment, StreamNodes
from quire.stream.settings import StreamSettings
from quire.stream.settling import settle
from quire.types import DLSN, EntryId, Lssn, SlotId

_UNSEEN: Final = CONTROL | END_OF_STREAM
_DEFAULTS: Final = StreamSettings()
_OBJECT = re.compile("(.+)/seg-([0-9]{12,19})/[0-9a-f]{32}[.]parquet", re.ASCII)


async def archivable_segments(context: StreamContext, stream: str) -> list[Segment]:
    """Completed segments that are not archived yet, oldest first. Raises `NoSuchStream`, `DamagedMetadata`.

    Those that are truncated as a whole are left out, and those of the oldest format, which have no number.
    """
    paths = context.paths(stream_name(stream))
    nodes = StreamNodes(context.store, paths)
    archived = await cold_names(context.store, paths)
    return [
        stored.segment
        for stored in await nodes.all_segments()
        if stored.segment.completion is not None
        and stored.segment.lssn != UNASSIGNED_LSSN
        and not stored.segment.is_truncated
        and stored.segment.lssn not in archived
    ]


# --- The file


async def archive_segment(
    context: StreamContext,
    stream: str,
    segment: Segment,
    root: str,
    *,
    settings: StreamSettings = _DEFAULTS,
    group_bytes: int = GROUP_BYTES,
) -> ColdSegment:
    """Copy a completed segment to the cold storage at `root`, and read it back. Returns what `publish_archived` needs.

    Whatever this raises, nothing is archived: at most a file is left that nobody knows. Raises `DamagedEntry` if an
    entry cannot be read, `DamagedMetadata` if the ledger has other records than the segment says, `NoSuchLedger`,
    `ColdUnavailable`, `MissingExtra`, `InvalidUri`.
    """
    name, done = stream_name(stream), segment.completion
    if done is None or not segment.lssn:
        raise InvalidArgument(f"segment {segment.lssn} of stream {name!r} cannot be archived: it is not completed")
    store = context.cold.at(normal_root(root))
    await _check_known(context, name, store)
    object_name = _object_name(context, name, segment)
    file = SegmentFile(segment.lssn, stream=name, run=context.cold.run, group_bytes=group_bytes)
    try:
        entries = await _copy(context, name, segment, file, settings)
        if done.record_count and file.rows != done.record_count:  # Apache's writers need not count: then it is 0.
            raise DamagedMetadata(
                f"segment {segment.lssn} of stream {name!r} says that it has {done.record_count} records, but its "
                f"ledger has {file.rows}",
                stream=name,
                lssn=segment.lssn,
            )
        try:
            stored = await file.store(store, object_name, entries=entries)
        except QuireError:
            await discard_file(context, store.root, object_name)
            raise
    finally:
        file.close()
    return ColdSegment(segment, stored, context.runtime.clock.wall_ms())


async def _check_known(context: StreamContext, stream: str, store: ColdStore) -> None:
    """Raise `ColdUnavailable` if there is nothing of the stream where it was archived before: what is there is another
    folder, say since the right one is not mounted, and a file in it would be out of reach later.
    """
    paths = context.paths(stream)
    names = await cold_names(context.store, paths)
    if not names:
        return
    try:
        newest = (await read_cold(context.store, paths, names[max(names)])).cold
        file = newest.file
        if file.root == store.root and not newest.segment.is_truncated:  # Then a purge may have deleted it.
            await store.size(file.name)
    except NoSuchNode:
        pass  # Purged a moment ago.
    except NoSuchColdObject as error:
        raise ColdUnavailable(
            f"{store.root} has no file {file.name!r}, which stream {stream!r} was archived to before",
            hint="Look whether it is the right place, and mounted. If the file is lost, archive to another root.",
            stream=stream,
            object=file.name,
        ) from error


def _object_name(context: StreamContext, stream: str, segment: Segment) -> str:
    """Names of streams have no parts that a path could not have."""
    own = context.runtime.rng.uuid().hex
    return f"{objects_folder(context.path)}/{stream}/seg-{segment.lssn:012d}/{own}.parquet"


def objects_folder(namespace: str) -> str:
    """Where the files of a namespace are below a root. `namespace` is the path of its node."""
    return namespace.strip("/") or "namespace"


def object_segment(namespace: str, name: str) -> tuple[str, Lssn] | None:
    """The stream and the segment that a file was made for, by its name; None for what archiving would not write. A
    stream that was renamed since has files under its old name.
    """
    found = _OBJECT.fullmatch(name.removeprefix(f"{objects_folder(namespace)}/"))
    if found is None or not name.startswith(f"{objects_folder(namespace)}/"):
        return None
    return found[1], Lssn(int(found[2]))


async def _copy(
    context: StreamContext, stream: str, segment: Segment, file: SegmentFile, settings: StreamSettings
) -> int:
    """All records of a segment's ledger. Returns how many entries it has."""
    async with context.ledgers.open(segment.ledger_id, password=settings.password) as ledger:
        ledger.part_of = place_of(stream, segment.lssn)
        try:
            async with aclosing(ledger.read()) as entries:
                async for entry_id, payload in entries:
                    await file.add(_rows(segment, entry_id, payload))
        except DamagedEntry as error:
            at = error.facts.get("entry_id")
            place = DLSN(segment.lssn, EntryId(at if isinstance(at, int) else -1), SlotId(0))
            raise unreadable(stream, place, error) from error
        return ledger.last_add_confirmed + 1


def _rows(segment: Segment, entry_id: EntryId, payload: bytes) -> Rows:
    """What applications see of an entry."""
    records = decode_entry(payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped)
    seen = [record for record in records if not record.flags & _UNSEEN]
    return Rows(
        [entry_id] * len(seen),
        [record.slot_id for record in seen],
        [record.txid for record in seen],
        [record.payload for record in seen],
    )


# --- The metadata


async def publish_archived(context: StreamContext, stream: str, cold: ColdSegment) -> bool:
    """Record that a segment is archived; readers may be sent to the file from now on. May be called again.

    Returns False, and deletes the file, if the segment was purged meanwhile, is another one, or is archived elsewhere.
    Raises `MetadataOutcomeUnknown` if that could not be found out: publish it again. Raises `NoSuchStream`. If an
    answer was lost the file may have been published and the stream renamed after that: then it stays.
    """
    paths = context.paths(stream_name(stream))
    nodes = StreamNodes(context.store, paths)
    cold_nodes = ColdNodes(context.store, paths, nodes.same)

    lost_answer = False

    async def attempt(doubt: object) -> bool:
        nonlocal lost_answer
        lost_answer = doubt is not None
        name = (await cold_names(context.store, paths)).get(cold.lssn)
        if name is not None:
            return (await read_cold(context.store, paths, name)).cold.file == cold.file
        hot = await _hot(nodes, cold.segment)
        if hot is None:
            return False
        await cold_nodes.publish(hot, cold)
        return True

    shown = f"archived segments of stream {paths.stream!r}"
    try:
        is_ours = await settle(context.store, attempt, races=RACES, shown=shown)
    except NoSuchStream:
        await _discard(context, cold, lost_answer=lost_answer)
        raise
    if is_ours:
        context.metrics.archived_segments.add()
    else:
        await _discard(context, cold, lost_answer=lost_answer)
    return is_ours


async def _discard(context: StreamContext, cold: ColdSegment, *, lost_answer: bool) -> None:
    """Delete a file that was not published; unless it may be, for a stream that has another name by now."""
    if lost_answer:
        report_left(cold.file.root, cold.file.name, "an answer of the metadata store was lost")
    else:
        await discard_file(context, cold.file.root, cold.file.name)


async def _hot(nodes: StreamNodes, segment: Segment) -> StoredSegment | None:
    """The node of a segment, if it is still the one that was archived. It may have been truncated since."""
    stored = await nodes.numbered(segment.lssn)
    if stored is None or stored.segment.ledger_id != segment.ledger_id:
        return None
    return stored if stored.segment.completion == segment.completion else None


# --- All of it


async def archive_stream(
    context: StreamContext,
    stream: str,
    root: str,
    *,
    settings: StreamSettings = _DEFAULTS,
    at_once_max: int = 2,
    segments_max: int | None = None,
) -> list[ColdSegment]:
    """Archive all completed segments of a stream that are not archived yet, oldest first. Returns what was archived.

    Raises what `archive_segment` and `publish_archived` raise; what was published stays. If this is cancelled, a file
    may be left that nobody knows.
    """
    waiting = deque((await archivable_segments(context, stream))[:segments_max])
    archived: list[ColdSegment] = []

    async def work() -> None:
        while waiting:
            segment = waiting.popleft()
            try:
                cold = await archive_segment(context, stream, segment, root, settings=settings)
                if await publish_archived(context, stream, cold):
                    archived.append(cold)
            except BaseException:
                waiting.clear()  # Others finish what they have begun.
                raise

    tasks = [asyncio.create_task(work(), name=f"archive {stream}") for _ in range(max(1, at_once_max))]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        task.result()
    return sorted(archived, key=lambda cold: cold.lssn)
