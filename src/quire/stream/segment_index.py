"""Which segments a stream has, known from one listing; what each of them is, read when somebody asks.

The name of a segment's node carries its LSSN, so a listing alone tells the chain: a stream of ten thousand segments is
opened with one request. Names of old writers do not; those nodes are read with the listing, each once. A stream whose
first segment is not among them may have archived it: then its cold segments are listed, too.

Invariants:
  ListedAtOnce     first, last and all between are from one listing: no segment is missing or there twice.
  DataIsFresh      what was read of a completed segment counts until the next listing; a segment in progress is read
                   each time it is asked for, as it may be completed, or begun anew with another ledger, at any moment.
  NothingBetween   what is cold is listed after what is hot. A segment that moves between the two is in one of the
                   listings, as its cold node is there before, and stays.
  PurgedIsGone     of what is cold only the newest is looked at with the listing. One that turns out to be purged when
                   it is read is gone for ever, and so is all before it: see `cold_nodes`.
  HiddenBefore     nothing cold is listed if the first hot segment is truncated, in part or as a whole.
  SameStream       what is listed is of the stream that was there at first: see `same_stream`.
  CacheIsBounded   no more than `_CACHED_MAX` completed segments are kept.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Final, TypeVar

from quire.codec.cold import ColdSegment
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream_metadata.segment import Segment, decode_segment, lssn_of_name
from quire.codec.stream_metadata.tree import StreamPaths, decode_max_lssn
from quire.errors import DamagedMetadata, MetadataUnavailable, NoSuchNode, SessionExpired, Unavailable
from quire.metadata import MetadataStore
from quire.protocol.segments import FIRST_LSSN
from quire.runtime import Clock
from quire.stream.cold_nodes import StoredCold, cold_names, hides_all_before, is_unchanged, read_cold
from quire.stream.same_stream import SameStream, missing
from quire.types import Lssn

T = TypeVar("T")

_CACHED_MAX: Final = 1000
_RACES_MAX: Final = 100  # Listings in a row that were out of date when they were used.
_RETRY_S_MIN: Final = 0.05
_RETRY_S_MAX: Final = 1.0


class SegmentIndex:
    """The segments of one stream. Call `refresh` before anything else.

    Every call that reads the metadata goes on trying for `timeout_s` while the store is out of reach.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: StreamPaths,
        clock: Clock,
        *,
        timeout_s: float,
        identity: str | None = None,
    ) -> None:
        """With `identity`, of that stream only."""
        self._store, self._paths, self._clock, self._timeout_s = store, paths, clock, timeout_s
        self.same = SameStream(store, paths, identity)
        self._names: dict[Lssn, str] = {}  # In the order of the stream.
        self._lssns: dict[str, Lssn] = {}
        self._cold_names: dict[Lssn, str] = {}  # Of those that are only cold, in order, all before the others.
        self._purged = Lssn(0)  # The newest of which a cold node was left behind.
        self._completed: dict[Lssn, Segment | ColdSegment] = {}

    # --- The listing

    @property
    def first(self) -> Lssn | None:
        """The oldest segment that is left; None if the stream has none."""
        return next(iter(self._cold_names or self._names), None)

    @property
    def last(self) -> Lssn | None:
        return next(reversed(self._names or self._cold_names), None)

    def is_cold(self, lssn: Lssn) -> bool:
        """Whether a segment was only in cold storage when it was listed."""
        return lssn in self._cold_names

    def __contains__(self, lssn: Lssn) -> bool:
        return lssn in self._names or lssn in self._cold_names

    async def refresh(self) -> None:
        """List the segments again. Raises `NoSuchStream`, and `DamagedMetadata` if they are no chain."""
        await self._patiently(self._refresh)

    async def _refresh(self) -> None:
        for _ in range(_RACES_MAX):
            await self._store.sync()
            await self.same.know()
            names = await self._list()
            try:
                lssns = {name: await self._lssn_of(name) for name in names}
                cold = await self._list_cold(names, min(zip(lssns.values(), lssns, strict=True), default=None))
            except NoSuchNode:
                continue  # One has gone, or was completed, since the listing.
            await self.same.check()
            if lssns != self._lssns or cold != self._cold_names:
                self._check_chain(sorted([*cold, *lssns.values()]))
                self._lssns, self._cold_names = lssns, cold
                self._names = {lssn: name for name, lssn in sorted(lssns.items(), key=lambda item: item[1])}
            self._completed.clear()
            return
        raise self._restless()

    async def _list_cold(self, hot_names: tuple[str, ...], first_hot: tuple[Lssn, str] | None) -> dict[Lssn, str]:
        """The names of those that are only cold. Raises `NoSuchNode` if what is hot has to be listed again."""
        if first_hot is not None and first_hot[0] == FIRST_LSSN:
            return {}  # All that ever was is hot.
        cold = await cold_names(self._store, self._paths)
        if first_hot is not None:
            cold = {lssn: name for lssn, name in cold.items() if lssn < first_hot[0]}
            if first_hot[0] - 1 not in cold:
                return {}  # What is between was purged, and so was all before it: see `cold_nodes`.
            if hides_all_before(await self._read(first_hot[1])):
                return {}
        # The newest may have been restored meanwhile; it, and what is before a gap, may have been purged.
        for lssn in [lssn for lssn in reversed(cold) if lssn + 1 not in cold][:2]:
            if lssn <= self._purged:
                break
            stored = await read_cold(self._store, self._paths, cold[lssn])
            if stored.cold.is_hot:
                await self._check_purged(stored, hot_names)
                break
        return {lssn: name for lssn, name in cold.items() if lssn > self._purged}

    async def _check_purged(self, stored: StoredCold, hot_names: tuple[str, ...]) -> None:
        """Return if a segment is purged whose cold node says that it is hot, and that is not among these. Raises
        `NoSuchNode` if it may have moved.
        """
        if await self._list() != hot_names or not await is_unchanged(self._store, self._paths, stored):
            raise NoSuchNode(f"{self._paths.segments!r} has changed", path=self._paths.segments)
        self._purged = stored.cold.lssn

    async def _list(self) -> tuple[str, ...]:
        try:
            return (await self._store.children(self._paths.segments)).names
        except NoSuchNode as error:
            raise missing(self._paths.stream) from error

    async def _lssn_of(self, name: str) -> Lssn:
        known = self._lssns.get(name)
        if known is None:
            known = lssn_of_name(name)
        return (await self._read(name)).lssn if known is None else known

    def _check_chain(self, lssns: list[Lssn]) -> None:
        if lssns and (lssns[-1] - lssns[0] + 1 != len(lssns) or len(set(lssns)) != len(lssns)):
            wrong = next(after for before, after in itertools.pairwise(lssns) if after != before + 1)
            raise DamagedMetadata(
                f"the segments of stream {self._paths.stream!r} are no chain: see segment {wrong} of "
                f"{lssns[0]} to {lssns[-1]}",
                hint="A segment was deleted or added by hand. Nothing is read, since records may be missing.",
                stream=self._paths.stream,
                lssn=wrong,
            )

    # --- One segment

    async def check_same(self) -> None:
        """What was read of a segment is of this stream: the next one of its name has such segments, too."""
        await self._patiently(self.same.check)

    async def segment(self, lssn: Lssn) -> Segment | None:
        """What is known of a segment; None if there is none of this number now. Raises `DamagedMetadata`."""
        found = await self.located(lssn)
        return found.segment if isinstance(found, ColdSegment) else found

    async def located(self, lssn: Lssn) -> Segment | ColdSegment | None:
        """The same, and for a segment that is only cold also where it is."""
        return self._completed.get(lssn) or await self._patiently(lambda: self._located(lssn))

    async def _located(self, lssn: Lssn) -> Segment | ColdSegment | None:
        for _ in range(_RACES_MAX):
            name, cold_name = self._names.get(lssn), self._cold_names.get(lssn)
            if name is None and cold_name is None:
                return None
            try:
                if name is None:
                    assert cold_name is not None
                    stored = await read_cold(self._store, self._paths, cold_name)
                    if not stored.cold.is_hot:
                        self._keep(stored.cold)
                        return stored.cold
                    await self._check_purged(stored, tuple(self._lssns))
                    await self._refresh()
                    continue
                segment = await self._read(name)
            except NoSuchNode:
                await self._refresh()  # Completed meanwhile, and so under another name; or cold, or restored, or gone.
                continue
            if segment.lssn != lssn:
                raise DamagedMetadata(
                    f"{self._paths.segment(name)}: it says that it is segment {segment.lssn}",
                    path=self._paths.segment(name),
                )
            if segment.completion is not None:
                self._keep(segment)
            return segment
        raise self._restless()

    async def _read(self, name: str) -> Segment:
        path = self._paths.segment(name)
        node = await self._store.get(path)
        try:
            segment = decode_segment(node.data)
        except DamagedMetadata as error:
            raise DamagedMetadata(f"{path}: {error}", path=path) from error
        if not segment.lssn:
            raise DamagedMetadata(
                f"{path}: a segment of version {segment.version} has no LSSN, so its records have no place",
                hint="Copy the stream with the program that wrote it.",
                path=path,
            )
        return segment

    def forget(self) -> None:
        """Read every segment anew from now on: what was known of it may be old by the time it is needed."""
        self._completed.clear()

    def _keep(self, segment: Segment | ColdSegment) -> None:
        if len(self._completed) >= _CACHED_MAX:
            del self._completed[next(iter(self._completed))]
        self._completed[segment.lssn] = segment

    # --- What is to come

    async def highest(self) -> Lssn:
        """The highest LSSN that the stream ever had; 0 if it had none."""
        return await self._patiently(self._highest)

    async def _highest(self) -> Lssn:
        try:
            node = await self._store.get(self._paths.segments)
        except NoSuchNode as error:
            raise missing(self._paths.stream) from error
        return max(decode_max_lssn(node.data), self.last or Lssn(0))

    async def is_sealed(self) -> bool:
        """Whether the last segment is completed and says that no other will follow."""
        last = self.last
        segment = None if last is None else await self.segment(last)
        return segment is not None and segment.completion is not None and segment.completion.last_txid == TXID_MAX

    async def wait(self, lssn: Lssn, *, look_again_s: float | None) -> bool:
        """Return True once segment `lssn` or a later one is there; False if the stream is sealed before it.

        Raises `NoSuchStream` if the stream is deleted meanwhile. For `look_again_s` see `_listings`.
        """
        if self._has_come_to(lssn):
            return True
        async with aclosing(self._listings(look_again_s)) as listings:
            async for _ in listings:
                if self._has_come_to(lssn):
                    return True
                if await self.is_sealed():
                    return False
        raise AssertionError("unreachable")

    async def wait_decided(self, segment: Segment, *, look_again_s: float | None) -> bool:
        """Return whether a segment in progress is over whose ledger was closed without an entry, once that is certain.

        It is over if it is completed, or another one follows. But Apache's recovery deletes such a segment, and the
        next writer begins one of the same number with another ledger: then it is False.
        """
        async with aclosing(self._listings(look_again_s)) as listings:
            async for _ in listings:
                now = await self.segment(segment.lssn)
                if now is None or now.ledger_id != segment.ledger_id:
                    return False
                if now.completion is not None or self._has_come_to(Lssn(segment.lssn + 1)):
                    return True
        raise AssertionError("unreachable")

    async def _listings(self, look_again_s: float | None) -> AsyncGenerator[None]:
        """List the segments now, and again whenever they may have changed: when a watch wakes us, and after
        `look_again_s` even if none did.
        """
        async with AsyncExitStack() as stack:
            watch = await self._patiently(
                lambda: stack.enter_async_context(self._store.watch_children(self._paths.segments))
            )
            while True:
                await self.refresh()
                yield
                try:
                    async with asyncio.timeout(look_again_s):
                        await watch.wait_changed()
                except TimeoutError:
                    pass  # Watches miss nothing, but a reader that waits for days may as well make sure.

    def _has_come_to(self, lssn: Lssn) -> bool:
        return self.last is not None and self.last >= lssn

    # --- Trying again

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        return await patiently(self._clock, work, timeout_s=self._timeout_s)

    def _restless(self) -> MetadataUnavailable:
        return MetadataUnavailable(
            f"the segments of stream {self._paths.stream!r} change faster than they can be read",
            stream=self._paths.stream,
        )


async def patiently(clock: Clock, work: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Do `work`, which only reads, and again while it is not possible for now. After `timeout_s` its error counts."""
    ends_s, retry_s = clock.monotonic() + timeout_s, _RETRY_S_MIN
    while True:
        try:
            return await work()
        except (Unavailable, SessionExpired):
            if clock.monotonic() + retry_s > ends_s:
                raise
        await clock.sleep(retry_s)
        retry_s = min(2 * retry_s, _RETRY_S_MAX)
