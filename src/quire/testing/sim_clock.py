"""A clock per simulated host: one virtual time for all, and a wall clock that may be wrong on each of them."""

import asyncio
from typing import Final

EPOCH_MS: Final = 1_600_000_000_000  # When every simulation begins: a fixed moment in September 2020.


class SimClock:
    """The loop's virtual time. `skew_ms` is how far this host's wall clock is off; a test may change it at any time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, epoch_ms: int = EPOCH_MS, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms
        self._loop = loop
        self._epoch_ms = epoch_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return self._epoch_ms + int(self._loop.time() * 1000) + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
