"""The streams of a streaming query: which there are, how far each has come, and what of it a batch reads.

What is open stays open between two questions of Spark's: of each stream that is being written the ledger at its end,
which bookies tell of as soon as it grows.

Invariants:
  NothingSkipped   a place that was read up to is left only forward. If records behind it are gone, that is an error,
                   unless the user has said that it is none (`failOnDataLoss=false`).
  NewFromTheStart  a stream that appears while the query runs is read from its first record.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from quire.errors import NoSuchLedger, NoSuchStream, PositionInFuture, PositionTruncated, QuireError
from quire.ledger.reading.reader import LedgerReader
from quire.spark.admission import Limit, admitted
from quire.spark.offsets import Offset, Offsets
from quire.spark.options import SourceOptions
from quire.spark.planning import Piece, StreamPlan, for_each, matching, pattern_of
from quire.stream.namespace import Namespace
from quire.stream.start import position_in_future
from quire.types import DLSN, EntryId, Lssn, SlotId

_DISCOVER_S: Final = 1.0
_HINT: Final = "Start a new query with another checkpoint, or set failOnDataLoss=false to go on with what is left."


class FollowedStreams:
    """All streams of one query. Used in the loop's thread only."""

    def __init__(self, namespace: Namespace, options: SourceOptions, now_s: Callable[[], float]) -> None:
        self.namespace, self._options, self._now_s = namespace, options, now_s
        self._matches = [pattern_of(name).fullmatch for name in options.streams]
        self._tails: dict[str, _Tail] = {}
        self._names: list[str] = []
        self._listed_s: float | None = None

    async def aclose(self) -> None:
        for tail in self._tails.values():
            await tail.aclose()

    # --- What Spark asks for

    async def initial(self) -> Offsets:
        """Where a query begins that has no checkpoint. Raises `NoSuchStream` for a name that is none."""

        async def begin(stream: str) -> Offset:
            plan = await StreamPlan.of(self.namespace, stream)
            at = await plan.find(self._options.start, skip_truncated=not self._options.fail_on_data_loss)
            return Offset(at, plan.index.same.identity)

        streams = await self._listed()
        return dict(zip(streams, await for_each(streams, begin), strict=True))

    async def latest(self) -> Offsets:
        """How far each stream has come."""
        return await self._latest([*self._tails, *await self._listed()])

    async def latest_behind(self, began: Offsets, wait_s: float) -> Offsets:
        """The same, after a moment's wait for something behind `began` if there is nothing."""
        ends = await self._latest([*filter(self._is_chosen, began), *await self._listed()])
        if any(_is_news(end, began.get(stream)) for stream, end in ends.items()):
            return ends
        await self._wait_news(wait_s)
        return await self._latest(list(ends))

    async def admitted(self, began: Offsets, ends: Offsets, limit: Limit | None) -> Offsets:
        """Where the next batch ends. What the user does not ask for any more stays where it is; a stream that was
        deleted is forgotten, so that another one of the same name is a new one.
        """
        ranges: dict[str, tuple[DLSN, DLSN]] = {}
        plans: dict[str, StreamPlan] = {}

        async def look(stream: str) -> None:
            plan = await self._plan(stream, ends[stream].identity)
            if plan is not None:
                plans[stream] = plan
                ranges[stream] = (await self._begin(plan, began.get(stream)), ends[stream].place)

        await for_each([stream for stream, end in ends.items() if began.get(stream) != end], look)
        reached = {
            stream: Offset(max(at, ranges[stream][0]), plans[stream].index.same.identity)
            for stream, at in (await admitted(plans, ranges, limit)).items()
        }
        stay = {
            stream: at
            for stream, at in began.items()
            if stream not in reached
            and (ends.get(stream) == at or not self._is_chosen(stream) or await self._plan(stream) is not None)
        }
        return {**stay, **reached}

    async def pieces(self, began: Offsets, ends: Offsets) -> list[Piece]:
        """What a batch reads."""

        async def look(stream: str) -> list[Piece]:
            plan = await self._plan(stream, ends[stream].identity)
            if plan is None:
                return []
            begin, skip = await self._begin(plan, began.get(stream)), not self._options.fail_on_data_loss
            return await plan.pieces(begin, ends[stream].place, skip_truncated=skip)

        found = await for_each([stream for stream, end in ends.items() if began.get(stream) != end], look)
        return [piece for pieces in found for piece in pieces]

    # --- One stream

    async def _plan(self, stream: str, identity: str | None = None) -> StreamPlan | None:
        """None for a stream that was deleted, if that is no error. With `identity`, of that stream only: where a batch
        ends means nothing in another one.
        """
        try:
            return await StreamPlan.of(self.namespace, stream, identity)
        except NoSuchStream as error:
            if self._options.fail_on_data_loss:
                raise NoSuchStream(
                    f"stream {stream!r}, which the query has been reading, was deleted", hint=_HINT, stream=stream
                ) from error
            return None

    async def _begin(self, plan: StreamPlan, began: Offset | None) -> DLSN:
        """Where reading goes on that was at `began`."""
        if began is None:
            return await plan.places.earliest()
        skip = not self._options.fail_on_data_loss
        try:
            if not began.is_of(plan.index.same.identity):
                raise position_in_future(plan.stream, began.place, "it was in another stream of this name")
            await plan.check_reached(began.place)
            return await plan.find(began.place, skip_truncated=skip)
        except PositionTruncated as error:
            raise PositionTruncated(f"{error}, but the query has not read them", hint=_HINT, **error.facts) from error
        except PositionInFuture as error:
            if skip:
                return await plan.places.earliest()
            raise PositionInFuture(
                f"{error}: it was deleted since the query read it, and made again", hint=_HINT, **error.facts
            ) from error

    # --- All of them

    async def _listed(self) -> list[str]:
        """The streams that there are, looked for again once in a while if a pattern was given."""
        names = self._options.streams
        has_pattern = any("*" in name for name in names)
        if self._listed_s is None or (has_pattern and self._now_s() - self._listed_s >= _DISCOVER_S):
            self._names = await matching(self.namespace, names)
            self._listed_s = self._now_s()
        return self._names

    def _is_chosen(self, stream: str) -> bool:
        return any(is_match(stream) for is_match in self._matches)

    async def _latest(self, streams: list[str]) -> Offsets:
        """Without those that are gone: whether that is an error is found out with what was read of them."""
        wanted = list(dict.fromkeys(streams))
        tails = [self._tails.setdefault(stream, _Tail(self.namespace, stream)) for stream in wanted]
        found = await for_each(tails, _Tail.latest_or_none)
        for stream, end in zip(wanted, found, strict=True):
            if end is None:
                await self._tails.pop(stream).aclose()
        return {stream: end for stream, end in zip(wanted, found, strict=True) if end is not None}

    async def _wait_news(self, wait_s: float) -> None:
        waits = [asyncio.create_task(tail.wait_news(wait_s)) for tail in self._tails.values()]
        if not waits:
            await asyncio.sleep(wait_s)
            return
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


