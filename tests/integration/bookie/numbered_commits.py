"""Commits that say which one they are, so that what is found after a crash tells what is missing."""

import os
from collections.abc import Iterator

from quire.bookie.index import Index, LedgerRecord, PutLedger, PutLocations, PutMark
from quire.codec.entry_log import Location
from quire.types import EntryId, LedgerId

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
SMALL_MEMTABLE_BYTES = 64 << 10  # RocksDB's least: some thousand entries already reach files and are compacted.
ENTRIES = 50  # In each numbered commit.


def numbered(number: int) -> tuple[PutLedger, PutLocations, PutMark]:
    """A commit that says which one it is: a ledger of that id, with entries, and a mark."""
    ledger_id = LedgerId(number)
    entries = [(ledger_id, EntryId(entry), Location(number * 1000 + entry)) for entry in range(ENTRIES)]
    return PutLedger(ledger_id, LedgerRecord(b"%d" % number)), PutLocations(entries), PutMark("last", b"%d" % number)


def check_commits(index: Index) -> int:
    """How many numbered commits there are. They are whole, and none before the last is missing."""
    count = int(index.mark("last") or b"-1") + 1
    assert [*index.ledgers()] == [*range(count)]
    for number in range(count):
        ledger_id = LedgerId(number)
        assert index.ledger(ledger_id) == LedgerRecord(b"%d" % number)
        assert index.locations(ledger_id, EntryId(0), limit=2 * ENTRIES) == [*_rows(number)]
        assert index.last_entry(ledger_id) == ENTRIES - 1
    assert index.last_entry(LedgerId(count)) is None
    return count


def _rows(number: int) -> Iterator[tuple[int, int]]:
    return ((entry, number * 1000 + entry) for entry in range(ENTRIES))
