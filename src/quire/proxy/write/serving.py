"""A stream that this proxy owns and writes: batches go to its writer, and what became of them comes back.

Duplicates are found here. A batch of a producer goes out with a tag, and is known as appended from then on; where its
records are is known when the writer has acknowledged them. What is sent again meanwhile waits for that.

When the writer fails anything, this stream is over, in the same turn: nothing that comes later may be stored behind
something that was lost. What the stream holds is found out by whoever acquires it next, also if that is this proxy.
(The writer itself could go on in another segment; but it does not know which of a producer's records were stored.)

Invariants:
  OverAtOnce      after the first failure nothing is handed to the writer any more.
  MarkedFirst     no tag is written before the stream's metadata says that it has producers: see `producer_records`.
  EveryoneHears   whatever was handed over is decided, once: by the writer, or when the stream is given up.
"""

from collections.abc import Callable
from functools import partial

from quire.codec.stream.producers import encode_snapshot
from quire.errors import (
    AppendCancelled,
    CallerMistake,
    HandleClosed,
    InvalidArgument,
    OverCapacity,
    QuireError,
    StreamSealed,
    TxidOutOfOrder,
)
from quire.protocol.producers import Duplicate, OutOfOrder, ProducerTable, SnapshotRule
from quire.proxy.write.answers import predecessor_failed, unavailable, unknown
from quire.proxy.write.metrics import WriteProxyMetrics
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.submissions import BatchTag, Submission
from quire.runtime import Clock
from quire.stream.dlsn_runs import PlacedRun
from quire.stream.record_queue import TrackedCall
from quire.stream.writer import StreamWriter
from quire.types import DLSN, EntryId, Lssn, ProducerRun, SlotId


