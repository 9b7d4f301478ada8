"""Records that were appended and not yet sent, call by call, and what became of each call.

A call's records are acknowledged together. They may go into several entries, even of several segments; records of other
calls never come between them.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.errors import QuireError
from quire.types import DLSN, EntryId, Lssn

_new = tuple.__new__  # Half of what `DLSN(…)` costs, and there is one for each record.


class Call:
    """Records of one call. With `members` it is a single record that holds so many: a record set."""

    __slots__ = ("_dlsns", "_settled", "_unacked", "done", "members", "payloads", "sent", "sizes", "txids")

    def __init__(self, payloads: Sequence[bytes], txids: Sequence[int], *, members: int = 0) -> None:
        self.payloads, self.txids, self.members = payloads, txids, members
        self.sizes = [RECORD_HEADER_BYTES + len(payload) for payload in payloads]
        self.sent = 0  # How many of the records are in an entry.
        self._unacked = len(payloads)
        self._dlsns: list[DLSN] = []
        self.done: asyncio.Future[list[DLSN]] = asyncio.get_running_loop().create_future()
        self._settled: asyncio.Event | None = None

    def on_acknowledged(self, lssn: Lssn, entry_id: EntryId, first_slot: int, count: int) -> None:
        """The next `count` records are durable in this entry."""
        slots = range(first_slot, first_slot + (self.members or count))
        self._dlsns += map(_new, repeat(DLSN), zip(repeat(lssn), repeat(entry_id), slots))
        self._unacked -= count
        if not self._unacked:
            if not self.done.done():
                self.done.set_result(self._dlsns)
            self._settle()

    def fail(self, error: QuireError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # Whoever was cancelled does not look.
        self._unacked = 0
        self._settle()

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()

    async def wait_settled(self) -> None:
        """Return when all of it is acknowledged, or it has failed; also if whoever appended it was cancelled."""
        if self._unacked:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()


class Part(NamedTuple):
    """Some records of a call that go into one entry."""

    call: Call
    begin: int
    end: int


class RecordQueue:
    """What waits to be sent, in order."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self.bytes = 0
        self.records = 0

    def push(self, call: Call, size_bytes: int) -> None:
        self._calls.append(call)
        self.bytes += size_bytes
        self.records += len(call.payloads)

    @property
    def first_txid(self) -> int:
        """Of the next record. There must be one."""
        call = self._calls[0]
        return call.txids[call.sent]

    @property
    def last(self) -> Call | None:
        """The call that came last, if any waits."""
        return self._calls[-1] if self._calls else None

    def take(self, entry_bytes: int) -> tuple[list[Part], int, int]:
        """Records for one entry: as many as fit, at least one. Also how many they are, and their bytes."""
        parts: list[Part] = []
        taken_records = taken_bytes = 0
        while self._calls:
            call = self._calls[0]
            begin = end = call.sent
            for size in call.sizes[begin:] if begin else call.sizes:
                if taken_bytes + size > entry_bytes and (parts or end > begin):
                    break
                taken_bytes += size
                end += 1
            if end > begin:
                parts.append(Part(call, begin, end))
                call.sent = end
                taken_records += end - begin
            if end < len(call.payloads):
                break
            self._calls.popleft()
        self.bytes -= taken_bytes
        self.records -= taken_records
        return parts, taken_records, taken_bytes

    def clear(self) -> list[Call]:
        """Take out all calls, sent in part or not at all."""
        calls = list(self._calls)
        self._calls.clear()
        self.bytes = self.records = 0
        return calls
