"""Searching a segment for a txid finds what a look at every record would find."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import CONTROL, END_OF_STREAM, LogRecord
from quire.stream.search import find_txid_in
from quire.types import DLSN, NO_ENTRY, EntryId, Lssn, SlotId

_KINDS = st.sampled_from([0, 0, 0, CONTROL])


@st.composite
def segments(draw: st.DrawFn) -> list[list[LogRecord]]:
    """Entries of records whose txids do not decrease; some are empty, some have control records only."""
    txid = draw(st.integers(0, 3))
    entries: list[list[LogRecord]] = []
    for entry_id, kinds in enumerate(draw(st.lists(st.lists(_KINDS, max_size=4), max_size=20))):
        entry = []
        for slot, flags in enumerate(kinds):
            txid += 0 if flags else draw(st.integers(0, 3))  # A control record repeats the txid before it.
            entry.append(LogRecord(DLSN(Lssn(1), EntryId(entry_id), SlotId(slot)), txid, b"", 0, flags))
        entries.append(entry)
    if draw(st.booleans()):
        dlsn = DLSN(Lssn(1), EntryId(len(entries)), SlotId(0))
        entries.append([LogRecord(dlsn, TXID_MAX, b"", 0, END_OF_STREAM)])
    return entries


def find(entries: list[list[LogRecord]], txid: int) -> tuple[DLSN | None, list[EntryId]]:
    read_ids: list[EntryId] = []

    async def read(entry_id: EntryId) -> list[LogRecord]:
        read_ids.append(entry_id)
        return entries[entry_id]

    return asyncio.run(find_txid_in(read, last=EntryId(len(entries) - 1), txid=txid)), read_ids


@given(segments(), st.integers(-1, 70))
def test_halving_finds_what_a_scan_finds(entries: list[list[LogRecord]], txid: int) -> None:
    """From the place that is found on, an application sees exactly the records that a scan would show it."""
    found, _ = find(entries, txid)
    seen = [record for entry in entries for record in entry if not record.flags]
    scanned = [record for record in seen if record.txid >= txid]
    assert [record for record in seen if found is not None and record.dlsn >= found] == scanned
    everything = [record for entry in entries for record in entry]
    assert found == next((record.dlsn for record in everything if record.txid >= txid), None)


def test_few_entries_are_read() -> None:
    entries = [[LogRecord(DLSN(Lssn(1), EntryId(i), SlotId(0)), i, b"", i)] for i in range(10_000)]
    found, read_ids = find(entries, 7_777)
    assert found == DLSN(Lssn(1), EntryId(7_777), SlotId(0))
    assert len(read_ids) <= 14


def test_an_empty_ledger_has_nothing() -> None:
    assert find([], 5) == (None, [])
    assert EntryId(-1) == NO_ENTRY
