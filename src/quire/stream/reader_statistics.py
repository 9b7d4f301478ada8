"""What a reader of a stream tells of itself."""

from quire.types import DLSN
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class StreamReaderStatistics:
    """What a reader did, and how it is, at one moment."""

    records: int
    """Records that were given."""

    entries: int
    """Entries that they came in, with those of control records."""

    entry_bytes: int
    segments: int
    """Segments that were opened."""

    damaged_entries: int
    """Entries that were skipped because nobody could read them."""

    position: DLSN
    buffered_entries: int
    buffered_bytes: int
    at_tail: bool
    """Whether all that is known to be confirmed was given."""
