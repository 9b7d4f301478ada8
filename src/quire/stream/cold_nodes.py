"""A stream's archived segments in the metadata store, and the transactions that move segments between hot and cold.

    publish   a file is there: the segment is hot and cold
    drop      the segment's own node goes, its ledger after that: it is cold only
    restore   a new ledger has all that the file has: it is hot and cold again
    forget    neither node is left

Invariants:
  NeverNowhere   from its completion until it is purged a segment has its own node, or a cold one that says that it is
                 not hot: one transaction changes both.
  HotIsAChain    what is hot is always the end of the chain, without gaps: whoever does not know of cold segments sees a
                 stream that begins later. So segments are dropped oldest first, and restored newest first, and each
                 transaction makes sure that the neighbour is still where it was.
  PurgedIsGone   a cold node that says that its segment is hot counts for nothing without the segment's own node. That
                 was purged by somebody who knows nothing of cold segments, and what is before it went with it. The same
                 is true if the segment right before the first hot one was not archived, and is not there. It is for
                 ever: nobody restores such a segment, and its node goes before one behind it is dropped.
  HiddenBefore   if the first hot segment is truncated, in part or as a whole, then so is all before it. Whoever knows
                 nothing of cold segments truncates what is hot only. It is written down in the cold nodes before that
                 segment becomes a cold one.
  SeenTwice      that a segment is purged is concluded only if its cold node, which says that it is hot, is the same
                 before and after a listing without it: otherwise it may have moved there and back.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from quire.codec.cold import ColdSegment, decode_cold, encode_cold
from quire.codec.stream_metadata.segment import Segment, encode_segment, lssn_of_name, segment_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import DamagedMetadata, MetadataUnavailable, NodeExists, NoSuchNode, VersionConflict
from quire.metadata import ANY_VERSION, Create, Delete, MetadataStore, Set, Version
from quire.metadata.driver import Check, Op
from quire.stream.nodes import StoredSegment, StreamNodes
from quire.stream.same_stream import SameStream
from quire.types import LedgerId, Lssn
from quire.values import dataclass

CHANGES_MAX: Final = 25  # Of one transaction, two operations each: some stores take no more than about a hundred.
_READS_MAX: Final = 64  # Nodes that are asked for at once.
_RACES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class StoredCold:
    """An archived segment as it was read, and the version to write against."""

    name: str
    cold: ColdSegment
    version: Version
    is_unsaid: bool = False  # It is truncated, though its node does not say so: see HiddenBefore.


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment of a stream, and where it is: hot, cold, or both."""

    hot: StoredSegment | None
    cold: StoredCold | None

    @property
    def stored(self) -> StoredSegment:
        """What counts: the segment's own node while it is there."""
        if self.hot is not None:
            return self.hot
        assert self.cold is not None
        return StoredSegment(self.cold.name, self.cold.cold.segment, self.cold.version)


def hides_all_before(first_hot: Segment) -> bool:
    """Whether the first hot segment tells that all before it is truncated."""
    return first_hot.is_truncated or first_hot.is_partially_truncated


async def cold_names(store: MetadataStore, paths: StreamPaths) -> dict[Lssn, str]:
    """All that is archived, by number and in order."""
    try:
        names = (await store.children(paths.cold)).names
    except NoSuchNode:
        return {}
    numbered = {lssn: name for name in names if (lssn := lssn_of_name(name)) is not None}
    return dict(sorted(numbered.items()))


async def read_cold(store: MetadataStore, paths: StreamPaths, name: str) -> StoredCold:
    """Raises `NoSuchNode`, `DamagedMetadata`."""
    path = paths.cold_segment(name)
    node = await store.get(path)
    try:
        cold = decode_cold(node.data)
        if lssn_of_name(name) != cold.lssn:
            raise DamagedMetadata(f"it says that it is segment {cold.lssn}")
    except DamagedMetadata as error:
        raise DamagedMetadata(f"{path}: {error}", hint=error.hint, path=path) from error
    return StoredCold(name, cold, node.stat.version)


async def is_unchanged(store: MetadataStore, paths: StreamPaths, stored: StoredCold) -> bool:
    """Whether nobody has written a node since it was read: see SeenTwice."""
    stat = await store.exists(paths.cold_segment(stored.name))
    return stat is not None and stat.version == stored.version


