"""`quire check`: ask metadata, bookies, streams and cold storage, have the answers judged, and repair what cannot be
lost by it.

Each bookie is asked for the first and the last entry that it should have of each fragment; thoroughly, for all of them.
Files in cold storage are `cold_checking.py`'s. Writers and readers are not disturbed. A repair looks again before it
acts: what was right meanwhile is left alone.

Invariant:
  SecondLook     what lacks was looked for once more, with the stream's nodes read anew: streams are written, purged and
                 archived while this looks at them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any, Final

from quire.app.cold_checking import look_at_cold
from quire.app.inventory import (
    Inventory,
    OpenNamespace,
    Operations,
    StreamFacts,
    read_ledgers,
    read_streams,
    read_streams_again,
    take_inventory,
)
from quire.app.repairing import Repaired, repair_ledgers
from quire.codec.stream_metadata.tree import StreamPaths, decode_allocation, encode_allocation
from quire.errors import NoSuchLedger, NoSuchNode, QuireError, VersionConflict
from quire.ledger.repair.fragment_check import check_ledger, plain_reader
from quire.ledger.repair.replica_reads import DIFFERENT, BadCopy, check_replicas
from quire.metadata import StoredLedger
from quire.protocol.cold_consistency import ColdFact
from quire.protocol.consistency import BadCopies, LedgerFact, Look, SegmentFact, StagedFact, StreamFact, judge
from quire.protocol.findings import Finding, Repair
from quire.protocol.shares import LedgerEnd
from quire.stream.cold_nodes import StoredCold
from quire.stream.context import StreamContext
from quire.stream.lock import hold_lock_as
from quire.stream.namespace import this_client
from quire.stream.staging import STAGED_TTL_S, sweep
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId, LedgerState
from quire.values import dataclass

OnStep = Callable[[], None]
_SHOWN_MAX: Final = 10
_MORE_LOOKS: Final = 5
_LOOK_AGAIN_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at, and what is wrong."""

    ledgers: int
    namespaces: int
    """That were looked at. Without any nothing is known of streams."""
    streams: int
    bookies: int
    cold_files: int
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def check(
    operations: Operations,
    *,
    exclusive: bool,
    thorough: bool,
    staged_ttl_s: float = STAGED_TTL_S,
    on_step: OnStep = lambda: None,
) -> Checked:
    """Look at everything. Changes nothing. Staged ledgers that are older than `staged_ttl_s` are taken for lost."""
    inventory = await take_inventory(operations)
    facts = {ledger: _ledger_fact(inventory, stored) for ledger, stored in inventory.ledgers.items()}
    looks: dict[LedgerId, Look] = {}
    silent: dict[BookieId, str] = {}
    for ledger, stored in inventory.ledgers.items():
        try:
            looks[ledger] = await look_at(operations, stored, inventory, silent, thorough=thorough)
        except NoSuchLedger:
            facts.pop(ledger)  # Deleted since: nothing is wrong with what is not there.
        on_step()
    await _look_again(operations, inventory, facts)
    cold = await look_at_cold(operations, inventory, thorough=thorough, exclusive=exclusive, on_step=on_step)
    findings = judge(
        facts,
        [_stream_fact(each) for each in inventory.streams],
        looks,
        damaged=inventory.damaged,
        now_ms=inventory.now_ms,
        exclusive=exclusive,
        cold=cold,
        staged_ttl_ms=round(staged_ttl_s * 1000),
    )
    return Checked(
        len(inventory.ledgers),
        len(operations.namespaces),
        len(inventory.streams),
        len(inventory.registered),
        sum(len(each.cold) for each in inventory.streams),
        tuple(findings),
    )


async def _look_again(operations: Operations, inventory: Inventory, facts: dict[LedgerId, LedgerFact]) -> None:
    """Streams that name ledgers which were not seen: such a ledger was made since, or its segment is on its way out. A
    purge deletes the ledger first and the node a moment later.
    """
    for turn in range(_MORE_LOOKS):
        known = facts.keys() | inventory.damaged.keys()
        doubtful = {
            (each.namespace, each.stream): each.ledger_ids - known
            for each in inventory.streams
            if each.ledger_ids - known
        }
        if not doubtful:
            return
        if turn:
            await operations.runtime.clock.sleep(_LOOK_AGAIN_S)
        await read_ledgers(operations, {ledger for ledgers in doubtful.values() for ledger in ledgers}, inventory)
        await read_streams_again(operations, inventory, doubtful)
        for ledger in inventory.ledgers.keys() & {each for ledgers in doubtful.values() for each in ledgers}:
            facts[ledger] = _ledger_fact(inventory, inventory.ledgers[ledger])


