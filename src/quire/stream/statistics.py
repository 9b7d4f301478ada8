"""What writers and readers of streams tell about themselves."""

from quire.types import DLSN, Lssn
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer did, and what it is doing."""

    records: int  # That were acknowledged.
    bytes: int  # Of them, with 20 for each.
    waiting_records: int
    in_flight_entries: int
    lssn: Lssn | None  # Of the open segment.
    segment_bytes: int
    rolls: int
    last_txid: int
    last_dlsn: DLSN | None  # Of the last record that was acknowledged.
