"""What of which segments a query reads, cut into pieces for its tasks. Runs where Spark plans the query.

The end is found once, so that everybody reads the same rows: tasks, those that are tried again, and those that are run
twice to be faster. A piece names entries of a segment by numbers that never change. Where those are by then, on bookies
or in cold storage, is looked up by whoever reads it.

Few large partitions are better than many small ones: each costs Spark some milliseconds. So large segments are cut by
entries, and small ones share a partition.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from quire.codec.cold import ColdSegment
from quire.codec.stream_metadata.segment import Segment
from quire.errors import NoSuchLedger, NoSuchStream, PositionTruncated
from quire.stream.context import StreamContext
from quire.stream.namespace import Namespace
from quire.stream.segment_index import SegmentIndex
from quire.stream.settings import StreamSettings
from quire.stream.start import Places, Start, position_in_future
from quire.stream.truncation import first_place, position_truncated
from quire.types import DLSN, EntryId, LedgerState, Lssn, SlotId

T = TypeVar("T")
R = TypeVar("R")

PARTITION_BYTES: Final = 64 << 20  # About a second of work.

_PARTITION_BYTES_MIN: Final = 16 << 20
_TRUNCATED_HINT: Final = (
    "Begin elsewhere, as at start=earliest, or set failOnDataLoss=false to go on with what is left."
)
_LOOKS_MAX: Final = 64  # Segments that are looked at together.
_STREAMS_MAX: Final = 16  # And streams.
_MOVES_MAX: Final = 10  # How often a segment may move between bookies and cold storage while it is looked at.
_SLACK: Final = 1.5  # A piece may be so much larger than asked for before it is cut.


@dataclass(frozen=True)
class Piece:
    """Entries of one segment, from `begin` to before `end`."""

    stream: str
    lssn: Lssn
    begin: DLSN
    end: DLSN
    size_bytes: int
    identity: str | None = None  # Of the stream that was planned: tasks read no other one of its name.

    @property
    def first_entry(self) -> EntryId:
        return self.begin.entry_id

    @property
    def last_entry(self) -> EntryId:
        """The last entry of which something is read."""
        return EntryId(self.end.entry_id - (self.end.slot_id <= 0))

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1

    def cut(self, parts: int) -> list["Piece"]:
        """The same in `parts` of as many entries each."""
        count, pieces, begin = self.entries, [], self.begin
        for part in range(1, min(parts, count) + 1):
            entry = EntryId(self.first_entry + count * part // min(parts, count))
            end = self.end if part == min(parts, count) else DLSN(self.lssn, entry, SlotId(0))
            size = self.size_bytes * (entry - begin.entry_id) // count
            pieces.append(replace(self, begin=begin, end=end, size_bytes=size))
            begin = end
        return pieces


class Extent(NamedTuple):
    """What is known of the size of a segment."""

    entries: int
    size_bytes: int


class StreamPlan:
    """One stream, as planning looks at it."""

    def __init__(
        self, context: StreamContext, stream: str, settings: StreamSettings, identity: str | None = None
    ) -> None:
        self.context, self.stream, self.settings = context, stream, settings
        self.index = SegmentIndex(
            context.store,
            context.paths(stream),
            context.runtime.clock,
            timeout_s=settings.call_timeout_s,
            identity=identity,
        )
        self.places = Places(context, stream, self.index, settings)

    @classmethod
    async def of(cls, namespace: Namespace, stream: str, identity: str | None = None) -> "StreamPlan":
        """With `identity`, of that stream only. Raises `NoSuchStream`, `DamagedMetadata`."""
        plan = cls(namespace.context, stream, namespace.settings_for(stream), identity)
        await plan.index.refresh()
        return plan

    async def find(self, start: Start, *, skip_truncated: bool) -> DLSN:
        """Raises `PositionTruncated`, `PositionInFuture`."""
        try:
            return await self.places.find(start, skip_truncated=skip_truncated)
        except PositionTruncated as error:
            raise PositionTruncated(str(error), hint=_TRUNCATED_HINT, **error.facts) from error

    async def check_reached(self, place: DLSN) -> None:
        """Raise `PositionInFuture` if nothing can have been read up to `place`: its segment has ended before it.

        One that is being written may well have come further than can be seen from here.
        """
        segment = await self.index.segment(place.lssn) if place.lssn in self.index else None
        done = None if segment is None else segment.completion
        if done is None or place.entry_id <= done.last_dlsn.entry_id + 1:
            return  # Control records may follow the last record, so beyond that the ledger has to tell.
        extent = await self._extent(place.lssn, place)
        if extent is not None and place.entry_id > extent.entries:
            raise position_in_future(self.stream, place, f"its segment has ended, with {extent.entries} entries")

    async def pieces(self, begin: DLSN, end: DLSN, *, skip_truncated: bool) -> list[Piece]:
        """Everything from `begin`, which was found before, to before `end`: a piece for each segment.

        Raises `PositionTruncated` if a segment between has gone since, unless it is to be left out.
        """
        if begin >= end:
            return []
        first, last = self.index.first, self.index.last
        if first is None or last is None or begin.lssn < first:
            # The index is newer than `begin`: purged, unless that was before the first segment that ever was.
            begin = await self.places.admit(begin, skip_truncated=skip_truncated)
            first, last = self.index.first, self.index.last
        if first is None or last is None or begin >= end:
            return []
        lssns = range(max(begin.lssn, first), min(end.lssn, last) + 1)
        pieces: list[Piece] = []
        for at in range(0, len(lssns), _LOOKS_MAX):
            looks = (self._piece(Lssn(lssn), begin, end, skip_truncated) for lssn in lssns[at : at + _LOOKS_MAX])
            pieces += [piece for piece in await asyncio.gather(*looks) if piece is not None]
        return pieces

    async def _piece(self, lssn: Lssn, begin: DLSN, end: DLSN, skip_truncated: bool) -> Piece | None:
        extent, segment = await self._extent(lssn, end), await self.index.segment(lssn)
        first = max(first_place(lssn), begin)
        if segment is None or extent is None or segment.is_truncated:
            if skip_truncated or first >= end:
                return None
            raise position_truncated(self.stream, first, await self.places.earliest())
        if segment.is_partially_truncated:
            first = max(first, segment.min_active)
        stop = min(end, DLSN(lssn, EntryId(extent.entries), SlotId(0)))
        piece = Piece(self.stream, lssn, first, stop, 0, self.index.same.identity)
        if first >= stop or piece.entries <= 0:
            return None
        return replace(piece, size_bytes=extent.size_bytes * piece.entries // max(1, extent.entries))

    async def _extent(self, lssn: Lssn, end: DLSN) -> Extent | None:
        """How large a segment is. One that is being written is as large as it was when `end` was found; one that is
        gone has no size.
        """
        for _ in range(_MOVES_MAX):
            found = await self.index.located(lssn)
            if found is None:
                return None
            if isinstance(found, ColdSegment):
                return Extent(found.file.entries, found.file.size_bytes)
            try:
                stored = (await self.context.ledgers.ledgers_metadata.read(found.ledger_id)).metadata
            except NoSuchLedger:
                if found.completion is None:
                    return Extent(0, 0)  # Nothing was in it: it may be begun anew.
                await self.index.refresh()  # It is cold by now, or purged.
                continue
            if stored.state is LedgerState.CLOSED:
                return Extent(stored.last_entry_id + 1, stored.length)
            entries = end.entry_id + (end.slot_id > 0) if end.lssn == lssn else 0
            try:
                return Extent(entries, await self._written_bytes(found, entries) if entries else 0)
            except NoSuchLedger:
                await self.index.refresh()  # The same, since it was looked at.
        return None

    async def _written_bytes(self, segment: Segment, entries: int) -> int:
        async with self.context.ledgers.open(
            segment.ledger_id, password=self.settings.password, recover=False
        ) as ledger:
            return (await ledger.read_entry(EntryId(entries - 1))).length


async def for_each(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """What `work` gives for each, some of them at a time. The first error ends it."""
    turns = asyncio.Semaphore(_STREAMS_MAX)

    async def in_turn(item: T) -> R:
        async with turns:
            return await work(item)

    tasks = [asyncio.create_task(in_turn(item)) for item in items]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- Names


def pattern_of(name: str) -> re.Pattern[str]:
    """What a name stands for: `*` is any characters, also slashes."""
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)


async def matching(namespace: Namespace, names: Sequence[str]) -> list[str]:
    """The streams that names and patterns stand for, each once, in the order of the names."""
    found: dict[str, None] = {}
    for name in names:
        if "*" not in name:
            found[name] = None
            continue
        is_match = pattern_of(name).fullmatch
        found.update(dict.fromkeys(filter(is_match, await namespace.list_streams(name.partition("*")[0]))))
    return list(found)


async def matching_some(namespace: Namespace, names: Sequence[str]) -> list[str]:
    """The same. Raises `NoSuchStream` if there is none at all."""
    found = await matching(namespace, names)
    if not found:
        raise NoSuchStream(
            f"no stream of {namespace.uri} is called {', '.join(names)}",
            hint="See which there are with `quire stream list`.",
        )
    return found


# --- Partitions


@dataclass(frozen=True)
class Partitioning:
    """How large partitions are. Without a minimum of them there are as many as this machine has cores, if that leaves
    each enough to do: on a laptop those are the cores of the workers, too.
    """

    size_bytes: int = PARTITION_BYTES
    partitions_min: int | None = None

    def target_bytes(self, total_bytes: int) -> int:
        share = -(-total_bytes // (self.partitions_min or os.cpu_count() or 1))
        floor = 1 if self.partitions_min else _PARTITION_BYTES_MIN
        return min(self.size_bytes, max(floor, share))


def partitioned(pieces: Iterable[Piece], partitioning: Partitioning) -> list[list[Piece]]:
    """Pieces of about that size for each task, in order: large ones cut, small ones together."""
    wanted = list(pieces)
    target = partitioning.target_bytes(sum(piece.size_bytes for piece in wanted))
    groups: list[list[Piece]] = []
    room = 0
    for piece in wanted:
        parts = 1 if piece.size_bytes <= target * _SLACK else -(-piece.size_bytes // target)
        for part in piece.cut(parts):
            if not groups or part.size_bytes > room:
                groups.append([])
                room = target
            groups[-1].append(part)
            room -= part.size_bytes
    return groups
