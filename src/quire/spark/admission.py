"""How far one micro-batch goes: as far as a limit of records or bytes allows, in whole entries.

Nothing is read but a few single entries. Each record carries its number in its segment, and each entry how many bytes
its ledger has up to it. So the entry at which a limit is reached is found by halving, and is exact.

Invariants:
  Progress   a stream that has something to read comes on by one entry at least, whatever the limit.
  Fair       streams share a limit by what each has to read.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from quire.codec.cold import ColdSegment
from quire.codec.stream.entries import decode_entry
from quire.errors import NoSuchLedger
from quire.ledger.reading.reader import LedgerReader
from quire.spark.planning import Piece, StreamPlan
from quire.types import DLSN, EntryId, SlotId

T = TypeVar("T")

Unit = Literal["records", "bytes"]

_MOVES_MAX: Final = 100  # How often a segment may be looked for.
_MOVE_S: Final = 0.1


@dataclass(frozen=True)
class Limit:
    """What a micro-batch should have at most."""

    unit: Unit
    most: int


async def admitted(
    plans: Mapping[str, StreamPlan], ranges: Mapping[str, tuple[DLSN, DLSN]], limit: Limit | None
) -> dict[str, DLSN]:
    """Where a batch ends in each stream, of those that are between the two places of its range."""
    if limit is None:
        return {stream: end for stream, (_, end) in ranges.items()}
    streams = [stream for stream, (begin, end) in ranges.items() if begin < end]
    found = await asyncio.gather(*(_Backlog(plans[stream], limit.unit).measure(*ranges[stream]) for stream in streams))
    backlogs = dict(zip(streams, found, strict=True))
    total = sum(backlog.total for backlog in found)
    ends = {stream: end for stream, (_, end) in ranges.items()}
    if total <= limit.most:
        return ends
    shares = {stream: limit.most * backlog.total // total for stream, backlog in backlogs.items()}
    reached = await asyncio.gather(*(backlogs[stream].reach(shares[stream]) for stream in streams))
    return ends | dict(zip(streams, reached, strict=True))


class _Backlog:
    """What one stream has to read."""

    def __init__(self, plan: StreamPlan, unit: Unit) -> None:
        self._plan, self._unit = plan, unit
        self._sizes: list[tuple[Piece, int]] = []
        self._end: DLSN

    @property
    def total(self) -> int:
        return sum(size for _, size in self._sizes)

    async def measure(self, begin: DLSN, end: DLSN) -> "_Backlog":
        self._end = end
        for piece in await self._plan.pieces(begin, end, skip_truncated=True):  # Whoever reads them takes it as it is.
            size = await self._wherever(piece, self._size)
            if size is not None:
                self._sizes.append((piece, size))
        return self

    async def reach(self, share: int) -> DLSN:
        """The place up to which there is no more than `share`, behind one entry at least."""
        is_first = True
        for piece, size in self._sizes:
            if size > share:
                last = await self._wherever(piece, functools.partial(self._last_within, share=share))
                if last is None and is_first:
                    last = piece.first_entry
                at = DLSN(piece.lssn, piece.first_entry if last is None else EntryId(last + 1), SlotId(0))
                return min(at, piece.end)
            share -= size
            is_first = False
        return self._end

    async def _wherever(self, piece: Piece, look: Callable[[Piece], Awaitable[T]]) -> T | None:
        """What `look` finds, and again if the segment has moved meanwhile. None if it is purged: whoever reads the
        batch says so. Of one that is purged or dropped the ledger goes first, and its node not much later.
        """
        clock = self._plan.context.runtime.clock
        for moves in range(1, _MOVES_MAX + 1):
            if piece.lssn not in self._plan.index:
                return None
            try:
                return await look(piece)
            except NoSuchLedger:
                if moves == _MOVES_MAX:
                    raise
                await clock.sleep(_MOVE_S)
                await self._plan.index.refresh()
        raise AssertionError("unreachable")

    async def _size(self, piece: Piece) -> int:
        segment = await self._plan.index.located(piece.lssn)
        if isinstance(segment, ColdSegment):
            whole = segment.file.rows if self._unit == "records" else segment.file.size_bytes
            return whole * piece.entries // max(1, segment.file.entries)
        done = segment.completion if segment is not None else None
        if done is not None and piece.begin.entry_id == 0 and piece.last_entry >= done.last_dlsn.entry_id:
            return done.record_count if self._unit == "records" else piece.size_bytes
        async with _Counter(self._plan, piece, self._unit) as counter:
            return await counter.through(piece.last_entry) - await counter.through(piece.first_entry - 1)

    async def _last_within(self, piece: Piece, share: int) -> EntryId | None:
        """The last entry up to which a piece has no more than `share`; None if the first one has."""
        if isinstance(await self._plan.index.located(piece.lssn), ColdSegment):
            entries = share * piece.entries // max(1, await self._size(piece))
            return EntryId(piece.first_entry + entries - 1) if entries else None
        async with _Counter(self._plan, piece, self._unit) as counter:
            before = await counter.through(piece.first_entry - 1)
            low, high = piece.first_entry, piece.last_entry + 1  # All before `low` are within; `high` is not.
            while low < high:
                middle = EntryId((low + high) // 2)
                if await counter.through(middle) - before <= share:
                    low = EntryId(middle + 1)
                else:
                    high = middle
            return EntryId(low - 1) if low > piece.first_entry else None


class _Counter:
    """Records or bytes of a segment up to an entry."""

    def __init__(self, plan: StreamPlan, piece: Piece, unit: Unit) -> None:
        self._plan, self._piece, self._unit = plan, piece, unit
        self._known = {-1: 0}
        self._ledger: LedgerReader

    async def __aenter__(self) -> "_Counter":
        segment = await self._plan.index.segment(self._piece.lssn)
        if segment is None:
            raise NoSuchLedger(f"segment {self._piece.lssn} of stream {self._piece.stream!r} is gone")
        self._segment = segment
        self._opening = self._plan.context.ledgers.open(
            segment.ledger_id, password=self._plan.settings.password, recover=False
        )
        self._ledger = await self._opening.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._opening.__aexit__(None, None, None)

    async def through(self, entry_id: int) -> int:
        """Of the entries up to this one, which is counted, too."""
        asked = entry_id
        while entry_id not in self._known:
            entry = await self._ledger.read_entry(EntryId(entry_id))
            if self._unit == "bytes":
                self._known[entry_id] = entry.length
                break
            records = decode_entry(
                entry.payload, lssn=self._piece.lssn, entry_id=entry.entry_id, enveloped=self._segment.is_enveloped
            )
            if records:
                self._known[entry_id] = records[-1].position
                break
            entry_id -= 1  # An empty one says nothing.
        self._known[asked] = self._known[entry_id]
        return self._known[asked]
