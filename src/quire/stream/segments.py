"""A stream's chain of segments in the hands of its writer: begin them, complete them, recover what others left.

    prepare    a new ledger, noted as allocated
    begin      it becomes the next segment
    complete   what the writer knows of a segment, once its ledger is sealed
    recover    the same for segments that somebody else left in progress: their ledgers say where they end

Invariants:
  ClaimedIsKnown  only segments that were there when the stream was claimed are recovered, and so fenced.
  FencedFirst     a segment of another writer is completed only after its ledger was recovered: nothing can be
                  acknowledged in it any more.
  TxidsInOrder    a segment's first txid is not below any that is in a segment before it: searching relies on it.
  LowestFirst     segments are completed in their order, so that sequence ids go on where the last one ended.
  NoLedgerLost    a ledger that was made for the stream is in a segment, in the allocation, or deleted.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Completion, Segment
from quire.errors import (
    LedgerExists,
    NoSuchLedger,
    QuireError,
    StreamSealed,
    TxidOutOfOrder,
    invariant,
)
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import HeldLock
from quire.metadata.driver import Op
from quire.protocol.segments import next_lssn, start_sequence_id
from quire.stream.context import StreamContext
from quire.stream.nodes import GuardedNodes, StoredSegment
from quire.stream.settings import StreamSettings
from quire.telemetry.events import logger
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

_log = logger("stream")
_LOOK_BACK: Final = 2  # Entries that are read at first to find the last record; then twice as many.
_LOOK_BACK_MAX: Final = 16


class Prepared(NamedTuple):
    """A ledger that may become a segment, and what seals it when it is closed."""

    ledger: LedgerWriter
    resources: AsyncExitStack


class Begun(NamedTuple):
    """A segment in progress, its ledger, and what seals that when it is closed."""

    stored: StoredSegment
    ledger: LedgerWriter
    resources: AsyncExitStack


class Written(NamedTuple):
    """A sealed ledger that has records, and what a segment of it would say."""

    ledger: LedgerId
    first_txid: int
    last_txid: int
    records: int
    last_entry: EntryId
    last_slot: SlotId


class StreamSegments:
    """All of a stream's segments that its writer has to know: the last completed one, and those in progress."""

    def __init__(self, context: StreamContext, guarded: GuardedNodes) -> None:
        self._context, self._guarded = context, guarded
        self.nodes = guarded.nodes
        self._known: list[StoredSegment] = []

    @property
    def stream(self) -> str:
        return self.nodes.paths.stream

    @property
    def is_undecided(self) -> bool:
        """Whether a change of the stream's nodes was not found out about. Then they have to be read anew."""
        return self._guarded.is_undecided

    @property
    def max_lssn(self) -> Lssn:
        """The highest that a segment of the stream ever had."""
        return self._guarded.max_lssn

    @property
    def next_lssn_min(self) -> Lssn:
        """The least that the next segment may have. Not always one more than `max_lssn`: recovery may have forgotten
        that segment, or be about to, and its number is given again then.
        """
        first = self._context.binding.first_lssn
        assert first is not None  # The context has a resolved binding.
        done = [known.segment.lssn for known in self._known if known.segment.completion is not None]
        return Lssn(max(self.max_lssn, done[-1] + 1 if done else first))

    @property
    def max_txid(self) -> int:
        """The highest of any completed segment."""
        return self._guarded.max_txid

    # --- What others left

    async def recover(self, password: bytes, lock: HeldLock | None = None) -> int:
        """Complete every segment in progress. Returns the highest txid of the stream, 0 if it has none.

        Segments are listed before the claim, which proves that the list is still true. A segment that a later owner
        begins is not in it, so a caller that was stopped behind its claim never fences that owner. With `lock` the
        claim succeeds only while that is held. Raises `RecoveryFailed` and the like if bookies cannot be asked,
        `WriterFenced`, `DamagedEntry`.
        """
        self._known = await self.nodes.segments_for_writer()
        await self._guarded.claim(lock)
        for stored in [known for known in self._known if known.segment.completion is None]:
            await self._recover(stored, password)
        txids = [done.segment.completion.last_txid for done in self._known if done.segment.completion is not None]
        return max([self._guarded.max_txid, *txids])

    async def _recover(self, stored: StoredSegment, password: bytes) -> None:
        segment, clock = stored.segment, self._context.runtime.clock
        try:
            async with self._context.ledgers.open(segment.ledger_id, password=password) as ledger:
                last = await last_record(ledger, segment)
        except NoSuchLedger:
            # Apache's recovery deletes a ledger without entries, then the segment, and was cut off in between.
            await self._guarded.forget(stored)
            self._known.remove(stored)
            return
        nowhere = DLSN(segment.lssn, EntryId(-1), SlotId(-1))
        if last is None:
            completion = Completion(segment.first_txid, clock.wall_ms(), 0, nowhere)
        else:
            completion = Completion(last.txid, clock.wall_ms(), last.position, last.dlsn)
        await self.complete(stored, completion)
        self._context.metrics.recovered_segments.add()
        _log.info("stream.segment_recovered", stream=self.stream, lssn=segment.lssn, records=completion.record_count)

    # --- Our own

    async def begin(self, first_txid: int, settings: StreamSettings) -> Begun:
        """The next segment, from nothing. Raises what `prepare` and `begin_with` raise."""
        self._check_txid(first_txid)
        return await self.begin_with(await self.prepare(settings), first_txid, settings)

    async def prepare(self, settings: StreamSettings) -> Prepared:
        """A ledger for the next segment, noted as allocated. A writer does this before it needs it.

        Its id is noted before it is made, so that none is lost if we die in between. What is noted is deleted before
        the note is written over: no segment has it, and none gets it, since its maker was shut out by our claim. Raises
        `WriterFenced`, `NotEnoughBookies` and what the metadata store raises.
        """
        invariant(not self.is_undecided, "the noted ledger may have become a segment", stream=self.stream)
        if self._guarded.allocated is not None:
            await self._context.ledgers.delete(self._guarded.allocated)
        ledger_id = await self._context.ledgers.ledgers_metadata.new_id()
        await self._guarded.allocate(ledger_id)
        resources = AsyncExitStack()
        creating = self._context.ledgers.create(
            ensemble=settings.ensemble,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=settings.password,
            ledger_id=ledger_id,
        )
        try:
            return Prepared(await resources.enter_async_context(creating), resources)
        except LedgerExists:  # Somebody chose this id by hand: it must not be deleted as a leftover of ours.
            await self._guarded.allocate(None)
            raise

    async def begin_with(self, prepared: Prepared, first_txid: int, settings: StreamSettings) -> Begun:
        """The prepared ledger becomes the next segment, which may have no lower txid than all before it.

        Raises `TxidOutOfOrder`, `StreamSealed`, `WriterFenced` and what the store raises; then it is discarded.
        """
        binding = self._context.binding
        assert binding.first_lssn is not None  # The context has a resolved binding.
        try:
            self._check_txid(first_txid)
            segments = [known.segment for known in self._known]
            lssn = next_lssn(segments, max_lssn=self._guarded.max_lssn, first_lssn=binding.first_lssn)
            region = settings.region if binding.encode_region else 0
            begun = Segment.begun(lssn, prepared.ledger.id, first_txid, region=region)
            stored = await self._guarded.begin(begun)
        except BaseException:
            await self.discard(prepared)
            raise
        self._known.append(stored)
        self._context.metrics.begun_segments.add()
        return Begun(stored, prepared.ledger, prepared.resources)

    def _check_txid(self, first_txid: int) -> None:
        highest = self._guarded.max_txid
        if highest == TXID_MAX:
            raise StreamSealed(f"stream {self.stream!r} has ended", stream=self.stream)
        if first_txid < highest:
            raise TxidOutOfOrder(
                f"txid {first_txid} is below {highest}, which stream {self.stream!r} has already",
                stream=self.stream,
                txid=first_txid,
                last_txid=highest,
            )

    async def discard(self, prepared: Prepared) -> None:
        """A ledger that becomes no segment. If it is still noted as allocated, the next writer deletes it.

        Without the note another writer has taken over, and has deleted the ledger as a leftover, perhaps before it was
        made. Nothing is deleted while it is undecided whether the segment began.
        """
        try:
            await prepared.resources.aclose()
            if not self._guarded.is_undecided and not await self._guarded.is_noted(prepared.ledger.id):
                await self._context.ledgers.delete(prepared.ledger.id)
        except QuireError as error:
            _log.warning("stream.ledger_left", stream=self.stream, ledger_id=prepared.ledger.id, error=str(error))

    # --- Those that were written beside the stream

    def following(self, ledgers: Sequence[Written], settings: StreamSettings) -> list[Segment]:
        """The completed segments that these ledgers are if they come next. Nothing is in progress.

        Raises `TxidOutOfOrder`, `StreamSealed`.
        """
        binding = self._context.binding
        assert binding.first_lssn is not None  # The context has a resolved binding.
        known = [stored.segment for stored in self._known]
        lssn = next_lssn(known, max_lssn=self._guarded.max_lssn, first_lssn=binding.first_lssn)
        region, now_ms = settings.region if binding.encode_region else 0, self._context.runtime.clock.wall_ms()
        segments: list[Segment] = []
        for written in ledgers:
            self._check_txid(written.first_txid)
            self._check_follows(written.first_txid, segments)
            last = DLSN(lssn, written.last_entry, written.last_slot)
            completion = Completion(written.last_txid, now_ms, written.records, last)
            begun = Segment.begun(lssn, written.ledger, written.first_txid, region=region)
            start = start_sequence_id([*known, *segments], lssn)
            segments.append(begun.completed(completion, start_sequence_id=start))
            lssn = Lssn(lssn + 1)
        return segments

    def _check_follows(self, first_txid: int, segments: list[Segment]) -> None:
        done = segments[-1].completion if segments else None
        if done is not None and first_txid < done.last_txid:
            raise TxidOutOfOrder(
                f"txid {first_txid} would come behind {done.last_txid} in stream {self.stream!r}",
                stream=self.stream,
                txid=first_txid,
                last_txid=done.last_txid,
            )

    async def publish(self, segments: Sequence[Segment], ops: Sequence[Op], proof: tuple[str, bytes]) -> None:
        """Make what `following` returned a part of the stream: see `GuardedNodes.publish`.

        Raises `WriterFenced` if another writer came, or one of `ops` is refused, and what the metadata store raises.
        """
        await self._guarded.publish(segments, ops, proof)
        self._context.metrics.completed_segments.add(len(segments))

    async def complete(self, stored: StoredSegment, completion: Completion) -> None:
        """Store where a segment ends. Its ledger is sealed, and all segments before it are completed."""
        start = start_sequence_id([known.segment for known in self._known], stored.segment.lssn)
        completed = stored.segment.completed(completion, start_sequence_id=start)
        done = await self._guarded.complete(stored, completed)
        in_progress = [known for known in self._known if known.segment.lssn > completed.lssn]
        self._known = [done, *in_progress]
        self._context.metrics.completed_segments.add()


async def last_record(ledger: LedgerReader, segment: Segment) -> LogRecord | None:
    """The last confirmed record of a segment, of any kind; None if it has none. Its position is how many there are."""
    end, batch = ledger.last_add_confirmed + 1, _LOOK_BACK
    while end > 0:
        begin = max(0, end - batch)
        entries = [entry async for entry in ledger.read(begin, end - 1)]
        for entry_id, payload in reversed(entries):
            records = decode_entry(payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped)
            if records:
                return records[-1]
        end, batch = begin, min(2 * batch, _LOOK_BACK_MAX)
    return None
