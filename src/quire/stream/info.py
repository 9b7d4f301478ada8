"""What is known of a stream at one moment: its segments, where it begins and ends, who writes and reads it.

Without sizes only metadata is read: that works while bookies are down, and of a segment in progress only the beginning
is known. With sizes each ledger is looked at, and the segment in progress is counted as far as readers see it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream_metadata.lock import member_owner, member_sequence, members_in_order
from quire.codec.stream_metadata.segment import Segment, Truncation
from quire.errors import NoSuchLedger, NoSuchNode, QuireError
from quire.ledger.client import LedgerClient
from quire.metadata import MetadataStore
from quire.metadata.paths import join
from quire.stream.cold_nodes import ColdNodes, Placed
from quire.stream.nodes import StreamNodes
from quire.stream.segments import last_record
from quire.stream.subscriptions import Subscriptions
from quire.stream.truncation import first_place, left_of
from quire.types import DLSN, LedgerId, LedgerState, Lssn
from quire.values import dataclass

_LEDGERS_AT_ONCE_MAX: Final = 16  # Whose sizes are looked up together.
_BOOKIES_ANSWER_S: Final = 3.0  # Longest wait for those of a segment in progress.


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment. What is None is not known, or does not exist. Of one in progress only the beginning is known, unless
    sizes were asked for and its bookies answer.
    """

    lssn: Lssn
    ledger_id: LedgerId
    is_completed: bool
    truncation: Truncation
    first_txid: int
    """No record has a lower one."""

    last_txid: int | None
    """Also None in the last segment of a sealed stream: the end of the stream stands in its place."""

    first_dlsn: DLSN | None
    """The first place that truncation left."""

    last_dlsn: DLSN | None
    """Of the last record."""

    record_count: int | None
    """Truncated ones included."""

    completed_at_ms: int | None
    """Since 1970."""

    is_hot: bool = True
    """Whether bookies have it: the ledger is gone if not."""

    cold_file: str | None = None
    """Where it is in cold storage, if it is archived."""

    size_bytes: int | None = None
    """Of its ledger, each entry counted once. Known if sizes were asked for, and bookies have the segment."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream. First and last are those of what is neither truncated nor purged, in segments that are counted."""

    stream: str
    segments: tuple[SegmentInfo, ...]
    first_dlsn: DLSN | None
    """Where a reader begins that begins at the earliest; None if nothing is left."""

    first_txid: int | None
    """No record that is left has a lower one."""

    last_dlsn: DLSN | None
    last_txid: int | None
    record_count: int
    """Of segments that are counted, without those that are truncated as a whole."""

    is_sealed: bool
    owner: str | None
    """Who holds the lock of the stream's writers."""

    subscriptions: Mapping[str, DLSN | None]
    """Where each named reader goes on; None if it never said so."""


async def read_info(nodes: StreamNodes, sizes: "SegmentSizes | None" = None) -> StreamInfo:
    """Raises `NoSuchStream`, `DamagedMetadata`, and what the metadata store raises."""
    store, paths = nodes.store, nodes.paths
    chain = await ColdNodes(store, paths).whole_chain()
    stored = [placed.stored.segment for placed in chain]
    segments = tuple(map(_segment_info, chain) if sizes is None else await sizes.of(chain))
    left = [segment for segment in segments if segment.truncation is not Truncation.TRUNCATED]
    return StreamInfo(
        paths.stream,
        segments,
        first_dlsn=left[0].first_dlsn if left else None,
        first_txid=left[0].first_txid if left else None,
        last_dlsn=next((each.last_dlsn for each in reversed(left) if each.last_dlsn is not None), None),
        last_txid=next((each.last_txid for each in reversed(left) if each.last_txid is not None), None),
        record_count=sum(segment.record_count or 0 for segment in left),
        is_sealed=bool(stored) and _is_end(stored[-1]),
        owner=await lock_holder(store, paths.lock),
        subscriptions=await read_subscriptions(Subscriptions(store, paths)),
    )


class SegmentSizes:
    """Looks at the ledgers of segments."""

    def __init__(self, ledgers: LedgerClient, *, password: bytes) -> None:
        self._ledgers, self._password = ledgers, password

    async def of(self, chain: Sequence[Placed]) -> list[SegmentInfo]:
        found: list[SegmentInfo] = []
        for place in range(0, len(chain), _LEDGERS_AT_ONCE_MAX):
            found += await asyncio.gather(*map(self._sized, chain[place : place + _LEDGERS_AT_ONCE_MAX]))
        return found

    async def _sized(self, placed: Placed) -> SegmentInfo:
        info = _segment_info(placed)
        try:
            metadata = (await self._ledgers.ledgers_metadata.read(info.ledger_id)).metadata
        except NoSuchLedger:
            return info  # It is in cold storage only, or is being purged.
        if info.is_completed:
            return replace(info, size_bytes=metadata.length if metadata.state is LedgerState.CLOSED else None)
        try:
            async with asyncio.timeout(_BOOKIES_ANSWER_S):
                return await self._counted(info, placed.stored.segment)
        except (QuireError, TimeoutError):
            return info

    async def _counted(self, info: SegmentInfo, segment: Segment) -> SegmentInfo:
        """Up to the last record that is confirmed."""
        async with self._ledgers.open(segment.ledger_id, password=self._password, recover=False) as ledger:
            if ledger.last_add_confirmed < 0:
                return replace(info, record_count=0, size_bytes=0)
            entry = await ledger.read_entry(ledger.last_add_confirmed)
            last = await last_record(ledger, segment)
        if last is None:
            return replace(info, record_count=0, size_bytes=entry.length)
        return replace(
            info, record_count=last.position, size_bytes=entry.length, last_dlsn=last.dlsn, last_txid=last.txid
        )


async def read_subscriptions(subscriptions: Subscriptions) -> dict[str, DLSN | None]:
    """The position of each subscriber, by name. Raises `DamagedMetadata`."""
    return {name: await subscriptions.read(name) for name in sorted(await subscriptions.names())}


def _segment_info(placed: Placed) -> SegmentInfo:
    segment = placed.stored.segment
    done, file = segment.completion, None if placed.cold is None else placed.cold.cold.file
    has_records = done is not None and done.last_dlsn.entry_id >= 0
    return SegmentInfo(
        segment.lssn,
        segment.ledger_id,
        is_completed=done is not None,
        truncation=segment.truncation,
        first_txid=segment.first_txid,
        last_txid=done.last_txid if done and has_records and not _is_end(segment) else None,
        first_dlsn=None if segment.is_truncated else left_of(segment, first_place(segment.lssn)).at,
        last_dlsn=done.last_dlsn if done and has_records else None,
        record_count=done.record_count if done else None,
        completed_at_ms=done.completed_at_ms if done else None,
        is_hot=placed.hot is not None,
        cold_file=None if file is None else f"{file.root}/{file.name}",
    )


def _is_end(segment: Segment) -> bool:
    return segment.completion is not None and segment.completion.last_txid == TXID_MAX


async def lock_holder(store: MetadataStore, lock: str) -> str | None:
    """The client whose member of the lock is the first, as it calls itself."""
    try:
        names = members_in_order((await store.children(lock)).names)
        holder = next((name for name in names if member_sequence(name) is not None), None)
        if holder is None:
            return None
        named = member_owner(holder)
        return named.client_id if named else (await store.get(join(lock, holder))).data.decode(errors="replace")
    except NoSuchNode:
        return None  # It has let go since.
