"""How often readers are told that there is more, and how fast they may go. Sans-IO.

A message to one reader costs the same whether it carries one record or fifty. Many readers of one lane are therefore
told at intervals, all together and each with everything since the last time. A few readers are told at once.
"""

import math
from typing import Final

FEW_READERS: Final = 8  # For so many there is nothing to be gained.


def fan_out_interval_s(readers: int, *, per_reader_s: float, interval_s_max: float) -> float:
    """How long a reader that was just given something waits at least for the next, one of `readers` on the lane."""
    return min(max(0, readers - FEW_READERS) * per_reader_s, interval_s_max)


class BytePace:
    """A number of bytes per second, with the debt of what went beyond it: whoever took much waits before the next."""

    __slots__ = ("_burst_s", "_debt_bytes", "_since_s", "bytes_per_s")

    def __init__(self, bytes_per_s: float, *, burst_s: float = 0.1) -> None:
        """What was not used for a while may be made up for, up to `burst_s` of it. inf: as fast as can be."""
        self.bytes_per_s, self._burst_s = bytes_per_s, burst_s
        self._debt_bytes, self._since_s = 0.0, -math.inf

    def take(self, size_bytes: int, *, now_s: float) -> None:
        """So many bytes went."""
        if self.bytes_per_s < math.inf:
            self._debt_bytes = self._debt(now_s) + size_bytes
            self._since_s = now_s

    def delay_s(self, *, now_s: float) -> float:
        """How long to wait before the next bytes may go."""
        if self.bytes_per_s == math.inf:
            return 0.0
        return max(0.0, self._debt(now_s)) / self.bytes_per_s

    def _debt(self, now_s: float) -> float:
        paid = self.bytes_per_s * (now_s - self._since_s) if self._since_s > -math.inf else math.inf
        return max(self._debt_bytes - paid, -self.bytes_per_s * self._burst_s)
