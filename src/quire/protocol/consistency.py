"""Decide what is wrong with a cluster, and what may be done about it without losing anything. Sans-IO.

Metadata, bookies, streams and cold storage are held against each other: a segment names a ledger, the ledger names
bookies, and the bookies have its entries; an archived segment names a file (`cold_consistency.py`). Whatever one of
them says and another one does not bear out is a finding.

Invariants:
  NobodyElses    a ledger is called leaked only if all ledgers of the cluster are said to belong to the streams that
                 were looked at, all that these name could be read, it has no metadata of an application's own, and it
                 is old enough to belong to somebody. The same goes for files in cold storage.
  NothingLost    a repair copies entries, removes what holds none, or what was never in a stream and is too old to come
                 into one. Everything else is told and left to a person.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Final

from quire.protocol.cold_consistency import ColdFact, ColdLook, left_over, of_archive, of_stores
from quire.protocol.findings import Finding, Repair, Severity
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.values import dataclass

_NO_LEDGER: Final = LedgerId(-1)
LEAKED_AFTER_MS: Final = 3_600_000
"""A ledger that is made for a stream is nobody's for a moment. Nobody takes an hour for it."""

_NO_COLD_LOOK: Final = ColdLook()


@dataclass(frozen=True, slots=True)
class LedgerFact:
    """What the metadata says of a ledger."""

    ledger_id: LedgerId
    is_closed: bool
    last_entry_id: EntryId  # As far as it is known, of one that is not closed.
    length: int
    created_ms: int | None
    has_custom: bool
    """Whether an application keeps something of its own in it."""


@dataclass(frozen=True, slots=True)
class BadCopies:
    """What a bookie should have of one fragment, and does not."""

    first: EntryId
    bookie: BookieId
    problem: str


@dataclass(frozen=True, slots=True)
class Look:
    """What the bookies of one ledger answered."""

    bad: tuple[BadCopies, ...] = ()
    unreadable: str | None = None
    """Why an entry cannot be had from any of its bookies."""

    length: int | None = None
    """As its last entry has it. None if it was not asked."""


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """What a segment's node says; or why it cannot be read: then there is no LSSN."""

    name: str
    lssn: int | None
    ledger_id: LedgerId = _NO_LEDGER
    is_completed: bool = False
    last_entry_id: EntryId = NO_ENTRY  # Of its last record.
    is_truncated: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFact:
    """A ledger that a sink wrote beside a stream, to make it a segment."""

    ledger_id: LedgerId
    begun_ms: int


@dataclass(frozen=True, slots=True)
class StreamFact:
    """What a stream's nodes say."""

    name: str
    segments: tuple[SegmentFact, ...]
    allocated: LedgerId | None = None
    owner: str | None = None
    also: Mapping[LedgerId, str] = field(default_factory=dict)
    """Ledgers that archiving left, and the nodes that name them."""

    problems: tuple[str, ...] = ()
    """Of nodes that cannot be read."""

    cold: tuple[ColdFact, ...] = ()
    staged: tuple[StagedFact, ...] = ()

    @property
    def hot_numbers(self) -> frozenset[int]:
        return frozenset(each.lssn for each in self.segments if each.lssn is not None)

    @property
    def has_problems(self) -> bool:
        """Whether it may name ledgers that are not known here."""
        return bool(self.problems) or any(each.problem is not None for each in self.segments)

    @property
    def ledger_ids(self) -> frozenset[LedgerId]:
        named = {each.ledger_id for each in self.segments if each.lssn is not None}
        named |= {each.ledger_id for each in self.staged} | set(self.also)
        return frozenset(named if self.allocated is None else {*named, self.allocated})


def judge(
    ledgers: Mapping[LedgerId, LedgerFact],
    streams: Sequence[StreamFact],
    looks: Mapping[LedgerId, Look],
    *,
    damaged: Mapping[LedgerId, str],
    now_ms: int,
    exclusive: bool,
    staged_ttl_ms: int,
    cold: ColdLook = _NO_COLD_LOOK,
) -> list[Finding]:
    """Everything that is wrong, the worst first."""
    found = [_damaged(ledger, why) for ledger, why in damaged.items()]
    for ledger, look in looks.items():
        found += _of_bookies(ledgers[ledger], look)
    known = ledgers.keys() | damaged.keys()
    for stream in streams:
        found += _of_stream(stream, ledgers, known, now_ms)
        found += _staged(stream, now_ms, staged_ttl_ms)
        found += of_archive(stream.name, stream.hot_numbers, stream.cold, cold, is_whole=not stream.has_problems)
    found += of_stores([each for stream in streams for each in stream.cold], cold)
    if exclusive and not any(stream.has_problems for stream in streams):
        found += _leaked(ledgers, streams, now_ms)
        found += left_over({stream.name: (stream.hot_numbers, stream.cold) for stream in streams}, cold.objects)
    order = list(Severity)
    return sorted(found, key=lambda each: (order.index(each.severity), each.kind, each.subject))


