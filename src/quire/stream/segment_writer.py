"""The open end of a stream: entries of one segment go out, and their records are acknowledged in order.

Readers may see an entry once its writer has told bookies that it is confirmed, which the next entry does. So behind the
last records there has to be one more entry, with a control record, which readers skip.

Invariant: what `facts` says of the segment counts acknowledged entries only. Nobody completes a segment with others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import (
    CONTROL_PAYLOAD,
    RECORD_SET,
    encode_control,
    encode_end_of_stream,
    encode_record,
    encode_records,
)
from quire.codec.stream_metadata.segment import Completion
from quire.errors import AppendOutcomeUnknown, LedgerFenced, QuireError, WriterFenced
from quire.ledger.writing.writer import LedgerWriter
from quire.stream.nodes import StoredSegment
from quire.stream.record_queue import Part, Pushed
from quire.stream.settings import StreamSettings
from quire.types import DLSN, EntryId, Lssn, SlotId

_HINT: Final = "Look at the end of the stream for the records; then append again, with the same writer if you like."


class _Sent(NamedTuple):
    """An entry in flight, and what is true of the segment once it is acknowledged."""

    entry_id: EntryId
    parts: list[tuple[Pushed, int, int]]  # Whose records: the first one's slot, and how many.
    records: int
    size_bytes: int
    position: int
    last_txid: int
    last_slot: int  # Of its last record that counts; -1 if it has none.


class SegmentWriter:
    """One segment in progress. `on_progress(records, bytes)` and `on_over(self)` tell its owner what happens."""

    def __init__(
        self,
        stream: str,
        stored: StoredSegment,
        ledger: LedgerWriter,
        resources: AsyncExitStack,
        settings: StreamSettings,
        *,
        on_progress: Callable[[int, int], None],
        on_over: Callable[["SegmentWriter"], None],
    ) -> None:
        self._stream, self.stored, self.settings = stream, stored, settings
        self._ledger, self._resources = ledger, resources
        self._on_progress, self._on_over = on_progress, on_over
        self._sent: deque[_Sent] = deque()
        self._position = 0  # Of the last record that was sent.
        self._last_txid = stored.segment.first_txid
        self._last_has_records = False
        self._acknowledged = _Sent(EntryId(-1), [], 0, 0, 0, self._last_txid, -1)
        self._last_dlsn = DLSN(self.lssn, EntryId(-1), SlotId(-1))
        self.is_over = False
        self._closed: asyncio.Event | None = None
        ledger.listener = self
        try:
            ledger.check_open()
        except QuireError:
            self.is_over = True  # It broke off before anybody needed it.

    @property
    def lssn(self) -> Lssn:
        return self.stored.segment.lssn

    @property
    def position(self) -> int:
        return self._position

    @property
    def last_txid(self) -> int:
        """Of the last record that was sent; before that, the segment's first txid."""
        return self._last_txid

    @property
    def size_bytes(self) -> int:
        return self._ledger.length

    @property
    def in_flight(self) -> int:
        """Entries that are not acknowledged."""
        return len(self._sent)

    @property
    def has_room(self) -> bool:
        return self._ledger.window.has_room

    @property
    def is_uncommitted(self) -> bool:
        """Whether everything is acknowledged, and readers do not know of the last records yet."""
        return self._last_has_records and not self._sent

    # --- Sending. The owner looks for room before.

    def send(self, parts: list[Part], records: int, size_bytes: int) -> None:
        """One entry of these records."""
        runs: list[bytes] = []
        slots: list[tuple[Pushed, int, int]] = []
        payloads: list[bytes] = []
        txids: list[int] = []
        slot, last_slot, position = 0, -1, self._position
        for call, begin, end in parts:
            if call.tag is not None or call.members or call.is_control:  # Something else stands between plain records.
                runs += self._encoded(payloads, txids, position)
                payloads, txids = [], []
            if call.tag is not None:
                tag = call.tag.payload(begin, end)
                runs.append(encode_control(txid=call.txids[begin], position=position, payload=tag))
                slot += 1
            slots.append((call, slot, end - begin))
            if call.is_control:
                runs.append(encode_control(txid=call.txids[0], position=position, payload=call.payloads[0]))
                slot += 1
                continue
            if call.members:
                position += 1
                runs.append(encode_record(call.payloads[0], txid=call.txids[0], position=position, flags=RECORD_SET))
                position += call.members - 1
                slot += call.members
            else:
                payloads += call.payloads[begin:end]
                txids += call.txids[begin:end]
                slot, position = slot + end - begin, position + end - begin
            last_slot = slot - 1
        runs += self._encoded(payloads, txids, position)
        self._position = position
        self._last_txid = parts[-1].call.txids[parts[-1].end - 1]
        self._push(runs, slots, records, size_bytes, last_slot=last_slot)

    @staticmethod
    def _encoded(payloads: list[bytes], txids: list[int], last_position: int) -> list[bytes]:
        return [encode_records(payloads, txids, position=last_position - len(payloads) + 1)] if payloads else []

    def send_control(self, payload: bytes = CONTROL_PAYLOAD) -> None:
        """An entry that makes those before it visible."""
        self._push([encode_control(txid=self._last_txid, position=self._position, payload=payload)], [], 0, 0)

    def send_end_of_stream(self) -> None:
        self._last_txid = TXID_MAX
        self._push([encode_end_of_stream(position=self._position)], [], 0, 0, last_slot=0)

    def _push(
        self,
        runs: list[bytes],
        slots: list[tuple[Pushed, int, int]],
        records: int,
        size_bytes: int,
        last_slot: int = -1,
    ) -> None:
        entry_id = self._ledger.enqueue_nowait(encode_entry(runs, compression=self.settings.codec))
        self._sent.append(_Sent(entry_id, slots, records, size_bytes, self._position, self._last_txid, last_slot))
        self._last_has_records = last_slot >= 0

    # --- What the ledger says

    def on_confirmed(self, confirmed: EntryId) -> None:
        lssn, sent = self.lssn, self._sent
        records = size_bytes = 0
        while sent and sent[0].entry_id <= confirmed:
            entry = self._acknowledged = sent.popleft()
            records += entry.records
            size_bytes += entry.size_bytes
            if entry.last_slot >= 0:
                self._last_dlsn = DLSN(lssn, entry.entry_id, SlotId(entry.last_slot))
            for call, slot, count in entry.parts:
                call.on_acknowledged(lssn, entry.entry_id, slot, count)
        self._on_progress(records, size_bytes)

    def on_over(self) -> None:
        """The ledger takes no more. That is as it should be after `seal`."""
        if not self.is_over:
            self.is_over = True
            self._on_over(self)

    def fail_in_flight(self) -> tuple[QuireError, int, int]:
        """Tell whoever waits for entries in flight. Returns why, and how many records and bytes that were."""
        error = self.error()
        records = sum(entry.records for entry in self._sent)
        size_bytes = sum(entry.size_bytes for entry in self._sent)
        for entry in self._sent:
            for call, _, _ in entry.parts:
                call.fail(self.error())
        self._sent.clear()
        return error, records, size_bytes

    def error(self) -> QuireError:
        """What to tell of records in flight once the ledger is over."""
        cause = self._ledger.error_for(EntryId(0))
        kind = WriterFenced if isinstance(cause, LedgerFenced) else AppendOutcomeUnknown
        error = kind(
            f"segment {self.lssn} of stream {self._stream!r} broke off: {cause}",
            hint=""
            if kind is WriterFenced
            else "Append again with this writer, after a look at the end of the stream.",
            stream=self._stream,
            lssn=self.lssn,
        )
        error.__cause__ = cause
        return error

    # --- The end

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged. Raises what the ledger raises."""
        await self._ledger.flush()

    async def drain(self) -> None:
        """Write the last control record, and wait until all that was sent is acknowledged. Nothing may be sent after.

        Raises what the ledger raises; then its owner has heard of it.
        """
        await self.flush()
        self.send_control()
        await self.flush()

    async def seal(self) -> None:
        """Store where the drained ledger ends. May be tried again."""
        self.is_over = True
        await self._ledger.close(drain=False)
        await self._let_go()

    def give_up(self, why: str) -> None:
        """Wait for nothing that was sent any more: whoever appended it is told that its outcome is unknown."""
        self._ledger.poison(AppendOutcomeUnknown(why))

    async def abandon(self) -> None:
        """Let go of the ledger. Whoever recovers the segment finds where it ends."""
        self.is_over = True
        try:
            await self._let_go()
        except QuireError:
            pass  # It is recovered anyway.

    async def _let_go(self) -> None:
        """Once, however many ask for it: the others wait for the first."""
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = asyncio.Event()
        try:
            await self._resources.aclose()
        finally:
            self._closed.set()

    def completion(self, now_ms: int) -> Completion:
        """What is true of the segment when nothing is sent any more."""
        return Completion(self._acknowledged.last_txid, now_ms, self._acknowledged.position, self._last_dlsn)
