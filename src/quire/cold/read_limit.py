"""So many ranges of cold storage at a time, whoever reads them.

Cold storage answers slowly, and when it is down every call to it takes as long as it may. Whoever serves others as well
bounds what it can cost: those beyond the limit wait in the order in which they came, and not for ever.
"""

import asyncio
from typing import BinaryIO

from quire.cold.store import ColdStore
from quire.errors import OverCapacity


class ReadLimit:
    """Shared by all stores of a client."""

    def __init__(self, *, at_once_max: int, wait_s: float, code: int) -> None:
        """`code` is what clients of a proxy are told when they have to wait for longer."""
        self.at_once_max, self._wait_s, self._code = at_once_max, wait_s, code
        self._turns = asyncio.Semaphore(at_once_max)
        self.reading = self.waiting = self.refused = 0

    async def read(self, store: ColdStore, name: str, start: int, end: int) -> bytes:
        """What the store says. Raises `OverCapacity` if that is to be waited for too long."""
        await self._await_turn()
        self.reading += 1
        try:
            return await store.read(name, start, end)
        finally:
            self.reading -= 1
            self._turns.release()

    async def _await_turn(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                await self._turns.acquire()
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.refused += 1
            raise OverCapacity(
                f"{self.at_once_max} parts of archived segments are being read already, "
                f"and none was done within {self._wait_s:g} s",
                hint="Come back in a moment, or use another proxy.",
                retry_after_ms=round(self._wait_s * 1000),
                code=self._code,
            ) from error
        finally:
            self.waiting -= 1


class LimitedStore:
    """A store whose reads have to wait their turn."""

    def __init__(self, store: ColdStore, limit: ReadLimit) -> None:
        self._store, self._limit = store, limit

    @property
    def root(self) -> str:
        return self._store.root

    async def read(self, name: str, start: int, end: int) -> bytes:
        return await self._limit.read(self._store, name, start, end)

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        await self._store.create(name, content, size_bytes)

    async def size(self, name: str) -> int:
        return await self._store.size(name)

    async def delete(self, name: str) -> None:
        await self._store.delete(name)

    async def names(self, prefix: str = "") -> list[str]:
        return await self._store.names(prefix)

    async def aclose(self) -> None:
        await self._store.aclose()
