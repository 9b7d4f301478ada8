"""Where a txid begins in the entries of one segment, found by halving.

Txids do not decrease along a segment; a control record repeats the one before it, and the end of the stream has the
highest there is. So all kinds of records count here: a place that is found may be that of a control record, and the
first record behind it that an application sees is the one that was looked for.
"""

from collections.abc import Awaitable, Callable, Sequence

from quire.codec.stream.records import LogRecord
from quire.types import DLSN, EntryId

ReadRecords = Callable[[EntryId], Awaitable[Sequence[LogRecord]]]


async def find_txid_in(read: ReadRecords, *, last: EntryId, txid: int) -> DLSN | None:
    """The first place in the entries up to `last` whose txid is `txid` or above; None if none has.

    `read` gives the records of an entry, of all kinds, and may give none.
    """
    low, high = 0, last + 1  # All entries before `low` are below; `high` and all behind it are not, or there are none.
    found: DLSN | None = None
    while low < high:
        middle = (low + high) // 2
        entry_id, records = await _entry_with_records(read, middle, high)
        if not records:
            high = middle
        elif records[-1].txid < txid:
            low = entry_id + 1
        else:
            found = next(record.dlsn for record in records if record.txid >= txid)
            high = middle
    return found


async def _entry_with_records(read: ReadRecords, first: int, end: int) -> tuple[int, Sequence[LogRecord]]:
    """The first entry in this range that has any. Empty ones say nothing."""
    for entry_id in range(first, end):
        records = await read(EntryId(entry_id))
        if records:
            return entry_id, records
    return end, ()
