"""Decide when the records that a stream's writer has gathered leave it as an entry. Sans-IO.

    immediate     at once, while few entries are unacknowledged; else records gather, and entries grow with the load
    outstanding   once more than so many bytes have gathered
    periodic      when the timer, or whoever cannot wait, forces it

Whatever the policy, a full entry is sent, and so is what is forced. How much is in flight has bounds elsewhere.
"""

from typing import Literal

from quire.values import dataclass

TransmitPolicy = Literal["immediate", "outstanding", "periodic"]


@dataclass(frozen=True, slots=True)
class TransmitRule:
    policy: TransmitPolicy
    entry_bytes: int  # What makes an entry full.
    buffer_bytes: int  # With `outstanding`.
    in_flight_entries: int  # With `immediate`.

    def is_due(self, *, waiting_bytes: int, in_flight_entries: int, is_forced: bool) -> bool:
        """Whether an entry should be made of what waits now."""
        if waiting_bytes == 0:
            return False
        if is_forced or waiting_bytes >= self.entry_bytes:
            return True
        if self.policy == "immediate":
            return in_flight_entries < self.in_flight_entries
        return self.policy == "outstanding" and waiting_bytes > self.buffer_bytes
