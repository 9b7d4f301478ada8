"""Records on their way to a proxy: calls of `append`, batches of them, and the numbers under which they are sent.

A batch has records of one writer only. With a producer id it also has numbers, which the owner of the stream remembers:
so it can be sent again when its answer was lost.

Invariants:
  NoGaps         the batches of one producer are numbered one after the other, without a gap. If one is given up the
                 writer goes on as another producer, from 1 on.
  NumbersStay    a batch that may be stored is sent again under the same numbers, or not at all.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.errors import QuireError
from quire.types import DLSN
from quire.values import dataclass

_new = tuple.__new__  # Half of what `DLSN(…)` costs, and there is one for each record.


class Append:
    """Records of one call. With `members` they are record sets, each of which holds so many."""

    __slots__ = (
        *("_dlsns", "_on_over", "_over", "_unstored"),
        *("cut", "deadline_s", "done", "may_be_stored", "members", "payloads", "size_bytes", "txids"),
    )

    def __init__(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        *,
        members: Sequence[int] = (),
        deadline_s: float,
        on_over: "Callable[[Append], None]",
    ) -> None:
        """`on_over` is called once it is stored, or has failed."""
        self.payloads, self.txids, self.members, self.deadline_s = payloads, txids, members, deadline_s
        self.size_bytes = sum(map(len, payloads)) + RECORD_HEADER_BYTES * len(payloads)
        self.cut = 0  # How many of the records are in a batch.
        self.may_be_stored = False  # Some of it is, or may be.
        self._unstored = len(payloads)
        self._dlsns: list[DLSN] = []
        self.done: asyncio.Future[list[DLSN]] = asyncio.get_running_loop().create_future()
        self._on_over = on_over
        self._over: asyncio.Event | None = None

    @property
    def is_over(self) -> bool:
        """Whether all of it is stored, or it has failed."""
        return not self._unstored

    def on_stored(self, count: int, dlsns: list[DLSN]) -> None:
        """The next `count` records are durable, at these places."""
        if not self._unstored:
            return
        self.may_be_stored = True
        self._dlsns = self._dlsns + dlsns if self._dlsns else dlsns
        self._unstored -= count
        if not self._unstored:
            if not self.done.done():
                self.done.set_result(self._dlsns)
            self._end()

    def fail(self, error: QuireError) -> None:
        if not self._unstored:
            return
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # Whoever was cancelled does not look.
        self._unstored = 0
        self._end()

    def _end(self) -> None:
        self._on_over(self)
        if self._over is not None:
            self._over.set()

    async def wait_over(self) -> None:
        """Return when it is stored, or has failed; also if whoever appended it was cancelled."""
        if self._unstored:
            self._over = self._over or asyncio.Event()
            await self._over.wait()


class Part(NamedTuple):
    """Some records of a call that go into one batch."""

    append: Append
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How one writer's records become batches."""

    may_repeat: bool
    """Whether a batch that may be stored is sent again."""
    create_if_missing: bool
    in_flight_max: int
    """While so many batches are not stored, records gather."""
    batch_bytes: int
    """Calls are sent together up to so many bytes."""
    batch_bytes_max: int
    """A call that is larger is sent in parts."""
    batch_records_max: int
    """The same in records. Proxies refuse more."""
    records_max: int
    bytes_max: int
    """Whoever appends waits while that much is not stored."""


class Producer:
    """An id, and the next number under it."""

    __slots__ = ("id", "next_seq")

    def __init__(self, id: bytes) -> None:
        self.id, self.next_seq = id, 1


class Parcel:
    """One batch, from when it is put together until it is answered for good."""

    __slots__ = ("error", "first_seq", "may_be_stored", "outbox", "parts", "producer", "records", "size_bytes", "txids")

    def __init__(self, outbox: "Outbox", parts: list[Part]) -> None:
        self.outbox, self.parts = outbox, parts
        if len(parts) == 1:
            append, begin, end = parts[0]
            is_whole = begin == 0 and end == len(append.payloads)
            self.records = append.payloads if is_whole else append.payloads[begin:end]
            self.txids = append.txids if append.txids is None or is_whole else append.txids[begin:end]
        else:
            self.records = [payload for append, begin, end in parts for payload in append.payloads[begin:end]]
            given = parts[0].append.txids is not None
            self.txids = (
                [txid for append, begin, end in parts for txid in (append.txids or ())[begin:end]] if given else None
            )
        self.size_bytes = sum(map(len, self.records)) + RECORD_HEADER_BYTES * len(self.records)
        self.producer: Producer | None = None
        self.first_seq = 0
        self.may_be_stored = False  # Some attempt ended without saying that nothing happened.
        self.error: QuireError | None = None  # Of the last attempt.

    @property
    def members(self) -> int:
        """How many records are in it, if it is a record set; else 0."""
        append, begin, _ = self.parts[0]
        return append.members[begin] if append.members else 0

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(part.append.is_over for part in self.parts)

    def number(self) -> None:
        """Give it its numbers, unless it has some that it may be stored under."""
        if not self.may_be_stored:
            self.producer = self.outbox.producer
            self.first_seq = 0 if self.producer is None else self.producer.next_seq
        if self.producer is not None:
            self.producer.next_seq = self.first_seq + (self.members or len(self.records))

    def on_stored(self, placed: Sequence[pb.Placed]) -> list[DLSN]:
        """Tell each call its places. Returns all of them."""
        dlsns: list[DLSN] = []
        for each in placed:
            first = each.first
            slots = range(first.slot_id, first.slot_id + each.count)
            dlsns += map(_new, repeat(DLSN), zip(repeat(first.lssn), repeat(first.entry_id), slots))
        if len(self.parts) == 1:
            append, begin, end = self.parts[0]
            append.on_stored(end - begin, dlsns)
        else:
            at = 0
            for append, begin, end in self.parts:
                append.on_stored(end - begin, dlsns[at : at + end - begin])
                at += end - begin
        return dlsns

    def on_maybe_stored(self) -> None:
        """Some attempt ended without saying that nothing happened."""
        self.may_be_stored = True
        for part in self.parts:
            part.append.may_be_stored = True


