"""What nobody may do who looks after ledgers, judged at the very moment, whoever it is and however well it ends.

NamedIsKept     a bookie never drops a ledger that exists, unless it is closed and its metadata names others only.
CopiesFirst     whenever the metadata of a closed ledger comes to name a bookie, that bookie has every entry of its
                place. So an entry has its write quorum at every moment of a move, as far as disks last.
SameShape       nobody but a writer or a recovery adds or removes a fragment, or a place of one.
"""

import asyncio
import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.bookie.bookie import Bookie
from quire.bookie.index import DeleteLedger
from quire.codec.wire.availability import EntryAvailability
from quire.ledger.repair.fragment_check import members_of
from quire.protocol.fragments import spans_of
from quire.testing import SimBookie
from quire.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, bookie_id

if TYPE_CHECKING:
    from tests.simulation.replication.operations_world import OperationsWorld


class WatchedBookie(SimBookie):
    """Tells its world of each ledger that it is about to drop."""

    world: "OperationsWorld"

    async def start(self) -> Bookie:
        bookie = await super().start()
        table = bookie.service.storage.table
        begin_drop = table.begin_drop

        def watched(ledger_ids: Iterable[LedgerId], **named: Any) -> Any:
            operations = begin_drop(ledger_ids, **named)
            for operation in operations:
                if isinstance(operation, DeleteLedger):
                    self.world.on_dropped(bookie_id(self.host.name), operation.ledger_id)
            return operations

        table.begin_drop = watched  # type: ignore[method-assign]
        return bookie


def drop_problem(bookie: BookieId, metadata: LedgerMetadata | None) -> str | None:
    """Why a bookie may not drop a ledger of which this is the metadata now."""
    if metadata is None:
        return None  # It was deleted.
    if metadata.state is not LedgerState.CLOSED:
        return f"{bookie} drops a ledger that is not closed: {metadata}"
    if bookie in members_of(metadata):
        return f"{bookie} drops a ledger that names it: {metadata}"
    return None


class Claims:
    """Every bookie that the metadata of closed ledgers comes to name is asked at once for what it has."""

    def __init__(self, world: "OperationsWorld") -> None:
        self._world = world
        self._asking: set[asyncio.Task[None]] = set()

    def on_changed(self, host: str, ledger_id: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """The metadata of a closed ledger was changed by somebody."""
        shapes = [[(each.first_entry_id, len(set(each.bookies))) for each in one.fragments] for one in (old, new)]
        if shapes[0] != shapes[1]:
            self._world.violations.append(f"{host} changed the shape of ledger {ledger_id}: {old} to {new}")
            return
        for before, span in zip(old.fragments, spans_of(new, new.last_entry_id), strict=True):
            for place, bookie in enumerate(span.bookies):
                if bookie not in before.bookies:
                    wanted = list(span.entries_of(place, new.quorum))
                    # In no context: whoever made the change may crash, and this has to be found out nevertheless.
                    task = asyncio.get_running_loop().create_task(
                        self._check(host, ledger_id, bookie, wanted), context=contextvars.Context()
                    )
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)

    async def settle(self) -> None:
        if self._asking:
            await asyncio.wait(tuple(self._asking))

    async def _check(self, host: str, ledger_id: LedgerId, name: BookieId, wanted: list[EntryId]) -> None:
        world = self._world
        bookie = next((each for each in world.bookies if each.host.name == name), None)
        if bookie is None or not bookie.is_running or name in world.lost:
            world.events["copies not counted"] += 1
            return
        found = await bookie.bookie.service.storage.availability(ledger_id)
        here = found if isinstance(found, EntryAvailability) else EntryAvailability.of(())
        missing = [entry_id for entry_id in wanted if entry_id not in here]
        world.events["copies counted"] += len(wanted)
        if missing and bookie.is_running and world.metadata_of(ledger_id) is not None:
            world.violations.append(f"{host} had ledger {ledger_id} name {name}, which lacks entries {missing}")
