"""How late the event loop is: whoever asks it for a moment gets it that much later.

A task sleeps for a short time over and over, and notes by how much longer it took. The worst of the last seconds is
what counts: one long pause is what clients feel.
"""

import asyncio
from collections import deque
from typing import Final, Self

from quire.proxy.slow_callbacks import SlowCallback, SlowCallbacks
from quire.runtime import Clock

_INTERVAL_S: Final = 0.1


class LoopLag:
    """Measures while its block runs."""

    window_s: Final = 10.0
    late_s_max: Final = 0.25  # A loop that is later than this answers nobody in time.

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watch = SlowCallbacks(slow_s=_INTERVAL_S + self.late_s_max)
        self._late: deque[float] = deque(maxlen=round(self.window_s / _INTERVAL_S))
        self._task: asyncio.Task[None] | None = None

    @property
    def worst_s(self) -> float:
        """The latest that it was in the window."""
        return max(self._late, default=0.0)

    @property
    def slow(self) -> list[SlowCallback]:
        """The last pauses that were longer than `late_s_max`, and what the loop did in them."""
        return list(self._watch.found)

    async def __aenter__(self) -> Self:
        self._watch.__enter__()
        self._task = asyncio.create_task(self._measure(), name="measure the loop's lag")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self._watch.__exit__()

    async def _measure(self) -> None:
        while True:
            begun_s = self._clock.monotonic()
            self._watch.beat()
            await self._clock.sleep(_INTERVAL_S)
            self._late.append(max(0.0, self._clock.monotonic() - begun_s - _INTERVAL_S))
