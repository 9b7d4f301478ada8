"""After damage to a journal: which ledgers are in limbo, which are fenced as well, what they still do, and how they
come out of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.unit.bookie.storage_samples import FOLDER, SETTINGS, StorageHost, body

from quire.bookie.integrity import Limbo, settle_damage
from quire.bookie.ledger_storage import Absence
from quire.codec.digest import master_key
from quire.codec.journal import SECTOR
from quire.errors import MetadataUnavailable
from quire.metadata import Cluster
from quire.metadata.drivers.memory import MemoryDriver
from quire.metadata.underreplication import Underreplication
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


SETTLED = {OPEN: "limbo", RECOVERING: "limbo fenced", LEFT: "limbo", CLOSED: "limbo fenced"}


def test_ledgers_that_name_the_bookie_are_in_limbo_and_those_that_may_have_been_fenced_are() -> None:
    """A fence may be among what was lost: of a ledger that is being recovered, or was. One that is open had none, since
    a recovery says first that it begins; its writer has to hear of a bookie that failed, and not of a fence."""

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
        assert add(host, lost, 0) is Refusal.IN_LIMBO
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


# --- Out of limbo


async def closed(cluster: Cluster, ledger_id: LedgerId, *fragments: Fragment, last: int) -> None:
    """The ledger ends with the entry `last`, and these are its fragments."""

    def close(metadata: LedgerMetadata) -> LedgerMetadata:
        end = {"state": LedgerState.CLOSED, "last_entry_id": EntryId(last)}
        return replace(metadata, fragments=fragments, **end)  # type: ignore[arg-type]

    await cluster.ledgers.update(await cluster.ledgers.read(ledger_id), close)


def limbo_of(host: StorageHost, cluster: Cluster) -> tuple[Limbo, Underreplication]:
    runtime = host.host.runtime
    return Limbo(host.storage, cluster, runtime, ME), Underreplication(cluster.store, cluster.uri.root, runtime, "test")


def test_a_ledger_leaves_limbo_when_all_that_should_be_here_is_and_is_fenced_unless_it_is_open() -> None:
    """Entries 0 to 10 belong here: 0 was in the index, and the others come as copies. Until then it is marked."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        limbo, marks = limbo_of(host, cluster)
        assert await limbo.look() == [OPEN, RECOVERING, LEFT, CLOSED]
        assert {each.ledger_id: each.replicas async for each in marks.marks()} == {LEFT: (ME,), CLOSED: (ME,)}
        for ledger_id in (LEFT, CLOSED):
            for entry_id in range(1, 10):
                add(host, ledger_id, entry_id, recovery=True)
        assert await limbo.look() == [OPEN, RECOVERING, CLOSED], "entry 10 of the closed one lacks"
        add(host, CLOSED, 10, recovery=True)
        assert await limbo.look([OPEN, CLOSED]) == [OPEN]
        assert gates(host) == {**SETTLED, LEFT: "", CLOSED: " fenced"}
        assert await host.storage.read(LEFT, EntryId(10)) is Absence.NO_ENTRY
        assert isinstance(add(host, LEFT, 10), int), "its writer may choose this bookie again"
        assert add(host, CLOSED, 11) is Refusal.FENCED
        await host.storage.checkpoint()
        await host.crash()
        await host.open()
        assert gates(host) == {**SETTLED, LEFT: "", CLOSED: " fenced"}
        assert host.storage.table.has_limbo

    after_damage(check)


def test_a_hole_in_the_middle_keeps_a_ledger_in_limbo() -> None:
    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        limbo, marks = limbo_of(host, cluster)
        for entry_id in (1, 2, 3, 4, 6, 7, 8, 9, 10):
            add(host, CLOSED, entry_id, recovery=True)
        assert await limbo.look([CLOSED]) == [CLOSED]
        assert await marks.read_mark(CLOSED) is not None
        assert await host.storage.read(CLOSED, EntryId(5)) is Absence.UNKNOWN

    after_damage(check)


def test_a_writer_keeps_its_bookie_in_limbo_until_the_ledger_is_closed() -> None:
    """Also behind a new fragment: another bookie may have been replaced, and what this one acknowledged counts."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        limbo, marks = limbo_of(host, cluster)
        stored = await cluster.ledgers.read(OPEN)
        longer = (*stored.metadata.fragments, Fragment(EntryId(11), (ME,)))
        add(host, OPEN, 10, recovery=True)
        await cluster.ledgers.update(stored, lambda metadata: replace(metadata, fragments=longer))
        assert await limbo.look([OPEN]) == [OPEN]
        assert await marks.read_mark(OPEN) is None, "its writer may be at work"
        await closed(cluster, OPEN, *longer, last=11)
        assert await limbo.look([OPEN]) == [OPEN]
        add(host, OPEN, 11, recovery=True)
        assert await limbo.look([OPEN]) == []
        assert gates(host)[OPEN] == " fenced"

    after_damage(check)


def test_what_is_named_nowhere_or_disabled_or_being_repaired_is_not_marked() -> None:
    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        limbo, marks = limbo_of(host, cluster)
        async with marks.locked(CLOSED):
            await limbo.look([CLOSED])
        await marks.disable()
        await limbo.look([CLOSED])
        assert await marks.read_mark(CLOSED) is None
        await closed(cluster, CLOSED, Fragment(EntryId(0), (OTHER,)), last=10)  # The copies were made elsewhere.
        assert await limbo.look([CLOSED]) == []
        await cluster.ledgers.remove(LEFT)
        assert await limbo.look([LEFT]) == [LEFT], "garbage collection deletes it"

    after_damage(check)


def test_the_last_ledger_that_leaves_limbo_ends_the_search() -> None:
    """Also while the metadata is out of reach at first."""

    async def check(host: StorageHost, cluster: Cluster) -> None:
        await settle_damage(host.storage, cluster, ME)
        for ledger_id in SETTLED:
            stored = await cluster.ledgers.read(ledger_id)
            await closed(cluster, ledger_id, *stored.metadata.fragments[:1], last=0)
        driver = cluster.store._driver
        kind, driver.__class__ = type(driver), Away
        limbo, _ = limbo_of(host, cluster)
        running = asyncio.create_task(limbo.run())
        await asyncio.sleep(5.0)
        assert host.storage.table.has_limbo
        driver.__class__ = kind
        await running
        assert set(gates(host).values()) == {" fenced"}
        await host.storage.checkpoint()
        await host.crash()
        await host.open()
        assert not host.storage.table.has_limbo

    after_damage(check)
