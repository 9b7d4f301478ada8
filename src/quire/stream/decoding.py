"""Records out of runs of entries: whole entries at once, without those that no application sees.

Left out are control records, what is before the place where reading began, and, for a reader that began at a txid, what
is below it. A record set that is not taken apart is one record with many places: whoever begins at one of them gets
the whole of it, since nothing may be missing.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Final

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.record_sets import record_set_count
from quire.codec.stream.records import CONTROL, END_OF_STREAM, RECORD_SET, LogRecord
from quire.errors import DamagedEntry
from quire.stream.entry_source import Run
from quire.types import DLSN, SlotId

_UNSEEN: Final = CONTROL | END_OF_STREAM
_flags_of = itemgetter(LogRecord._fields.index("flags"))

OnDamage = Callable[[DLSN, DamagedEntry], bool]


def place_after(record: LogRecord) -> DLSN:
    """Where reading goes on behind a record: it may stand for several."""
    if record.flags & RECORD_SET:
        lssn, entry_id, slot_id = record.dlsn
        return DLSN(lssn, entry_id, SlotId(slot_id + max(1, record_set_count(record.payload))))
    return record.dlsn.next_slot()


class Decoder:
    """Decodes the runs of one reader, in order."""

    def __init__(self, *, start: DLSN, txid_min: int | None, expand_sets: bool, on_damage: OnDamage) -> None:
        """`on_damage` says whether to leave an entry out and go on; if not, nothing of the run behind it is decoded."""
        self._start, self._txid_min, self._expand_sets, self._on_damage = start, txid_min, expand_sets, on_damage
        self._has_started = False
        self.end_of_stream: DLSN | None = None  # Where the stream ends, once that was met.

    @property
    def has_started(self) -> bool:
        """Whether a record was met that is not before the start: all that follow are behind it."""
        return self._has_started

    def records(self, run: Run) -> list[LogRecord]:
        """What applications see of a run; after the end of the stream nothing any more."""
        found = list[LogRecord]()
        lssn, enveloped, expand_sets = run.lssn, run.is_enveloped, self._expand_sets
        for entry in run.entries:
            try:
                records = decode_entry(
                    entry.payload, lssn=lssn, entry_id=entry.entry_id, enveloped=enveloped, expand_sets=expand_sets
                )
            except DamagedEntry as error:
                if self._on_damage(DLSN(lssn, entry.entry_id, SlotId(0)), error):
                    continue
                break
            # Entries that hold records of several kinds are rare: nearly always one look says that all are plain.
            if any(map(_flags_of, records)):
                records = self._seen(records)
            if found:
                found += records
            else:
                found = records
            if self.end_of_stream is not None:
                break
        return found if self._has_started else self._begun(found)

    def _seen(self, records: list[LogRecord]) -> list[LogRecord]:
        for place, record in enumerate(records):
            if record.flags & END_OF_STREAM:
                self.end_of_stream = record.dlsn
                records = records[:place]
                break
        return [record for record in records if not record.flags & _UNSEEN]

    def _begun(self, records: list[LogRecord]) -> list[LogRecord]:
        """Without what is before the start. Once a record is behind it, all are."""
        start, txid_min = self._start, self._txid_min
        for place, record in enumerate(records):
            if place_after(record) > start and (txid_min is None or record.txid >= txid_min):
                self._has_started = True
                return records[place:]
        return []
