"""Where a reader begins: which stream its request means, and the place in it that its start stands for.

What is asked at the same time is looked up once: a thousand readers that begin at the earliest record cost two looks,
the one under way when they came, and one that begins after the last of them came. So nobody is told what was so before
its call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument, MetadataUnavailable, PositionTruncated
from quire.proxy.incarnations import Incarnation, incarnation_of
from quire.rpc.serving.results import dlsn_of
from quire.stream.namespace import Namespace
from quire.stream.same_stream import gone
from quire.stream.segment_index import SegmentIndex, patiently
from quire.stream.start import Places, Start, Time, Txid
from quire.types import DLSN, EntryId, SlotId

T = TypeVar("T")

_RACES_MAX: Final = 10  # Times that a stream may be deleted and created again while we look at it.


def start_of(position: pb.Position) -> Start:
    """What a position in a request stands for; the earliest record if it says nothing. Raises `InvalidArgument`."""
    match position.WhichOneof("at"):
        case "dlsn":
            return _place(position.dlsn)
        case "behind":
            return _place(position.behind).next_slot()
        case "txid":
            return Txid(position.txid)
        case "time_ms":
            return Time(position.time_ms)
        case "edge" if position.edge == pb.LATEST:
            return "latest"
        case "edge" if position.edge not in (pb.EARLIEST, pb.EDGE_UNSPECIFIED):
            raise InvalidArgument(f"this proxy does not know edge {position.edge} of a stream")
        case _:
            return "earliest"


def _place(message: pb.Dlsn) -> DLSN:
    """With entries and slots counted from 0, as readers at the same place should be."""
    dlsn = dlsn_of(message)
    return dlsn if dlsn.entry_id >= 0 else DLSN(dlsn.lssn, EntryId(0), SlotId(0))


class Found(NamedTuple):
    """A place in one incarnation of a stream."""

    stream: str
    incarnation: Incarnation
    at: DLSN
    has_gap: bool = False
    """Whether records between the place that was asked for and this one are hidden."""


class Openings:
    """Finds places for readers."""

    def __init__(self, namespace: Namespace, *, at_once_max: int) -> None:
        self._namespace, self._context = namespace, namespace.context
        self._turns = asyncio.Semaphore(at_once_max)
        self._searches = asyncio.Semaphore(at_once_max)  # Apart: one that asks cold storage may take long.
        self._together: Together[Found] = Together()

    async def find(self, stream: str, start: Start, *, skip_truncated: bool, incarnation: str = "") -> Found:
        """With `incarnation`, as clients are told, in that stream only.

        Raises `InvalidName`, `NoSuchStream`, `PositionTruncated`, `PositionInFuture`, and what the metadata store
        and bookies raise after trying for long. A place that nothing has come to yet is found all the same, unless it
        is certain that nothing ever could."""
        name = stream_name(stream)
        key = (name, start, skip_truncated, incarnation)
        return await self._together.do(key, lambda: self._find(name, start, skip_truncated, incarnation))

    async def _find(self, stream: str, start: Start, skip_truncated: bool, incarnation: str) -> Found:
        async with self._searches if isinstance(start, Txid | Time) else self._turns:
            context, settings = self._context, self._namespace.settings_for(stream)
            clock, paths = context.runtime.clock, context.paths(stream)
            index = SegmentIndex(context.store, paths, clock, timeout_s=settings.call_timeout_s)
            places = Places(context, stream, index, settings)
            for _ in range(_RACES_MAX):
                before = await self.incarnation(stream, incarnation)
                await index.refresh()
                has_gap = False
                try:
                    at = await places.find(start, skip_truncated=False)
                except PositionTruncated:
                    if not skip_truncated:
                        raise
                    at, has_gap = await places.find(start, skip_truncated=True), True
                if await self.incarnation(stream) == before:
                    return Found(stream, before, at, has_gap)
        raise MetadataUnavailable(f"stream {stream!r} is deleted and created again all the time", stream=stream)

    async def incarnation(self, stream: str, wanted: str = "") -> Incarnation:
        """Which stream bears the name now. Raises `NoSuchStream`, also if it is not the `wanted` one."""
        context, settings = self._context, self._namespace.settings_for(stream)

        async def look() -> Incarnation:
            await context.store.sync()
            return await incarnation_of(context.store, context.paths(stream))

        found = await patiently(context.runtime.clock, look, timeout_s=settings.call_timeout_s)
        if wanted not in ("", str(found)):
            raise gone(stream)
        return found

    async def aclose(self) -> None:
        await self._together.aclose()


class Together(Generic[T]):
    """Does what is asked several times at once no more than twice."""

    def __init__(self) -> None:
        self._running: dict[object, asyncio.Task[T]] = {}
        self._next: dict[object, asyncio.Task[T]] = {}

    async def do(self, key: object, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, or of the same work that began for somebody else after this call."""
        task, running = self._next.get(key), self._running.get(key)
        if task is None and running is None:
            task = self._running[key] = _begun(self._run(key, work), f"look up {key}")
        elif task is None:
            assert running is not None
            task = self._next[key] = _begun(self._after(key, running, work), f"look up {key} again")
        # Not the caller's own: another one who waits for it must not be left alone.
        return await asyncio.shield(task)

    async def _run(self, key: object, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:
            del self._running[key]

    async def _after(self, key: object, running: "asyncio.Task[T]", work: Callable[[], Awaitable[T]]) -> T:
        try:
            await asyncio.wait([running])
        finally:
            task = self._next.pop(key)
        self._running[key] = task
        return await self._run(key, work)

    async def aclose(self) -> None:
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _begun(work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # If all are gone nobody minds its error.
    return task
