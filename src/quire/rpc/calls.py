"""Which requests of one connection are waiting for an answer that names them, and for how long still.

Every request has a number. Version 3 sends it as the transaction id and batch reads send it as the request id, so their
answers name it. Adds, and reads of version 2, are in modules of their own.

Invariants:
  UnknownIsNone   an answer that nobody waits for changes nothing.
"""

import asyncio
from typing import Any

from quire.codec.wire.v3_messages import Operation
from quire.types import EntryId, LedgerId
from quire.values import dataclass


@dataclass(slots=True, eq=False)
class Call:
    """A request, and the future that its sender waits for."""

    future: asyncio.Future[Any]
    deadline_s: float
    operation: Operation
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    may_change: bool = False  # Whether the bookie is another one afterwards: it wrote, or it fenced.


class PendingCalls:
    """The requests in flight on one connection."""

    def __init__(self) -> None:
        self._by_number: dict[int, Call] = {}

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def push(self, number: int, call: Call) -> None:
        """A request whose answer names its number."""
        self._by_number[number] = call

    def take(self, number: int, operation: Operation) -> Call | None:
        """The request that an answer of version 3, or to a batch read, is for."""
        call = self._by_number.get(number)
        if call is None or call.operation is not operation:
            return None
        del self._by_number[number]
        return call

    def expire(self, now_s: float) -> list[Call]:
        """Give up on what waited too long, or whose sender was cancelled. Returns those that still have a sender."""
        over = [number for number, call in self._by_number.items() if call.deadline_s <= now_s or call.future.done()]
        calls = [self._by_number.pop(number) for number in over]
        return [call for call in calls if not call.future.done()]

    def take_all(self) -> list[Call]:
        """Give up on everything: the connection is gone."""
        return self.expire(float("inf"))
