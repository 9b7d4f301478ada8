"""Spend no more than so many bytes a second, evenly: what was sent is paid for before the next batch goes."""

from quire.runtime import Clock


class Pace:
    """A bucket without a reserve: after a pause nothing is made up for, so that there are no bursts."""

    def __init__(self, clock: Clock, bytes_per_s: float) -> None:
        self._clock, self._bytes_per_s = clock, bytes_per_s
        self._free_at_s = clock.monotonic()

    async def pay(self, size_bytes: int) -> None:
        """Wait until the time for these bytes is over."""
        if self._bytes_per_s <= 0:
            return
        now_s = self._clock.monotonic()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_s
        if self._free_at_s > now_s:
            await self._clock.sleep(self._free_at_s - now_s)
