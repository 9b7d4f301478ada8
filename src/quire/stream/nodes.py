"""One stream's nodes in the metadata store, and the transactions that change its chain of segments.

Three nodes guard a stream: the highest LSSN, the highest txid, and the ledger that is allocated. Whoever writes to the
stream has read them and changes them by compare-and-swap, so that of two writers only one gets on.

Invariants:
  BegunAtOnce        a segment begins in one transaction: its node appears, its ledger leaves the allocation, and the
                     highest LSSN moves. A ledger that is in the allocation belongs to no segment, and may be deleted.
  CompletedAtOnce    a completed segment takes the place of the one in progress in one transaction.
  PublishedAtOnce    segments that were written beside the stream become a part of it in one transaction, all of them.
  SameStream         nothing is changed in a stream that was deleted and made again: it has another identity.
  OurWriteOrNobodys  after a lost answer a node's version is taken over only if the last write of it was ours.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from quire.codec.stream_metadata.segment import (
    Segment,
    decode_segment,
    encode_segment,
    lssn_of_name,
    names_for_writer,
    segment_name,
)
from quire.codec.stream_metadata.tree import (
    StreamPaths,
    check_layout_version,
    decode_allocation,
    decode_max_lssn,
    decode_max_txid,
    encode_allocation,
    encode_max_lssn,
    encode_max_txid,
)
from quire.errors import (
    DamagedMetadata,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    SessionExpired,
    Unavailable,
    VersionConflict,
    WriterFenced,
)
from quire.metadata import ANY_VERSION, Create, Delete, HeldLock, MetadataStore, Node, Set, Version
from quire.metadata.driver import Op
from quire.protocol.segments import chain
from quire.runtime import Clock
from quire.stream.same_stream import SameStream, missing
from quire.types import LedgerId, Lssn
from quire.values import dataclass

_RETRY_S: Final = 0.1
_RACES_MAX: Final = 100
_READS_MAX: Final = 64  # Nodes that are asked for at once.


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as it was read, and the version to write against."""

    name: str
    segment: Segment
    version: Version


class StreamNodes:
    """What anybody may do with a stream's nodes. All that is changed here is of the stream that was listed first."""

    def __init__(self, store: MetadataStore, paths: StreamPaths, same: SameStream | None = None) -> None:
        self.store, self.paths, self.same = store, paths, same or SameStream(store, paths)

    async def segment_names(self) -> tuple[str, ...]:
        """The names of all segments. Raises `NoSuchStream`."""
        await self.store.sync()
        await self.same.know()
        try:
            return (await self.store.children(self.paths.segments)).names
        except NoSuchNode as error:
            raise missing(self.paths.stream) from error

    async def segments(self, names: Iterable[str]) -> list[StoredSegment]:
        """Those of these segments that are there, in the order of the stream. Raises `DamagedMetadata`."""
        wanted = list(names)
        found: list[StoredSegment] = []
        for begin in range(0, len(wanted), _READS_MAX):
            part = wanted[begin : begin + _READS_MAX]
            nodes = await asyncio.gather(*(self._read(self.paths.segment(name)) for name in part))
            found += [
                StoredSegment(name, self._decoded(name, node), node.stat.version)
                for name, node in zip(part, nodes, strict=True)
                if node is not None
            ]
        by_segment = {id(stored.segment): stored for stored in found}
        return [by_segment[id(segment)] for segment in chain(stored.segment for stored in found)]

    async def all_segments(self) -> list[StoredSegment]:
        """The whole chain. Raises `NoSuchStream`, and `DamagedMetadata` if it has gaps."""
        return await self._consistent(lambda names: names)

    async def segments_for_writer(self) -> list[StoredSegment]:
        """All segments in progress, and the last completed one."""
        return await self._consistent(names_for_writer)

    async def first_segments(self, count: int) -> list[StoredSegment]:
        """The oldest segments, at most so many. Those with names of old writers count as the oldest."""
        return await self._consistent(lambda names: sorted(names, key=lambda name: lssn_of_name(name) or 0)[:count])

    async def numbered(self, lssn: Lssn) -> StoredSegment | None:
        """The segment of this number, if there is one."""
        found = await self._consistent(lambda names: [name for name in names if lssn_of_name(name) in (None, lssn)])
        return next((stored for stored in found if stored.segment.lssn == lssn), None)

    async def _consistent(self, choose: Callable[[tuple[str, ...]], Iterable[str]]) -> list[StoredSegment]:
        """A segment may be completed between the listing and the look: then look again."""
        for _ in range(_RACES_MAX):
            names = list(choose(await self.segment_names()))
            try:
                found = await self.segments(names)
            except DamagedMetadata:
                if list(choose(await self.segment_names())) == names:
                    raise  # Nobody changed anything: it is like that.
                continue
            if len(found) == len(names):
                return found
        raise MetadataUnavailable(f"the segments of {self.paths.stream!r} change faster than they can be read")

    async def remove(self, stored: StoredSegment) -> None:
        """Forget a segment whose ledger is deleted. Fine if that happened already. Raises `NoSuchStream`."""
        try:
            await self.same.transaction(Delete(self.paths.segment(stored.name), ANY_VERSION))
        except NoSuchNode:
            pass

    async def max_txid(self) -> int:
        """The highest txid of any completed segment. Raises `NoSuchStream`."""
        node = await self._read(self.paths.max_txid)
        if node is None:
            raise missing(self.paths.stream)
        return decode_max_txid(node.data)

    async def guarded(self, clock: Clock, *, timeout_s: float) -> "GuardedNodes":
        """The nodes as a writer needs them, read now. A change of them takes `timeout_s` at most.

        Raises `NoSuchStream`, `DamagedMetadata`.
        """
        await self.store.sync()
        paths = self.paths
        # The identity is asked for first: ZooKeeper, where versions come again, answers in the order of requests.
        wanted = paths.version, paths.segments, paths.max_txid, paths.allocation
        _, found = await asyncio.gather(self.same.know(), asyncio.gather(*map(self._read, wanted)))
        layout, lssn, txid, allocation = found
        if layout is None or lssn is None or txid is None or allocation is None:
            raise missing(paths.stream)
        check_layout_version(layout.data)
        return GuardedNodes(self, clock, timeout_s, lssn, txid, allocation)

    async def _read(self, path: str) -> Node | None:
        try:
            return await self.store.get(path)
        except NoSuchNode:
            return None

    def _decoded(self, name: str, node: Node) -> Segment:
        try:
            return decode_segment(node.data)
        except DamagedMetadata as error:
            raise DamagedMetadata(f"{self.paths.segment(name)}: {error}", path=self.paths.segment(name)) from error


