"""The body of ledger metadata in format version 1: lines of text from before protobuf.

    write quorum LF ensemble size LF length LF
    ( first entry id ( TAB bookie id )+ LF )+
    [ last entry id TAB "CLOSED" ]

An open ledger has no last line; one in recovery ends with `-102 TAB CLOSED`. There is no room for an ack quorum (it
equals the write quorum), a password, a digest type, a creation time or custom metadata.
"""

from typing import Final

from quire.codec.damage import INT32_MAX, decimal, utf8
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

_CLOSED: Final = "CLOSED"
_IN_RECOVERY_ENTRY: Final = -102


def encode_body(metadata: LedgerMetadata) -> bytes:
    """What follows the header line. Raises `InvalidArgument` for a ledger that holds more than version 1 can."""
    lost = [
        name
        for name, present in (
            ("an ack quorum of its own", metadata.quorum.ack != metadata.quorum.write),
            ("a password", metadata.password is not None),
            ("a creation time", metadata.ctime_ms is not None),
            ("custom metadata", bool(metadata.custom)),
            # It would be read as the closing line: the ledger would seem to end at its first entry.
            (f"a bookie named {_CLOSED} in front", any(f.bookies[0] == _CLOSED for f in metadata.fragments)),
        )
        if present
    ]
    if lost:
        raise InvalidArgument(
            f"format version 1 of ledger metadata cannot store {' or '.join(lost)}",
            hint="Create ledgers in format version 3.",
        )
    closed = metadata.state is LedgerState.CLOSED
    lines = [str(metadata.quorum.write), str(metadata.quorum.ensemble), str(metadata.length if closed else 0)]
    lines += ["\t".join([str(fragment.first_entry_id), *fragment.bookies]) for fragment in metadata.fragments]
    last = {
        LedgerState.OPEN: "",
        LedgerState.IN_RECOVERY: f"{_IN_RECOVERY_ENTRY}\t{_CLOSED}",
        LedgerState.CLOSED: f"{metadata.last_entry_id}\t{_CLOSED}",
    }[metadata.state]
    return "\n".join([*lines, last]).encode()


def decode_body(body: bytes, what: str) -> LedgerMetadata:
    """The metadata behind the header line. Raises `DamagedMetadata`, or `InvalidArgument` for impossible values."""
    lines = utf8(body, f"{what}, after the first line").split("\n")
    if lines[-1] == "":
        lines.pop()  # The LF that ends the last line does not begin another.
    if len(lines) < 3:
        raise DamagedMetadata(f"{what}: write quorum, ensemble size and length should stand on lines 2 to 4")
    write = decimal(lines[0], f"{what}: the write quorum on line 2", low=0, high=INT32_MAX)
    ensemble = decimal(lines[1], f"{what}: the ensemble size on line 3", low=0, high=INT32_MAX)
    length = decimal(lines[2], f"{what}: the length on line 4")
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, int(NO_ENTRY)
    for number, line in enumerate(lines[3:], start=5):
        first, *rest = line.split("\t")
        entry_id = decimal(first, f"{what}: the entry id on line {number}")
        if not rest:
            raise DamagedMetadata(f"{what}: line {number} has neither bookies nor {_CLOSED!r} after the entry id")
        if rest[0] == _CLOSED:
            recovering = entry_id == _IN_RECOVERY_ENTRY
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry_id = int(NO_ENTRY) if recovering else entry_id
            break  # Apache's readers, too, ignore what follows.
        fragments.append(Fragment(EntryId(entry_id), tuple(map(BookieId, rest))))
    return LedgerMetadata(
        quorum=Quorum(ensemble=ensemble, write=write, ack=write),
        fragments=tuple(fragments),
        state=state,
        last_entry_id=EntryId(last_entry_id),
        length=length if state is LedgerState.CLOSED else 0,
        digest=None,
        password=None,
        format_version=1,
    )
