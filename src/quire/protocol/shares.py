"""How many bytes of a ledger each bookie of each fragment holds, as far as its metadata tells. Sans-IO.

Entries are taken to be of one size, the ledger's mean. For a sum over thousands of them that is exact enough; what a
disk really holds is for its bookie to say.
"""

from collections import Counter
from typing import Final, NamedTuple

from quire.types import BookieId, DigestType, EntryId, LedgerMetadata, Quorum

RECORD_BYTES: Final = 36  # Before an entry's digest and payload: its length in the log, and the entry's header.
DIGEST_BYTES: Final = {
    None: 4,
    DigestType.CRC32: 8,
    DigestType.CRC32C: 4,
    DigestType.MAC: 20,
    DigestType.DUMMY: 0,
}


class LedgerEnd(NamedTuple):
    """Where a ledger ends, or how far it has come."""

    last_entry_id: EntryId
    payload_bytes: int


class FragmentShare(NamedTuple):
    """One fragment of a ledger, up to the ledger's end, and how much of it one position of its ensemble holds."""

    number: int
    """Counted from 0 along the ledger."""

    first: EntryId
    end: EntryId
    bookies: tuple[BookieId, ...]
    bytes_by_position: tuple[int, ...]

    @property
    def entries(self) -> int:
        return self.end - self.first


def entries_at_position(position: int, first: int, end: int, quorum: Quorum) -> int:
    """How many of the entries from `first` up to and without `end` a position of the ensemble gets."""
    cycles, rest = divmod(max(0, end - first), quorum.ensemble)
    there = sum((position - entry_id) % quorum.ensemble < quorum.write for entry_id in range(end - rest, end))
    return cycles * quorum.write + there


def shares(metadata: LedgerMetadata, end: LedgerEnd) -> list[FragmentShare]:
    """All fragments with what their bookies hold. One that begins behind the ledger's end has no entries."""
    entries = end.last_entry_id + 1
    entry_bytes = RECORD_BYTES + DIGEST_BYTES[metadata.digest] + (end.payload_bytes / entries if entries else 0.0)
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    found = []
    for number, (fragment, following) in enumerate(zip(metadata.fragments, [*firsts[1:], entries], strict=True)):
        behind = max(fragment.first_entry_id, min(following, entries))
        held = (
            round(entry_bytes * entries_at_position(position, fragment.first_entry_id, behind, metadata.quorum))
            for position in range(metadata.quorum.ensemble)
        )
        found.append(FragmentShare(number, fragment.first_entry_id, EntryId(behind), fragment.bookies, tuple(held)))
    return found


def bytes_by_bookie(metadata: LedgerMetadata, end: LedgerEnd) -> dict[BookieId, int]:
    """What each bookie holds of a ledger, all its fragments together."""
    held = Counter[BookieId]()
    for share in shares(metadata, end):
        for bookie, size in zip(share.bookies, share.bytes_by_position, strict=True):
            held[bookie] += size
    return dict(held)
