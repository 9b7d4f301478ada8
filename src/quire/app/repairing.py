"""Give ledgers back the copies that they lack, now, from a command: marks, and a worker of autorecovery of our own.

The marks are those that an auditor sets, so that every worker of the cluster helps, and that what this command leaves
undone is not forgotten. The copying is `quire.replication.worker`'s. Here is only the waiting, and what is told: which
ledgers are whole, and of each other one what keeps it.

Invariants:
  AskedOnly      our worker takes no other marked ledgers: it would shut out writers that nobody spoke of.
  SeenWhole      what a thorough look found is looked at as thoroughly before it is called whole. Other workers may look
                 at samples only, and remove a mark too early: then it is set once more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from quire.app.inventory import Operations
from quire.errors import NoSuchLedger, QuireError
from quire.ledger.repair.fragment_check import check_ledger, plain_reader
from quire.ledger.repair.replica_reads import check_replicas
from quire.metadata.underreplication import Underreplication
from quire.replication.metrics import AutorecoveryMetrics
from quire.replication.settings import AutorecoverySettings
from quire.replication.worker import Worker
from quire.stream.namespace import this_client
from quire.types import BookieId, EntryId, LedgerId, ledger_id
from quire.values import dataclass

_LOOK_S: Final = 0.2
_TRIES: Final = 2
_LOOKED_AT: Final = 64  # Marks that are looked at in a turn, so that the store has time for others.
_SETTINGS: Final = AutorecoverySettings(bytes_per_s=0, failed_ledger_backoff_s=32.0, failure_pause_s=1.0, idle_s=1.0)
_PATIENCE_S: Final = _SETTINGS.open_ledger_grace_s + 10.0  # A writer has its time, and then its ledger is closed.


@dataclass(frozen=True, slots=True)
class Repaired:
    """What came of one ledger."""

    ledger_id: LedgerId
    is_whole: bool
    told: str


def marks_of(operations: Operations) -> Underreplication:
    cluster = operations.cluster
    return Underreplication(cluster.store, cluster.uri.root, operations.runtime, this_client().replace("/", "-"))


async def repair_ledgers(
    operations: Operations,
    missing: Mapping[LedgerId, Sequence[BookieId]],
    *,
    bytes_per_s: float = 0.0,
    patience_s: float = _PATIENCE_S,
    thorough: bool = False,
    on_repaired: Callable[[Repaired], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> list[Repaired]:
    """Mark these ledgers, and work until each is whole, or nothing has got on for `patience_s`.

    A `thorough` repair reads every copy of every entry; else the first and the last of each fragment tell. `on_bytes`
    is told how much was copied in all. Ledgers that are left keep their marks: autorecovery goes on with them. Raises
    what the metadata store raises.
    """
    marks, clock = marks_of(operations), operations.runtime.clock
    metrics = AutorecoveryMetrics(clock.monotonic)
    await marks.prepare()
    for ledger, bookies in missing.items():
        await marks.mark(ledger, bookies)
    settings = replace(_SETTINGS, bytes_per_s=bytes_per_s, verification_percentage=100.0 if thorough else 0.0)
    worker = Worker(operations.ledgers, operations.cluster, marks, clock, settings, metrics, among=missing)
    working = asyncio.create_task(worker.run(), name="repair")
    done: list[Repaired] = []
    waiting = dict.fromkeys(missing)
    disproved: Counter[LedgerId] = Counter()
    moved, moved_s = 0, clock.monotonic()

    def tell(repaired: Repaired) -> None:
        done.append(repaired)
        on_repaired(repaired)

    try:
        while waiting:
            for ledger in list(waiting)[:_LOOKED_AT]:
                del waiting[ledger]  # To the end of the line, unless it is done.
                waiting[ledger] = None
                if await marks.read_mark(ledger) is None:
                    moved_s = clock.monotonic()
                    problem = await bad_copies(operations, ledger) if thorough else None
                    disproved[ledger] += problem is not None
                    if problem is not None and disproved[ledger] < _TRIES:
                        await marks.mark(ledger, missing[ledger])
                        continue
                    del waiting[ledger]
                    tell(Repaired(ledger, problem is None, problem or "whole"))
            if metrics.bytes_written.value != moved:
                moved, moved_s = metrics.bytes_written.value, clock.monotonic()
                on_bytes(moved)
            if working.done():
                working.result()
            has_tried = metrics.deferred.value >= _TRIES * len(waiting)  # As good as twice each.
            if has_tried or clock.monotonic() - moved_s > patience_s:
                break
            await clock.sleep(_LOOK_S)
    finally:
        working.cancel()
        await asyncio.wait([working])
    for ledger in waiting:
        holder = await marks.lock_holder(ledger)
        busy = f"{holder or 'somebody'} works on it; " if holder is not None else ""
        tell(Repaired(ledger, False, busy + await what_blocks(operations, ledger, thorough=thorough)))
    return done


async def bad_copies(operations: Operations, ledger: LedgerId) -> str | None:
    """What every copy of every entry, read now, is short of; None if nothing is, or if the ledger is deleted."""
    try:
        stored = await operations.cluster.ledgers.read(ledger)
        found = await check_replicas(
            operations.ledgers,
            stored,
            EntryId(0),
            EntryId(stored.metadata.last_entry_id + 1),
            password=stored.metadata.password or b"",
            timeout_s=operations.timeout_s,
        )
    except NoSuchLedger:
        return None
    if not found.bad:
        return None
    first = found.bad[0]
    more = f", and {len(found.bad) - 1} more copies are not as they should be" if len(found.bad) > 1 else ""
    return f"entry {first.entry_id} is {first.problem} on {first.bookie}: {first.detail}{more}"


async def repair_one(operations: Operations, ledger: int) -> Repaired:
    """Look at one ledger, and repair it if that is needed. Raises `NoSuchLedger`."""
    stored = await operations.cluster.ledgers.read(ledger_id(ledger))
    listing = await operations.cluster.bookies.listing()
    bad = await check_ledger(plain_reader(operations.ledgers, stored), listing.writable | listing.readonly)
    if not bad:
        return Repaired(stored.ledger_id, True, "every bookie has what it should")
    missing = {stored.ledger_id: [bookie for each in bad for bookie in each.bookies]}
    return (await repair_ledgers(operations, missing))[0]


async def what_blocks(operations: Operations, ledger: LedgerId, *, thorough: bool = False) -> str:
    """Why a ledger does not get its copies, in words: from what its bookies say now."""
    listing = await operations.cluster.bookies.listing()
    try:
        reader = plain_reader(operations.ledgers, await operations.cluster.ledgers.read(ledger))
        percentage = 100.0 if thorough else 0.0
        bad = await check_ledger(reader, listing.writable | listing.readonly, percentage=percentage)
    except NoSuchLedger:
        return "it was deleted"
    except QuireError as error:
        return str(error)
    if not bad:
        return "it is whole by now, and its mark goes with the next look of a worker"
    reasons = []
    for each in bad:
        spare = listing.writable - set(each.span.bookies)
        lacking = ", ".join(f"{each.span.bookies[place]} ({why})" for place, why in each.problems.items())
        where = (
            f"entries {each.span.first} to {each.span.last}" if not each.span.is_empty else "its empty last fragment"
        )
        if not each.span.is_closed:
            reasons.append(f"{where}: it is still being written; it lacks {lacking}")
        elif len(spare) < len(each.problems):
            needed = f"{len(each.problems)} other writable bookies are needed, there are {len(spare)}"
            reasons.append(f"{where} lack {lacking}: {needed}")
        else:
            reasons.append(f"{where} lack {lacking}: they could not be copied yet")
    return "; ".join(reasons)
