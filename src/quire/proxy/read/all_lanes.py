"""All lanes of a read proxy: how many there may be, how much they keep, and when they go.

Once in a while a sweep drops what nobody will ask for any more, lets readers go that have dropped out of a window, and
ends lanes that nobody is on. In between nothing is done for what does not happen.
"""

import asyncio
from collections import deque
from typing import Final, Self

from quire.errors import ProxyDraining, QuireError
from quire.protocol.read_pools import TAIL_SHARE, Pool
from quire.proxy.incarnations import Incarnation
from quire.proxy.read.lane import Lane, LaneEnd
from quire.proxy.read.metrics import ReadMetrics
from quire.proxy.read.settings import ReadProxySettings
from quire.proxy.read.stream_lanes import StreamLanes, no_cold_lane, no_lane
from quire.stream.context import StreamContext
from quire.stream.settings import StreamSettings
from quire.telemetry.events import logger

_SWEEP_S: Final = 0.25
_log = logger("proxy.read")


class AllLanes:
    """The streams that are read now. For use as `async with`."""

    def __init__(self, context: StreamContext, settings: ReadProxySettings, metrics: ReadMetrics) -> None:
        self.context, self.settings, self.metrics = context, settings, metrics
        tail_bytes = round(settings.cache_bytes_max * TAIL_SHARE)
        self.tail_pool = Pool(tail_bytes, is_tail=True, passed_s=settings.passed_s, age_s_max=settings.tail_age_s_max)
        self.scan_pool = Pool(
            settings.cache_bytes_max - tail_bytes, is_tail=False, passed_s=settings.passed_s, age_s_max=None
        )
        self.streams: dict[tuple[str, Incarnation], StreamLanes] = {}
        self.lanes_met = 0  # That ended because another one had been there.
        self._is_closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._sweeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sweeping = asyncio.create_task(self._sweep_always(), name="sweep of lanes")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._sweeping is not None
        self._is_closed = True
        self._sweeping.cancel()
        await asyncio.wait([self._sweeping])
        lanes = [lane for stream in self.streams.values() for lane in stream.lanes]
        await asyncio.gather(*(lane.aclose() for lane in lanes), *self._closing)

    def of(self, stream: str, incarnation: Incarnation, settings: StreamSettings) -> StreamLanes:
        """The lanes of a stream. `settings` count if there are none yet."""
        key = (stream, incarnation)
        if key not in self.streams:
            self.streams[key] = StreamLanes(self, stream, incarnation, settings)
        return self.streams[key]

    # --- Room for one more

    async def await_room(self) -> None:
        """Return when another lane may be started. Raises `OverCapacity` if that takes too long, `ProxyDraining`."""
        if self._is_closed:
            raise ProxyDraining("this proxy is being stopped")
        limit_s = self.settings.lane_wait_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                while not self._has_room():
                    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._rooms.append(room)
                    try:
                        await room
                    except asyncio.CancelledError:
                        if room in self._rooms:
                            self._rooms.remove(room)
                        else:
                            self.on_room()  # It was our turn: the next one's, then.
                        raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.metrics.refused.add()
            raise no_lane(limit_s) from error

    def _has_room(self) -> bool:
        """Lanes that nobody waits for make room: their readers start another one when they ask again."""
        settings = self.settings
        if len(self.tail_pool) >= settings.tail_lanes_max:
            return False
        reading = self._reading(is_cold=False)
        return len(reading) < settings.scan_lanes_max or self._close_idle(reading)

    def _reading(self, *, is_cold: bool) -> list[Lane]:
        members = [lane for lane in self.scan_pool.members() if isinstance(lane, Lane)]
        return [lane for lane in members if lane.is_open and lane.is_cold == is_cold]

    def _close_idle(self, lanes: list[Lane]) -> bool:
        """End the one that nobody has used for longest. Returns whether there was one that nobody waits for."""
        idle = [lane for lane in lanes if lane.is_idle]
        oldest = min(idle, key=lambda lane: lane.used_s, default=None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def on_moved(self, lane: Lane) -> None:
        """A lane has come to what is only in cold storage, or from there. Raises `OverCapacity`.

        Cold lanes are counted apart: however long cold storage takes, others get lanes all the same.
        """
        if lane.is_cold:
            others = [each for each in self._reading(is_cold=True) if each is not lane]
            if len(others) >= self.settings.cold_lanes_max and not self._close_idle(others):
                self.metrics.refused.add()
                raise no_cold_lane(self.settings.cold_lanes_max)
        self.on_room()

    def on_room(self) -> None:
        """A lane went, or became a tail."""
        while self._rooms:
            room = self._rooms.popleft()
            if not room.done():
                room.set_result(None)
                return

    # --- What is over

    def on_lane_failed(self, stream: str, lane: Lane) -> None:
        error = lane.error
        if isinstance(error, QuireError):
            _log.info("lane.ended", stream=stream, at=str(lane.window.end), error=repr(error))
        else:
            _log.error("lane.failed", stream=stream, at=str(lane.window.end), exc_info=error)

    async def _sweep_always(self) -> None:
        clock = self.context.runtime.clock
        while True:
            await clock.sleep(_SWEEP_S)
            self.sweep(clock.monotonic())

    def sweep(self, now_s: float) -> None:
        for key, stream in list(self.streams.items()):
            for lane in list(stream.lanes):
                lane.shared = None
                for cursor in list(lane.readers):
                    if cursor.position < lane.window.begin:
                        cursor.detach()  # It has dropped out: it counts for nothing here any more.
                        self.metrics.dropped_out.add()
                if not lane.readers and self._is_over(lane, now_s):
                    self._close(lane)
            if stream.is_unused:
                del self.streams[key]
        self.tail_pool.expire(now_s)
        self.scan_pool.expire(now_s)
        self.on_room()  # Whoever waits looks again: a lane may be idle by now.

    def _is_over(self, lane: Lane, now_s: float) -> bool:
        linger_s = self.settings.tail_linger_s if lane.is_tail else self.settings.passed_s
        return now_s - lane.left_s >= (linger_s if lane.is_joinable else 0.0)

    def _close(self, lane: Lane) -> None:
        """End a lane, and forget it. Readers that are still on it find another one."""
        for stream in self.streams.values():
            if lane in stream.lanes:
                stream.lanes.remove(lane)
        lane.stop(LaneEnd.CLOSED)
        lane.discard()
        for cursor in list(lane.readers):
            cursor.detach()
        task = asyncio.create_task(lane.aclose(), name="close a lane")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
