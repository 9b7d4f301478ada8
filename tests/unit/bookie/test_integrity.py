"""After damage to a journal: which ledgers are in limbo, which are fenced as well, and what they still do."""

from collections.abc import Awaitable, Callable

import pytest
from tests.unit.bookie.storage_samples import FOLDER, SETTINGS, StorageHost, body

from quire.bookie.integrity import settle_damage
from quire.bookie.ledger_storage import Absence
from quire.codec.digest import master_key
from quire.codec.journal import SECTOR
from quire.errors import MetadataUnavailable
from quire.metadata import Cluster
from quire.metadata.drivers.memory import MemoryDriver
from quire.protocol.fencing import Refusal
from quire.testing import Simulation, sim_cluster, simulate
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

ME, OTHER = BookieId("me:3181"), BookieId("other:3181")
PASSWORD = b"secret"
KEY = master_key(PASSWORD)


def ledger(*bookies: BookieId, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    """One fragment for each of `bookies`."""
    last = EntryId(10 * len(bookies)) if state is LedgerState.CLOSED else NO_ENTRY
    fragments = tuple(Fragment(EntryId(10 * number), (bookie,)) for number, bookie in enumerate(bookies))
    return LedgerMetadata(Quorum(1, 1, 1), fragments, state, last, password=PASSWORD)


OPEN, RECOVERING, LEFT, CLOSED, FOREIGN, UNHEARD_OF = (LedgerId(number) for number in range(6))
LEDGERS = {
    OPEN: ledger(OTHER, ME),
    RECOVERING: ledger(ME, state=LedgerState.IN_RECOVERY),
    LEFT: ledger(ME, OTHER),  # Still open, but this bookie takes no more of it.
    CLOSED: ledger(ME, state=LedgerState.CLOSED),
    FOREIGN: ledger(OTHER),
}


def after_damage(check: Callable[[StorageHost, Cluster], Awaitable[None]]) -> None:
    """Run `check` on a storage that has just found damage. In its index is entry 0 of each ledger but the last two."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            for ledger_id, metadata in LEDGERS.items():
                await cluster.ledgers.create(metadata, with_id=ledger_id)
            host = StorageHost(sim, journals=1, settings=SETTINGS)
            await host.open()
            for ledger_id in (OPEN, RECOVERING, LEFT, CLOSED):
                add(host, ledger_id, 0)
            await host.storage.checkpoint()
            add(host, OPEN, 1)
            await host.storage.journals.wait_durable(OPEN, host.storage.journals.of(OPEN).last)
            mark = host.storage.journals.marks[0]
            await host.crash()
            host.disk.flip_bit(f"{FOLDER}/journal0/{mark.file_id:016x}.journal", mark.offset - SECTOR + 60)
            await host.open()
            assert host.storage.damages
            await check(host, cluster)

    simulate(1, main)


def add(host: StorageHost, ledger_id: LedgerId, entry_id: int, *, recovery: bool = False) -> int | Refusal:
    content = body(entry_id, ledger_id=ledger_id)
    return host.storage.add(ledger_id, EntryId(entry_id), NO_ENTRY, content, KEY, recovery=recovery)


def gates(host: StorageHost) -> dict[LedgerId, str]:
    found = {}
    for ledger_id in (*LEDGERS, UNHEARD_OF):
        each = host.storage.table.find(ledger_id)
        if each is not None:
            found[ledger_id] = "limbo" * each.gate.limbo + " fenced" * each.gate.fenced
    return found


SETTLED = {OPEN: "limbo fenced", RECOVERING: "limbo fenced", LEFT: "limbo", CLOSED: "limbo"}


def test_ledgers_that_name_the_bookie_are_in_limbo_and_those_it_may_still_write_fenced() -> None:
    """A fence may be among what was lost. Where another bookie is in the last ensemble, no fence of ours matters."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        assert await settle_damage(host.storage, cluster, ME) == 4
        assert gates(host) == SETTLED
        await host.crash()
        await host.open()
        assert (gates(host), host.storage.damages) == (SETTLED, [])

    after_damage(check)


def test_a_ledger_that_was_lost_whole_is_known_again() -> None:
    """All that was here of it was in the group that does not read any more."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        lost = LedgerId(7)
        await cluster.ledgers.create(ledger(ME), with_id=lost)
        assert host.storage.table.find(lost) is None
        assert await settle_damage(host.storage, cluster, ME) == 5
        assert await host.storage.read(lost, EntryId(0)) is Absence.UNKNOWN
        assert add(host, lost, 0) is Refusal.FENCED
        assert isinstance(host.storage.fence(lost, KEY), int), "it has the key that the metadata says"

    after_damage(check)


def test_ledgers_that_do_not_name_the_bookie_are_certain_once_it_is_settled() -> None:
    async def check(host: StorageHost, cluster: Cluster) -> None:
        for ledger_id in (FOREIGN, UNHEARD_OF):
            assert await host.storage.read(ledger_id, EntryId(0)) is Absence.UNKNOWN
        await settle_damage(host.storage, cluster, ME)
        for ledger_id in (FOREIGN, UNHEARD_OF):
            assert await host.storage.read(ledger_id, EntryId(0)) is Absence.NO_LEDGER
        assert isinstance(add(host, UNHEARD_OF, 0), int)
        assert await host.storage.read(UNHEARD_OF, EntryId(1)) is Absence.NO_ENTRY

    after_damage(check)


@pytest.mark.parametrize("ledger_id", SETTLED)
def test_a_ledger_in_limbo_serves_what_it_has_takes_no_adds_and_can_be_recovered(ledger_id: LedgerId) -> None:
    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        storage = host.storage
        assert await storage.read(ledger_id, EntryId(0)) == body(0, ledger_id=ledger_id)
        for missing in (1, 9):
            assert await storage.read(ledger_id, EntryId(missing)) is Absence.UNKNOWN
        assert storage.last_entry_id(ledger_id) is Absence.UNKNOWN
        assert await storage.availability(ledger_id) is Absence.UNKNOWN
        assert add(host, ledger_id, 1) is (Refusal.FENCED if "fenced" in SETTLED[ledger_id] else Refusal.IN_LIMBO)
        assert storage.add(ledger_id, EntryId(1), NO_ENTRY, body(1), b"w" * 20, recovery=True) is Refusal.WRONG_KEY
        assert isinstance(storage.fence(ledger_id, KEY), int)
        assert add(host, ledger_id, 1) is Refusal.FENCED
        assert isinstance(add(host, ledger_id, 1, recovery=True), int)
        assert await storage.read(ledger_id, EntryId(1)) == body(1, ledger_id=ledger_id)

    after_damage(check)


class Away(MemoryDriver):
    """A store that nobody reaches."""

    async def _reach(self) -> None:
        raise MetadataUnavailable("the store is away")


def test_damage_that_could_not_be_settled_is_settled_at_the_next_start() -> None:
    """The journal with the damage is gone by then: the index remembers."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        driver = cluster.store._driver
        kind, driver.__class__ = type(driver), Away
        with pytest.raises(MetadataUnavailable):
            await settle_damage(host.storage, cluster, ME)
        driver.__class__ = kind
        await host.crash()
        await host.open()
        assert (host.storage.damages, host.storage.table.is_damaged) == ([], True)
        assert await host.storage.read(UNHEARD_OF, EntryId(0)) is Absence.UNKNOWN
        await settle_damage(host.storage, cluster, ME)
        assert gates(host) == SETTLED

    after_damage(check)
