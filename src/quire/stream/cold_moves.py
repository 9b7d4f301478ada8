"""Archived segments lose their ledgers, or get new ones.

Dropping deletes ledgers of segments that are archived, oldest first: bookies get their disks back, readers go on from
cold storage. Restoring writes a new ledger from a file, newest first. In between somebody may crash, so a ledger that
belongs to no segment is noted in the cold node, before it is filled and until it is deleted.

Invariants:
  LastStays      the last completed segment is never dropped: the next one goes on from its end.
  ProducersStay  neither is one that tells write proxies of producers that may come again: files have no such records.
  SinksStay      neither is one that a sink may still have to look at, for tags of batches that its node does not know.
                 What can be noted of them is noted before.
  NotedLedgers   a ledger that was dropped, or is being filled, is noted until it is a segment's or is gone.
  ClaimedFirst   whoever deletes a noted ledger has written the node before: whoever filled it cannot publish it then.
  SweptFirst     the first of all segments is dropped when nothing cold is left of those before it, which were purged.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire.codec.cold import ColdSegment
from quire.codec.damage import decimal, utf8
from quire.codec.stream_metadata.names import stream_name
from quire.codec.stream_metadata.segment import Segment
from quire.errors import (
    DamagedColdFile,
    InvalidArgument,
    LedgerExists,
    MetadataOutcomeUnknown,
    NoSuchLedger,
    NoSuchNode,
    QuireError,
    VersionConflict,
)
from quire.ledger.writing.writer import LedgerWriter
from quire.protocol.producers import AGE_MS_MAX
from quire.stream.cold_entries import filler_entry, restored_entry
from quire.stream.cold_nodes import RACES, ColdNodes, Placed, StoredCold, is_unchanged
from quire.stream.cold_segments import ColdReader, open_cold
from quire.stream.context import StreamContext
from quire.stream.retention import sweep_purged
from quire.stream.settings import StreamSettings
from quire.stream.settling import settle
from quire.stream.staging_sinks import lowest_unsettled, settle_sinks
from quire.telemetry.events import logger
from quire.types import LedgerId, Lssn
from quire.values import dataclass

_log = logger("stream")
_DEFAULTS: Final = StreamSettings()
_RACES_MAX: Final = 5
_PRODUCERS_MS: Final = AGE_MS_MAX + 2 * 3600 * 1000  # An hour more than proxies look back: clocks differ.


@dataclass(frozen=True, slots=True)
class DropPolicy:
    """Which archived segments bookies need not keep. A segment is dropped if all that is given here allows it."""

    older_than_s: float = 0.0
    """Since its completion."""

    keep_bytes: int = 0
    """While the hot segments behind it have at least so many bytes. 0: however many."""

    before: Lssn | None = None
    """Only segments with lower numbers."""

    def __post_init__(self) -> None:
        if not 0 <= self.older_than_s < math.inf or self.keep_bytes < 0:
            raise InvalidArgument("ages and bytes are counted from 0")


def droppable(
    chain: Sequence[Placed],
    policy: DropPolicy,
    *,
    now_ms: int,
    bytes_of: dict[Lssn, int],
    producers_from: Lssn | None = None,
) -> list[Placed]:
    """Those to drop, oldest first. `bytes_of` has the length of each hot ledger if the policy asks for bytes;
    `producers_from` is the first segment with producers' records.
    """
    hot = [placed for placed in chain if placed.hot is not None]
    behind = sum(bytes_of.values())
    chosen: list[Placed] = []
    for placed, after in itertools.pairwise(hot):
        segment, done = placed.stored.segment, placed.stored.segment.completion
        behind -= bytes_of.get(segment.lssn, 0)
        if placed.cold is None or done is None or after.stored.segment.completion is None:
            break
        is_young = done.completed_at_ms > now_ms - round(policy.older_than_s * 1000)
        if is_young or behind < policy.keep_bytes or (policy.before is not None and segment.lssn >= policy.before):
            break
        tells_producers = producers_from is not None and segment.lssn >= producers_from
        if tells_producers and done.completed_at_ms > now_ms - _PRODUCERS_MS:
            break
        chosen.append(placed)
    return chosen


async def drop_hot(
    context: StreamContext, stream: str, policy: DropPolicy | None = None, *, settings: StreamSettings = _DEFAULTS
) -> list[Lssn]:
    """Delete the ledgers of archived segments, as the policy says. Returns which segments are only cold by this.

    Their files are there: that was seen when they were archived. May be called again after any error. Raises
    `NoSuchStream`, `DamagedMetadata`, `ColdUnavailable` or `DamagedColdFile` if a file cannot be seen now.
    """
    policy = policy or DropPolicy()
    paths = context.paths(stream_name(stream))
    nodes = ColdNodes(context.store, paths)
    chain = await nodes.whole_chain()
    await _finish_leftovers(context, nodes, chain)
    lengths: dict[Lssn, int] = {}
    if policy.keep_bytes:
        lengths = {each.stored.segment.lssn: await _length(context, each.stored.segment) for each in chain if each.hot}
    dropped: list[Lssn] = []
    now_ms, producers_from = context.runtime.clock.wall_ms(), await _producers_from(context, stream)
    chosen = droppable(chain, policy, now_ms=now_ms, bytes_of=lengths, producers_from=producers_from)
    if chosen:
        await settle_sinks(context, nodes.same, settings.password, through=chosen[-1].stored.segment.lssn)
    for placed in chosen:
        assert placed.cold is not None
        if placed.stored.segment.is_truncated or placed.cold.cold.segment.is_truncated:
            break  # It goes for ever when the stream is purged: see `Retention`.
        lssn = placed.stored.segment.lssn
        try:
            await _check_file(context, stream, placed.cold.cold)
        except DamagedColdFile:
            if not await _is_there(nodes, lssn, placed.cold):
                break  # It was purged, or moved, since we looked: others are at it.
            raise
        if not await _drop(context, stream, nodes, lssn):
            break
        dropped.append(lssn)
    return dropped


async def _producers_from(context: StreamContext, stream: str) -> Lssn | None:
    try:
        data = (await context.store.get(context.paths(stream_name(stream)).producers)).data
    except NoSuchNode:
        return None
    what = "first segment with producers"
    return Lssn(decimal(utf8(data, what), what, low=0))


async def _drop(context: StreamContext, stream: str, nodes: ColdNodes, lssn: Lssn) -> bool:
    """Whether it is only cold now. If others change it meanwhile, what they made of it decides."""

    async def attempt(_: object) -> StoredCold | None:
        before: Placed | None = None
        chain = await nodes.whole_chain()
        while await nodes.say_hidden(chain):
            chain = await nodes.whole_chain()
        for placed, after in itertools.pairwise(chain):
            if placed.stored.segment.lssn == lssn and placed.cold is not None:
                if placed.hot is None:
                    return await nodes.rewrite(placed.cold, placed.cold.cold)  # ClaimedFirst
                if after.stored.segment.completion is None or (before is not None and before.hot is not None):
                    return None  # It is the last one now, or one before it was restored.
                unsettled = await lowest_unsettled(context.store, context.paths(stream_name(stream)))
                if unsettled is not None and lssn >= unsettled:
                    return None
                if before is None:
                    await sweep_purged(context, nodes, lssn)  # What is left of those before would belong to it again.
                return await nodes.drop(placed.hot, placed.cold, before=None if before is None else before.cold)
            before = placed
        return None

    stored = await settle(context.store, attempt, races=RACES, shown=f"segment {lssn}")
    if stored is None:
        return False
    context.metrics.dropped_segments.add()
    await _delete_left(context, nodes, stored)
    return True


async def _check_file(context: StreamContext, stream: str, cold: ColdSegment) -> None:
    """The file is still there, and its footer is the right one. All of it was read when it was archived."""
    await open_cold(context, stream, cold)


async def _is_there(nodes: ColdNodes, lssn: Lssn, cold: StoredCold) -> bool:
    """Whether a segment is hot, and in the same file."""
    chain = {placed.stored.segment.lssn: placed for placed in await nodes.whole_chain()}
    now = chain.get(lssn)
    return now is not None and now.hot is not None and now.cold is not None and now.cold.cold.file == cold.cold.file


async def _length(context: StreamContext, segment: Segment) -> int:
    try:
        return (await context.ledgers.ledgers_metadata.read(segment.ledger_id)).metadata.length
    except NoSuchLedger:
        return 0  # It is being purged.


# --- Ledgers that no segment has


async def _finish_leftovers(context: StreamContext, nodes: ColdNodes, chain: Sequence[Placed]) -> None:
    for placed in chain:
        if placed.cold is not None and placed.cold.cold.ledger_left is not None:
            try:
                await _delete_left(context, nodes, await nodes.rewrite(placed.cold, placed.cold.cold))
            except (VersionConflict, NoSuchNode):
                continue  # Somebody else is at it.


async def _delete_left(context: StreamContext, nodes: ColdNodes, stored: StoredCold) -> StoredCold:
    """Delete the ledger that is noted, and the note. Nobody else has written the node since `stored`."""
    left = stored.cold.ledger_left
    if left is None:
        return stored
    await context.ledgers.delete(left)
    try:
        return await nodes.rewrite(stored, replace(stored.cold, ledger_left=None))
    except (VersionConflict, NoSuchNode, MetadataOutcomeUnknown):
        return stored  # The next one who comes by does it: deleting a ledger twice does no harm.


# --- Restoring


async def restore_segments(
    context: StreamContext, stream: str, *, first: Lssn | None = None, settings: StreamSettings = _DEFAULTS
) -> list[Lssn]:
    """Make cold segments hot again, from the newest back to `first`, or all. Returns which ones were.

    Whoever knows nothing of cold storage can read them then. Files and nodes stay, so that they can be dropped again.
    Truncated segments stay cold: nobody reads them, and a purge that was stopped may have deleted their files.
    May be called again after any error; segments that were restored stay. Raises `NoSuchStream`, `DamagedColdFile`,
    `ColdUnavailable`, `NotEnoughBookies`, `VersionConflict` if others are at it all the time, and what writing raises.
    """
    nodes = ColdNodes(context.store, context.paths(stream_name(stream)))
    restored: list[Lssn] = []
    for _ in range(_RACES_MAX):
        only_cold = [
            placed.cold
            for placed in await nodes.whole_chain()
            if placed.hot is None and placed.cold is not None and not placed.stored.segment.is_truncated
        ]
        for cold in reversed(only_cold):
            lssn = cold.cold.lssn
            if first is not None and lssn < first:
                return restored
            if not await _restore(context, stream, nodes, cold, settings):
                break
            restored.append(lssn)
        else:
            return restored
    raise VersionConflict(
        f"segment {lssn} of stream {stream!r} is changed by others while it is restored",
        hint="Let one of them restore or drop segments at a time, then call it again.",
        stream=stream,
        lssn=lssn,
    )


async def _restore(
    context: StreamContext, stream: str, nodes: ColdNodes, cold: StoredCold, settings: StreamSettings
) -> bool:
    """False if others changed the segment meanwhile: look again."""
    try:
        file = await open_cold(context, stream, cold.cold)
    except DamagedColdFile:
        await nodes.same.check()  # A deleted stream takes its files along.
        raise
    try:
        # Ours from here on: whoever filled a ledger before cannot publish it any more.
        claimed = await _delete_left(context, nodes, await nodes.rewrite(cold, cold.cold))
        ledger_id = await context.ledgers.ledgers_metadata.new_id()
        noted = await nodes.rewrite(claimed, replace(claimed.cold, ledger_left=ledger_id))
        async with context.ledgers.create(
            ensemble=settings.ensemble,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=settings.password,
            ledger_id=ledger_id,
        ) as ledger:
            if not await is_unchanged(context.store, context.paths(stream), noted):
                await _discard(context, ledger_id)  # Deleted as a leftover before it was made.
                return False
            await _fill(ledger, file)
    except (VersionConflict, NoSuchNode):
        return False
    except LedgerExists:  # Somebody chose this id by hand: it must not be deleted as a leftover of ours.
        await nodes.rewrite(noted, replace(noted.cold, ledger_left=None))
        raise
    except NoSuchLedger:
        return False  # Somebody took it for a leftover: others restore the segment, or it is purged.
    return await _publish(context, nodes, noted, ledger.id)


async def _publish(context: StreamContext, nodes: ColdNodes, noted: StoredCold, ledger: LedgerId) -> bool:
    async def attempt(_: object) -> bool:
        now = await nodes.read_again(noted)
        if now is None:
            return False  # Purged.
        if now.version != noted.version:  # By us, if an answer was lost; else whoever did that deletes the ledger.
            return now.cold.is_hot and now.cold.segment.ledger_id == ledger
        after = await nodes.hot(Lssn(noted.cold.lssn + 1))
        if after is None:
            return False  # Dropped meanwhile: it has to be restored first.
        await nodes.restore(now, ledger, after=after)
        return True

    is_ours = await settle(context.store, attempt, races=RACES, shown=f"segment {noted.cold.lssn}")
    if is_ours:
        context.metrics.restored_segments.add()
    else:
        await _discard(context, ledger)
    return is_ours


async def _discard(context: StreamContext, ledger: LedgerId) -> None:
    try:
        await context.ledgers.delete(ledger)
    except QuireError as error:
        _log.warning("stream.ledger_left", ledger_id=ledger, error=str(error))


async def _fill(ledger: LedgerWriter, file: ColdReader) -> None:
    """All entries, under the same ids: those that are not in the file had nothing that applications see."""
    cold = file.cold
    enveloped, next_id, position, txid = cold.segment.is_enveloped, 0, 0, cold.segment.first_txid
    for group in file.groups:
        rows = await file.rows(group)
        begin, count = 0, len(rows.entries)
        while begin < count:
            end = begin + 1
            while end < count and rows.entries[end] == rows.entries[begin]:
                end += 1
            missing = rows.entries[begin] - next_id
            await _fill_up(ledger, missing, txid=txid, position=position, enveloped=enveloped)
            payload = restored_entry(rows, begin, end, first_position=position + 1, enveloped=enveloped)
            await ledger.enqueue([payload])
            next_id, position, txid = rows.entries[begin] + 1, position + end - begin, rows.txids[end - 1]
            begin = end
    await _fill_up(ledger, cold.file.entries - next_id, txid=txid, position=position, enveloped=enveloped)
    last = await ledger.flush()
    if last + 1 != cold.file.entries:
        raise DamagedColdFile(f"segment {cold.lssn} has {cold.file.entries} entries, but {last + 1} were written")


async def _fill_up(ledger: LedgerWriter, count: int, *, txid: int, position: int, enveloped: bool) -> None:
    for _ in range(count):
        await ledger.enqueue([filler_entry(txid=txid, position=position, enveloped=enveloped)])