async def look_at(
    operations: Operations, stored: StoredLedger, inventory: Inventory, silent: dict[BookieId, str], *, thorough: bool
) -> Look:
    """What the bookies of a ledger have of it, but for those that are `silent`. Raises `NoSuchLedger` if it is deleted
    meanwhile."""
    client = operations.ledgers
    reader = plain_reader(client, stored)
    end = inventory.ends.get(stored.ledger_id)
    if end is not None:
        reader.raise_lac(end.last_entry_id)
    spans = await check_ledger(reader, inventory.registered, silent=silent)
    bad = {
        (each.span.first, each.span.bookies[place]): problem
        for each in spans
        for place, problem in each.problems.items()
    }
    last = reader.last_add_confirmed
    unreadable, length = None, None
    if thorough and last != NO_ENTRY:
        found = await check_replicas(
            client,
            stored,
            EntryId(0),
            EntryId(last + 1),
            password=stored.metadata.password or b"",
            timeout_s=operations.timeout_s,
        )
        for each in found.bad:
            first = next(
                f.first_entry_id for f in reversed(stored.metadata.fragments) if f.first_entry_id <= each.entry_id
            )
            bad.setdefault((first, each.bookie), f"entry {each.entry_id} is {each.problem}: {each.detail}")
        unreadable = _lost_entries(found.bad, stored.metadata.quorum.write)
    doubtful = {first for first, _ in bad}
    try:
        if reader.is_closed and last != NO_ENTRY:
            length = (await reader.read_entry(last)).length
        for span in spans:
            if span.span.first in doubtful and not span.span.is_empty and len(span.problems) == len(span.span.bookies):
                await reader.read_entry(span.span.first)
    except NoSuchLedger:
        raise
    except QuireError as error:
        unreadable = unreadable or str(error)
        await operations.cluster.ledgers.read(stored.ledger_id)  # Raises if it is simply gone.
    return Look(
        tuple(BadCopies(first, bookie, problem) for (first, bookie), problem in sorted(bad.items())), unreadable, length
    )


def _lost_entries(bad: Sequence[BadCopy], copies: int) -> str | None:
    """The entries of which no bookie has an intact copy. Copies that only differ can be read."""
    counts = Counter(each.entry_id for each in bad if each.problem != DIFFERENT)
    lost = sorted(entry_id for entry_id, count in counts.items() if count >= copies)
    if not lost:
        return None
    shown = ", ".join(map(str, lost[:_SHOWN_MAX])) + (f" and {len(lost) - _SHOWN_MAX} more" * (len(lost) > _SHOWN_MAX))
    return f"no bookie has an intact copy of {'entry' if len(lost) == 1 else 'entries'} {shown}"


def _ledger_fact(inventory: Inventory, stored: StoredLedger) -> LedgerFact:
    end = inventory.ends.get(stored.ledger_id, LedgerEnd(NO_ENTRY, 0))
    return LedgerFact(
        stored.ledger_id,
        stored.metadata.state is LedgerState.CLOSED,
        end.last_entry_id,
        end.payload_bytes,
        stored.created_ms,
        has_custom=bool(stored.metadata.custom),
    )


def _stream_fact(stream: StreamFacts) -> StreamFact:
    segments = []
    for each in stream.segments:
        segment = each.segment
        if segment is None:
            segments.append(SegmentFact(each.name, None, problem=each.problem))
            continue
        done = segment.completion
        segments.append(
            SegmentFact(
                each.name,
                segment.lssn,
                segment.ledger_id,
                is_completed=done is not None,
                last_entry_id=done.last_dlsn.entry_id if done else NO_ENTRY,
                is_truncated=segment.is_truncated,
            )
        )
    return StreamFact(
        stream.name,
        tuple(segments),
        stream.allocated,
        stream.owner,
        stream.also,
        stream.problems,
        tuple(_cold_fact(stream, each) for each in stream.cold),
        tuple(StagedFact(each.ledger, each.at_ms) for each in stream.staged),
    )


def _cold_fact(stream: StreamFacts, stored: StoredCold) -> ColdFact:
    cold = stored.cold
    hot = next((each.segment for each in stream.segments if each.segment and each.segment.lssn == cold.lssn), None)
    segment = hot or cold.segment  # Of a hot segment its own node counts.
    return ColdFact(stored.name, cold.lssn, cold.file.root, cold.file.name, cold.is_hot, segment.is_truncated)


