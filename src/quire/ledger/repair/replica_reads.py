"""Every copy of an entry, each from the very bookie that should have it: for checks, where any copy will not do.

A copy counts as it would for a reader: its digest and its ids have to be right. Beyond that the payloads of all copies
have to be equal; not the bytes around them, since recovery writes an entry anew with the LAC of its own time.

Invariants:
  EveryCopy        each entry is asked of each bookie of its write set, and each answer is judged by itself.
  SecondLook       what looks wrong is looked at once more, with the ledger's metadata read anew: an entry that is on
                   its way, or was moved to another bookie, is not reported.
  Bounded          a window has `WINDOW_BYTES` of payload or so for each bookie, or one entry.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from isal.isal_zlib import crc32

from quire.codec.digest import digest_for
from quire.codec.entry import EntryCodec
from quire.codec.wire.codes import Status
from quire.errors import BookieFailed, Damaged, NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.context import LedgerContext
from quire.metadata import StoredLedger
from quire.protocol.quorum import write_set
from quire.rpc import status_error
from quire.types import BookieId, DigestType, EntryId, Fragment
from quire.values import dataclass

WINDOW_BYTES: Final = 4 << 20
WINDOW_ENTRIES_MAX: Final = 500

MISSING: Final = "missing"  # The bookie says that it does not have the entry.
DAMAGED: Final = "damaged"  # It sent what is not the entry, or knows that it cannot read it.
DIFFERENT: Final = "different"  # Its digest is right, and most other copies hold something else.
UNREACHABLE: Final = "unreachable"  # The bookie did not answer, so nothing is known.


@dataclass(frozen=True, slots=True)
class CopySum:
    """What tells the payloads of two copies apart."""

    payload_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class BadCopy:
    """A copy that is not as it should be."""

    entry_id: EntryId
    bookie: BookieId
    problem: str
    detail: str


@dataclass(frozen=True, slots=True)
class ReplicaCheck:
    """What came of a range of entries. `copies` counts those that are intact, `payload_bytes` is read from bookies."""

    entries: int
    copies: int
    payload_bytes: int
    bad: tuple[BadCopy, ...]


Finding: TypeAlias = CopySum | QuireError


async def check_replicas(
    client: LedgerContext, stored: StoredLedger, first: EntryId, end: EntryId, *, password: bytes, timeout_s: float
) -> ReplicaCheck:
    """Read every copy of the entries from `first` up to and without `end`.

    Raises `NoSuchLedger` if the ledger is deleted meanwhile, and what the metadata store raises. Bookies that do not
    answer are findings, not errors.
    """
    window = _window(stored)
    copies = payload_bytes = 0
    bad: list[BadCopy] = []
    for begin in range(first, end, window):
        entries = [EntryId(each) for each in range(begin, min(end, begin + window))]
        found = await _read_copies(client, stored, entries, password, timeout_s)
        doubtful = sorted({each.entry_id for each in judged(found)})
        if doubtful:
            stored = await client.ledgers_metadata.read(stored.ledger_id)
            found |= await _read_copies(client, stored, doubtful, password, timeout_s)
        bad += judged(found)
        intact = [each for answers in found.values() for each in answers.values() if isinstance(each, CopySum)]
        copies, payload_bytes = copies + len(intact), payload_bytes + sum(each.payload_bytes for each in intact)
    differing = sum(each.problem == DIFFERENT for each in bad)
    return ReplicaCheck(max(0, end - first), copies - differing, payload_bytes, tuple(bad))


def judged(found: Mapping[EntryId, Mapping[BookieId, Finding]]) -> list[BadCopy]:
    """The copies that are not as they should be, in order.

    Which of two payloads is the right one nobody can tell but the majority; without one all copies are named.
    """
    bad: list[BadCopy] = []
    for entry_id, copies in sorted(found.items()):
        sums = Counter(each for each in copies.values() if isinstance(each, CopySum))
        most = sums.most_common(1)[0] if sums else None
        right = most[0] if most is not None and 2 * most[1] > sums.total() else None
        for bookie, finding in copies.items():
            if isinstance(finding, QuireError):
                bad.append(BadCopy(entry_id, bookie, _problem(finding), str(finding)))
            elif finding != right:
                bad.append(BadCopy(entry_id, bookie, DIFFERENT, _difference(finding, len(sums))))
    return bad


def _problem(error: QuireError) -> str:
    if isinstance(error, NoSuchEntry | NoSuchLedger):
        return MISSING
    return DAMAGED if isinstance(error, Damaged | BookieFailed) else UNREACHABLE


def _difference(found: CopySum, kinds: int) -> str:
    return f"a payload of {found.payload_bytes} bytes with CRC {found.crc:08x}; its copies hold {kinds} different ones"


# --- Reading


async def _read_copies(
    client: LedgerContext, stored: StoredLedger, entries: Sequence[EntryId], password: bytes, timeout_s: float
) -> dict[EntryId, dict[BookieId, Finding]]:
    """All copies of these entries, from all bookies at the same time."""
    wanted: dict[BookieId, list[EntryId]] = {}
    found: dict[EntryId, dict[BookieId, Finding]] = {}
    for entry_id in entries:
        found[entry_id] = {}
        fragment = _fragment_of(stored, entry_id)
        for position in write_set(entry_id, stored.metadata.quorum):
            wanted.setdefault(fragment.bookies[position], []).append(entry_id)
    answers = await asyncio.gather(
        *(
            copies_on(client, stored, bookie, some, password=password, timeout_s=timeout_s)
            for bookie, some in wanted.items()
        )
    )
    for bookie, some in zip(wanted, answers, strict=True):
        for entry_id, finding in some.items():
            found[entry_id][bookie] = finding
    return found


async def copies_on(
    client: LedgerContext,
    stored: StoredLedger,
    bookie: BookieId,
    entries: Sequence[EntryId],
    *,
    password: bytes,
    timeout_s: float,
) -> dict[EntryId, Finding]:
    """What one bookie has of these entries: a sum for each intact copy, an error for each other one."""
    try:
        channel = client.pool.channel(bookie, 2) or await client.pool.connect(bookie, 2, timeout_s=timeout_s)
        run = channel.send_reads(stored.ledger_id, entries, timeout_s=timeout_s)
    except QuireError as error:
        return dict.fromkeys(entries, error)
    found: dict[EntryId, Finding] = {}
    try:
        await run.future
    except QuireError as error:
        found = dict.fromkeys(entries, error)
    codec = EntryCodec(stored.ledger_id, digest_for(stored.metadata.digest or DigestType.CRC32C, password))
    for entry_id, answer in run.found.items():
        if isinstance(answer, Status):
            found[entry_id] = status_error(answer, bookie=bookie, ledger_id=stored.ledger_id, entry_id=entry_id)
            continue
        try:
            payload = codec.decode(answer, entry_id=entry_id).payload
            found[entry_id] = CopySum(len(payload), crc32(payload))
        except QuireError as error:
            found[entry_id] = error
    return found


def _fragment_of(stored: StoredLedger, entry_id: EntryId) -> Fragment:
    return next(each for each in reversed(stored.metadata.fragments) if each.first_entry_id <= entry_id)


def _window(stored: StoredLedger) -> int:
    """How many entries to ask for at once. The length of a ledger that is not closed is not known."""
    metadata = stored.metadata
    entry_bytes = metadata.length // (metadata.last_entry_id + 1) if metadata.length > 0 else WINDOW_BYTES // 32
    return max(1, min(WINDOW_ENTRIES_MAX, WINDOW_BYTES // max(1, entry_bytes)))
