"""A stream laid by hand, with the ledger client and the codecs only: every state that any writer could leave behind.

    stream = await RawStream.create(context, "s")
    segment = await stream.begin()                     # in progress
    await segment.append(b"a", b"b")                   # one entry of two records
    await segment.complete()                           # sealed, and said to be completed
    stream.records                                     # what a reader has to give

Txids count from 1 on, two records each, so that neighbours share one.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace

from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import RECORD_SET, LogRecord, encode_control, encode_end_of_stream, encode_record
from quire.codec.stream_metadata.segment import (
    VERSION,
    VERSION_WITH_ENVELOPES,
    Completion,
    Segment,
    encode_segment,
    segment_name,
)
from quire.codec.stream_metadata.tree import StreamPaths, encode_max_lssn
from quire.errors import QuireError
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import ANY_VERSION, Create, Delete, Set
from quire.stream.context import StreamContext
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

RECORDS_PER_TXID = 2


@dataclass
class RawSegment:
    """One segment. `position` counts its records."""

    stream: "RawStream"
    segment: Segment
    ledger: LedgerWriter
    compression: Compression
    position: int = 0
    last: DLSN | None = None
    last_txid: int = 0
    is_completed: bool = False
    entries: int = 0

    # --- Entries

    async def append(self, *payloads: bytes, txid: int | None = None) -> list[DLSN]:
        """One entry of plain records. With `txid` all have it."""
        parts: list[bytes] = []
        made: list[LogRecord] = []
        for payload in payloads:
            self.position += 1
            number = self.stream.next_txid() if txid is None else txid
            parts.append(encode_record(payload, txid=number, position=self.position))
            dlsn = DLSN(self.segment.lssn, EntryId(self.entries), SlotId(len(made)))
            made.append(LogRecord(dlsn, number, payload, self.position))
        await self._add(parts, made)
        return [record.dlsn for record in made]

    async def append_mixed(self, *members: Sequence[bytes] | bytes, codec: Compression = Compression.NONE) -> None:
        """One entry of records and record sets."""
        parts, made, slot = [], [], 0
        for member in members:
            txid, position = self.stream.next_txid(), self.position + 1
            payloads = [member] if isinstance(member, bytes) else list(member)
            if isinstance(member, bytes):
                parts.append(encode_record(member, txid=txid, position=position))
            else:
                body = encode_record_set(payloads, compression=codec)
                parts.append(encode_record(body, txid=txid, position=position, flags=RECORD_SET))
            for payload in payloads:
                self.position += 1
                dlsn = DLSN(self.segment.lssn, EntryId(self.entries), SlotId(slot))
                made.append(LogRecord(dlsn, txid, payload, self.position))
                slot += 1
        await self._add(parts, made)

    async def control(self) -> None:
        await self._add([encode_control(txid=self.last_txid, position=self.position)], [])

    async def end_of_stream(self) -> None:
        self.last_txid = TXID_MAX
        await self._add([encode_end_of_stream(position=self.position)], [])

    async def append_with_control_inside(self, before: bytes, after: bytes) -> None:
        """Apache's writers do not, but the format allows it."""
        first, second = self.stream.next_txid(), self.stream.next_txid()
        lssn, entry_id, position = self.segment.lssn, EntryId(self.entries), self.position
        parts = [
            encode_record(before, txid=first, position=position + 1),
            encode_control(txid=first, position=position + 1),
            encode_record(after, txid=second, position=position + 2),
        ]
        made = [
            LogRecord(DLSN(lssn, entry_id, SlotId(0)), first, before, position + 1),
            LogRecord(DLSN(lssn, entry_id, SlotId(2)), second, after, position + 2),
        ]
        self.position += 2
        await self._add(parts, made)

    async def add_bytes(self, data: bytes) -> DLSN:
        """An entry of any bytes."""
        await self.ledger.append(data)
        self.entries += 1
        return DLSN(self.segment.lssn, EntryId(self.entries - 1), SlotId(0))

    async def _add(self, parts: list[bytes], made: list[LogRecord]) -> None:
        enveloped = self.segment.version >= VERSION_WITH_ENVELOPES
        data = encode_entry(parts, compression=self.compression) if enveloped else b"".join(parts)
        self.entries += 1
        if made:
            self.last_txid = made[-1].txid
        await self.ledger.append(data)
        if made:
            self.last = made[-1].dlsn
        self.stream.records += made

    # --- The end

    async def complete(self, *, at_ms: int | None = None, with_control: bool = True) -> None:
        """As a writer does: a control record, then the ledger is sealed, then the node changes."""
        if with_control and self.entries:
            await self.control()
        await self.ledger.close()
        await self.complete_node(at_ms=at_ms)

    async def complete_node(self, *, at_ms: int | None = None) -> None:
        nowhere = DLSN(self.segment.lssn, EntryId(-1), SlotId(-1))
        done = Completion(
            last_txid=self.last_txid if self.entries else self.segment.first_txid,
            completed_at_ms=self.stream.context.runtime.clock.wall_ms() if at_ms is None else at_ms,
            record_count=self.position,
            last_dlsn=self.last or nowhere,
        )
        await self.stream.replace_node(self, self.segment.completed(done, start_sequence_id=0))
        self.is_completed = True