# --- Ledgers and bookies


def _damaged(ledger: LedgerId, why: str) -> Finding:
    return Finding(
        "damaged metadata",
        Severity.LOST,
        f"ledger {ledger}",
        why,
        advice="Restore the node from a backup: `quire metadata check` names it.",
        ledger_id=ledger,
    )


def _of_bookies(fact: LedgerFact, look: Look) -> Iterable[Finding]:
    subject = f"ledger {fact.ledger_id}"
    if look.unreadable is not None:
        yield Finding(
            "unreadable ledger",
            Severity.LOST,
            subject,
            look.unreadable,
            advice="Bring back a bookie that had the entry; do not decommission it.",
            ledger_id=fact.ledger_id,
        )
    if look.bad:
        bookies = tuple(dict.fromkeys(each.bookie for each in look.bad))
        shown = "; ".join(f"{each.bookie}, from entry {each.first} on: {each.problem}" for each in look.bad)
        can_copy = look.unreadable is None and fact.is_closed
        yield Finding(
            "missing copies",
            Severity.AT_RISK,
            subject,
            shown,
            repair=Repair.COPY if can_copy else None,
            advice=""
            if can_copy
            else "Nothing can be copied yet: see above."
            if look.unreadable
            else f"Its writer should replace the bookie. If it has none: `quire ledger recover {fact.ledger_id}`.",
            ledger_id=fact.ledger_id,
            bookies=bookies,
        )
    if look.length is not None and fact.is_closed and look.length != fact.length:
        yield Finding(
            "wrong length",
            Severity.UNTIDY,
            subject,
            f"the metadata says {fact.length} bytes, its last entry says {look.length}",
            advice="Its entries are whole. Sizes that commands show for it are wrong.",
            ledger_id=fact.ledger_id,
        )


# --- Streams


def _of_stream(
    stream: StreamFact, ledgers: Mapping[LedgerId, LedgerFact], known: Iterable[LedgerId], now_ms: int
) -> Iterable[Finding]:
    subject, exists = f"stream {stream.name}", frozenset(known)
    for problem in stream.problems:
        yield Finding("damaged metadata", Severity.LOST, subject, problem, advice="Restore the node from a backup.")
    for segment in stream.segments:
        yield from _of_segment(stream, segment, ledgers, exists)
    yield from _gaps(stream)
    if stream.allocated is not None:
        yield from _of_allocation(stream, stream.allocated, ledgers, exists)
    for ledger, node in stream.also.items():
        if ledger not in exists:
            yield Finding(
                "left-over node",
                Severity.UNTIDY,
                subject,
                f"its node {node} names ledger {ledger}, which does not exist",
                advice="The next archive that drops segments of the stream removes it.",
                stream=stream.name,
            )
        elif ledger in ledgers and not _is_young(ledgers[ledger], now_ms):
            yield Finding(
                "left-over ledger",
                Severity.UNTIDY,
                subject,
                f"its node {node} names ledger {ledger}, which an archive dropped or began to restore",
                advice="Harmless, unless that archive runs: the next one that drops or restores segments deletes it.",
                ledger_id=ledger,
                stream=stream.name,
            )


def _of_segment(
    stream: StreamFact, segment: SegmentFact, ledgers: Mapping[LedgerId, LedgerFact], exists: frozenset[LedgerId]
) -> Iterable[Finding]:
    subject = f"stream {stream.name}, segment {segment.name}"
    if segment.problem is not None:
        yield Finding("damaged metadata", Severity.LOST, subject, segment.problem, advice="Restore it from a backup.")
        return
    if segment.ledger_id not in exists:
        if segment.is_truncated:
            yield Finding(
                "half purged segment",
                Severity.UNTIDY,
                subject,
                f"its ledger {segment.ledger_id} is gone, as it should be, and its node is not",
                advice=f"`quire stream purge {_own_name(stream)}` finishes it.",
                stream=stream.name,
            )
            return
        yield Finding(
            "unreadable segment",
            Severity.LOST,
            subject,
            f"its ledger {segment.ledger_id} does not exist",
            advice="If somebody deleted it, truncate the stream behind this segment, so that readers pass it by.",
            ledger_id=segment.ledger_id,
            stream=stream.name,
        )
        return
    fact = ledgers.get(segment.ledger_id)
    if fact is None or not segment.is_completed:
        return
    if not fact.is_closed:
        yield Finding(
            "open ledger",
            Severity.AT_RISK,
            subject,
            f"it is completed, and its ledger {fact.ledger_id} is not closed",
            advice=f"`quire ledger recover {fact.ledger_id}` closes it.",
            ledger_id=fact.ledger_id,
            stream=stream.name,
        )
    elif segment.last_entry_id > fact.last_entry_id:
        yield Finding(
            "unreadable segment",
            Severity.LOST,
            subject,
            f"its last record is in entry {segment.last_entry_id}, and its ledger {fact.ledger_id} ends with entry "
            f"{fact.last_entry_id}",
            advice="Entries were acknowledged that the ledger does not have: look into its history before anything.",
            ledger_id=fact.ledger_id,
            stream=stream.name,
        )


