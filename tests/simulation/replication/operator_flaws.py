"""Bugs that operators' commands, and bookies that tidy up behind them, could have. As in `flaws.py`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from quire.app import decommission, rebalance, repairing
from quire.bookie.moved_ledgers import MovedLedgers
from quire.ledger.repair import fragment_copy
from quire.metadata.driver import ANY_VERSION
from quire.metadata.ledgers import Ledgers
from quire.metadata.underreplication import LedgerLock, Underreplication
from quire.protocol import repair
from tests.simulation.harness import Flaw, Patch
from tests.simulation.replication.workloads import WORKLOADS


def garbage_collection_trusts_an_old_listing() -> Patch:
    """A bookie that once found a ledger moved away believes it for good, though the ledger may come back."""
    is_moved, known = MovedLedgers.is_moved, set[tuple[Any, Any]]()

    async def once_and_for_all(self: Any, ledger_id: Any) -> bool:
        if (self, ledger_id) not in known and await is_moved(self, ledger_id):
            known.add((self, ledger_id))
        return (self, ledger_id) in known

    return patch.object(MovedLedgers, "is_moved", once_and_for_all)


@contextmanager
def garbage_collection_takes_no_lock() -> Iterator[None]:
    """A bookie tidies up a ledger while somebody copies it there: the metadata does not name it yet."""

    @asynccontextmanager
    async def unlocked(self: Any, ledger_id: Any) -> AsyncIterator[bool]:
        yield await self.is_moved(ledger_id)

    with patch.object(MovedLedgers, "certainly", unlocked):
        yield


@contextmanager
def rebalancing_names_the_taker_first() -> Iterator[None]:
    """The metadata gives up the old copy before the new one is there."""
    copy, publish, later = fragment_copy.copy_entries, rebalance._publish, list[Any]()

    async def not_yet(*args: Any, **named: Any) -> None:
        later.append((args, named))

    async def at_once(*args: Any) -> Any:
        stored = await publish(*args)
        positional, named = later.pop()
        await copy(*positional, **named)
        return stored

    with patch.object(rebalance, "copy_entries", not_yet), patch.object(rebalance, "_publish", at_once):
        yield


@contextmanager
def rebalancing_asks_nobody() -> Iterator[None]:
    """No lock is held, and the metadata is written as it was read at the start of the move, whatever its version."""
    obstacle, seen = rebalance._obstacle, dict[Any, Any]()

    async def noting(operations: Any, stored: Any, move: Any) -> Any:
        seen[move] = stored
        return await obstacle(operations, stored, move)

    async def blindly(operations: Any, move: Any, span: Any, place: int, lock: Any) -> Any:
        change = {place: repair.Exchange(move.source, move.target)}
        changed = repair.exchanged(seen[move].metadata, span.first, change)
        ledgers: Ledgers = operations.cluster.ledgers
        if changed is not None:
            await ledgers.write(move.ledger_id, changed, expected=ANY_VERSION)
        seen[move] = await ledgers.read(move.ledger_id)
        return seen[move]

    with (
        patch.object(rebalance, "_obstacle", noting),
        patch.object(rebalance, "_publish", blindly),
        _rebalancing_without_locks(),
    ):
        yield


@contextmanager
def _rebalancing_without_locks() -> Iterator[None]:
    marks_of = repairing.marks_of

    class Unlocked(Underreplication):
        @asynccontextmanager
        async def locked(self, ledger_id: Any) -> AsyncIterator[Any]:
            yield self

    def unlocked(operations: Any) -> Any:
        found = marks_of(operations)
        found.__class__ = Unlocked
        return found

    with patch.object(rebalance, "marks_of", unlocked):
        yield


@contextmanager
def decommissioning_does_not_look_again() -> Iterator[None]:
    """What was to be copied is taken to be copied: ledgers that were left still name the bookie when it is let go."""
    held_by, repair_ledgers, has_tried = decommission.held_by, repairing.repair_ledgers, list[bool]()

    async def noting(*args: Any, **named: Any) -> Any:
        done = await repair_ledgers(*args, **named)
        has_tried.append(True)
        return done

    async def once(operations: Any, bookie: Any) -> Any:
        return [] if has_tried and has_tried.pop() else await held_by(operations, bookie)

    with patch.object(decommission, "held_by", once), patch.object(decommission, "repair_ledgers", noting):
        yield


def repairs_go_on_without_the_lock() -> Patch:
    """A worker that has lost its lock changes the metadata all the same, though its copies may be gone."""
    return patch.object(LedgerLock, "guard", lambda _: None)


FLAWS = [
    Flaw(garbage_collection_trusts_an_old_listing, WORKLOADS["replication/growing"], 30),
    Flaw(garbage_collection_takes_no_lock, WORKLOADS["replication/growing"], 150),
    Flaw(rebalancing_names_the_taker_first, WORKLOADS["replication/growing"], 30),
    Flaw(rebalancing_asks_nobody, WORKLOADS["replication/growing"], 150),
    Flaw(repairs_go_on_without_the_lock, WORKLOADS["replication/lost_lock"], 30),
    Flaw(decommissioning_does_not_look_again, WORKLOADS["replication/nowhere"], 10),
]
