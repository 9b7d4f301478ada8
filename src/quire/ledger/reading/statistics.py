"""What a reader counts while it reads, and what it tells of that. Plain numbers: nothing is done for a single entry."""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from quire.errors import QuireError
from quire.types import EntryId
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """What a reader did, and what it knows, at one moment."""

    entries: int
    """Entries that were fetched and verified, also those that nobody took."""

    payload_bytes: int
    requests: int
    """Requests to single bookies: runs and batches of reads count once."""

    speculative_reads: int
    """How often another bookie was asked because one was slow."""

    polls: int
    """Long polls, each to one bookie."""

    failures: Mapping[str, int]
    """Requests that failed and copies that did not verify, by the name of the error. Once for each run."""

    metadata_updates: int
    """Newer versions of the metadata that were adopted."""

    last_add_confirmed: EntryId
    is_closed: bool


@dataclass(slots=True)
class ReadCounts:
    """The same, while it grows."""

    entries: int = 0
    payload_bytes: int = 0
    requests: int = 0
    speculative: int = 0
    polls: int = 0
    metadata_updates: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def on_failure(self, error: QuireError) -> None:
        kind = type(error).__name__
        self.failures[kind] = self.failures.get(kind, 0) + 1

    def snapshot(self, *, last_add_confirmed: EntryId, is_closed: bool) -> ReaderStatistics:
        return ReaderStatistics(
            entries=self.entries,
            payload_bytes=self.payload_bytes,
            requests=self.requests,
            speculative_reads=self.speculative,
            polls=self.polls,
            failures=MappingProxyType(dict(self.failures)),
            metadata_updates=self.metadata_updates,
            last_add_confirmed=last_add_confirmed,
            is_closed=is_closed,
        )