@dataclass(slots=True)
class _Guard:
    """A node that only its owner may change: what it holds, and how often it was written."""

    path: str
    data: bytes
    version: Version
    writes: int

    @classmethod
    def of(cls, path: str, node: Node) -> "_Guard":
        return cls(path, node.data, node.stat.version, node.stat.writes)


class GuardedNodes:
    """The nodes of a stream in the hands of one writer. `WriterFenced`: another one changed them."""

    def __init__(
        self, nodes: StreamNodes, clock: Clock, timeout_s: float, lssn: Node, txid: Node, allocation: Node
    ) -> None:
        self.nodes, self._clock, self._timeout_s = nodes, clock, timeout_s
        self.is_undecided = False  # Whether a change was not found out about: then these are of no use any more.
        self._lssn = _Guard.of(nodes.paths.segments, lssn)
        self._txid = _Guard.of(nodes.paths.max_txid, txid)
        self._allocation = _Guard.of(nodes.paths.allocation, allocation)
        decode_allocation(allocation.data), decode_max_lssn(lssn.data), decode_max_txid(txid.data)

    @property
    def max_lssn(self) -> Lssn:
        return decode_max_lssn(self._lssn.data)

    @property
    def max_txid(self) -> int:
        return decode_max_txid(self._txid.data)

    @property
    def allocated(self) -> LedgerId | None:
        """The ledger that no segment has yet."""
        return decode_allocation(self._allocation.data)

    async def claim(self, lock: HeldLock | None = None) -> None:
        """Become the writer, by a write that changes nothing but versions: one of them is needed to begin a segment,
        the other one to complete it. Raises `WriterFenced` if anything has begun, completed or claimed a segment since
        these nodes were read, or if `lock` is not held at that moment.
        """
        ops: list[Op] = [] if lock is None else [lock.guard()]
        await self._commit(ops, {guard.path: guard.data for guard in (self._lssn, self._allocation)}, None)

    async def allocate(self, ledger: LedgerId | None) -> None:
        """Store that this ledger will be the next segment's."""
        data = encode_allocation(ledger)
        await self._commit([], {self._allocation.path: data}, (self._allocation.path, data))

    async def is_noted(self, ledger: LedgerId) -> bool:
        """Whether the ledger is in the allocation now."""
        await self.nodes.store.sync()
        node = await self.nodes._read(self._allocation.path)
        return node is not None and node.data == encode_allocation(ledger)

    async def begin(self, segment: Segment) -> StoredSegment:
        """The allocated ledger becomes a segment in progress."""
        name, data = segment_name(segment), encode_segment(segment)
        path = self.nodes.paths.segment(name)
        sets = {self._allocation.path: encode_allocation(None), self._lssn.path: encode_max_lssn(segment.lssn)}
        version = await self._commit([Create(path, data)], sets, (path, data))
        return StoredSegment(name, segment, version)

    async def complete(self, begun: StoredSegment, completed: Segment) -> StoredSegment:
        """A segment in progress becomes a completed one."""
        assert completed.completion is not None
        name, data = segment_name(completed), encode_segment(completed)
        path = self.nodes.paths.segment(name)
        sets = {
            self._lssn.path: encode_max_lssn(max(completed.lssn, self.max_lssn)),
            self._txid.path: encode_max_txid(max(completed.completion.last_txid, self.max_txid)),
        }
        ops: list[Op] = [Create(path, data), Delete(self.nodes.paths.segment(begun.name), ANY_VERSION)]
        return StoredSegment(name, completed, await self._commit(ops, sets, (path, data)))

    async def publish(self, completed: Sequence[Segment], ops: Sequence[Op], proof: tuple[str, bytes]) -> None:
        """Completed segments that were never in progress become the end of the chain, together with `ops`.

        `proof` is a node that one of `ops` writes, with bytes that nobody else ever gives it.
        """
        creates = [Create(self.nodes.paths.segment(segment_name(each)), encode_segment(each)) for each in completed]
        done = [each.completion.last_txid for each in completed if each.completion is not None]
        sets = {
            self._lssn.path: encode_max_lssn(max([self.max_lssn, *(each.lssn for each in completed)])),
            self._txid.path: encode_max_txid(max([self.max_txid, *done])),
        }
        await self._commit([*ops, *creates], sets, proof)

    async def forget(self, begun: StoredSegment) -> None:
        """Remove a segment in progress whose ledger is gone."""
        path = self.nodes.paths.segment(begun.name)
        await self._commit([Delete(path, ANY_VERSION)], {self._lssn.path: self._lssn.data}, None)

    # --- One transaction, done or not done

    async def _commit(self, ops: list[Op], sets: dict[str, bytes], proof: tuple[str, bytes] | None) -> Version:
        """Carry out `ops` and write the guarded nodes in `sets`. Returns the version of the first node of `ops`.

        `proof` is a node that holds these bytes if, and as long as, this very transaction was the last one. Without one
        a lost answer counts as a refusal. Raises `WriterFenced`, `MetadataUnavailable` if nothing was written, and
        `MetadataOutcomeUnknown` if that cannot be found out in time: then these nodes are of no use any more.
        """
        guards = [guard for guard in (self._lssn, self._txid, self._allocation) if guard.path in sets]
        changed = [Set(guard.path, sets[guard.path], guard.version) for guard in guards]
        whole = [*ops, *changed, *self.nodes.same.guard]
        ends_s = self._clock.monotonic() + self._timeout_s
        doubt: MetadataOutcomeUnknown | None = None
        while True:
            try:
                written = await self.nodes.store.transaction(*whole)
            except asyncio.CancelledError:
                self.is_undecided = True  # It may happen all the same.
                raise
            except MetadataOutcomeUnknown as error:
                doubt = error
            except SessionExpired:
                pass  # It refuses this try, and says nothing of an earlier one. The guards decide.
            except Unavailable:
                if doubt is None:
                    raise
            except (VersionConflict, NodeExists, NoSuchNode) as refused:
                version = await self._find_out(guards, sets, proof, ends_s) if doubt is not None else None
                if version is None:
                    self.is_undecided = doubt is not None  # It may have happened before the other writer came.
                    raise self._fenced() from refused
                return version
            else:
                for guard, done in zip(guards, written[len(ops) : len(ops) + len(guards)], strict=True):
                    assert done is not None
                    guard.data, guard.version, guard.writes = sets[guard.path], done.version, done.writes
                return written[0].version if written[0] is not None else ANY_VERSION
            if self._clock.monotonic() > ends_s:
                raise self._undecided() from doubt
            await self._clock.sleep(_RETRY_S)

    async def _find_out(
        self, guards: list[_Guard], sets: dict[str, bytes], proof: tuple[str, bytes] | None, ends_s: float
    ) -> Version | None:
        """Take over the versions of a transaction whose answer was lost; None if it did not happen, or others came."""
        store = self.nodes.store
        while True:
            try:
                await store.sync()
                proven = await store.get(proof[0]) if proof is not None else None
                found = [await store.get(guard.path) for guard in guards]
                break
            except NoSuchNode:
                return None
            except (SessionExpired, Unavailable) as error:
                if self._clock.monotonic() > ends_s:
                    raise self._undecided() from error
                await self._clock.sleep(_RETRY_S)
        if proven is None or proof is None or proven.data != proof[1]:
            return None
        for guard, node in zip(guards, found, strict=True):
            if node.data != sets[guard.path] or node.stat.writes != guard.writes + 1:
                return None
        for guard, node in zip(guards, found, strict=True):
            guard.data, guard.version, guard.writes = node.data, node.stat.version, node.stat.writes
        return proven.stat.version

    def _undecided(self) -> MetadataOutcomeUnknown:
        self.is_undecided = True
        stream = self.nodes.paths.stream
        return MetadataOutcomeUnknown(
            f"whether the segments of stream {stream!r} were changed could not be found out in {self._timeout_s:g} s",
            hint="Open the writer again: it finds out.",
            stream=stream,
        )

    def _fenced(self) -> WriterFenced:
        stream = self.nodes.paths.stream
        return WriterFenced(f"another writer has taken over stream {stream!r}", stream=stream)
