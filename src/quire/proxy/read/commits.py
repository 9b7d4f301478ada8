"""Positions of subscribers, stored for them: each is written once in a while, however often it is committed.

A commit is answered when it is stored, or when a later one is: who commits all the time waits for the next write, and
many commits are one. So an answer is never a promise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final, TypeAlias

from quire.metadata import HeldLock
from quire.proxy.read.metrics import ReadMetrics
from quire.stream.context import StreamContext
from quire.stream.subscriptions import Subscriptions
from quire.types import DLSN
from quire.values import dataclass

_Key: TypeAlias = tuple[str, str, str]  # Stream, name, incarnation.

_KNOWN_MAX: Final = 1000  # Subscribers whose last write is remembered before the old ones are looked for.


@dataclass(slots=True)
class _Subscriber:
    """One stream's, of one name, as long as the stream is the same."""

    written_s: float = float("-inf")
    wanted: DLSN | None = None  # What the next write stores.
    waiting: list[asyncio.Future[DLSN]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Commits:
    """All subscribers that commit here."""

    def __init__(
        self,
        context: StreamContext,
        metrics: ReadMetrics,
        *,
        interval_s: float,
        subscriptions_in: Callable[[str, str], Awaitable[Subscriptions]],
    ) -> None:
        self._clock, self._metrics, self._interval_s = context.runtime.clock, metrics, interval_s
        self._subscriptions_in = subscriptions_in
        self._known: dict[_Key, _Subscriber] = {}
        self._locks: dict[tuple[str, str], HeldLock] = {}

    @contextmanager
    def guarded(self, stream: str, name: str, lock: HeldLock) -> Iterator[None]:
        """Commits of this subscriber count only while the lock is held."""
        self._locks[stream, name] = lock
        try:
            yield
        finally:
            if self._locks.get((stream, name)) is lock:  # Once it is lost another reader may have come.
                del self._locks[stream, name]

    async def commit(self, stream: str, name: str, position: DLSN, *, may_go_back: bool, incarnation: str = "") -> DLSN:
        """Store a position in this incarnation of the stream, or if it is empty in the one that is there; return what
        is stored then. See `Subscriptions.commit`.
        """
        self._metrics.commits.add()
        key = (stream, name, incarnation)
        subscriber = self._subscriber(key)
        if may_go_back:
            async with subscriber.turn:
                return await self._write(key, subscriber, position, may_go_back=True)
        if subscriber.wanted is None or position > subscriber.wanted:
            subscriber.wanted = position
        answer: asyncio.Future[DLSN] = asyncio.get_running_loop().create_future()
        subscriber.waiting.append(answer)
        if subscriber.task is None:
            subscriber.task = asyncio.create_task(
                self._write_in_turn(key, subscriber), name=f"commit {name} of {stream}"
            )
        return await answer

    async def _write_in_turn(self, key: _Key, subscriber: _Subscriber) -> None:
        while subscriber.waiting:
            await self._clock.sleep(max(0.0, subscriber.written_s + self._interval_s - self._clock.monotonic()))
            async with subscriber.turn:
                wanted, waiting = subscriber.wanted, subscriber.waiting
                subscriber.wanted, subscriber.waiting = None, []
                assert wanted is not None
                try:
                    stored = await self._write(key, subscriber, wanted, may_go_back=False)
                except Exception as error:  # Delivered to all who asked for it.
                    for answer in waiting:
                        if not answer.done():
                            answer.set_exception(error)
                else:
                    for answer in waiting:
                        if not answer.done():
                            answer.set_result(stored)
        subscriber.task = None

    async def _write(self, key: _Key, subscriber: _Subscriber, position: DLSN, *, may_go_back: bool) -> DLSN:
        stream, name, incarnation = key
        subscriber.written_s = self._clock.monotonic()
        self._metrics.commit_writes.add()
        lock = self._locks.get((stream, name))
        subscriptions = await self._subscriptions_in(stream, incarnation)
        return await subscriptions.commit(name, position, may_go_back=may_go_back, lock=lock)

    def _subscriber(self, key: _Key) -> _Subscriber:
        if len(self._known) >= _KNOWN_MAX:
            old_s = self._clock.monotonic() - self._interval_s
            idle = [key for key, each in self._known.items() if each.task is None and each.written_s < old_s]
            for old in idle:
                if not self._known[old].turn.locked():
                    del self._known[old]
        return self._known.setdefault(key, _Subscriber())

    async def aclose(self) -> None:
        """Nothing is written any more: who waits was not told that it would be."""
        tasks = [each.task for each in self._known.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in self._known.values():
            for answer in each.waiting:
                answer.cancel()
