"""The one writer of a stream.

    dlsn = await writer.append(b"paid", txid=1)              # durable when it returns
    dlsns = await writer.append_many([b"a", b"b", b"c"])     # one wait for all of them

Invariant: TxidsNeverDecrease, along the stream, in the order of appending. How records leave, and what a writer does
about segments, is told in `quire.stream.outlet`.
"""

from collections.abc import Callable, Sequence

from quire.codec.stream.compression import Compression
from quire.codec.stream.limits import RECORD_HEADER_BYTES, RECORDS_BYTES_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import CallerMistake, InvalidArgument, QuireError, RecordTooLarge, WriterFenced
from quire.ledger.metrics import SLOW_S
from quire.runtime.opening import Opened
from quire.stream.append_rules import check_txids, checked_records
from quire.stream.context import StreamContext
from quire.stream.outlet import Outlet
from quire.stream.record_queue import Call, Tag, TrackedCall
from quire.stream.retention import truncate_before
from quire.stream.segments import StreamSegments
from quire.stream.settings import StreamSettings
from quire.stream.statistics import WriterStatistics
from quire.telemetry.events import logger
from quire.types import DLSN, Lssn

_log = logger("stream")


class StreamWriter(Opened):
    """A stream that is being written. Made by `open_stream_writer`, for use inside its `async with`."""

    def __init__(
        self, context: StreamContext, segments: StreamSegments, sample: Callable[[], StreamSettings], last_txid: int
    ) -> None:
        self._clock, self._metrics, self.nodes = context.runtime.clock, context.metrics, segments.nodes
        self._segments = segments
        self.stream = segments.stream
        self._outlet = Outlet(context, segments, sample)
        self._last_txid = last_txid
        self._last_dlsn: DLSN | None = None

    # --- What is known

    @property
    def last_txid(self) -> int:
        """The highest txid in the stream, as far as this writer knows; its own records count when they are appended."""
        return self._last_txid

    @property
    def epoch(self) -> Lssn:
        """The LSSN of the open segment, or the least that the next one may have. Grows with each change of owners."""
        segment = self._outlet.segment
        return segment.lssn if segment is not None else self._segments.next_lssn_min

    def statistics(self) -> WriterStatistics:
        outlet, segment = self._outlet, self._outlet.segment
        return WriterStatistics(
            records=outlet.records,
            bytes=outlet.bytes,
            waiting_records=outlet.waiting_records,
            in_flight_entries=segment.in_flight if segment is not None else 0,
            lssn=segment.lssn if segment is not None else None,
            segment_bytes=segment.size_bytes if segment is not None else 0,
            rolls=outlet.rolls,
            last_txid=self._last_txid,
            last_dlsn=self._last_dlsn,
        )

    # --- Appending

    async def append(self, payload: bytes, *, txid: int | None = None) -> DLSN:
        """Append one record and return its place once it is durable on an ack quorum of bookies.

        Without a txid it gets the time in milliseconds, or the last txid if that is higher. Raises `RecordTooLarge`,
        `TxidOutOfOrder`, `HandleClosed`, `StreamSealed` and `AppendCancelled` (nothing was sent), `WriterFenced` and
        `AppendOutcomeUnknown` (the record may be in the stream). A cancelled append may be in the stream too.
        """
        return (await self.append_many((payload,), txids=None if txid is None else (txid,)))[0]

    async def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> Sequence[DLSN]:
        """Append records in this order, with nothing between them. As `append`, with one wait for all of them.

        A place is made when it is asked for, by number or by iteration: it costs nothing to look at the last one only.
        """
        records = checked_records(payloads)
        if txids is not None and len(txids) != len(records):
            raise InvalidArgument(f"{len(records)} records have {len(txids)} txids", hint="Give one for each, or none.")
        if not records:
            return []
        return await self._push(lambda: Call(records, self._next_txids(txids, len(records))), len(records))

    async def append_set(
        self, payloads: Sequence[bytes], *, txid: int | None = None, compression: str = "none"
    ) -> Sequence[DLSN]:
        """Append records as one record set: they share one header and one txid, and are compressed together.

        Readers take it apart, so that they see records like others. Raises what `append` raises.
        """
        members = checked_records(payloads)
        if not members:
            return []
        try:
            codec = {"none": Compression.NONE, "lz4": Compression.LZ4}[compression]
        except KeyError as error:
            raise InvalidArgument(f"compression {compression!r} does not exist", hint="Use 'none' or 'lz4'.") from error
        try:
            payload = encode_record_set(members, compression=codec)
        except InvalidArgument as error:
            raise RecordTooLarge(f"stream {self.stream!r}: {error}", stream=self.stream) from error
        txids = None if txid is None else (txid,)
        return await self._push(lambda: Call((payload,), self._next_txids(txids, 1), members=len(members)), 1)

    def _next_txids(self, txids: Sequence[int] | None, count: int) -> Sequence[int]:
        if txids is None:
            self._last_txid = max(self._last_txid, self._clock.wall_ms())
            return [self._last_txid] * count
        self._last_txid = check_txids(self.stream, txids, last_txid=self._last_txid)
        return txids

    async def _push(self, make: Callable[[], Call], records: int) -> Sequence[DLSN]:
        asked_s = self._clock.monotonic()
        try:
            call = await self._outlet.push(make)  # Txids are given in the order in which records are queued.
        except QuireError as error:
            if not isinstance(error, CallerMistake):
                self._metrics.failed_records.value += records
            raise
        begun_s = self._clock.monotonic()
        dlsns = await call.done
        done_s = self._clock.monotonic()
        self._metrics.append_seconds.observe(done_s - begun_s)
        if done_s - asked_s > SLOW_S and self._metrics.may_tell_slow(done_s):
            stage = "window" if begun_s - asked_s > done_s - begun_s else "storage"
            _log.warning("append.slow", stream=self.stream, seconds=round(done_s - asked_s, 3), stage=stage)
        if self._last_dlsn is None or dlsns[-1] > self._last_dlsn:
            self._last_dlsn = dlsns[-1]
        return dlsns

    # --- Appending for others, as a proxy does. Not part of what users are promised.

    def append_tracked(
        self,
        payloads: Sequence[bytes],
        on_settled: Callable[[TrackedCall], None],
        *,
        txids: Sequence[int] | None = None,
        members: int = 0,
        tag: Tag | None = None,
        is_whole: bool = False,
    ) -> TrackedCall:
        """As `append_many`, without waiting: `on_settled` is told what became of the records.

        There is no window: whoever calls this keeps count of what is on its way. With `members` the one payload is a
        record set that holds so many. With `is_whole` all goes into one entry.
        """
        self._outlet.check_open()
        records = checked_records(payloads)
        tag_bytes = 0 if tag is None else RECORD_HEADER_BYTES + tag.size_bytes
        size_bytes = sum(map(len, records)) + RECORD_HEADER_BYTES * len(records) + tag_bytes
        if is_whole and size_bytes > RECORDS_BYTES_MAX:
            raise RecordTooLarge(
                f"{len(records)} records take {size_bytes} bytes, and an entry {RECORDS_BYTES_MAX} at most",
                hint="Send fewer of them at once, or let them go into several entries.",
                bytes=size_bytes,
                bytes_max=RECORDS_BYTES_MAX,
            )
        call = TrackedCall(
            records, self._next_txids(txids, len(records)), on_settled, members=members, tag=tag, is_whole=is_whole
        )
        self._outlet.push_nowait(call)
        return call

    def append_control(self, payload: bytes, on_settled: Callable[[TrackedCall], None]) -> TrackedCall:
        """Append a control record, which readers skip. As `append_tracked`."""
        self._outlet.check_open()
        call = TrackedCall(checked_records((payload,)), (self._last_txid,), on_settled, is_control=True)
        self._outlet.push_nowait(call)
        return call

    @property
    def problem(self) -> QuireError | None:
        """Why nothing can be appended any more, if that is so; None also if it was simply closed."""
        return self._outlet.problem

    def give_up(self, why: str) -> None:
        """Wait for nothing any more: what was sent is of unknown outcome, the rest is refused. Close it afterwards."""
        self._outlet.give_up(why)

    # --- Everything that was appended

    async def flush(self) -> None:
        """Send what waits, and wait until everything that was appended so far is acknowledged, or has failed."""
        await self._outlet.flush()

    # --- Changing the stream

    async def truncate(self, before: DLSN) -> int:
        """Hide all records before this place from readers. Returns how many segments changed.

        Records of the open segment stay visible until it is completed. Nothing is deleted by this: retention does that.
        """
        self._outlet.check_open()
        return await truncate_before(self.nodes, before)

    async def seal(self) -> None:
        """End the stream: readers stop behind its last record, and nothing can be appended any more. For ever.

        Raises `WriterFenced` and `AppendOutcomeUnknown`: then it may have ended.
        """
        await self._outlet.seal(self._last_txid)

    # --- Closing

    def on_lock_taken(self, error: QuireError) -> None:
        """Our lock was lost with its session, and another client has it now, which will shut us out."""
        self._outlet.end(WriterFenced(f"stream {self.stream!r} has another writer: {error}", stream=self.stream))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and nothing of it runs any more."""
        return self._outlet.is_closed

    async def aclose(self, *, drain: bool = True) -> None:
        """Complete the segment and let go of the stream. What waits is sent first, with `drain`; else it is refused.

        Once begun, closing goes on to its end, also if whoever asked for it is cancelled; a second call waits for it.
        What cannot be completed now is completed by the next writer.
        """
        await self._closed_by(self._outlet.aclose(drain=drain))
