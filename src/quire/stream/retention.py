"""Letting go of the old end of a stream: truncation hides records, purging deletes segments.

Truncation changes metadata only, and anybody may do it. Purging deletes a segment's ledger first and its node second:
if it is cut off in between, the next one finishes it.
"""

from collections.abc import Callable, Sequence
from typing import Final

from quire.codec.stream_metadata.segment import Segment
from quire.errors import NoSuchLedger, NoSuchNode, VersionConflict
from quire.protocol.segments import purge_by_age, purge_by_size, purge_by_txid, truncate
from quire.stream.context import StreamContext
from quire.stream.nodes import StoredSegment, StreamNodes
from quire.stream.settings import StreamSettings
from quire.types import DLSN, Lssn

_CHANGES_MAX: Final = 50  # Of one transaction: some stores take no more than about a hundred.
_LOOK_AT: Final = 64  # Segments that are read at once to see which of them go.


async def truncate_before(nodes: StreamNodes, before: DLSN) -> int:
    """Hide all records before this place. Returns how many segments changed. Segments in progress do not.

    A long stream is truncated in several steps, from its beginning, so that at no time there is a gap.
    """
    changed = 0
    while True:
        known = {stored.segment.lssn: stored for stored in await nodes.all_segments()}
        steps = truncate([stored.segment for stored in known.values()], before)
        if not steps:
            return changed
        changes = [(known[step.segment.lssn], _truncated(step.segment, step.before)) for step in steps[:_CHANGES_MAX]]
        try:
            await nodes.rewrite(changes)
        except (VersionConflict, NoSuchNode):
            continue  # Somebody else truncated or purged meanwhile.
        changed += len(changes)


def _truncated(segment: Segment, before: DLSN | None) -> Segment:
    return segment.truncated() if before is None else segment.truncated_before(before)


class Retention:
    """Deletes the segments of one stream that need not be kept. Looks at no more of them than it has to."""

    def __init__(self, context: StreamContext, nodes: StreamNodes) -> None:
        self._context, self._nodes = context, nodes
        self._lengths: dict[Lssn, int] = {}  # Of completed segments: they do not change any more.

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
        while True:
            known = await self._nodes.first_segments(_LOOK_AT)
            doomed = choose([stored.segment for stored in known])
            purged += await self._delete(known, doomed)
            if len(doomed) < _LOOK_AT - 1:
                return purged

    async def _purge_by_size(self, settings: StreamSettings) -> int:
        known = await self._nodes.all_segments()
        segments = [stored.segment for stored in known]
        doomed = purge_by_size(
            segments,
            bytes_of={segment.lssn: await self._length(segment) for segment in segments},
            bytes_max=settings.retention_bytes,
            truncated_only=settings.truncated_only,
        )
        return await self._delete(known, doomed)

    async def _delete(self, known: Sequence[StoredSegment], doomed: Sequence[Segment]) -> int:
        """Oldest first, so that what is left is a chain at any time."""
        by_lssn = {stored.segment.lssn: stored for stored in known}
        for segment in doomed:
            await self._context.ledgers.delete(segment.ledger_id)
            await self._nodes.remove(by_lssn[segment.lssn])
            self._lengths.pop(segment.lssn, None)
            self._context.metrics.purged_segments.add()
        return len(doomed)

    async def _length(self, segment: Segment) -> int:
        if segment.lssn in self._lengths:
            return self._lengths[segment.lssn]
        try:
            stored = await self._context.ledgers.ledgers_metadata.read(segment.ledger_id)
        except NoSuchLedger:
            return 0  # A purge was cut off.
        if segment.completion is not None:
            self._lengths[segment.lssn] = stored.metadata.length
        return stored.metadata.length
