"""Letting go of the old end of a stream: truncation hides records, purging deletes segments.

Truncation changes metadata only, and anybody may do it. Purging deletes a segment's ledger and its file in cold storage
first, and its nodes second: if it is cut off in between, the next one finishes it. Where a segment is does not matter:
both begin at the oldest one, hot or cold.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from quire.codec.stream_metadata.segment import Segment
from quire.errors import NoSuchLedger, NoSuchNode, VersionConflict
from quire.protocol.segments import purge_by_age, purge_by_size, purge_by_txid, truncate
from quire.stream.cold_nodes import CHANGES_MAX, ColdNodes, Placed, StoredCold, cold_names
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.settings import StreamSettings
from quire.stream.staging_sinks import settle_sinks
from quire.types import DLSN, LedgerId, Lssn

_LOOK_AT: Final = 64  # Segments that are read at once to see which of them go.


async def truncate_before(nodes: StreamNodes, before: DLSN) -> int:
    """Hide all records before this place. Returns how many segments changed. Segments in progress do not.

    A long stream is truncated in several steps, from its beginning, so that at no time there is a gap. Raises
    `NoSuchStream`.
    """
    changed, cold_nodes = 0, ColdNodes(nodes.store, nodes.paths, nodes.same)
    while True:
        known = {_identity(placed.stored.segment): placed for placed in await cold_nodes.whole_chain()}
        steps = truncate([placed.stored.segment for placed in known.values()], before)
        if not steps:
            return changed
        changes = [
            (known[_identity(step.segment)], _truncated(step.segment, step.before)) for step in steps[:CHANGES_MAX]
        ]
        try:
            await cold_nodes.change(changes)
        except (VersionConflict, NoSuchNode):
            continue  # Somebody else truncated, purged or moved one meanwhile.
        changed += len(changes)


def _truncated(segment: Segment, before: DLSN | None) -> Segment:
    return segment.truncated() if before is None else segment.truncated_before(before)


def _identity(segment: Segment) -> tuple[Lssn, int, int | None]:
    """What tells a segment from all others of its stream, wherever it is: those of the oldest format have no LSSN."""
    return segment.lssn, segment.first_txid, None if segment.completion is None else segment.completion.last_txid


async def sweep_purged(context: StreamContext, nodes: ColdNodes, first: Lssn) -> None:
    """Finish what was purged by somebody who knows nothing of cold segments, or while it was being archived: all that
    is before `first`, where the whole chain begins. Raises `NoSuchStream`, and what cold storage raises.
    """
    outdated = await nodes.outdated(first)
    if outdated:
        await nodes.same.check()
    for stored in outdated:
        await _delete_cold(context, stored)
        await nodes.forget(Placed(None, stored))


async def _delete_cold(context: StreamContext, stored: StoredCold) -> None:
    """What an archived segment has beside its own ledger. Raises what cold storage raises: then nothing is gone that
    could not be deleted again.
    """
    if stored.cold.ledger_left is not None:
        await context.ledgers.delete(stored.cold.ledger_left)
    await context.cold.at(stored.cold.file.root).delete(stored.cold.file.name)


class Retention:
    """Deletes the segments of one stream that need not be kept. Looks at no more of them than it has to."""

    def __init__(self, context: StreamContext, nodes: StreamNodes, *, password: bytes = b"") -> None:
        self._context, self._nodes, self._password = context, nodes, password
        self._cold_nodes = ColdNodes(nodes.store, nodes.paths, nodes.same)
        self._lengths: dict[LedgerId, int] = {}  # Of completed segments: they do not change any more.

    async def purge_expired(self, settings: StreamSettings) -> int:
        """Delete what is older, or more, than the settings keep. Returns how many segments went."""
        purged = 0
        if settings.retention_s > 0:
            now_ms, retention_ms = self._context.runtime.clock.wall_ms(), round(settings.retention_s * 1000)
            purged += await self._purge_front(
                lambda segments: purge_by_age(
                    segments, now_ms=now_ms, retention_ms=retention_ms, truncated_only=settings.truncated_only
                )
            )
        if settings.retention_bytes > 0:
            purged += await self._purge_by_size(settings)
        return purged

    async def purge_below(self, min_txid: int) -> int:
        """Delete segments that have lower txids only. Returns how many went."""
        return await self._purge_front(lambda segments: purge_by_txid(segments, min_txid=min_txid))

    async def purge_truncated(self) -> int:
        """Delete segments that are truncated as a whole. Returns how many went."""
        return await self._purge_front(
            lambda segments: purge_by_age(segments, now_ms=2**62, retention_ms=1, truncated_only=True)
        )

    async def _purge_front(self, choose: Callable[[Sequence[Segment]], Sequence[Segment]]) -> int:
        """Delete from the oldest segment on what `choose` chooses among the first of them, until it leaves one."""
        purged = 0
        await self._nodes.same.know()
        while True:
            known = await self._first(_LOOK_AT)
            doomed = choose([placed.stored.segment for placed in known])
            deleted = await self._delete(known, doomed)
            purged += deleted
            if deleted < _LOOK_AT - 1:
                await self._sweep()
                return purged

    async def _sweep(self) -> None:
        """What others purged. Most streams have nothing archived."""
        names = await cold_names(self._nodes.store, self._nodes.paths)
        if names:
            chain = await self._cold_nodes.whole_chain()
            # If no segment is left, all that was archived before we looked is gone.
            first = chain[0].stored.segment.lssn if chain else Lssn(max(names) + 1)
            await sweep_purged(self._context, self._cold_nodes, first)

    async def _first(self, count: int) -> Sequence[Placed]:
        """The oldest segments. Most streams have nothing archived, and then no more than so many are read."""
        if not await cold_names(self._nodes.store, self._nodes.paths):
            return [Placed(stored, None) for stored in await self._nodes.first_segments(count)]
        return (await self._cold_nodes.whole_chain())[:count]

    async def _purge_by_size(self, settings: StreamSettings) -> int:
        known = await self._cold_nodes.whole_chain()
        doomed = purge_by_size(
            [placed.stored.segment for placed in known],
            lengths=[await self._length(placed) for placed in known],
            bytes_max=settings.retention_bytes,
            truncated_only=settings.truncated_only,
        )
        purged = await self._delete(known, doomed)
        await self._sweep()
        return purged

    async def _delete(self, known: Sequence[Placed], doomed: Sequence[Segment]) -> int:
        """Oldest first, so that what is left is a chain at any time."""
        found = {_identity(placed.stored.segment): placed for placed in known}
        if doomed:
            await self._nodes.same.check()  # Their ledgers are deleted before any of their nodes.
            # What a sink that is gone has not noted would be lost with them, and with it whether its batches are there.
            await settle_sinks(self._context, self._nodes.same, self._password, through=doomed[-1].lssn)
        for segment in doomed:
            placed = found.get(_identity(segment))
            if placed is None:
                continue  # Somebody else deleted it.
            if placed.cold is not None:
                try:
                    # Nobody restores it any more; and if this is stopped, nobody looks for what is deleted.
                    doomed_cold = replace(placed.cold.cold, segment=placed.cold.cold.segment.truncated())
                    claimed = await self._cold_nodes.rewrite(placed.cold, doomed_cold)
                except (VersionConflict, NoSuchNode):
                    return await self._delete(await self._cold_nodes.whole_chain(), doomed)  # It moved.
                await _delete_cold(self._context, claimed)
            if placed.hot is not None:
                await self._context.ledgers.delete(placed.hot.segment.ledger_id)
            await self._cold_nodes.forget(placed)
            self._lengths.pop(segment.ledger_id, None)
            self._context.metrics.purged_segments.add()
        return len(doomed)

    async def _length(self, placed: Placed) -> int:
        segment = placed.stored.segment
        if placed.hot is None:
            assert placed.cold is not None
            return placed.cold.cold.file.size_bytes
        if segment.ledger_id in self._lengths:
            return self._lengths[segment.ledger_id]
        try:
            stored = await self._context.ledgers.ledgers_metadata.read(segment.ledger_id)
        except NoSuchLedger:
            return 0  # A purge was cut off.
        if segment.completion is not None:
            self._lengths[segment.ledger_id] = stored.metadata.length
        return stored.metadata.length