@dataclass
class RawStream:
    """A stream and all that was put into it. `close` gives its ledgers up."""

    context: StreamContext
    name: str
    segments: list[RawSegment] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    _resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    _txids: int = 0

    @classmethod
    async def create(cls, context: StreamContext, name: str = "s") -> "RawStream":
        await context.store.transaction(*(Create(*node) for node in context.paths(name).initial_nodes()))
        return cls(context, name)

    @property
    def paths(self) -> StreamPaths:
        return self.context.paths(self.name)

    def next_txid(self) -> int:
        self._txids += 1
        return (self._txids + RECORDS_PER_TXID - 1) // RECORDS_PER_TXID

    @property
    def txid(self) -> int:
        """The last one."""
        return (self._txids + RECORDS_PER_TXID - 1) // RECORDS_PER_TXID

    async def close(self) -> None:
        """Seal what is still written, if it can be."""
        with suppress(QuireError):
            await self._resources.aclose()

    async def ledger(self) -> LedgerWriter:
        ledgers = self.context.ledgers
        creating = ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2, digest="crc32")
        return await self._resources.enter_async_context(_unless_refused(creating))

    async def begin(
        self,
        *,
        lssn: int | None = None,
        version: int = VERSION,
        compression: Compression = Compression.NONE,
        name: str | None = None,
    ) -> RawSegment:
        """A new segment in progress, behind the last one unless `lssn` says otherwise."""
        number = Lssn(lssn or (self.segments[-1].segment.lssn + 1 if self.segments else 1))
        ledger = await self.ledger()
        place = DLSN(number, EntryId(0), SlotId(0))
        segment = Segment(number, ledger.id, self.txid, place, version=version)
        await self.context.store.transaction(
            Create(self.paths.segment(name or segment_name(segment)), encode_segment(segment)),
            Set(self.paths.segments, encode_max_lssn(number), ANY_VERSION),
        )
        raw = RawSegment(self, segment, ledger, compression, last_txid=self.txid)
        self.segments = [known for known in self.segments if known.segment.lssn != number] + [raw]
        return raw

    async def replace_node(self, raw: RawSegment, segment: Segment) -> None:
        """What a segment's node says from now on, under the name that goes with it."""
        old, new = self.paths.segment(segment_name(raw.segment)), self.paths.segment(segment_name(segment))
        if old == new:
            await self.context.store.set(old, encode_segment(segment), expected=ANY_VERSION)
        else:
            await self.context.store.transaction(Create(new, encode_segment(segment)), Delete(old, ANY_VERSION))
        raw.segment = segment

    # --- What becomes of old segments

    async def truncate(self, before: DLSN) -> None:
        """As a writer does; `records` keeps what is left."""
        for raw in self.segments:
            done = raw.segment.completion
            if done is None:
                break
            if done.last_dlsn < before:
                await self.replace_node(raw, raw.segment.truncated())
            elif DLSN(raw.segment.lssn, EntryId(0), SlotId(0)) < before:
                await self.replace_node(raw, raw.segment.truncated_before(before))
        self.records = [record for record in self.records if record.dlsn >= before]

    async def purge(self, raw: RawSegment) -> None:
        """The ledger goes first, then the node."""
        await self.context.ledgers.delete(raw.segment.ledger_id)
        await self.forget(raw)

    async def forget(self, raw: RawSegment) -> None:
        await self.context.store.delete(self.paths.segment(segment_name(raw.segment)), expected=ANY_VERSION)
        self.segments.remove(raw)
        self.records = [record for record in self.records if record.dlsn.lssn != raw.segment.lssn]

    async def delete(self) -> None:
        """As Apache's clients do: all segments, each ledger before its node; some time later everything else."""
        for raw in list(self.segments):
            await self.purge(raw)
        await self.context.runtime.clock.sleep(1.0)
        await self.context.store.delete_tree(self.paths.top)

    async def fill(self, *segments: int, per_entry: int = 3) -> None:
        """Completed segments of so many records each, in entries of `per_entry`, all numbered through."""
        for count in segments:
            raw = await self.begin()
            numbers = range(len(self.records), len(self.records) + count)
            for first in numbers[::per_entry]:
                await raw.append(*(b"record %d" % each for each in range(first, min(first + per_entry, numbers.stop))))
            await raw.complete()


class _unless_refused:  # noqa: N801 - it reads as a word
    """A context manager whose end may fail: others recovered or deleted the ledger, which is what the test is about."""

    def __init__(self, manager: object) -> None:
        self._manager = manager

    async def __aenter__(self) -> LedgerWriter:
        writer: LedgerWriter = await self._manager.__aenter__()  # type: ignore[attr-defined]
        return writer

    async def __aexit__(self, *exc_info: object) -> None:
        with suppress(QuireError):
            await self._manager.__aexit__(None, None, None)  # type: ignore[attr-defined]


def with_ledger(segment: Segment, ledger: LedgerId) -> Segment:
    """The same segment on another ledger."""
    return replace(segment, ledger_id=ledger)
