"""What all calls of a read proxy share: its lanes, its limits, and the readers that are open."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.cold.read_limit import ReadLimit
from quire.errors import OverCapacity, ProxyDraining
from quire.protocol.read_pacing import BytePace
from quire.protocol.read_pools import Pool
from quire.proxy.catalog import check_namespace, namespace_name
from quire.proxy.read.all_lanes import AllLanes
from quire.proxy.read.commits import Commits
from quire.proxy.read.cursor import Cursor
from quire.proxy.read.metrics import ReadMetrics
from quire.proxy.read.openings import Found, Openings
from quire.proxy.read.settings import ReadProxySettings
from quire.proxy.read.stream_lanes import StreamLanes
from quire.stream.namespace import Namespace
from quire.stream.same_stream import SameStream
from quire.stream.subscriptions import Subscriptions
from quire.telemetry import names
from quire.telemetry.metrics import Registry


class OpenReading(Protocol):
    """A reader that is open at this proxy."""

    stream: str
    cursor: Cursor
    messages: int


class ReadService:
    """Made by `open_read_service`."""

    def __init__(
        self, namespace: Namespace, settings: ReadProxySettings, lanes: AllLanes, metrics: ReadMetrics
    ) -> None:
        self.namespace, self.context, self.settings = namespace, namespace.context, settings
        self.lanes, self.metrics = lanes, metrics
        self.name = namespace_name(namespace)
        self.openings = Openings(namespace, at_once_max=settings.openings_max)
        self.commits = Commits(
            self.context, metrics, interval_s=settings.commit_interval_s, subscriptions_in=self.subscriptions_in
        )
        self.readings: set[OpenReading] = set()
        self.is_draining = False
        self.parked_fetches = 0
        self._readers = 0
        self._paces = {
            pb.TAIL: BytePace(settings.tail_bytes_per_s_max),
            pb.CATCHUP: BytePace(settings.scan_bytes_per_s_max),
            pb.COLD: BytePace(settings.cold_bytes_per_s_max),
        }
        paces = (settings.tail_bytes_per_s_max, settings.scan_bytes_per_s_max, settings.cold_bytes_per_s_max)
        self.is_paced = min(paces) < math.inf
        self.cold_limit = ReadLimit(
            at_once_max=settings.cold_reads_max, wait_s=settings.lane_wait_s, code=int(pb.READ_OVERLOADED)
        )
        self.context.cold.limit_reads(self.cold_limit)
        self._enter_gauges()

    # --- What requests mean

    def check_namespace(self, name: str) -> None:
        """Raises `InvalidArgument` unless it is ours, or empty."""
        check_namespace(self.namespace, name)

    def stream_name(self, stream: str) -> str:
        """In its normal form. Raises `InvalidName`."""
        return stream_name(stream)

    def subscriptions_of(self, stream: str) -> Subscriptions:
        return Subscriptions(self.context.store, self.context.paths(stream_name(stream)))

    async def subscriptions_in(self, stream: str, incarnation: str) -> Subscriptions:
        """Those of one incarnation, or if it is empty of the stream that is there. Raises `NoSuchStream`."""
        same = SameStream(self.context.store, self.context.paths(stream))
        await same.know()  # Before we compare: what is made after that is refused when a position is stored.
        await self.openings.incarnation(stream, incarnation)
        return Subscriptions(same.store, same.paths, same)

    def lanes_of(self, found: Found) -> StreamLanes:
        return self.lanes.of(found.stream, found.incarnation, self.namespace.settings_for(found.stream))

    def pace_of(self, mode: pb.ReadMode) -> BytePace:
        return self._paces[mode]

    # --- Limits

    @contextmanager
    def counted_reader(self) -> Iterator[None]:
        """One more reader is open for the block. Raises `OverCapacity`, `ProxyDraining`."""
        if self.is_draining:
            raise ProxyDraining("this proxy is being stopped")
        if self._readers >= self.settings.readers_max:
            self.metrics.refused.add()
            raise OverCapacity(
                f"{self._readers} readers are open at this proxy already",
                hint="Use another proxy, or come back later.",
                retry_after_ms=1000,
                code=int(pb.READ_OVERLOADED),
            )
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @contextmanager
    def parked(self) -> Iterator[None]:
        """One more fetch may wait for the block. Raises `OverCapacity`."""
        if self.parked_fetches >= self.settings.parked_fetches_max:
            self.metrics.refused.add()
            raise _too_many_parked(self.parked_fetches)
        self.parked_fetches += 1
        try:
            yield
        finally:
            self.parked_fetches -= 1

    @contextmanager
    def shown(self, reading: OpenReading) -> Iterator[None]:
        """The reading is listed for the block."""
        self.readings.add(reading)
        try:
            yield
        finally:
            self.readings.discard(reading)

    def drain(self) -> None:
        """Take no new readers, and send those away that are open: they go on elsewhere at the same place."""
        self.is_draining = True
        for reading in self.readings:
            reading.cursor.fail(ProxyDraining("this proxy is being stopped", position=reading.cursor.position))

    # --- What is going on

    def _enter_gauges(self) -> None:
        registry, lanes = self.metrics.registry, self.lanes
        for pool, name in ((lanes.tail_pool, "tail"), (lanes.scan_pool, "scan")):
            self._enter_pool(registry, pool, name)
        registry.gauge(names.READ_PROXY_READERS, lambda: self._count(pb.TAIL), mode="tail")
        registry.gauge(names.READ_PROXY_READERS, lambda: self._count(pb.CATCHUP), mode="catchup")
        registry.gauge(names.READ_PROXY_READERS, lambda: self._count(pb.COLD), mode="cold")
        registry.gauge(names.READ_PROXY_COLD_READS, lambda: self.cold_limit.reading, state="reading")
        registry.gauge(names.READ_PROXY_COLD_READS, lambda: self.cold_limit.waiting, state="waiting")
        registry.gauge(names.READ_PROXY_PARKED_FETCHES, lambda: self.parked_fetches)
        registry.gauge(names.READ_PROXY_BEHIND_BYTES, self._behind_bytes)
        registry.gauge(
            names.READ_PROXY_TAIL_LAG_ENTRIES, lambda: max(self._by_stream(_lag_entries).values(), default=0)
        )
        if self.settings.stream_metrics:
            registry.gauges(names.READ_PROXY_STREAM_READERS, lambda: self._by_stream(lambda each: len(each.cursors)))
            registry.gauges(names.READ_PROXY_STREAM_LAG_ENTRIES, lambda: self._by_stream(_lag_entries))
            registry.gauges(names.READ_PROXY_STREAM_CACHE_BYTES, lambda: self._by_stream(_cache_bytes))

    def _enter_pool(self, registry: Registry, pool: Pool, name: str) -> None:
        registry.gauge(names.READ_PROXY_CACHE_BYTES, lambda: pool.bytes, pool=name)
        registry.gauge(names.READ_PROXY_LANES, lambda: len(pool), pool=name)
        registry.counter(names.READ_PROXY_CACHE_EVICTED_TOTAL, pool=name).read = lambda: pool.evicted
        registry.counter(names.READ_PROXY_CACHE_EXPIRED_TOTAL, pool=name).read = lambda: pool.expired

    def _count(self, mode: pb.ReadMode) -> int:
        return sum(reading.cursor.mode == mode for reading in self.readings)

    def _by_stream(self, figure: Callable[[StreamLanes], int]) -> dict[str, int]:
        """Of a name that two incarnations bear, as long as readers of the old one are left, both together."""
        found: dict[str, int] = {}
        for each in self.lanes.streams.values():
            found[each.stream] = found.get(each.stream, 0) + figure(each)
        return found

    def _behind_bytes(self) -> int:
        return max((reading.cursor.behind_bytes for reading in self.readings), default=0)

    def debug_streams(self) -> dict[str, Any]:
        return {
            stream.stream: {
                "readers": len(stream.cursors),
                "tail_bytes": stream.tail_bytes,
                "lanes": [
                    {
                        "begin": str(lane.window.begin),
                        "end": str(lane.window.end),
                        "bytes": lane.window.bytes,
                        "readers": lane.reader_count,
                        "is_tail": lane.is_tail,
                        "is_cold": lane.is_cold,
                        "state": "open" if lane.end is None else lane.end.name.lower(),
                    }
                    for lane in stream.lanes
                ],
            }
            for stream in self.lanes.streams.values()
        }

    def debug_readers(self) -> list[dict[str, Any]]:
        return [
            {
                "stream": reading.stream,
                "position": str(reading.cursor.position),
                "mode": pb.ReadMode.Name(reading.cursor.mode),
                "behind_bytes": reading.cursor.behind_bytes,
                "messages": reading.messages,
            }
            for reading in self.readings
        ]

    def debug_cache(self) -> dict[str, Any]:
        pools = {"tail": self.lanes.tail_pool, "scan": self.lanes.scan_pool}
        return {
            name: {
                "bytes": pool.bytes,
                "budget_bytes": pool.budget_bytes,
                "lanes": len(pool),
                "evicted": pool.evicted,
                "expired": pool.expired,
            }
            for name, pool in pools.items()
        } | {
            "read_entries": self.metrics.read_entries.value,
            "sent_entries": self.metrics.sent_entries.value,
            "parked_fetches": self.parked_fetches,
            "cold_reads": self.cold_limit.reading,
            "cold_reads_waiting": self.cold_limit.waiting,
        }


def _lag_entries(stream: StreamLanes) -> int:
    return 0 if stream.tail is None else stream.tail.lag_entries


def _cache_bytes(stream: StreamLanes) -> int:
    return sum(lane.window.bytes for lane in stream.lanes)


@asynccontextmanager
async def open_read_service(namespace: Namespace, settings: ReadProxySettings) -> AsyncIterator[ReadService]:
    metrics = ReadMetrics(namespace.context.ledgers.metrics.registry)
    async with AllLanes(namespace.context, settings, metrics) as lanes:
        service = ReadService(namespace, settings, lanes, metrics)
        try:
            yield service
        finally:
            await service.commits.aclose()
            await service.openings.aclose()


def _too_many_parked(count: int) -> OverCapacity:
    return OverCapacity(
        f"{count} calls wait for entries at this proxy already",
        hint="Come back in a moment, use another proxy, or read with `Read`: it waits at no cost.",
        retry_after_ms=1000,
        code=int(pb.READ_OVERLOADED),
    )
