"""Time as an argument: whoever waits or looks at a clock takes a `Clock`, so that a simulation can own time.

Two kinds of time, never mixed: monotonic seconds for timeouts and durations, wall milliseconds for what is stored and
shown (creation times, retention). Wall time may jump; nothing may depend on its order.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where an async component gets the time from."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment. Never goes back. Call it from a running event loop."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as this machine believes. May jump in both directions."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of monotonic time pass. Zero or less only gives the other tasks a turn."""
        ...


class AsyncioClock:
    """The running event loop's time, so timers and `monotonic` always agree; the system's wall clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
