"""The plainest reading of the contract: a few dictionaries. And the ids that make neighbours of everything."""

import copy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import strategies as st

from quire.bookie.index import (
    DeleteLedger,
    DeleteMark,
    DeleteTombstone,
    Index,
    LedgerRecord,
    LocationMove,
    Operation,
    PutLedger,
    PutLocations,
    PutMark,
    PutTombstone,
)
from quire.codec.entry_log import Location
from quire.types import EntryId, LedgerId

ID_MAX = 2**63 - 1
LEDGERS = [LedgerId(number) for number in (0, 1, 255, 256, 2**32, ID_MAX)]  # 255 and 256: order is not that of bytes.
ENTRIES = [EntryId(number) for number in (0, 1, 2, 3, 255, 256, 257, 2**40, ID_MAX)]
NAMES = ["a", "ab", "b", "ü"]

ledger_ids = st.sampled_from(LEDGERS)
entry_ids = st.sampled_from(ENTRIES)
locations = st.one_of(st.integers(0, 3), st.integers(0, ID_MAX)).map(Location)
records = st.builds(
    LedgerRecord,
    master_key=st.binary(max_size=20),
    fenced=st.booleans(),
    explicit_lac=st.none() | st.binary(max_size=24),
    limbo=st.booleans(),
)
operations = st.one_of(
    st.builds(PutLocations, st.lists(st.tuples(ledger_ids, entry_ids, locations), max_size=12)),
    st.builds(PutLedger, ledger_ids, records),
    st.builds(DeleteLedger, ledger_ids),
    st.builds(PutTombstone, ledger_ids, st.integers(0, ID_MAX)),
    st.builds(DeleteTombstone, ledger_ids),
    st.builds(PutMark, st.sampled_from(NAMES), st.binary(max_size=8)),
    st.builds(DeleteMark, st.sampled_from(NAMES)),
)
moves = st.builds(LocationMove, ledger_ids, entry_ids, locations, locations)


@dataclass
class Model:
    """What an index should hold."""

    entries: dict[tuple[LedgerId, EntryId], Location] = field(default_factory=dict)
    ledgers: dict[LedgerId, LedgerRecord] = field(default_factory=dict)
    tombstones: dict[LedgerId, int] = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> "Model":
        return copy.deepcopy(self)

    def apply(self, operation: Operation) -> None:
        match operation:
            case PutLocations(entries):
                for ledger_id, entry_id, location in entries:
                    self.entries[ledger_id, entry_id] = location
            case PutLedger(ledger_id, record):
                self.ledgers[ledger_id] = record
            case DeleteLedger(ledger_id):
                self.ledgers.pop(ledger_id, None)
                self.entries = {key: location for key, location in self.entries.items() if key[0] != ledger_id}
            case PutTombstone(ledger_id, expires_ms):
                self.tombstones[ledger_id] = expires_ms
            case DeleteTombstone(ledger_id):
                self.tombstones.pop(ledger_id, None)
            case PutMark(name, value):
                self.marks[name] = value
            case DeleteMark(name):
                self.marks.pop(name, None)

    def expected(self) -> dict[str, Any]:
        """What `observed` returns of an index that holds this."""
        of = {
            ledger_id: sorted((entry_id, at) for (owner, entry_id), at in self.entries.items() if owner == ledger_id)
            for ledger_id in LEDGERS
        }
        return {
            "locations": of,
            "last entries": {ledger_id: rows[-1][0] if rows else None for ledger_id, rows in of.items()},
            "entry ids": {ledger_id: [entry_id for entry_id, _ in rows] for ledger_id, rows in of.items()},
            "each location": {key: self.entries.get(key) for key in product(LEDGERS, ENTRIES)},
            "ledgers": sorted(self.ledgers),
            "records": {ledger_id: self.ledgers.get(ledger_id) for ledger_id in LEDGERS},
            "tombstones": sorted(self.tombstones.items()),
            "each tombstone": {ledger_id: self.tombstones.get(ledger_id) for ledger_id in LEDGERS},
            "marks": {name: self.marks.get(name) for name in NAMES},
        }


def observed(index: Index) -> dict[str, Any]:
    """All that an index says about the ids above, asked in every way there is."""
    return {
        "locations": {ledger_id: index.locations(ledger_id, EntryId(0), limit=1000) for ledger_id in LEDGERS},
        "last entries": {ledger_id: index.last_entry(ledger_id) for ledger_id in LEDGERS},
        "entry ids": {ledger_id: list(index.entry_ids(ledger_id)) for ledger_id in LEDGERS},
        "each location": {key: index.location(*key) for key in product(LEDGERS, ENTRIES)},
        "ledgers": list(index.ledgers()),
        "records": {ledger_id: index.ledger(ledger_id) for ledger_id in LEDGERS},
        "tombstones": index.tombstones(),
        "each tombstone": {ledger_id: index.tombstone(ledger_id) for ledger_id in LEDGERS},
        "marks": {name: index.mark(name) for name in NAMES},
    }
