"""Messages for one reader, out of the chunks that it shares with others.

Whoever comes along by reading gets whole chunks as they are: for entries that is a joining of bytes. Only at the place
where it begins, and where it wants less than a chunk at a time, something is made for a reader alone.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, cast

from quire.codec.entry import Entry
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.records import LogRecord
from quire.errors import DamagedEntry
from quire.protocol.read_windows import Chunk
from quire.proxy.read.cursor import Cursor
from quire.proxy.read.frames import SharedRecords, entries_of, progress_frame, records_frame
from quire.stream.decoding import Decoder, place_after
from quire.stream.entry_source import Run
from quire.stream.start import position_in_future
from quire.types import DLSN, EntryId, LedgerId, SlotId

_RECORDS_BYTES_MAX: Final = 4 << 20  # Of one message. An entry has more if it holds a set that was compressed well.


class Composed(NamedTuple):
    """A message, with the place where reading goes on behind it."""

    message: bytes
    after: DLSN
    entries: int
    taken_bytes: int
    is_empty: bool  # There is nothing in it that a client sees, but for the place.
    ends: bool  # The stream.


def _composed(
    cursor: Cursor, frames: Sequence[bytes], after: DLSN, *, entries: int, taken_bytes: int, ends: bool = False
) -> Composed:
    message = b"".join([*frames, progress_frame(after, cursor.mode)])
    return Composed(message, after, entries, taken_bytes, not any(frames), ends)


class Composer(Protocol):
    """Makes messages of one format for one reader."""

    def compose(self, cursor: Cursor, bytes_max: int) -> Composed | None:
        """What is at the reader's place: None if nothing is. Does not move it."""
        ...


class _Cut(NamedTuple):
    """A part of a chunk."""

    entries: list[pb.Entry]
    after: DLSN


def _cut(chunk: Chunk, place: DLSN, bytes_max: int) -> _Cut:
    """The entries at `place` and behind it: as many as fit, at least one if there is any."""
    found: list[pb.Entry] = []
    size_bytes = 0
    for entry in entries_of(chunk, place):
        size_bytes += len(entry.data)
        if found and size_bytes > bytes_max:
            last = found[-1]
            return _Cut(found, DLSN(chunk.lssn, EntryId(last.entry_id + 1), SlotId(0)))
        found.append(entry)
    return _Cut(found, chunk.after)


def _check_was_there(cursor: Cursor, chunk: Chunk) -> None:
    """A segment ends before the reader's place, and other segments follow: nothing was ever there."""
    place = cursor.position
    is_end = not chunk.entries and chunk.after.lssn > chunk.before.lssn
    if is_end and place.lssn == chunk.before.lssn and place.entry_id > chunk.before.entry_id:
        why = f"segment {place.lssn} has {chunk.before.entry_id} entries, and is closed"
        raise position_in_future(cursor.home.stream, place, why)


class EntryComposer:
    """Entries as they are stored."""

    def compose(self, cursor: Cursor, bytes_max: int) -> Composed | None:
        lane, place = cursor.lane, cursor.position
        key = (place, lane.window.end, bytes_max, cursor.mode) if lane is not None else None
        if lane is not None and lane.shared is not None and lane.shared[0] == key:
            return cast(Composed, lane.shared[1])
        composed = self._compose(cursor, place, bytes_max)
        if lane is not None and composed is not None:
            lane.share(key, composed)
        return composed

    def _compose(self, cursor: Cursor, place: DLSN, bytes_max: int) -> Composed | None:
        chunks = cursor.peek(bytes_max)
        if not chunks:
            return None
        first = chunks[0]
        _check_was_there(cursor, first)
        if place <= first.before and (len(first.frame) <= bytes_max or first.entries <= 1):
            frames, entries = [chunk.frame for chunk in chunks], sum(chunk.entries for chunk in chunks)
            return _composed(cursor, frames, chunks[-1].after, entries=entries, taken_bytes=sum(map(len, frames)))
        cut = _cut(first, place, bytes_max)
        frame = pb.ReadEvent(entries=cut.entries).SerializeToString()
        return _composed(cursor, [frame], cut.after, entries=len(cut.entries), taken_bytes=len(frame))