class _Tail:
    """The end of one stream."""

    def __init__(self, namespace: Namespace, stream: str) -> None:
        self._namespace, self._stream = namespace, stream
        self._ledger: LedgerReader | None = None  # Of the segment that is being written.
        self._lssn = Lssn(0)
        self._identity: str | None = None
        self._stack = AsyncExitStack()

    async def latest_or_none(self) -> Offset | None:
        """None if there is no such stream."""
        try:
            return await self.latest()
        except NoSuchStream:
            return None

    async def latest(self) -> Offset:
        """Behind the last record that is confirmed. Raises `NoSuchStream`."""
        ledger = self._ledger
        if ledger is not None and not ledger.is_closed and ledger.gone is None:
            try:
                lac = await ledger.try_last_add_confirmed()
            except NoSuchLedger:
                pass  # The stream was deleted, or the segment begun anew.
            else:
                if not ledger.is_closed:
                    return Offset(DLSN(self._lssn, EntryId(lac + 1), SlotId(0)), self._identity)
        await self.aclose()
        plan = await StreamPlan.of(self._namespace, self._stream)
        end = await plan.find("latest", skip_truncated=True)
        await self._follow(plan, end)
        self._identity = plan.index.same.identity
        return Offset(end, self._identity)

    async def _follow(self, plan: StreamPlan, end: DLSN) -> None:
        segment = await plan.index.segment(end.lssn) if end.lssn in plan.index else None
        if segment is None or segment.completion is not None:
            return
        opening = plan.context.ledgers.open(segment.ledger_id, password=plan.settings.password, recover=False)
        try:
            self._ledger, self._lssn = await self._stack.enter_async_context(opening), end.lssn
        except QuireError:
            pass  # The next question finds out.

    async def wait_news(self, wait_s: float) -> None:
        """Return when there may be more than `latest` has said, or after that time."""
        ledger = self._ledger
        if ledger is None or ledger.is_closed:
            await asyncio.sleep(wait_s)
        else:
            await ledger.wait_entry(ledger.last_add_confirmed + 1, timeout_s=wait_s)

    async def aclose(self) -> None:
        if self._ledger is not None:
            self._ledger = None
            await self._stack.aclose()


def _is_news(end: Offset, began: Offset | None) -> bool:
    return began is None or end.place > began.place or not began.is_of(end.identity)
