"""What bookies tell of themselves for placement: where they listen, and how much room they have.

Each bookie is asked when it is listed, and again when it is time; one that does not answer, after a shorter while. One
that left the list is forgotten, but for its host: a ledger may still have it, and then its rack counts.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from quire.errors import QuireError
from quire.ledger.bookies.pool import BookiePool
from quire.metadata import Bookies
from quire.runtime import Clock
from quire.types import BookieId

_ANSWER_TIMEOUT_S: Final = 5.0  # For one bookie to tell what it is asked.
_ASKED_AT_ONCE_MAX: Final = 16


class Survey:
    """Asks where bookies listen, given `bookies`, and how much room they have, given an interval."""

    def __init__(
        self,
        clock: Clock,
        pool: BookiePool,
        bookies: Bookies | None,
        *,
        space_interval_s: float | None,
        retry_s: float,
    ) -> None:
        self._clock, self._pool, self._bookies = clock, pool, bookies
        self._space_interval_s, self._retry_s = space_interval_s, retry_s
        self.hosts: dict[BookieId, str] = {}  # Also of those that are gone.
        self.free_bytes: dict[BookieId, int] = {}
        self._due_s: dict[BookieId, float] = {}  # Of listed bookies that were asked: when to ask again.
        self._news = asyncio.Event()
        self._asked = asyncio.Event()

    @property
    def is_needed(self) -> bool:
        return self._bookies is not None or self._space_interval_s is not None

    async def wait_asked(self) -> None:
        """Return when all listed bookies were asked once, or the patience with those that do not answer is over."""
        if not self.is_needed:
            return
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                while not self._due_s.keys() >= self._pool.writable:
                    self._asked.clear()
                    await self._asked.wait()
        except TimeoutError:
            return

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._pool.on_listed(self._news.set)
        task = asyncio.create_task(self._run(), name="survey of bookies")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            listed, now = self._pool.writable, self._clock.monotonic()
            for gone in self._due_s.keys() - listed:  # Whoever comes back is asked at once.
                del self._due_s[gone]
                self.free_bytes.pop(gone, None)
            due = sorted(bookie for bookie in listed if self._due_s.get(bookie, -math.inf) <= now)
            for place in range(0, len(due), _ASKED_AT_ONCE_MAX):
                await asyncio.gather(*map(self._ask, due[place : place + _ASKED_AT_ONCE_MAX]))
                self._asked.set()
            if due:
                continue  # It took a while: there may be others by now.
            next_s = min(self._due_s.values(), default=math.inf)
            try:
                async with asyncio.timeout(next_s - now if next_s < math.inf else None):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _ask(self, bookie: BookieId) -> None:
        again_s = math.inf if self._space_interval_s is None else self._space_interval_s
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                if self._bookies is not None:
                    endpoint = (await self._bookies.service_info(bookie)).rpc_endpoint
                    if endpoint is not None:
                        self.hosts[bookie] = endpoint.host
                if self._space_interval_s is not None:
                    channel = await self._pool.connect(bookie, 3, timeout_s=_ANSWER_TIMEOUT_S)
                    self.free_bytes[bookie] = (await channel.bookie_info()).free_disk_bytes or 0
        except (QuireError, TimeoutError):
            again_s = self._retry_s
        self._due_s[bookie] = self._clock.monotonic() + again_s
