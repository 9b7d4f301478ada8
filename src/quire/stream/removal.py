"""Delete a stream: fence its writer, then its ledgers, the nodes of its segments, and in the end what is left, in one
step.

A writer that lost its lock without knowing is shut out as a new writer would do it: the stream is claimed, so that no
segment begins, and segments in progress are recovered, so that bookies acknowledge nothing more. Only then is anything
deleted: bookies do not ask the metadata whether a ledger still exists.

Ledgers that no node names any more would stay for ever, so a node goes after its ledger: whoever finds a stream half
deleted can go on where it was left, by deleting it again. Files in cold storage go, too, if it can be reached: a stream
has to be deletable when it is gone for ever. Streams that are nested in this one stay, and so does the
node that leads to them. (Apache's client takes them along, and leaves their ledgers behind.)

Invariant: what is fenced or deleted was there while the lock was ours, so nothing of a later owner's is, nor of a
stream that was made again; and segments are deleted only if they were there to be fenced. In the last step the lock is
ours, and nobody began a segment or staged a ledger: it deletes our own member of the lock, and the guarded nodes in the
versions that were read, and fails while a node is there that names a ledger.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from quire.codec.cold import ColdFile, encode_cold
from quire.codec.stream_metadata.segment import Segment, decode_segment, is_in_progress, lssn_of_name
from quire.codec.stream_metadata.sinks import decode_staged, encode_staged
from quire.codec.stream_metadata.tree import StreamPaths, decode_allocation
from quire.errors import (
    DamagedMetadata,
    LockLost,
    MetadataOutcomeUnknown,
    NodeNotEmpty,
    NoSuchLedger,
    NoSuchNode,
    NoSuchStream,
    QuireError,
    SessionExpired,
    Unavailable,
    VersionConflict,
    WriterFenced,
)
from quire.metadata import ANY_VERSION, Delete, HeldLock, MetadataStore, Set
from quire.metadata.driver import Op
from quire.metadata.paths import join
from quire.stream.cold_nodes import read_cold
from quire.stream.cold_segments import report_left
from quire.stream.context import StreamContext
from quire.stream.lock import hold_stream_lock
from quire.stream.nodes import StreamNodes
from quire.stream.same_stream import missing
from quire.stream.settling import settle
from quire.stream.staging import some_at_once
from quire.telemetry.events import logger
from quire.types import LedgerId

_log = logger("stream")
_CLAIM_S: Final = 10.0  # For finding out whether the claim happened, if its answer is lost.
_AT_ONCE_MAX: Final = 16  # Segments that are deleted together. etcd has a limit for what one transaction compares.


async def delete_stream(context: StreamContext, stream: str, *, lock_timeout_s: float) -> None:
    """Raises `NoSuchStream`, `StreamOwned`, and `MetadataOutcomeUnknown` once a part may be gone: delete it again."""
    paths, store = context.paths(stream), context.store
    await store.sync()
    if await store.exists(paths.root) is None:
        raise missing(stream)
    if await store.exists(paths.lock) is None:
        # What an interrupted deletion of another program left. Without a lock's node nobody can own it.
        await _Removal(context, paths, None).run()
        return
    async with hold_stream_lock(context, paths.lock, timeout_s=lock_timeout_s, shown=f"stream {stream!r}") as held:
        await _Removal(context, paths, held).run()


class _Removal:
    """One deletion, while the lock is held, or cannot be."""

    def __init__(self, context: StreamContext, paths: StreamPaths, held: HeldLock | None) -> None:
        self._store: MetadataStore = context.store
        self._context = context
        self._ledgers, self._paths, self._held = context.ledgers, paths, held
        self._begun = False
        self._allocated: LedgerId | None = None  # That was deleted, if it was there.
        self._silent_roots: set[str] = set()

    async def run(self) -> None:
        try:
            await settle(
                self._store,
                self._attempt,
                races=(VersionConflict, NodeNotEmpty, NoSuchNode, WriterFenced),
                shown=f"stream {self._paths.stream!r}",
            )
        except MetadataOutcomeUnknown:
            raise
        except (Unavailable, LockLost, SessionExpired) as error:
            if not self._begun:
                raise
            raise self._partly(error) from error
        await self._remove_late()

    async def _attempt(self, _: object) -> None:
        if await self._store.exists(self._paths.root) is None:
            return  # By us, as the lost answer would have said, or by somebody who does not ask for locks.
        await self._remove_segments(await self._fence_writer())
        await self._remove_allocated()
        await self._remove_staged()
        await self._remove_cold()
        for path in (self._paths.subscribers, self._paths.sinks):
            await self._store.delete_tree(path, guard=None if self._held is None else self._held.guard())
        await self._store.transaction(*await self._last_step())

    async def _prove_lock(self) -> None:
        """What was read before this is from when the lock was ours: nothing of a later owner's is among it."""
        if self._held is not None:
            await self._held.prove(self._store)

    def _guard(self) -> list[Op]:
        return [] if self._held is None else [self._held.guard()]

    # --- The writer

    async def _fence_writer(self) -> tuple[str, ...]:
        """After this nothing is acknowledged in the segments that are returned, and their writer begins no other.

        Raises `RecoveryFailed`.
        """
        await self._prove_lock()
        nodes, runtime = StreamNodes(self._store, self._paths), self._context.runtime
        try:
            guarded = await nodes.guarded(runtime.clock, timeout_s=_CLAIM_S)
            await guarded.claim(self._held)
        except (NoSuchStream, DamagedMetadata):
            pass  # Half deleted, or damaged: without these nodes no segment begins.
        names = await self._segment_names()
        for ledger in await self._ledgers_of(filter(is_in_progress, names)):
            try:
                await self._ledgers.recover(ledger)
            except NoSuchLedger:
                pass  # Deleted by an attempt before this one, which fenced it.
        return names

    # --- Ledgers

    async def _remove_segments(self, names: tuple[str, ...]) -> None:
        """From the oldest on, and the nodes of a part at once: what is left if we are interrupted is still a chain.

        A segment that a writer without the lock has begun since keeps the stream: the next attempt fences that one.
        """
        in_order = sorted(names, key=lambda name: (lssn_of_name(name) or 0, name))
        for first in range(0, len(in_order), _AT_ONCE_MAX):
            part = in_order[first : first + _AT_ONCE_MAX]
            ledgers = await self._ledgers_of(part)
            self._begun = True
            await some_at_once(self._ledgers.delete, ledgers)
            deletes = [Delete(self._paths.segment(name), ANY_VERSION) for name in part]
            await self._store.transaction(*self._guard(), *deletes)

    async def _segment_names(self) -> tuple[str, ...]:
        try:
            return (await self._store.children(self._paths.segments)).names
        except NoSuchNode:
            return ()

    async def _ledgers_of(self, names: Iterable[str]) -> list[LedgerId]:
        """The ledgers of these segments. That the lock is ours afterwards proves that they are of our stream: one that
        was deleted and made again since has segments of the same names.
        """
        segments = await some_at_once(self._segment, names)
        await self._prove_lock()
        return [segment.ledger_id for segment in segments]

    async def _segment(self, name: str) -> Segment:
        path = self._paths.segment(name)
        node = await self._store.get(path)
        try:
            return decode_segment(node.data)
        except DamagedMetadata as error:
            raise DamagedMetadata(f"{path}: {error}", path=path) from error

    async def _remove_allocated(self) -> None:
        """A ledger that no segment has yet. If one gets it meanwhile, that one is about to go as well."""
        try:
            ledger = decode_allocation((await self._store.get(self._paths.allocation)).data)
        except NoSuchNode:
            return
        if ledger is not None:
            await self._prove_lock()
            self._begun, self._allocated = True, ledger
            await self._ledgers.delete(ledger)

    async def _remove_late(self) -> None:
        """The fenced writer may have made the noted ledger behind its deletion. It deletes one that is not noted any
        more, and has left this one if the note was still there.
        """
        if self._allocated is not None:
            try:
                await self._ledgers.delete(self._allocated)
            except QuireError as error:  # The stream is gone, and that is what was asked for.
                _log.warning(
                    "stream.ledger_left", stream=self._paths.stream, ledger_id=self._allocated, error=str(error)
                )

    async def _remove_staged(self) -> None:
        """Ledgers that were to become segments. Nobody publishes one while the lock is ours."""
        try:
            names = (await self._store.children(self._paths.staged)).names
        except NoSuchNode:
            return
        await self._prove_lock()
        for name in names:
            path = join(self._paths.staged, name)
            node = await self._store.get(path)
            staged = decode_staged(node.data)
            self._begun = True
            doomed = await self._store.set(
                path, encode_staged(replace(staged, doomed=True)), expected=node.stat.version
            )
            await self._ledgers.delete(staged.ledger)
            await self._store.delete(path, expected=doomed.version)

    async def _remove_cold(self) -> None:
        """Archived segments: their files, as far as cold storage can be reached, and their nodes."""
        try:
            names = (await self._store.children(self._paths.cold)).names
        except NoSuchNode:
            return
        await self._prove_lock()
        self._begun = True
        for first in range(0, len(names), _AT_ONCE_MAX):
            stored = [await read_cold(self._store, self._paths, name) for name in names[first : first + _AT_ONCE_MAX]]
            await self._store.transaction(  # Whoever is about to restore one cannot do so any more.
                *self._guard(),
                *(Set(self._paths.cold_segment(each.name), encode_cold(each.cold), each.version) for each in stored),
            )
            for each in stored:
                if each.cold.ledger_left is not None:
                    await self._ledgers.delete(each.cold.ledger_left)
                await self._discard_file(each.cold.file)
            await self._store.transaction(
                *self._guard(), *(Delete(self._paths.cold_segment(each.name), ANY_VERSION) for each in stored)
            )

    async def _discard_file(self, file: ColdFile) -> None:
        """A root that did not answer is not asked again: a call may take a minute, and the lock is held meanwhile."""
        if file.root in self._silent_roots:
            report_left(file.root, file.name, "it did not answer before")
            return
        try:
            await self._context.cold.at(file.root).delete(file.name)
        except QuireError as error:
            report_left(file.root, file.name, str(error))
            if isinstance(error, Unavailable):
                self._silent_roots.add(file.root)

    # --- Nodes

    async def _last_step(self) -> list[Op]:
        """Delete what is left of the log, and the stream's own node unless it leads to others."""
        ops: list[Op] = []
        for name in (await self._store.children(self._paths.root)).names:
            path = join(self._paths.root, name)
            # One that names a ledger, and came just now, keeps the stream from going: the next attempt finds it.
            if path not in (self._paths.segments, self._paths.staged, self._paths.cold):
                ops += await self._members(path)
            node = await self._store.get(path)
            ops.append(Delete(path, node.stat.version))
        root, top = await self._store.get(self._paths.root), await self._store.get(self._paths.top)
        ops.append(Delete(self._paths.root, root.stat.version))
        self._begun = True
        if len((await self._store.children(self._paths.top)).names) > 1:
            return [*ops, Set(self._paths.top, b"", top.stat.version)] if top.data else ops
        return [*ops, Delete(self._paths.top, top.stat.version)]

    async def _members(self, path: str) -> list[Op]:
        """Those who have a lock, or wait for it: others learn that the stream is gone, our own proves that we may."""
        paths = [join(path, name) for name in (await self._store.children(path)).names]
        if self._held is not None and path == self._paths.lock and self._held.path not in paths:
            raise LockLost(f"the session that held {self._held.path!r} has ended", path=self._held.path)
        return [Delete(each, (await self._store.get(each)).stat.version) for each in paths]

    def _partly(self, error: QuireError) -> MetadataOutcomeUnknown:
        return MetadataOutcomeUnknown(
            f"stream {self._paths.stream!r} may be deleted in part: {error}",
            hint="Delete it again: that goes on where this call stopped.",
            stream=self._paths.stream,
        )