class Outbox:
    """What one writer has appended and not seen stored yet, and what it has."""

    def __init__(self, rules: BatchRules, *, new_id: Callable[[], bytes] | None) -> None:
        """Without `new_id` batches have no numbers."""
        self.rules, self._new_id = rules, new_id
        self.producer = None if new_id is None else Producer(new_id())
        self.waiting: deque[Append] = deque()
        self.parcels = 0  # That were cut, and are neither stored nor given up.
        self.is_listed = False  # In the lane, among those that have something to send.
        self._open_records = self._open_bytes = 0
        self._queued: deque[asyncio.Future[None]] = deque()  # Those that wait for room.
        self.records = self.bytes = self.segments = 0  # That were stored, and the segments that they are in.
        self.last_dlsn: DLSN | None = None
        self.last_txid = -1

    # --- Room

    @property
    def open_records(self) -> int:
        """Records that are neither stored nor given up."""
        return self._open_records

    async def wait_room(self) -> None:
        """Return when there is room for more, in the order of asking."""
        if not self._queued and self._has_room():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.append(turn)
        try:
            await turn
        finally:
            if turn in self._queued:
                self._queued.remove(turn)
            self._admit()

    def _has_room(self) -> bool:
        return self._open_records < self.rules.records_max and self._open_bytes < self.rules.bytes_max

    def wake_all(self) -> None:
        """Let everybody look who waits for room: the writer is closed."""
        for turn in self._queued:
            if not turn.done():
                turn.set_result(None)

    def _admit(self) -> None:
        """Let the first in, who looks whether there is room for the next."""
        if self._queued and self._has_room() and not self._queued[0].done():
            self._queued[0].set_result(None)

    def _free(self, records: int, size_bytes: int) -> None:
        self._open_records -= records
        self._open_bytes -= size_bytes
        if self._queued:
            self._admit()

    # --- What comes in

    def push(self, append: Append) -> None:
        self.waiting.append(append)
        self._open_records += len(append.payloads)
        self._open_bytes += append.size_bytes

    def drop_rest(self, append: Append) -> None:
        """Nothing more of a call will be sent that has failed in part."""
        if self.waiting and self.waiting[0] is append:
            self.pop_waiting()

    def pop_waiting(self) -> Append:
        """Take out the first call: what is not in a batch of it will never be."""
        append = self.waiting.popleft()
        left = append.payloads[append.cut :]
        self._free(len(left), sum(map(len, left)) + RECORD_HEADER_BYTES * len(left))
        return append

    # --- What goes out

    @property
    def can_cut(self) -> bool:
        return bool(self.waiting) and self.parcels < self.rules.in_flight_max

    def cut(self) -> Parcel:
        """A batch of what waits: as many calls as fit, or a part of a large one, or one record set."""
        waiting, rules, parts, size_bytes, records = self.waiting, self.rules, list[Part](), 0, 0
        first = waiting[0]
        while waiting:
            append = waiting[0]
            count = len(append.payloads)
            if parts and (
                append.members
                or (append.txids is None) != (first.txids is None)
                or size_bytes + append.size_bytes > rules.batch_bytes
                or records + count > rules.batch_records_max
            ):
                break
            if append.members or append.size_bytes > rules.batch_bytes_max or count > rules.batch_records_max:
                parts.append(self._slice(append))
                break
            waiting.popleft()
            append.cut = count
            parts.append(Part(append, 0, count))
            size_bytes += append.size_bytes
            records += count
        self.parcels += 1
        return Parcel(self, parts)

    def _slice(self, append: Append) -> Part:
        """The next records of a call that is too large for one batch, or of record sets the next. At least one."""
        begin = end = append.cut
        left_bytes = self.rules.batch_bytes_max
        last = min(len(append.payloads), begin + (1 if append.members else self.rules.batch_records_max))
        while end < last:
            left_bytes -= len(append.payloads[end]) + RECORD_HEADER_BYTES
            if left_bytes < 0 and end > begin:
                break
            end += 1
        append.cut = end
        if end == len(append.payloads):
            self.waiting.popleft()
        return Part(append, begin, end)

    # --- What came of it

    def on_stored(self, parcel: Parcel, last: DLSN, txid: int) -> None:
        self.records += len(parcel.records)
        self.bytes += parcel.size_bytes
        if self.last_dlsn is None or last.lssn > self.last_dlsn.lssn:
            self.segments += 1
        self.last_dlsn, self.last_txid = last, max(txid, self.last_txid)

    def let_go(self, parcel: Parcel) -> None:
        """It is stored, or given up."""
        self.parcels -= 1
        self._free(len(parcel.records), parcel.size_bytes)

    def rewind(self, first_seq: int) -> None:
        """The next batch is the one that has this number, or had."""
        if self.producer is not None:
            self.producer.next_seq = min(self.producer.next_seq, first_seq)

    def begin_anew(self) -> None:
        """A batch was given up: whatever follows cannot be numbered behind it."""
        if self._new_id is not None:
            self.producer = Producer(self._new_id())
