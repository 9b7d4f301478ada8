"""Pieces of streams as Arrow batches, read straight from bookies and from cold storage. Runs in Spark's workers.

A piece may have moved since it was planned, and may move while it is read: into cold storage, or back. Its entries have
the same numbers there, so reading goes on behind the last one.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quire.codec.cold import ColdSegment
from quire.codec.entry import Entry
from quire.codec.stream_metadata.segment import Segment
from quire.errors import (
    DamagedColdFile,
    DamagedEntry,
    EntriesUnknown,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchStream,
    PositionTruncated,
    QuireError,
    Unavailable,
)
from quire.ledger.damage import is_lost
from quire.ledger.reading.entries import EntryRange
from quire.spark.arrow_records import BATCH_ROWS, ArrowRecords
from quire.spark.client_cache import borrowed
from quire.spark.options import SourceOptions
from quire.spark.planning import Piece, StreamPlan
from quire.spark.schema import Column
from quire.stream.cold_segments import open_cold
from quire.stream.damage import place_of, unreadable
from quire.stream.namespace import Namespace
from quire.types import DLSN, EntryId, SlotId

if TYPE_CHECKING:
    import pyarrow as pa

_RETRY_S: Final = 0.5
_MOVE_S: Final = 0.1
_LOST_S: Final = 5.0  # Of one that is purged or dropped, ledgers and files go first, and nodes not much later.


class _Window(NamedTuple):
    """Some entries of a piece: as they are in a ledger, or as rows of a file."""

    entries: list[Entry]
    is_enveloped: bool
    table: Any = None


def read_pieces(
    options: SourceOptions, pieces: Sequence[Piece], columns: Sequence[Column]
) -> "Iterator[pa.RecordBatch]":
    """All records of the pieces, in order."""
    records = ArrowRecords(columns)
    with borrowed(options.uri) as access:
        source = _windows(access.namespace, pieces, options)
        with closing(access.each(source)) as windows:
            for piece, window in windows:
                if window.table is not None:
                    if records.rows:
                        yield records.take()
                    for at in range(0, window.table.num_rows, BATCH_ROWS):
                        yield records.of_table(piece.stream, window.table.slice(at, BATCH_ROWS))
                for entry in window.entries:
                    _add(records, piece, window, entry)
                    if records.is_full:
                        yield records.take()
        if records.rows:
            yield records.take()


def _add(records: ArrowRecords, piece: Piece, window: _Window, entry: Entry) -> None:
    entry_id = entry.entry_id
    try:
        records.add(
            piece.stream,
            piece.lssn,
            entry_id,
            entry.payload,
            is_enveloped=window.is_enveloped,
            first_slot=piece.begin.slot_id if entry_id == piece.begin.entry_id else 0,
            end_slot=piece.end.slot_id if entry_id == piece.end.entry_id else None,
        )
    except DamagedEntry as error:
        raise unreadable(piece.stream, DLSN(piece.lssn, entry_id, SlotId(0)), error) from error


# --- In the loop's thread


async def _windows(
    namespace: Namespace, pieces: Sequence[Piece], options: SourceOptions
) -> AsyncGenerator[tuple[Piece, _Window]]:
    plan: StreamPlan | None = None
    for piece in pieces:
        try:
            if plan is None or plan.stream != piece.stream:
                plan = await StreamPlan.of(namespace, piece.stream, piece.identity)
            async with aclosing(_piece_windows(plan, piece, options)) as windows:
                async for window in windows:
                    yield piece, window
        except (PositionTruncated, NoSuchStream) as error:
            if not options.fail_on_data_loss:
                continue
            raise error if isinstance(error, PositionTruncated) else _deleted(piece) from error


async def _piece_windows(plan: StreamPlan, piece: Piece, options: SourceOptions) -> AsyncGenerator[_Window]:
    """Raises `PositionTruncated` if the segment is gone, and what reading raises after trying for long.

    A file or ledger that is gone, though the stream names it, is a loss that the user may have said to be no error.
    """
    first = piece.first_entry
    clock = plan.context.runtime.clock
    ends_s: float | None = None
    missed_s: float | None = None  # Since when something that should be there is gone.
    patience_s = options.read_patience_s
    if patience_s is None:
        patience_s = plan.context.ledgers.settings.read_patience_s
    while first <= piece.last_entry:
        found = await plan.index.located(piece.lssn)
        await plan.index.check_same()
        if found is None or (found.segment if isinstance(found, ColdSegment) else found).is_truncated:
            raise _truncated(piece)
        try:
            async with aclosing(_located_windows(plan, found, piece, first)) as windows:
                async for window, last in windows:
                    yield window
                    first, ends_s, missed_s = EntryId(last + 1), None, None
            return
        except (Unavailable, NoSuchLedger, NoSuchEntry, EntriesUnknown, DamagedEntry, DamagedColdFile) as error:
            now_s = clock.monotonic()
            if isinstance(error, Unavailable | EntriesUnknown | DamagedEntry) and not is_lost(error):
                ends_s = now_s + patience_s if ends_s is None else ends_s
                if now_s < ends_s:  # A bookie that has an intact copy may come back.
                    await clock.sleep(_RETRY_S)
                    continue
                if isinstance(error, Unavailable):
                    raise
            is_missing = isinstance(error, NoSuchLedger) or bool(error.facts.get("is_missing"))
            missed_s = now_s if missed_s is None else missed_s
            if await _has_moved(plan, piece, found):
                continue
            if is_missing and now_s - missed_s < _LOST_S:
                await clock.sleep(_MOVE_S)
                continue
            if is_missing and not options.fail_on_data_loss:
                return
            told = error if isinstance(error, DamagedColdFile) else _unreadable(piece, first, error)
            if is_missing:
                told.hint = f"{told.hint} To go on without these records, set failOnDataLoss=false.".lstrip()
            raise told from error


def _located_windows(
    plan: StreamPlan, found: Segment | ColdSegment, piece: Piece, first: EntryId
) -> AsyncGenerator[tuple[_Window, EntryId]]:
    """From entry `first` on, each with its last entry."""
    if isinstance(found, ColdSegment):
        return _cold(plan, found, piece, first)
    return _hot(plan, found, piece, first)


async def _has_moved(plan: StreamPlan, piece: Piece, found: Segment | ColdSegment) -> bool:
    """Whether a segment is elsewhere by now."""
    await plan.index.refresh()
    now = await plan.index.located(piece.lssn)
    if now is None or isinstance(now, ColdSegment) != isinstance(found, ColdSegment):
        return True
    # Dropped and restored meanwhile: the same entries are in another ledger.
    return isinstance(now, Segment) and isinstance(found, Segment) and now.ledger_id != found.ledger_id


async def _hot(
    plan: StreamPlan, segment: Segment, piece: Piece, first: EntryId
) -> AsyncGenerator[tuple[_Window, EntryId]]:
    """The ledger is not recovered: nobody who writes it is disturbed."""
    async with (
        plan.context.ledgers.open(segment.ledger_id, password=plan.settings.password, recover=False) as ledger,
        aclosing(EntryRange(ledger, first, piece.last_entry).windows()) as windows,
    ):
        ledger.part_of = place_of(piece.stream, segment.lssn)
        async for entries in windows:
            yield _Window(entries, segment.is_enveloped), entries[-1].entry_id


async def _cold(
    plan: StreamPlan, cold: ColdSegment, piece: Piece, first: EntryId
) -> AsyncGenerator[tuple[_Window, EntryId]]:
    file = await open_cold(plan.context, piece.stream, cold)
    begin = max(piece.begin, DLSN(piece.lssn, first, SlotId(0)))
    for group in file.groups_from(first):
        if group.first_entry > piece.last_entry:
            break
        table = _between(await file.table(group), begin, piece.end)
        yield _Window([], is_enveloped=False, table=table), EntryId(group.last_entry)


def _between(table: Any, begin: DLSN, end: DLSN) -> Any:
    """The rows of a table from `begin` to before `end`. They are in order."""
    import numpy as np

    entries, slots = table.column("entry").to_numpy(), table.column("slot").to_numpy()

    def rows_before(place: DLSN) -> int:
        low = int(np.searchsorted(entries, place.entry_id, "left"))
        high = int(np.searchsorted(entries, place.entry_id, "right"))
        return low + int(np.searchsorted(slots[low:high], place.slot_id, "left"))

    start = rows_before(begin)
    return table.slice(start, max(0, rows_before(end) - start))


# --- Errors


def _truncated(piece: Piece) -> PositionTruncated:
    return PositionTruncated(
        f"segment {piece.lssn} of stream {piece.stream!r} was truncated or purged after the query was planned",
        hint="Run the query again, or set failOnDataLoss=false to go on without it.",
        stream=piece.stream,
    )


def _deleted(piece: Piece) -> NoSuchStream:
    return NoSuchStream(
        f"stream {piece.stream!r} was deleted after the query was planned",
        hint="Run the query again, or set failOnDataLoss=false to go on without it.",
        stream=piece.stream,
    )


def _unreadable(piece: Piece, entry_id: EntryId, error: QuireError) -> QuireError:
    return unreadable(piece.stream, DLSN(piece.lssn, entry_id, SlotId(0)), error)