# --- Repairs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a repair."""

    finding: Finding
    is_done: bool
    told: str


async def repair(
    operations: Operations,
    findings: Sequence[Finding],
    *,
    thorough: bool,
    staged_ttl_s: float = STAGED_TTL_S,
    on_step: OnStep = lambda: None,
) -> list[Outcome]:
    """Carry out the repairs of these findings, each by itself: one that fails does not keep the others. Those of a
    thorough check are done only when a thorough look says so; staged ledgers go by the age that was checked."""
    copies = {each.ledger_id: each for each in findings if each.repair is Repair.COPY and each.ledger_id is not None}
    missing: dict[LedgerId, tuple[BookieId, ...]] = {ledger: each.bookies for ledger, each in copies.items()}
    done: list[Outcome] = []

    def on_repaired(repaired: Repaired) -> None:
        done.append(Outcome(copies[repaired.ledger_id], repaired.is_whole, repaired.told))
        on_step()

    if missing:
        await repair_ledgers(operations, missing, thorough=thorough, on_repaired=on_repaired)
    named: frozenset[LedgerId] | None = None
    for finding in findings:
        if finding.repair is not None and finding.repair is not Repair.COPY:
            try:
                if finding.repair is Repair.DELETE_EMPTY and named is None:
                    named = frozenset().union(*(each.ledger_ids for each in await read_streams(operations)))
                told = await _tidy(operations, finding, staged_ttl_s, named or frozenset())
                done.append(Outcome(finding, True, told))
            except QuireError as error:
                done.append(Outcome(finding, False, str(error)))
            on_step()
    return done


async def _tidy(operations: Operations, finding: Finding, staged_ttl_s: float, named: Collection[LedgerId]) -> str:
    """`named` are the ledgers that streams name by now."""
    if finding.repair is Repair.SWEEP_STAGED:
        return await _sweep_staged(operations, finding, staged_ttl_s)
    if finding.repair is Repair.DELETE_EMPTY and finding.ledger_id is not None:
        return await _delete_empty(operations, finding.ledger_id, named)
    return await _clear_allocation(operations, finding)


async def _delete_empty(operations: Operations, ledger: LedgerId, named: Collection[LedgerId]) -> str:
    if ledger in named:
        raise VersionConflict(f"a stream names ledger {ledger} by now, and it stays")
    ledgers = operations.cluster.ledgers
    try:
        stored = await ledgers.read(ledger)
    except NoSuchLedger:
        return "it is gone by now"
    if stored.metadata.state is not LedgerState.CLOSED or stored.metadata.last_entry_id != NO_ENTRY:
        raise VersionConflict(f"ledger {ledger} is not empty any more, and stays")
    await ledgers.remove(ledger, expected=stored.version)
    return "deleted"


async def _sweep_staged(operations: Operations, finding: Finding, ttl_s: float) -> str:
    """As a sink does now and then: a ledger that is published meanwhile stays."""
    namespace, stream = _stream_of(operations, finding)
    context = StreamContext(
        operations.runtime, namespace.store, operations.ledgers, namespace.path, namespace.binding, this_client()
    )
    return f"{await sweep(context, stream, older_than_s=ttl_s)} deleted"


async def _clear_allocation(operations: Operations, finding: Finding) -> str:
    """Under the lock of the stream's writers, so that nobody allocates meanwhile."""
    namespace, stream = _stream_of(operations, finding)
    paths, store, rng = StreamPaths(namespace.path, stream), namespace.store, operations.runtime.rng
    async with hold_lock_as(
        store, rng, paths.lock, client_id=this_client(), timeout_s=0, shown=f"stream {paths.stream!r}"
    ):
        node = await store.get(paths.allocation)
        if decode_allocation(node.data) != finding.ledger_id or finding.ledger_id is None:
            return "another ledger is allocated by now"
        try:
            await operations.cluster.ledgers.read(finding.ledger_id)
        except NoSuchLedger:
            await store.set(paths.allocation, encode_allocation(None), expected=node.stat.version)
            return "forgotten"
        raise VersionConflict(f"ledger {finding.ledger_id} exists by now, and stays allocated")


def _stream_of(operations: Operations, finding: Finding) -> tuple[OpenNamespace, str]:
    """The stream that a finding is about."""
    for namespace in operations.namespaces:
        prefix = f"{namespace.uri.rstrip('/')}/"
        if finding.stream is not None and finding.stream.startswith(prefix):
            return namespace, finding.stream.removeprefix(prefix)
    raise NoSuchNode(f"{finding.subject} is in no namespace that was given")
