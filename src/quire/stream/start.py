"""Where reading begins: at a place, a txid, a time, with the oldest record, or behind the newest.

    start=DLSN(3, 17, 0)      a position that was stored; it must still be there, and have been there
    start=Txid(1001)          the first record whose txid is not below
    start=Time(moment)        the first record not older, if txids are times; else the segment that was written then.
                              Behind what is confirmed where all records are older
    start="earliest"          the first record that is neither truncated nor purged
    start="latest"            what is confirmed from now on

Each becomes a place in the stream. Segments are found by halving, as their first txids and the times of their
completion grow along the chain, and those that are truncated are a part of it from its beginning: of ten thousand
segments some dozen are looked at. As text, positions are in `quire.stream.positions`.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from quire.codec.cold import ColdSegment
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Segment
from quire.errors import (
    DamagedColdFile,
    DamagedEntry,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchLedger,
    PositionInFuture,
)
from quire.ledger.reading.reader import LedgerReader
from quire.protocol.segments import FIRST_LSSN
from quire.stream.cold_segments import open_cold
from quire.stream.context import StreamContext
from quire.stream.damage import place_of, unreadable
from quire.stream.search import find_txid_in
from quire.stream.segment_index import SegmentIndex, patiently
from quire.stream.settings import StreamSettings
from quire.stream.truncation import Left, first_place, left_of, left_of_purged, position_truncated, shown
from quire.types import DLSN, NO_ENTRY, EntryId, Lssn, SlotId
from quire.values import dataclass

_RACES_MAX: Final = 100
_COLD_RACES_MAX: Final = 3
_PURGE_PAUSE_S: Final = 0.1
_TIMES_FROM_MS, _TIMES_END_MS = 10**11, 10**14  # 1973 and 5138: no counter came so far, and microseconds are beyond.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Txid:
    """Begin with the first record whose txid is not below this one."""

    value: int

    def __post_init__(self) -> None:
        if not -TXID_MAX - 1 <= self.value <= TXID_MAX:
            raise InvalidArgument(f"txid {self.value} does not fit into 64 bits", txid=self.value)


@dataclass(frozen=True, slots=True)
class Time:
    """Begin with what was written then: milliseconds since 1970, or a `datetime` with a time zone."""

    moment: int | datetime

    def __post_init__(self) -> None:
        if isinstance(self.moment, datetime) and self.moment.tzinfo is None:
            raise InvalidArgument(
                f"{self.moment} is no moment without a time zone", hint="Use datetime.now(UTC), for example."
            )

    @property
    def ms(self) -> int:
        return self.moment if isinstance(self.moment, int) else (self.moment - _EPOCH) // _MILLISECOND


Start: TypeAlias = Literal["earliest", "latest"] | DLSN | Txid | Time


class _Found(NamedTuple):
    """A place, and whether a record that was looked for may be there; if not, it is the end of what is confirmed."""

    at: DLSN
    is_hit: bool


class Places:
    """Finds places in one stream, from what its index and its ledgers say."""

    def __init__(self, context: StreamContext, stream: str, index: SegmentIndex, settings: StreamSettings) -> None:
        self._context, self._stream, self._index, self._settings = context, stream, index, settings
        self._first_ever = context.binding.first_lssn or FIRST_LSSN

    async def find(self, start: Start, *, skip_truncated: bool) -> DLSN:
        """The place that `start` stands for. Raises `PositionTruncated`, `PositionInFuture`, `InvalidArgument`."""
        if isinstance(start, DLSN):
            await self._check_future(start)
            return await self.admit(start, skip_truncated=skip_truncated)
        if isinstance(start, Txid):
            return await self._steadily(lambda: self._by_txid(start.value))
        if isinstance(start, Time):
            return await self._steadily(lambda: self._by_time(start.ms))
        if start == "latest":
            return await self._steadily(self._latest)
        if start == "earliest":
            return await self.earliest()
        raise InvalidArgument(f"a reader cannot begin at {start!r}", hint="Give a DLSN, txid, time, or 'earliest'.")

    # --- Places that are given

    async def admit(self, at: DLSN, *, skip_truncated: bool) -> DLSN:
        """Where reading goes on that wants `at`: there, or, if nothing is missed by that, behind what is gone.

        Raises `PositionTruncated` if something is, unless it is to be skipped. A segment to come is not waited for.
        """
        return await self._steadily(lambda: self._admit(at, skip_truncated))

    async def _admit(self, at: DLSN, skip_truncated: bool) -> DLSN:
        while (last := self._index.last) is not None and at.lssn <= last:
            left = await self._left(at)
            if left.has_gap:
                await self._index.refresh()  # What was truncated meanwhile may have hidden all that is cold.
                earliest = await self._earliest()
                if not skip_truncated:
                    raise position_truncated(self._stream, at, earliest)
                return max(at, earliest)
            if left.at == at:
                return at
            at = left.at
        return at

    async def _left(self, at: DLSN) -> Left:
        first = self._index.first
        if first is not None and at.lssn < first:
            return left_of_purged(at, first=first, first_ever=self._first_ever)
        located = await self._located(at.lssn)
        left = left_of(located.segment if isinstance(located, ColdSegment) else located, at)
        if left.has_gap:
            try:
                if not await self._has_records(located, at, left.at):
                    return Left(left.at, has_gap=False)
            except (NoSuchLedger, DamagedColdFile) as error:
                if isinstance(error, DamagedColdFile) and not error.facts.get("is_missing"):
                    raise
                await self._index.refresh()
                if await self._located(at.lssn) != located:
                    raise _MovedError from error
                return left  # A purge of it was stopped: there may have been records.
        return left

    async def _has_records(self, segment: Segment | ColdSegment, begin: DLSN, end: DLSN) -> bool:
        """Whether an application would see anything of a segment from `begin` to before `end`.

        A recovered segment says that it ends with a control record: whoever read all before that misses nothing.
        """
        if isinstance(segment, ColdSegment):
            async with aclosing((await open_cold(self._context, self._stream, segment)).places(begin)) as places:
                async for place in places:
                    return place < end
            return False
        password, recover = self._settings.password, segment.completion is not None
        async with self._context.ledgers.open(segment.ledger_id, password=password, recover=recover) as ledger:
            ledger.part_of = place_of(self._stream, segment.lssn)
            async for entry_id, payload in ledger.read(max(0, begin.entry_id), None):
                for record in decode_entry(
                    payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped
                ):
                    if record.dlsn >= begin and not record.is_control and not record.is_end_of_stream:
                        return record.dlsn < end
        return False

    async def _check_future(self, at: DLSN) -> None:
        if self._index.last is not None and at.lssn <= self._index.last + 1:
            return
        highest = await self._index.highest()
        if at.lssn > max(highest + 1, self._first_ever):
            raise position_in_future(self._stream, at, f"segments up to {highest} were begun")

    # --- The ends

    async def earliest(self) -> DLSN:
        """The oldest place that is left. Where there is no segment it is that of the first one to come."""
        return await self._steadily(self._earliest)

    async def _earliest(self) -> DLSN:
        first, last = self._index.first, self._index.last
        if first is None or last is None:
            return first_place(self._first_ever)

        async def is_left(lssn: Lssn) -> bool:
            return not (await self._segment(lssn)).is_truncated

        lssn = first if await is_left(first) else await _first_where(is_left, Lssn(first + 1), last)
        if lssn is None:
            return first_place(Lssn(last + 1))
        return left_of(await self._segment(lssn), first_place(lssn)).at

    async def _latest(self) -> DLSN:
        """Behind what is confirmed of the oldest segment that is still written: while a roll is under way there are
        two, and what is on its way to the older one has not been confirmed yet.
        """
        first, last = self._index.first, self._index.last
        if first is None or last is None:
            return first_place(self._first_ever)
        oldest = Lssn(last + 1)
        while oldest > first and (await self._segment(Lssn(oldest - 1))).completion is None:
            oldest = Lssn(oldest - 1)
        for lssn in range(oldest, last + 1):
            segment = await self._segment(Lssn(lssn))
            async with self._context.ledgers.open(
                segment.ledger_id, password=self._settings.password, recover=False
            ) as ledger:
                if not _is_final(ledger, segment):
                    return _end_of(ledger, segment)
        return first_place(Lssn(last + 1))

    # --- Searches

    async def _by_txid(self, txid: int) -> DLSN:
        return (await self._search(txid, await self._earliest())).at

    async def _by_time(self, ms: int) -> DLSN:
        begin, last = await self._earliest(), self._index.last
        if last is None or begin.lssn > last:
            return begin

        async def was_written_then(lssn: Lssn) -> bool:
            done = (await self._segment(lssn)).completion
            return done is None or done.completed_at_ms >= ms

        first = await _first_where(was_written_then, begin.lssn, last)
        if first is None:
            return first_place(Lssn(last + 1))
        begin = max(begin, first_place(first))
        found = await self._search(ms, begin)
        if found.is_hit or _TIMES_FROM_MS <= (await self._segment(first)).first_txid < _TIMES_END_MS:
            return found.at
        return begin  # Txids tell nothing of times here, so what was written then is somewhere in this segment.

    async def _search(self, txid: int, begin: DLSN) -> _Found:
        """The first record from `begin` on whose txid is not below `txid`; else the end of what is confirmed."""
        last = self._index.last
        if last is None or begin.lssn > last:
            return _Found(begin, is_hit=False)

        async def is_above(lssn: Lssn) -> bool:
            return (await self._segment(lssn)).first_txid > txid

        above = await _first_where(is_above, begin.lssn, last)
        if above == begin.lssn:
            return _Found(begin, is_hit=True)
        # A roll begins a segment with the last txid of the one before it, or while records still go there: so those
        # before the last segment that does not begin above may have it, too.
        lssn = last if above is None else Lssn(above - 1)
        candidates = [await self._located(lssn)]
        while candidates[0].lssn > begin.lssn:
            before = await self._located(Lssn(candidates[0].lssn - 1))
            if not _may_hold(before, txid):
                break
            candidates.insert(0, before)
        for segment in candidates:
            found = await self._search_segment(segment, txid) if _may_hold(segment, txid) else None
            if found is not None:
                return _Found(max(found.at, begin), found.is_hit)
        return _Found(first_place(Lssn(lssn + 1)), is_hit=above is not None)

    async def _search_segment(self, segment: Segment | ColdSegment, txid: int) -> _Found | None:
        """None if nothing of the kind is in the segment, or ever will be."""
        if isinstance(segment, ColdSegment):
            place = await (await open_cold(self._context, self._stream, segment)).find_txid(txid)
            return None if place is None else _Found(place, is_hit=True)
        password, recover = self._settings.password, segment.completion is not None
        async with self._context.ledgers.open(segment.ledger_id, password=password, recover=recover) as ledger:
            ledger.part_of = place_of(self._stream, segment.lssn)

            async def read(entry_id: EntryId) -> list[LogRecord]:
                try:
                    payload = (await ledger.read_entry(entry_id)).payload
                    return decode_entry(
                        payload,
                        lssn=segment.lssn,
                        entry_id=entry_id,
                        enveloped=segment.is_enveloped,
                        expand_sets=False,
                    )
                except DamagedEntry as error:
                    if self._settings.skip_damaged:
                        return []  # It is reported when it is read.
                    raise unreadable(self._stream, DLSN(segment.lssn, entry_id, SlotId(0)), error) from error

            while True:
                last = ledger.last_add_confirmed
                found = await find_txid_in(read, last=last, txid=txid)
                if found is not None:
                    return _Found(found, is_hit=True)
                if ledger.last_add_confirmed == last:  # Otherwise entries came while we searched.
                    return None if _is_final(ledger, segment) else _Found(_end_of(ledger, segment), is_hit=False)

    # --- A chain that changes while we look at it

    async def _segment(self, lssn: Lssn) -> Segment:
        located = await self._located(lssn)
        return located.segment if isinstance(located, ColdSegment) else located

    async def _located(self, lssn: Lssn) -> Segment | ColdSegment:
        located = await self._index.located(lssn)
        if located is None:
            raise _MovedError
        return located

    async def _steadily(self, work: Callable[[], Awaitable[DLSN]]) -> DLSN:
        """Do `work`, and again if a segment that it relied on has gone meanwhile. Of one that is purged the ledger goes
        first: raises `NoSuchLedger` only if that goes on for long.
        """
        clock, timeout_s = self._context.runtime.clock, self._settings.call_timeout_s
        for races in range(1, _RACES_MAX + 1):
            try:
                return await patiently(clock, work, timeout_s=timeout_s)
            except _MovedError:
                pass
            except (NoSuchLedger, DamagedColdFile) as error:
                # A file that is missing may have been purged a moment ago, or the segment restored.
                if races == (_RACES_MAX if isinstance(error, NoSuchLedger) else _COLD_RACES_MAX):
                    raise
                await clock.sleep(_PURGE_PAUSE_S)
            await self._index.refresh()
        raise MetadataUnavailable(
            f"the segments of stream {self._stream!r} change faster than they can be read", stream=self._stream
        )


def _is_final(ledger: LedgerReader, segment: Segment) -> bool:
    """Whether nothing more comes into a segment. One in progress without entries may be begun anew."""
    return ledger.is_closed and (segment.completion is not None or ledger.last_add_confirmed > NO_ENTRY)


def _end_of(ledger: LedgerReader, segment: Segment) -> DLSN:
    return DLSN(segment.lssn, EntryId(ledger.last_add_confirmed + 1), SlotId(0))


def _may_hold(located: Segment | ColdSegment, txid: int) -> bool:
    segment = located.segment if isinstance(located, ColdSegment) else located
    return segment.completion is None or segment.completion.last_txid >= txid


class _MovedError(Exception):
    """A segment that was listed is not there any more."""


async def _first_where(holds: Callable[[Lssn], Awaitable[bool]], first: Lssn, last: Lssn) -> Lssn | None:
    """The first LSSN from `first` to `last` for which `holds`; from there on it holds for all."""
    low, high = first, last + 1
    while low < high:
        middle = Lssn((low + high) // 2)
        if await holds(middle):
            high = middle
        else:
            low = Lssn(middle + 1)
    return low if low <= last else None


def position_in_future(stream: str, at: DLSN, why: str) -> PositionInFuture:
    return PositionInFuture(
        f"nothing of stream {stream!r} can be at {shown(at)} yet: {why}", stream=stream, position=at
    )