class ColdNodes:
    """What anybody may do with the cold segments of a stream: see `SameStream`."""

    def __init__(self, store: MetadataStore, paths: StreamPaths, same: SameStream | None = None) -> None:
        self._store, self._paths = store, paths
        self._nodes = StreamNodes(store, paths, same)
        self.same = self._nodes.same

    # --- What there is

    async def read(self, names: Iterable[str]) -> dict[Lssn, StoredCold]:
        """Those of these that are there."""
        wanted, found = list(names), dict[Lssn, StoredCold]()
        for begin in range(0, len(wanted), _READS_MAX):
            part = await asyncio.gather(*(self._read(name) for name in wanted[begin : begin + _READS_MAX]))
            found |= {stored.cold.lssn: stored for stored in part if stored is not None}
        return found

    async def _read(self, name: str) -> StoredCold | None:
        try:
            return await read_cold(self._store, self._paths, name)
        except NoSuchNode:
            return None

    async def read_again(self, stored: StoredCold) -> StoredCold | None:
        """What a node says now, if it is there."""
        return await self._read(stored.name)

    async def hot(self, lssn: Lssn) -> StoredSegment | None:
        """The segment of this number, if it is hot."""
        return await self._nodes.numbered(lssn)

    async def whole_chain(self) -> list[Placed]:
        """All segments that are left, hot and cold. Raises `NoSuchStream`, `DamagedMetadata`."""
        for _ in range(_RACES_MAX):
            hot = await self._nodes.all_segments()
            names = await cold_names(self._store, self._paths)
            cold = await self.read(names.values())
            if len(cold) < len(names):
                continue  # One was purged since the listing.
            first_hot = hot[0].segment.lssn if hot else None
            before = {lssn: stored for lssn, stored in cold.items() if first_hot is None or lssn < first_hot}
            only_cold = _newest_chain(before, first_hot)
            nearest = max(before.keys() - only_cold.keys(), default=None)
            if nearest is not None and before[nearest].cold.is_hot:
                is_same = await self._nodes.segment_names() == tuple(sorted(stored.name for stored in hot))
                if not is_same or not await is_unchanged(self._store, self._paths, before[nearest]):
                    continue  # It was restored since we listed the others. Otherwise see PurgedIsGone.
            elif nearest is not None and only_cold:
                raise self._no_chain(list(before))
            if hot and hides_all_before(hot[0].segment):
                only_cold = {lssn: _hidden(stored) for lssn, stored in only_cold.items()}
            placed = [Placed(None, stored) for stored in only_cold.values()]
            return [*placed, *(Placed(stored, cold.get(stored.segment.lssn)) for stored in hot)]
        raise MetadataUnavailable(f"the segments of {self._paths.stream!r} change faster than they can be read")

    async def outdated(self, first: Lssn) -> list[StoredCold]:
        """What is recorded of segments before `first`, where the whole chain begins: see PurgedIsGone. None of it if
        the chain goes on before `first` after all.
        """
        names = await cold_names(self._store, self._paths)
        found = await self.read(name for lssn, name in names.items() if lssn < first)
        nearest = found.get(Lssn(first - 1))
        return [] if nearest is not None and not nearest.cold.is_hot else list(found.values())

    def _no_chain(self, lssns: list[Lssn]) -> DamagedMetadata:
        return DamagedMetadata(
            f"the cold segments of stream {self._paths.stream!r} are no chain: {lssns[0]} to {lssns[-1]}",
            hint="A node was deleted or added by hand. Nothing is changed, since records may be missing.",
            stream=self._paths.stream,
        )

    # --- Changes. Each is one transaction; `VersionConflict`, `NoSuchNode` and `NodeExists` say: read again, and
    # `NoSuchStream` that there is nothing to read.

    async def publish(self, hot: StoredSegment, cold: ColdSegment) -> None:
        """Record a file that has all of a hot segment."""
        path = self._paths.cold_segment(segment_name(hot.segment))
        ops: list[Op] = [Check(self._paths.segment(hot.name), hot.version)]
        if await self._store.exists(self._paths.cold) is None:
            ops.append(Create(self._paths.cold))
        await self.same.transaction(*ops, Create(path, encode_cold(replace(cold, segment=hot.segment))))

    async def drop(self, hot: StoredSegment, cold: StoredCold, *, before: StoredCold | None) -> StoredCold:
        """The segment is cold only; its ledger has to be deleted after that. `before` is the last one that was."""
        dropped = replace(cold.cold, segment=hot.segment, is_hot=False, ledger_left=hot.segment.ledger_id)
        ops: list[Op] = [self._set(cold, dropped), Delete(self._paths.segment(hot.name), hot.version)]
        if before is not None:
            ops.append(Check(self._paths.cold_segment(before.name), before.version))
        written = (await self.same.transaction(*ops))[0]
        assert written is not None
        return StoredCold(cold.name, dropped, written.version)

    async def restore(self, cold: StoredCold, ledger: LedgerId, *, after: StoredSegment) -> None:
        """The ledger, which has all of it, makes the segment hot again. `after` is the first one that is, and was not
        truncated since it was read: else what is restored would be, too.
        """
        stored = _hidden(cold) if hides_all_before(after.segment) else cold
        segment = replace(stored.cold.segment, ledger_id=ledger)
        restored = replace(cold.cold, segment=segment, is_hot=True, ledger_left=None)
        await self.same.transaction(
            Create(self._paths.segment(segment_name(segment)), encode_segment(segment)),
            self._set(cold, restored),
            Check(self._paths.segment(after.name), after.version),
        )

    async def rewrite(self, cold: StoredCold, changed: ColdSegment) -> StoredCold:
        """Say something else of a segment. The same again shuts out whoever is about to change it."""
        (written,) = await self.same.transaction(self._set(cold, changed))
        assert written is not None
        return StoredCold(cold.name, changed, written.version)

    async def change(self, changes: Sequence[tuple[Placed, Segment]]) -> None:
        """Say something else of segments, all at once, each where it counts."""
        ops: list[Op] = []
        for placed, segment in changes:
            if placed.hot is not None:
                ops.append(Set(self._paths.segment(placed.hot.name), encode_segment(segment), placed.hot.version))
                if placed.cold is not None:
                    # A node that was deleted and created again, by dropping and restoring, may have its old version.
                    ops.append(Check(self._paths.cold_segment(placed.cold.name), placed.cold.version))
            elif placed.cold is not None:
                ops.append(self._set(placed.cold, replace(placed.cold.cold, segment=segment)))
        await self.same.transaction(*ops)

    async def say_hidden(self, chain: Sequence[Placed]) -> bool:
        """Write down which segments are truncated, where their nodes do not say so: see HiddenBefore.

        Returns whether anything was written: then the chain has to be read again.
        """
        unsaid = [(placed, placed.stored.segment) for placed in chain if placed.cold and placed.cold.is_unsaid]
        if unsaid:
            await self.change(unsaid[:CHANGES_MAX])
        return bool(unsaid)

    async def forget(self, placed: Placed) -> None:
        """Neither node is left. Fine if that happened already."""
        if placed.cold is not None:
            ops: list[Op] = [Delete(self._paths.cold_segment(placed.cold.name), ANY_VERSION)]
            if placed.hot is not None:
                ops.append(Delete(self._paths.segment(placed.hot.name), ANY_VERSION))
            try:
                await self.same.transaction(*ops)
            except NoSuchNode:
                for op in ops:  # One of them is gone: the other one has to go, too.
                    try:
                        await self.same.transaction(op)
                    except NoSuchNode:
                        pass
        elif placed.hot is not None:
            await self._nodes.remove(placed.hot)

    def _set(self, old: StoredCold, new: ColdSegment) -> Set:
        return Set(self._paths.cold_segment(old.name), encode_cold(new), old.version)


RACES: Final = (VersionConflict, NoSuchNode, NodeExists)


def _hidden(stored: StoredCold) -> StoredCold:
    segment = stored.cold.segment
    if segment.is_truncated:
        return stored
    return replace(stored, cold=replace(stored.cold, segment=segment.truncated()), is_unsaid=True)


def _newest_chain(before: dict[Lssn, StoredCold], first_hot: Lssn | None) -> dict[Lssn, StoredCold]:
    """Those right before the first hot one, or the newest, that say that they are not hot, as far back as none is
    missing.
    """
    lssn = max(before, default=Lssn(0)) if first_hot is None else Lssn(first_hot - 1)
    found: list[Lssn] = []
    while lssn in before and not before[lssn].cold.is_hot:
        found.append(lssn)
        lssn = Lssn(lssn - 1)
    return {lssn: before[lssn] for lssn in reversed(found)}
