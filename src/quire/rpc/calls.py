"""Which requests of one connection, adds apart, are waiting for an answer, and for how long still.

Every request has a number. Version 3 sends it as the transaction id and batch reads send it as the request id, so their
answers name it. A read of version 2 is answered by ledger and entry alone, and two of them cannot be told apart.

Invariants:
  FencesAreReal   a read that fences is not settled by the answer to one that does not. So answers go to plain reads
                  first, and a read that was given up keeps its place while its answer may still come.
  UnknownIsNone   an answer that nobody waits for changes nothing.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from quire.codec.wire.v3_messages import Operation
from quire.types import EntryId, LedgerId

ABANDONED_MAX: Final = 10_000  # Reads that a bookie may leave unanswered before the connection is not worth keeping.

_ReadKey: TypeAlias = tuple[LedgerId, EntryId]


@dataclass(slots=True, eq=False)
class Call:
    """A request, and the future that its sender waits for."""

    future: asyncio.Future[Any]
    deadline_s: float
    operation: Operation | None  # None for a read of version 2, whose answer does not name its number.
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    may_change: bool = False  # Whether the bookie is another one afterwards: it wrote, or it fenced.


class PendingCalls:
    """The requests in flight on one connection."""

    def __init__(self) -> None:
        self._by_number: dict[int, Call] = {}
        self._reads: dict[_ReadKey, list[tuple[int, Call]]] = {}
        self.abandoned = 0  # Reads of version 2 that nobody waits for, and whose answers may still come.

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def push(self, number: int, call: Call) -> None:
        """A request whose answer names its number."""
        self._by_number[number] = call

    def push_read_v2(self, number: int, key: _ReadKey, call: Call) -> None:
        """A read whose answer names `key` only."""
        self._by_number[number] = call
        self._reads.setdefault(key, []).append((number, call))

    def take(self, number: int, operation: Operation) -> Call | None:
        """The request that an answer of version 3, or to a batch read, is for."""
        call = self._by_number.get(number)
        if call is None or call.operation is not operation:
            return None
        del self._by_number[number]
        return call

    def take_read_v2(self, key: _ReadKey) -> Call | None:
        """The read that an answer of version 2 is for. None also if its sender has given up."""
        places = self._reads.get(key)
        if places is None:
            return None
        if len(places) == 1:
            number, call = places[0]
            del self._reads[key]
        else:
            # Plain before fencing. Among plain ones, those with a sender first: the bookie may have dropped the others.
            number, call = min(places, key=lambda place: (place[1].may_change, place[0] not in self._by_number))
            places.remove((number, call))
        if self._by_number.pop(number, None) is None:
            self.abandoned -= 1
            return None
        return call

    def expire(self, now_s: float) -> list[Call]:
        """Give up on what waited too long, or whose sender was cancelled. Returns those that still have a sender."""
        over = [number for number, call in self._by_number.items() if call.deadline_s <= now_s or call.future.done()]
        calls = [self._by_number.pop(number) for number in over]
        self.abandoned += sum(call.operation is None for call in calls)
        return [call for call in calls if not call.future.done()]

    def take_all(self) -> list[Call]:
        """Give up on everything: the connection is gone."""
        self._reads.clear()
        return self.expire(float("inf"))
