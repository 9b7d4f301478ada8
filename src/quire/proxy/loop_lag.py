"""How late the event loop is: whoever asks it for a moment gets it that much later.

A task sleeps for a short time over and over, and notes by how much longer it took. The worst of the last seconds is
what counts: one long pause is what clients feel.
"""

import asyncio
from collections import deque
from typing import Final, Self

from quire.runtime import Clock

_INTERVAL_S: Final = 0.1


class LoopLag:
    """Measures while its block runs."""

    window_s: Final = 10.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late: deque[float] = deque(maxlen=round(self.window_s / _INTERVAL_S))
        self._task: asyncio.Task[None] | None = None

    @property
    def worst_s(self) -> float:
        """The latest that it was in the window."""
        return max(self._late, default=0.0)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._measure(), name="measure the loop's lag")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _measure(self) -> None:
        while True:
            begun_s = self._clock.monotonic()
            await self._clock.sleep(_INTERVAL_S)
            self._late.append(max(0.0, self._clock.monotonic() - begun_s - _INTERVAL_S))
