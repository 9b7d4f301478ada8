"""Records that were appended and not yet sent, call by call, and what became of each call.

A call's records are acknowledged together. They may go into several entries, even of several segments; records of other
calls never come between them.

A call may have a tag: then a control record stands before its records in each entry that has some of them, and says
something about just those. Readers skip it. What becomes of the records becomes of it: an entry is stored as a whole.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from quire.codec.stream.limits import EXPANDED_BYTES_MAX, RECORD_HEADER_BYTES
from quire.codec.stream.record_sets import expanded_bytes
from quire.errors import QuireError
from quire.stream.dlsn_runs import DlsnRuns, PlacedRun
from quire.types import EntryId, Lssn


class Tag(Protocol):
    """What is stored beside the records of a call."""

    @property
    def size_bytes(self) -> int:
        """Of a payload. All have the same size: how many records fit beside it is decided before it is made."""

    def payload(self, begin: int, end: int) -> bytes:
        """What to say of the call's records from `begin` to `end`, which is exclusive."""


class Pushed:
    """Records of one call, on their way. With `members` it is a single record that holds so many: a record set.

    With `is_control` it is a single control record. With `is_whole` all of it goes into one entry, which has room.
    """

    __slots__ = (
        "_ends",
        "_settled",
        "_unacked",
        "expanded_bytes",
        "is_control",
        "is_whole",
        "members",
        "payloads",
        "sent",
        "sent_bytes",
        "size_bytes",
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
        self.size_bytes = RECORD_HEADER_BYTES * len(payloads) + sum(map(len, payloads))
        self.expanded_bytes = expanded_bytes(payloads[0]) if members else 0  # For those who take the set apart.
        self.sent = self.sent_bytes = 0  # How many of the records are in an entry, and their bytes.
        self._ends: Sequence[int] = ()  # Where each record ends, in bytes from the first on; made when needed.
        self._unacked = len(payloads)
        self._settled: asyncio.Event | None = None

    def fitting(self, room_bytes: int, *, at_least: int) -> tuple[int, int]:
        """Where the unsent records end that go into so many bytes, and how many bytes they are.

        Those are all, or as many as fit and `at_least` so many. What has to stay whole goes as a whole, or not.
        """
        left_bytes = self.size_bytes - self.sent_bytes
        if left_bytes <= room_bytes or (self.is_whole and at_least):
            return len(self.payloads), left_bytes
        if self.is_whole:
            return self.sent, 0
        ends = self._ends = self._ends or _ends(self.payloads)
        end = max(bisect_right(ends, self.sent_bytes + room_bytes), self.sent + at_least)
        return end, (ends[end - 1] if end else 0) - self.sent_bytes

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

    __slots__ = ("_runs", "done")

    def __init__(self, payloads: Sequence[bytes], txids: Sequence[int], *, members: int = 0) -> None:
        super().__init__(payloads, txids, members=members)
        self._runs: list[PlacedRun] = []
        self.done: asyncio.Future[DlsnRuns] = asyncio.get_running_loop().create_future()

    def on_acknowledged(self, lssn: Lssn, entry_id: EntryId, first_slot: int, count: int) -> None:
        self._runs.append(PlacedRun(lssn, entry_id, first_slot, self.members or count))
        self._unacked -= count
        if not self._unacked:
            if not self.done.done():
                self.done.set_result(DlsnRuns(self._runs))
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


def _ends(payloads: Sequence[bytes]) -> Sequence[int]:
    sizes = list(map(len, payloads))
    if sizes.count(sizes[0]) == len(sizes):  # As many programs write them: nothing has to be added up.
        record_bytes = RECORD_HEADER_BYTES + sizes[0]
        return range(record_bytes, len(sizes) * record_bytes + 1, record_bytes)
    return list(accumulate(map(RECORD_HEADER_BYTES.__add__, sizes)))


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

    def push(self, call: Pushed) -> None:
        self._calls.append(call)
        self.bytes += call.size_bytes
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
        """Records for one entry: as many as fit, at least one. Also how many they are, and their bytes.

        Sets count taken apart, too: a reader refuses an entry of which too much would become.
        """
        parts: list[Part] = []
        taken_records = taken_bytes = used_bytes = expanded = 0
        while self._calls:
            call = self._calls[0]
            expanded += call.expanded_bytes
            if parts and expanded > EXPANDED_BYTES_MAX:
                break
            begin, room_bytes = call.sent, entry_bytes - used_bytes - call.tag_bytes
            end, part_bytes = call.fitting(room_bytes, at_least=0 if parts else 1)
            if end > begin:
                parts.append(Part(call, begin, end))
                call.sent, call.sent_bytes = end, call.sent_bytes + part_bytes
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