class RecordComposer:
    """Records, for readers that do not know how entries are made. The first ones are decoded for the reader alone: what
    is before its place, and below its txid, is left out of them."""

    def __init__(self, shared: SharedRecords, *, start: DLSN, txid_min: int | None) -> None:
        self._shared = shared
        self._decoder = Decoder(start=start, txid_min=txid_min, expand_sets=True, on_damage=shared.on_damage)

    def compose(self, cursor: Cursor, bytes_max: int, records_max: int = 0) -> Composed | None:
        chunks, place = cursor.peek(bytes_max), cursor.position
        if not chunks:
            return None
        first = chunks[0]
        _check_was_there(cursor, first)
        is_own = not self._decoder.has_started or place > first.before or records_max
        if is_own or (len(first.frame) > bytes_max and first.entries > 1):
            return self._own(cursor, first, bytes_max, records_max)
        frames, entries, taken_bytes, ends, last = list[bytes](), 0, 0, False, first
        for chunk in chunks:
            try:
                frame, ends = self._shared.frame(chunk)
            except DamagedEntry:
                if not frames:
                    # What is before the damage comes first.
                    return self._own(cursor, first, bytes_max, records_max)
                break
            if sum(map(len, frames)) + len(frame) > _RECORDS_BYTES_MAX:
                if not frames:
                    return self._own(cursor, first, bytes_max, records_max)
                ends = False
                break
            frames.append(frame)
            entries, taken_bytes, last = entries + chunk.entries, taken_bytes + len(chunk.frame), chunk
            if ends:
                break
        return _composed(cursor, frames, last.after, entries=entries, taken_bytes=taken_bytes, ends=ends)

    def _own(self, cursor: Cursor, chunk: Chunk, bytes_max: int, records_max: int) -> Composed:
        """What is at the reader's place, entry by entry: until there are enough records, or up to a damaged entry."""
        place = cursor.position
        cut = _cut(chunk, place, bytes_max)
        frames, taken, after, ends, room_bytes = list[bytes](), 0, cut.after, False, _RECORDS_BYTES_MAX
        for run in _runs(chunk, cut.entries):
            try:
                records = self._decoder.records(run)
            except DamagedEntry:
                if not taken:
                    raise
                after = DLSN(chunk.lssn, run.entries[0].entry_id, SlotId(0))  # The next message meets it again.
                break
            if not taken and place.slot_id:
                records = [record for record in records if record.dlsn >= place]  # The others were in the last message.
            fit = _fitting(records, room_bytes)
            if not fit and records and taken:
                after = DLSN(chunk.lssn, run.entries[0].entry_id, SlotId(0))
                break
            taken += 1
            ends = self._decoder.end_of_stream is not None
            count = max(1, fit) if fit < len(records) else len(records)
            if count < len(records) or (records_max and count >= records_max):
                count = min(count, records_max or count)
                frames.append(records_frame(records[:count]))
                if count < len(records):
                    after, ends = place_after(records[count - 1]), False
                elif taken < len(cut.entries):
                    after = run.after
                break
            records_max = max(0, records_max - len(records))
            room_bytes -= sum(len(record.payload) for record in records)
            frames.append(records_frame(records))
            if ends:
                break
        size_bytes = sum(len(entry.data) for entry in cut.entries[:taken])
        return _composed(cursor, frames, after, entries=taken, taken_bytes=size_bytes, ends=ends)


def _fitting(records: Sequence[LogRecord], room_bytes: int) -> int:
    """How many of them have no more bytes than this."""
    for count, record in enumerate(records):
        room_bytes -= len(record.payload)
        if room_bytes < 0:
            return count
    return len(records)


def _runs(chunk: Chunk, entries: Iterable[pb.Entry]) -> Iterable[Run]:
    """One for each entry."""
    for message in entries:
        entry = Entry(LedgerId(0), EntryId(message.entry_id), EntryId(-1), 0, message.data)
        after = DLSN(chunk.lssn, EntryId(message.entry_id + 1), SlotId(0))
        yield Run(chunk.lssn, chunk.is_enveloped, [entry], len(message.data), after)