def _gaps(stream: StreamFact) -> Iterable[Finding]:
    """Each number along a stream is there once; the oldest may be gone."""
    numbers = sorted(each.lssn for each in stream.segments if each.lssn)
    for before, after in pairwise(numbers):
        if after != before + 1:
            what = (
                f"segment {after} is there twice" if after == before else f"segments {before + 1} to {after - 1} lack"
            )
            yield Finding(
                "broken chain",
                Severity.LOST,
                f"stream {stream.name}",
                what,
                advice="Readers stop there. Restore the nodes from a backup, or truncate the stream behind the gap.",
                stream=stream.name,
            )


def _of_allocation(
    stream: StreamFact, allocated: LedgerId, ledgers: Mapping[LedgerId, LedgerFact], exists: frozenset[LedgerId]
) -> Iterable[Finding]:
    """A ledger that was made ahead for the next segment. While somebody writes the stream, that is how it should be."""
    subject = f"stream {stream.name}"
    if stream.owner is not None:
        return
    if allocated not in exists:
        yield Finding(
            "allocation left over",
            Severity.UNTIDY,
            subject,
            f"ledger {allocated} is allocated to it and does not exist",
            repair=Repair.CLEAR_ALLOCATION,
            ledger_id=allocated,
            stream=stream.name,
        )
        return
    fact = ledgers.get(allocated)
    if fact is not None and fact.last_entry_id == NO_ENTRY:
        yield Finding(
            "allocation left over",
            Severity.UNTIDY,
            subject,
            f"ledger {allocated} was made for its next segment, and nobody writes it",
            advice="Harmless: its next writer takes it or deletes it.",
            ledger_id=allocated,
            stream=stream.name,
        )
    elif fact is not None:
        yield Finding(
            "allocation left over",
            Severity.AT_RISK,
            subject,
            f"ledger {allocated} has {fact.last_entry_id + 1} entries, and is in no segment",
            advice=f"Look at them before anything: `quire ledger read {allocated}`. The next writer may delete it.",
            ledger_id=allocated,
            stream=stream.name,
        )


def _staged(stream: StreamFact, now_ms: int, ttl_ms: int) -> Iterable[Finding]:
    """Ledgers of a sink's lost attempts. Younger ones may be on their way into the stream, also if they do not exist:
    the node comes first.
    """
    ages_ms = [now_ms - each.begun_ms for each in stream.staged if now_ms - each.begun_ms >= ttl_ms]
    if not ages_ms:
        return
    count = "a staged ledger is" if len(ages_ms) == 1 else f"{len(ages_ms)} staged ledgers are"
    oldest = (
        f"{max(ages_ms) / 3_600_000:.0f} hours" if len(ages_ms) == 1 else f"up to {max(ages_ms) / 3_600_000:.0f} hours"
    )
    yield Finding(
        "old staged ledger",
        Severity.UNTIDY,
        f"stream {stream.name}",
        f"{count} {oldest} old: a sink wrote what it never made a part of the stream",
        repair=Repair.SWEEP_STAGED,
        stream=stream.name,
    )


def _own_name(stream: StreamFact) -> str:
    return stream.name.rpartition("/")[2]


# --- Ledgers that nobody uses


def _is_young(fact: LedgerFact, now_ms: int) -> bool:
    """Whether somebody may still be about to use it."""
    return fact.created_ms is None or now_ms - fact.created_ms < LEAKED_AFTER_MS


def _leaked(ledgers: Mapping[LedgerId, LedgerFact], streams: Sequence[StreamFact], now_ms: int) -> Iterable[Finding]:
    named = {ledger for stream in streams for ledger in stream.ledger_ids}
    for ledger, fact in ledgers.items():
        if ledger in named or fact.has_custom or _is_young(fact, now_ms):
            continue
        is_empty = fact.is_closed and fact.last_entry_id == NO_ENTRY
        size = "no entries" if is_empty else f"{fact.last_entry_id + 1} entries, {fact.length} bytes"
        yield Finding(
            "leaked ledger",
            Severity.UNTIDY,
            f"ledger {ledger}",
            f"no stream names it, and it has {size}",
            repair=Repair.DELETE_EMPTY if is_empty else None,
            advice=""
            if is_empty
            else f"If nobody needs it, `quire ledger delete {ledger}` frees its room. Deleting is for good.",
            ledger_id=ledger,
        )
