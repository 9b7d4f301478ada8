"""The lanes of one stream: which of them a reader is on, which one is the tail, and when one has met another.

A stream that is deleted and created again is another stream with other lanes, though it has the same name and its
records may have the same places. Each creation has a mark of its own (`incarnation_of`): readers and lanes belong to
one, and a lane looks again whenever it comes to another ledger.
"""

from dataclasses import replace
from typing import Protocol

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import DamagedEntry, OverCapacity
from quire.protocol.read_lanes import lane_for, lane_met
from quire.protocol.read_pacing import fan_out_interval_s
from quire.protocol.read_pools import Pool
from quire.protocol.read_windows import Chunk
from quire.proxy.incarnations import Incarnation, incarnation_of
from quire.proxy.read.cursor import Cursor
from quire.proxy.read.frames import SharedRecords
from quire.proxy.read.lane import Lane, LaneEnd
from quire.proxy.read.metrics import ReadMetrics
from quire.proxy.read.settings import ReadProxySettings
from quire.stream.context import StreamContext
from quire.stream.damage import report_skipped, unreadable
from quire.stream.entry_source import EntrySource
from quire.stream.same_stream import gone
from quire.stream.segment_index import SegmentIndex, patiently
from quire.stream.settings import StreamSettings
from quire.stream.start import Places
from quire.types import DLSN


class LaneBudget(Protocol):
    """What the lanes of all streams share."""

    context: StreamContext
    settings: ReadProxySettings
    metrics: ReadMetrics
    tail_pool: Pool
    scan_pool: Pool
    lanes_met: int

    async def await_room(self) -> None:
        """Return when another lane may begin. Raises `OverCapacity`."""

    def on_moved(self, lane: Lane) -> None:
        """The lane reads from cold storage now, or no longer. Raises `OverCapacity` if it may not."""

    def on_room(self) -> None:
        """A lane has ended, or takes less."""

    def on_lane_failed(self, stream: str, lane: Lane) -> None:
        """The lane has ended with an error."""


class StreamLanes:
    """The lanes and readers of one incarnation of a stream."""

    def __init__(self, every: LaneBudget, stream: str, incarnation: Incarnation, settings: StreamSettings) -> None:
        self.stream, self.incarnation, self.settings = stream, incarnation, settings
        self.lanes: list[Lane] = []
        self.cursors: set[Cursor] = set()
        self.tail: Lane | None = None
        self.tail_bytes = 0  # What came at the tail, ever.
        self.records = SharedRecords(self._on_damage)
        self._every, self._context = every, every.context
        self._paths = every.context.paths(stream)

    def cursor(self, position: DLSN) -> Cursor:
        """A reader of the stream. To be closed."""
        cursor = Cursor(self, position)
        self.cursors.add(cursor)
        return cursor

    def forget(self, cursor: Cursor) -> None:
        self.cursors.discard(cursor)

    @property
    def is_unused(self) -> bool:
        return not self.cursors and not self.lanes

    # --- Finding a lane

    async def attach(self, cursor: Cursor) -> Lane:
        """Put a reader on the lane that has its place; start one there if none does. Raises `OverCapacity`."""
        lane = lane_for(cursor.position, self.lanes)
        if lane is None:
            await self._every.await_room()
            lane = lane_for(cursor.position, self.lanes) or self._start(cursor.position)
        else:
            self._every.metrics.on_shared(is_tail=lane.is_tail)
        lane.enter(cursor)
        return lane

    def _start(self, begin: DLSN) -> Lane:
        every, clock = self._every, self._context.runtime.clock
        lane = Lane(
            self,
            begin,
            every.scan_pool,
            now_s=clock.monotonic(),
            interval_of=self._interval_s,
            name=f"lane of {self.stream} from {begin}",
            monotonic=clock.monotonic,
        )
        self.lanes.append(lane)
        every.metrics.lanes_started.add()
        return lane

    def _interval_s(self, readers: int) -> float:
        settings = self._every.settings
        return fan_out_interval_s(
            readers, per_reader_s=settings.fan_out_s_per_reader, interval_s_max=settings.fan_out_interval_s_max
        )

    # --- What lanes need

    async def open_source(self, begin: DLSN) -> EntrySource:
        context, clock = self._context, self._context.runtime.clock
        index = SegmentIndex(context.store, self._paths, clock, timeout_s=self.settings.call_timeout_s)
        settings = replace(self.settings, read_ahead_bytes_max=4 * self._every.settings.lane_read_bytes)
        await index.refresh()
        places = Places(context, self.stream, index, settings)
        return EntrySource(
            context, self.stream, index, places, settings, at=begin, skip_truncated=False, skip_at_first=False
        )

    async def check_same_stream(self) -> None:
        now = await patiently(
            self._context.runtime.clock,
            lambda: incarnation_of(self._context.store, self._paths),
            timeout_s=self.settings.call_timeout_s,
        )
        if now != self.incarnation:
            raise gone(self.stream)

    def on_tail(self, lane: Lane) -> None:
        """The tail is the lane that has read furthest: no other waits at the end of the stream, too."""
        tail = self.tail
        if tail is lane or not lane.is_open or self._ends_where_met(lane):
            return
        if tail is not None and len(tail.window) and tail.window.end > lane.window.end:
            return  # What is between is confirmed: the lane meets the tail when it has read that.
        self.tail = lane
        lane.is_tail = True
        lane.move_to(self._every.tail_pool)
        if tail is not None:
            # It has heard less of what is confirmed, or nothing came to it yet: its readers go on here.
            tail.stop(LaneEnd.MET)
        self._every.on_room()

    def _ends_where_met(self, lane: Lane) -> bool:
        """Whether the lane has come to where another one has been. It ends there."""
        if lane_met(lane, self.lanes) is None:
            return False
        self._every.lanes_met += 1
        lane.stop(LaneEnd.MET)
        return True

    def on_segment(self, lane: Lane, *, is_cold: bool) -> None:
        if lane.is_cold != is_cold:
            lane.is_cold = is_cold
            self._every.on_moved(lane)

    def on_chunk(self, lane: Lane, chunk: Chunk) -> None:
        self._every.metrics.on_read(chunk)
        lane.pool.shrink()
        if lane.is_tail:
            self.tail_bytes += len(chunk.frame)
        else:
            self._ends_where_met(lane)

    def on_ended(self, lane: Lane) -> None:
        if self.tail is lane:
            self.tail = None
        lane.is_tail = False
        if lane.error is not None:
            self._every.on_lane_failed(self.stream, lane)
        self._every.on_room()

    def _on_damage(self, place: DLSN, error: DamagedEntry) -> bool:
        if not self.settings.skip_damaged:
            raise unreadable(self.stream, place, error)
        report_skipped(self.stream, place, error)
        return True


def no_lane(wait_s: float) -> OverCapacity:
    return OverCapacity(
        f"no lane to read on became free within {wait_s:g} s: too many readers are at different places",
        hint="Come back in a moment, or use another proxy.",
        retry_after_ms=round(wait_s * 1000),
        code=int(pb.READ_OVERLOADED),
    )


def no_cold_lane(lanes_max: int) -> OverCapacity:
    return OverCapacity(
        f"archived segments are being read at {lanes_max} different places already",
        hint="Come back in a moment, or use another proxy.",
        retry_after_ms=1000,
        code=int(pb.READ_OVERLOADED),
    )
