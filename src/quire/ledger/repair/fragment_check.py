"""Ask the bookies of a ledger whether they have what they should: which places of which fragments are bad.

Each bookie is asked for the first and the last entry that it should have of a fragment, and for a sample of those
between. Whoever is not listed is bad without being asked. Whatever else a bookie answers than the entry itself, intact,
makes its place bad: the copy cannot be relied on. A bookie that lost part of its data says so when it is asked for its
last entry (its ledgers are in limbo): a sample proves nothing then, and it is asked for all.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from quire.codec.wire.codes import Status
from quire.errors import BookieFailed, Damaged, EntriesUnknown, NoSuchEntry, NoSuchLedger, QuireError, Unavailable
from quire.ledger.context import LedgerContext
from quire.ledger.reading.reader import LedgerReader
from quire.metadata import StoredLedger
from quire.protocol.fragments import Span, known_lac, sample, spans_of
from quire.protocol.quorum import write_set
from quire.protocol.repair import Fault
from quire.rpc import status_error
from quire.telemetry.events import logger
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerMetadata
from quire.values import dataclass

_log = logger("autorecovery")
NOT_LISTED: Final = "it is not registered"
_PAUSES_S: Final = (0.0, 0.5, 1.5)  # Before each time that a bookie is asked.
_AT_ONCE: Final = 64  # Entries that one bookie is asked for in one go.


@dataclass(frozen=True, slots=True)
class BadSpan:
    """A fragment with bad places, and what is wrong with each."""

    span: Span
    problems: Mapping[int, str]
    faults: Mapping[int, Fault]
    """The same places, and what kind of problem it is."""

    @property
    def bookies(self) -> list[BookieId]:
        return [self.span.bookies[position] for position in self.problems]


def plain_reader(client: LedgerContext, stored: StoredLedger) -> LedgerReader:
    """A reader for whoever looks after ledgers: with the password of the metadata, and no news of changes. What it
    knows of the LAC is what the metadata proves."""
    reader = LedgerReader(client, stored, stored.metadata.password or b"")
    reader.raise_lac(known_lac(stored.metadata))
    return reader


async def learn_lac(reader: LedgerReader) -> list[BookieId]:
    """Ask how far a ledger that is not closed is confirmed. Returns the bookies that did not answer, if they are so
    many that nobody can tell: then its last fragment cannot be judged, and looks as if it were empty."""
    try:
        await reader.read_last_add_confirmed()
    except QuireError as error:
        _log.warning("ledger.lac_unknown", ledger_id=reader.id, error=str(error))
        members = reader.metadata.metadata.fragments[-1].bookies
        unanswered = error.facts.get("unanswered")
        return [bookie for bookie in members if not isinstance(unanswered, tuple) or bookie in unanswered]
    return []


async def check_ledger(
    reader: LedgerReader,
    listed: Collection[BookieId],
    *,
    percentage: float = 0.0,
    silent: dict[BookieId, str] | None = None,
) -> list[BadSpan]:
    """The bad fragments of a ledger. `listed` are the bookies that live. Writes nothing and disturbs nobody.

    Bookies in `silent` are not asked, and those that cannot be reached are added to it, with the reason: who looks at
    many ledgers waits for such a bookie once.
    """
    metadata = reader.metadata.metadata
    bad: list[BadSpan] = []
    for span in spans_of(metadata, reader.last_add_confirmed):
        if span.is_last and not span.is_closed and span.is_empty and not await _is_begun(reader, span, listed):
            continue
        found = await check_span(reader, span, listed, percentage=percentage, silent=silent)
        if found.problems:
            bad.append(found)
    return bad


async def check_span(
    reader: LedgerReader,
    span: Span,
    listed: Collection[BookieId],
    *,
    percentage: float = 0.0,
    silent: dict[BookieId, str] | None = None,
) -> BadSpan:
    """What is wrong with one fragment."""
    places = range(len(span.bookies))
    known = {} if silent is None else silent
    found = await asyncio.gather(*(_check_place(reader, span, place, listed, percentage, known) for place in places))
    bad = {place: problem for place, problem in zip(places, found, strict=True) if problem is not None}
    return BadSpan(
        span,
        {place: problem for place, (problem, _) in bad.items()},
        {place: fault for place, (_, fault) in bad.items()},
    )


async def _check_place(
    reader: LedgerReader,
    span: Span,
    place: int,
    listed: Collection[BookieId],
    percentage: float,
    silent: dict[BookieId, str],
) -> tuple[str, Fault] | None:
    bookie, quorum = span.bookies[place], reader.metadata.metadata.quorum
    if bookie not in listed:
        return NOT_LISTED, Fault.AWAY
    if bookie in silent:
        return silent[bookie], Fault.SILENT
    problem = await _check_sample(reader, bookie, sample(span, place, quorum, percentage))
    if isinstance(problem, Unavailable):
        silent[bookie] = str(problem)
    elif span.is_empty or not (problem is None or _fault_of(problem) is Fault.BAD):
        pass
    elif await _has_lost_some(reader, bookie):
        problem = problem or await _check_sample(reader, bookie, sample(span, place, quorum, 100.0))
        return None if problem is None else (str(problem), Fault.SILENT)
    return None if problem is None else (str(problem), _fault_of(problem))


async def _check_sample(reader: LedgerReader, bookie: BookieId, wanted: Iterator[EntryId]) -> QuireError | None:
    while batch := list(itertools.islice(wanted, _AT_ONCE)):
        problem = await _check_patiently(reader, bookie, batch)
        if problem is not None:
            return problem
    return None


async def _has_lost_some(reader: LedgerReader, bookie: BookieId) -> bool:
    """Whether the bookie says that it cannot tell what it has of the ledger."""
    timeout_s = reader.settings.read_timeout_s
    try:
        channel = await reader.client.pool.connect(bookie, 3, timeout_s=timeout_s)
        await channel.read(reader.id, NO_ENTRY, version=3, timeout_s=timeout_s)
    except EntriesUnknown:
        return True
    except QuireError:
        pass  # It answered a moment ago, and that counts.
    return False


def _fault_of(problem: QuireError) -> Fault:
    if isinstance(problem, NoSuchEntry | NoSuchLedger):
        return Fault.ABSENT
    if isinstance(problem, Damaged | BookieFailed):
        return Fault.BAD
    return Fault.SILENT


async def _check_patiently(reader: LedgerReader, bookie: BookieId, wanted: list[EntryId]) -> QuireError | None:
    """A bookie that is listed and cannot be asked may have started just now: it is asked again before it is bad."""
    problem: QuireError | None = None
    for pause_s in _PAUSES_S:
        await reader.clock.sleep(pause_s)
        problem = await _check_entries(reader, bookie, wanted)
        if not isinstance(problem, Unavailable):
            break
    return problem


async def _check_entries(reader: LedgerReader, bookie: BookieId, wanted: list[EntryId]) -> QuireError | None:
    """Whatever is not an intact copy of each of these entries."""
    client, timeout_s = reader.client, reader.settings.read_timeout_s
    try:
        channel = await client.pool.connect(bookie, 2, timeout_s=timeout_s)
        answers = channel.send_reads(reader.id, wanted, timeout_s=timeout_s)
        await answers.future
        for entry_id in wanted:
            body = answers.found[entry_id]
            if isinstance(body, Status):
                raise status_error(body, bookie=bookie, ledger_id=reader.id, entry_id=entry_id)
            reader.codec.decode(body, entry_id=entry_id)
    except QuireError as error:
        client.on_bookie_error(bookie, error)
        return error
    return None


async def _is_begun(reader: LedgerReader, span: Span, listed: Collection[BookieId]) -> bool:
    """Whether anybody may have an entry of a fragment that nothing is confirmed of. Not if all deny the first one."""
    metadata = reader.metadata.metadata
    members = [span.bookies[place] for place in write_set(span.first, metadata.quorum)]
    if not set(span.bookies) <= set(listed):
        return True
    for bookie in members:
        try:
            await reader.read_from(bookie, span.first, fence=False)
        except (NoSuchEntry, NoSuchLedger):
            continue
        except QuireError:
            return True
        return True
    return False


def members_of(metadata: LedgerMetadata) -> set[BookieId]:
    """Every bookie that the metadata names."""
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}