class ServingStream:
    """The serving half of an owned stream. Everything here happens within one turn of the loop."""

    def __init__(
        self,
        writer: StreamWriter,
        clock: Clock,
        settings: WriteProxySettings,
        metrics: WriteProxyMetrics,
        *,
        on_failed: Callable[[QuireError], None],
        on_unmarked: Callable[[Submission], None],
    ) -> None:
        """`on_unmarked` is given batches of producers that have to wait until the stream is marked."""
        self.writer, self._clock, self._settings, self._metrics = writer, clock, settings, metrics
        self._on_failed, self._on_unmarked = on_failed, on_unmarked
        self.producers = ProducerTable()
        self.is_marked = False
        self.problem: QuireError | None = None
        self.in_flight: dict[Submission, None] = {}  # In the order of appending.
        self.in_flight_bytes = 0
        self.has_stored = False  # Anything, since it was acquired.
        self.is_closing = False  # The writer takes nothing more; what it has is still being settled.
        self._duplicates: list[Submission] = []  # Of what is in flight.
        self._rule = SnapshotRule(settings.snapshot_entries, settings.snapshot_s, settings.snapshot_bytes)
        self._since_entries = self._since_bytes = self._snapshot_bytes = 0
        self._snapshot_s = clock.monotonic()
        self._is_snapshot_under_way = False
        self._settled_to: tuple[Lssn, EntryId] = (writer.epoch, EntryId(0))

    # --- Batches

    def append(self, submission: Submission) -> None:
        """Hand a batch to the writer, or decide it at once."""
        if submission.may_append is not None and not submission.may_append():
            submission.refuse(predecessor_failed(submission.stream))
            return
        if self.problem is not None:
            submission.refuse(unavailable(submission.stream, self.problem))
            return
        if self.in_flight and self.in_flight_bytes + submission.size_bytes > self._settings.stream_in_flight_bytes_max:
            submission.refuse(
                OverCapacity(
                    f"stream {submission.stream!r} has {self.in_flight_bytes} bytes under way",
                    retry_after_ms=100,
                    stream=submission.stream,
                )
            )
            return
        try:
            if submission.producer is None:
                self._hand_over(submission, 0, None)
            elif self.is_marked:
                self._append_once(submission, submission.producer)
            else:
                self._on_unmarked(submission)
        except QuireError as error:
            if isinstance(error, CallerMistake) and not isinstance(error, HandleClosed):
                submission.refuse(error)
                return
            # The writer is over. This batch was never given to it.
            self.fail(error)
            submission.refuse(error if isinstance(error, StreamSealed) else unavailable(submission.stream, error))

    def _append_once(self, submission: Submission, producer: bytes) -> None:
        """What of the batch is not in the stream yet."""
        first_seq, count = submission.first_seq, submission.count
        verdict = self.producers.judge(producer, first_seq, count)
        if isinstance(verdict, OutOfOrder):
            raise TxidOutOfOrder(
                f"records of a producer are missing in stream {submission.stream!r}: {verdict.expected_seq} should "
                f"follow, not {first_seq}",
                hint="Send again everything that was not acknowledged, in order; or go on as another producer.",
                expected_seq=verdict.expected_seq,
            )
        if isinstance(verdict, Duplicate):
            submission.is_duplicate = True
            self._metrics.duplicates.value += count
            if verdict.is_durable:
                self._answer_duplicate(submission)
            else:
                self._duplicates.append(submission)
            return
        skip = verdict.skip
        if skip and (submission.members or submission.is_whole):
            raise InvalidArgument("a batch that is stored as one has other records than the one that was sent before")
        self._hand_over(submission, skip, BatchTag(producer, first_seq + skip, submission.members))
        self.producers.on_appended(producer, first_seq + skip, count - skip, now_ms=self._clock.wall_ms())

    def _hand_over(self, submission: Submission, skip: int, tag: BatchTag | None) -> None:
        records, txids = submission.records, submission.txids
        call = self.writer.append_tracked(
            records[skip:] if skip else records,
            partial(self._on_settled, submission, skip),
            txids=txids[skip:] if skip and txids is not None else txids,
            members=submission.members,
            tag=tag,
            is_whole=submission.is_whole,
        )
        submission.txid_first, submission.txid_last = call.txids[0], call.txids[-1]
        submission.handed_over_s = self._clock.monotonic()
        self.in_flight[submission] = None
        self.in_flight_bytes += submission.size_bytes
        self._metrics.in_flight_bytes.value += submission.size_bytes

    # --- What the writer says

    def _on_settled(self, submission: Submission, skip: int, call: TrackedCall) -> None:
        if submission not in self.in_flight:
            return  # The stream was given up, and everybody told.
        self._take_out(submission)
        if call.error is not None:
            error = call.error
            self.fail(error)  # First: nothing may be handed over behind it.
            submission.refuse(error)
            return
        self._note_progress(call.runs, submission.size_bytes)
        submission.runs = call.runs
        if submission.producer is not None:
            self._on_durable(submission, submission.producer, skip, call.runs)
        submission.decide()
        if self.is_marked:
            self.snapshot_if_due()

    def _take_out(self, submission: Submission) -> None:
        del self.in_flight[submission]
        self.in_flight_bytes -= submission.size_bytes
        self._metrics.in_flight_bytes.value -= submission.size_bytes

    def _note_progress(self, runs: list[PlacedRun], size_bytes: int) -> None:
        self.has_stored = True
        self._since_entries += len(runs)
        self._since_bytes += size_bytes
        self._settled_to = (runs[-1].lssn, runs[-1].entry_id)

    def _on_durable(self, submission: Submission, producer: bytes, skip: int, runs: list[PlacedRun]) -> None:
        seq = submission.first_seq + skip
        known: list[ProducerRun] = []
        for lssn, entry_id, slot, records in runs:
            known.append(ProducerRun(seq, records, DLSN(lssn, entry_id, SlotId(slot))))
            seq += records
        self.producers.on_durable(producer, known)
        if skip:
            before = self.producers.places(producer, submission.first_seq, skip)
            submission.runs = [] if before is None else [*map(_placed, before), *runs]
        waiting, self._duplicates = self._duplicates, []
        for duplicate in waiting:
            if self._is_durable(duplicate):
                self._answer_duplicate(duplicate)
            else:
                self._duplicates.append(duplicate)

    def _is_durable(self, duplicate: Submission) -> bool:
        assert duplicate.producer is not None
        verdict = self.producers.judge(duplicate.producer, duplicate.first_seq, duplicate.count)
        return isinstance(verdict, Duplicate) and verdict.is_durable

    def _answer_duplicate(self, submission: Submission) -> None:
        assert submission.producer is not None
        places = self.producers.places(submission.producer, submission.first_seq, submission.count)
        submission.runs = [] if places is None else list(map(_placed, places))
        submission.decide()

    # --- Producers, written down

    def _control_settled(self, call: TrackedCall) -> None:
        self._is_snapshot_under_way = False
        if call.error is not None:
            self.fail(call.error)
        else:
            self._note_progress(call.runs, 0)

    def scanned(self, entries: int, size_bytes: int) -> None:
        """So much was read to know the producers: it counts, since the next owner has to read it as well."""
        self.is_marked = True
        self._since_entries, self._since_bytes = entries, size_bytes

    def snapshot_if_due(self) -> None:
        """Write the producers down again, so that whoever takes over has little to read."""
        if self.problem is not None or self.is_closing or not self.is_marked or self._is_snapshot_under_way:
            return
        now_s = self._clock.monotonic()
        if self._rule.is_due(
            entries=self._since_entries,
            size_bytes=self._since_bytes,
            age_s=now_s - self._snapshot_s,
            snapshot_bytes=self._snapshot_bytes,
            is_changed=self.producers.is_changed,
        ):
            self.snapshot()

    def snapshot(self) -> None:
        if self.problem is not None or self.is_closing:
            return
        self.producers.forget_old(self._clock.wall_ms())
        # Batches are settled in their order: all that are not begin in the entry of the last one that is, or behind.
        payload = encode_snapshot(self._settled_to, self.producers.facts())
        self._is_snapshot_under_way = True
        self._since_entries = self._since_bytes = 0
        self._snapshot_bytes, self._snapshot_s = len(payload), self._clock.monotonic()
        self.producers.is_changed = False
        try:
            self.writer.append_control(payload, self._control_settled)
        except QuireError as error:
            self.fail(error)
        self._metrics.snapshots.value += 1

    def prove(self, payload: bytes, on_settled: Callable[[TrackedCall], None]) -> None:
        """Append a control record: readers do not see it, and what is before it becomes visible to them.

        Raises why that cannot be.
        """
        if self.problem is not None:
            raise unavailable(self.writer.stream, self.problem)

        def settled(call: TrackedCall) -> None:
            if call.error is not None:
                self.fail(call.error)
            else:
                self._note_progress(call.runs, 0)
            on_settled(call)

        try:
            self.writer.append_control(payload, settled)
        except QuireError as error:  # The writer is over, as it was by somebody else perhaps.
            self.fail(error)
            raise

    # --- When something fails

    def fail(self, error: QuireError) -> None:
        """The stream is over here."""
        if self.problem is None:
            self.problem = error
            self._on_failed(error)
            waiting, self._duplicates = self._duplicates, []
            for duplicate in waiting:
                duplicate.refuse(unknown(self.writer.stream, error))

    def give_up(self, why: str) -> None:
        """Answer everything that is under way: its outcome is unknown."""
        self.fail(AppendCancelled(why))
        self.writer.give_up(why)
        for submission in list(self.in_flight):  # Nothing is left, unless the writer was closing already.
            self._take_out(submission)
            submission.refuse(unknown(self.writer.stream, AppendCancelled(why)))


def _placed(run: ProducerRun) -> PlacedRun:
    lssn, entry_id, slot = run.place
    return PlacedRun(lssn, entry_id, slot, run.records)
