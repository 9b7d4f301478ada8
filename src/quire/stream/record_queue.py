"""Records that were appended and not yet sent, call by call, and what became of each call.

A call's records are acknowledged together. They may go into several entries, even of several segments; records of other
calls never come between them.

A call may have a tag: then a control record stands before its records in each entry that has some of them, and says
something about just those. Readers skip it. What becomes of the records becomes of it: an entry is stored as a whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.errors import QuireError
from quire.types import DLSN, EntryId, Lssn

_new = tuple.__new__  # Half of what `DLSN(…)` costs, and there is one for each record.


class Tag(Protocol):
    """What is stored beside the records of a call."""

    @property
    def size_bytes(self) -> int:
        """Of a payload. All have the same size: how many records fit beside it is decided before it is made."""

    def payload(self, begin: int, end: int) -> bytes:
        """What to say of the call's records from `begin` to `end`, which is exclusive."""


class PlacedRun(NamedTuple):
    """Records that follow each other in one entry."""

    lssn: Lssn
    entry_id: EntryId
    first_slot: int
    records: int


class Pushed:
    """Records of one call, on their way. With `members` it is a single record that holds so many: a record set.

    With `is_control` it is a single control record. With `is_whole` all of it goes into one entry, which has room.
    """

    __slots__ = (
        "_settled",
        "_unacked",
        "is_control",
        "is_whole",
        "members",
        "payloads",
        "sent",
        "sizes",
        "tag",
        "tag_bytes",
        "txids",
    )

    def __init__(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int],
        *,
        members: int = 0,
        tag: Tag | None = None,
        is_control: bool = False,
        is_whole: bool = False,
    ) -> None:
        self.payloads, self.txids, self.members = payloads, txids, members
        self.tag, self.is_control, self.is_whole = tag, is_control, is_whole
        self.tag_bytes = 0 if tag is None else RECORD_HEADER_BYTES + tag.size_bytes
        self.sizes = [RECORD_HEADER_BYTES + len(payload) for payload in payloads]
        self.sent = 0  # How many of the records are in an entry.
        self._unacked = len(payloads)
        self._settled: asyncio.Event | None = None

    def on_acknowledged(self, lssn: Lssn, entry_id: EntryId, first_slot: int, count: int) -> None:
        """The next `count` records are durable in this entry."""
        raise NotImplementedError

    def fail(self, error: QuireError) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()

    async def wait_settled(self) -> None:
        """Return when all of it is acknowledged, or it has failed; also if whoever appended it was cancelled."""
        if self._unacked:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()


class Call(Pushed):
    """Whoever pushed it awaits `done`: a place for each record."""

    __slots__ = ("_dlsns", "done")

    def __init__(self, payloads: Sequence[bytes], txids: Sequence[int], *, members: int = 0) -> None:
        super().__init__(payloads, txids, members=members)
        self._dlsns: list[DLSN] = []
        self.done: asyncio.Future[list[DLSN]] = asyncio.get_running_loop().create_future()

    def on_acknowledged(self, lssn: Lssn, entry_id: EntryId, first_slot: int, count: int) -> None:
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


class TrackedCall(Pushed):
    """Whoever pushed it is told by `on_settled`, in the very turn in which it is decided: nothing that is pushed later
    can overtake the news. Then `runs` say where the records are, or `error` why that is not known.
    """

    __slots__ = ("_on_settled", "error", "runs")

    def __init__(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int],
        on_settled: Callable[["TrackedCall"], None],
        *,
        members: int = 0,
        tag: Tag | None = None,
        is_control: bool = False,
        is_whole: bool = False,
    ) -> None:
        super().__init__(payloads, txids, members=members, tag=tag, is_control=is_control, is_whole=is_whole)
        self._on_settled = on_settled
        self.runs: list[PlacedRun] = []
        self.error: QuireError | None = None

    def on_acknowledged(self, lssn: Lssn, entry_id: EntryId, first_slot: int, count: int) -> None:
        self.runs.append(PlacedRun(lssn, entry_id, first_slot, self.members or count))
        self._unacked -= count
        if not self._unacked and self.error is None:
            self._settle()
            self._on_settled(self)

    def fail(self, error: QuireError) -> None:
        if self.error is None and self._unacked:
            self.error = error
            self._unacked = 0
            self._settle()
            self._on_settled(self)


class Part(NamedTuple):
    """Some records of a call that go into one entry."""

    call: Pushed
    begin: int
    end: int


class RecordQueue:
    """What waits to be sent, in order."""

    def __init__(self) -> None:
        self._calls: deque[Pushed] = deque()
        self.bytes = 0
        self.records = 0

    def push(self, call: Pushed, size_bytes: int) -> None:
        self._calls.append(call)
        self.bytes += size_bytes
        self.records += len(call.payloads)

    @property
    def first_txid(self) -> int:
        """Of the next record. There must be one."""
        call = self._calls[0]
        return call.txids[call.sent]

    @property
    def last(self) -> Pushed | None:
        """The call that came last, if any waits."""
        return self._calls[-1] if self._calls else None

    def take(self, entry_bytes: int) -> tuple[list[Part], int, int]:
        """Records for one entry: as many as fit, at least one. Also how many they are, and their bytes."""
        parts: list[Part] = []
        taken_records = taken_bytes = used_bytes = 0
        while self._calls:
            call = self._calls[0]
            begin = end = call.sent
            part_bytes, room_bytes = 0, entry_bytes - used_bytes - call.tag_bytes
            if call.is_whole:
                whole_bytes = sum(call.sizes)
                if not parts or whole_bytes <= room_bytes:
                    part_bytes, end = whole_bytes, len(call.sizes)
            else:
                for size in call.sizes[begin:] if begin else call.sizes:
                    if part_bytes + size > room_bytes and (parts or end > begin):
                        break
                    part_bytes += size
                    end += 1
            if end > begin:
                parts.append(Part(call, begin, end))
                call.sent = end
                taken_records += end - begin
                taken_bytes += part_bytes
                used_bytes += part_bytes + call.tag_bytes
            if end < len(call.payloads):
                break
            self._calls.popleft()
        self.bytes -= taken_bytes
        self.records -= taken_records
        return parts, taken_records, taken_bytes

    def clear(self) -> list[Pushed]:
        """Take out all calls, sent in part or not at all."""
        calls = list(self._calls)
        self._calls.clear()
        self.bytes = self.records = 0
        return calls
