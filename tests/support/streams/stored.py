"""A stream straight from its ledgers: all records of all segments that it ever had, read without a stream reader."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Segment
from quire.errors import NoSuchLedger, QuireError
from quire.ledger.client import LedgerClient
from quire.types import DLSN, LedgerState, Lssn
from tests.support.streams.history import StreamHistory


@dataclass
class StoredStream:
    """What is, or was, in the stream. `records` are those that applications see."""

    segments: dict[Lssn, Segment] = field(default_factory=dict)  # As they were last, with those that were purged.
    all_records: dict[Lssn, list[LogRecord]] = field(default_factory=dict)  # Control records, too.
    records: list[LogRecord] = field(default_factory=list)
    unreadable: list[Lssn] = field(default_factory=list)
    is_sealed: bool = False

    def __post_init__(self) -> None:
        self._dlsns: list[DLSN] = []

    def add(self, segment: Segment, records: list[LogRecord]) -> None:
        self.segments[segment.lssn] = segment
        self.all_records[segment.lssn] = records
        self.is_sealed = self.is_sealed or any(record.is_end_of_stream for record in records)
        seen = [record for record in records if not record.is_control and not record.is_end_of_stream]
        self.records += seen
        self._dlsns += [record.dlsn for record in seen]

    def index(self, dlsn: DLSN) -> int:
        """How many records are before this place."""
        return bisect.bisect_left(self._dlsns, dlsn)

    def index_of_txid(self, txid: int) -> int:
        """How many records are before the first one whose txid is not below."""
        return bisect.bisect_left(self.records, txid, key=lambda record: record.txid)


async def read_stored(ledgers: LedgerClient, segments: Mapping[Lssn, Segment]) -> StoredStream:
    """Read these segments, all of which are completed. Ledgers that are gone are noted as such."""
    stream = StoredStream()
    for lssn in sorted(segments):
        segment = segments[lssn]
        try:
            records = await _read_segment(ledgers, segment)
        except NoSuchLedger:
            stream.unreadable.append(lssn)
            stream.segments[lssn] = segment
        except QuireError as error:
            raise AssertionError(f"segment {lssn} cannot be read although all is well again: {error!r}") from error
        else:
            stream.add(segment, records)
    return stream


async def _read_segment(ledgers: LedgerClient, segment: Segment) -> list[LogRecord]:
    metadata = (await ledgers.ledgers_metadata.read(segment.ledger_id)).metadata
    assert metadata.state is LedgerState.CLOSED, (
        f"ChainIsSound: segment {segment.lssn} is completed, its ledger is {metadata.state.name}"
    )
    async with ledgers.open(segment.ledger_id, recover=False) as ledger:
        records: list[LogRecord] = []
        async for entry_id, payload in ledger.read():
            found = decode_entry(payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped)
            assert found, f"ChainIsSound: entry {entry_id} of segment {segment.lssn} is empty"
            records += found
        return records


def last_known(history: StreamHistory) -> tuple[dict[Lssn, Segment], dict[Lssn, Segment]]:
    """Every segment as it was last: those that are there, and those that were removed."""
    there: dict[Lssn, Segment] = {}
    gone: dict[Lssn, Segment] = {}
    for change in history.changes:
        if change.segment is not None:
            there[change.lssn] = change.segment
        else:
            gone[change.lssn] = there.pop(change.lssn)
    return there, gone
