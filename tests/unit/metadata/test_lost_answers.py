"""When the answer to a write is lost, the views find out what happened, or say that they do not know. Never a lie."""

import asyncio

import pytest
from tests.support.flaky_driver import FlakyDriver

from quire.codec.registration import BookieServiceInfo
from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, Outcome
from quire.metadata import Cluster, MetadataStore, StoredLedger, hold_lock, init_cluster, lock_owners, parse_uri
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.settings import StoreSettings
from quire.runtime import real_runtime
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

METADATA = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))


class World:
    """A cluster seen through a flaky client and through a good one."""

    def __init__(self, tree: MemoryTree, driver: FlakyDriver, flaky: Cluster, good: Cluster) -> None:
        self.tree, self.driver, self.flaky, self.good = tree, driver, flaky, good

    async def ledgers(self) -> list[int]:
        return [ledger async for ledger in self.good.ledgers.scan()]


@pytest.fixture
async def world() -> World:
    tree, uri, runtime = MemoryTree(), parse_uri("memory:"), real_runtime()
    driver = FlakyDriver(tree)
    good_store = MetadataStore(MemoryDriver(tree, StoreSettings(), runtime))
    good = await init_cluster(good_store, uri, runtime)
    return World(tree, driver, Cluster(MetadataStore(driver), uri, good.layout, runtime), good)


async def test_a_ledger_whose_creation_was_not_confirmed_is_recognised(world: World) -> None:
    await world.good.ledgers.create(METADATA, with_id=6)
    world.driver.plan = ["lost"]
    created = await world.flaky.ledgers.create(METADATA, with_id=7)
    assert created.ledger_id == 7
    assert await world.ledgers() == [6, 7]


@pytest.mark.parametrize("later", [["unavailable"], ["ok", "unavailable"], ["lost", "unavailable"]])
async def test_a_creation_that_cannot_be_looked_into_is_of_unknown_outcome(world: World, later: list[str]) -> None:
    await world.good.ledgers.create(METADATA, with_id=6)
    world.driver.plan = ["lost", *later]
    with pytest.raises(MetadataOutcomeUnknown) as caught:
        await world.flaky.ledgers.create(METADATA, with_id=7)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert await world.ledgers() == [6, 7], "it was stored: saying that it was not would be a lie"


async def test_a_creation_that_never_began_is_known_not_to_have_happened(world: World) -> None:
    world.driver.plan = ["unavailable"]
    with pytest.raises(MetadataUnavailable) as caught:
        await world.flaky.ledgers.create(METADATA, with_id=7)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert await world.ledgers() == []


async def test_a_lost_answer_to_a_new_id_costs_a_number_only(world: World) -> None:
    world.driver.plan = ["ok", "ok", "ok", "ok", "lost"]
    created = [await world.flaky.ledgers.create(METADATA) for _ in range(3)]
    assert len({ledger.ledger_id for ledger in created}) == 3
    assert await world.ledgers() == sorted(ledger.ledger_id for ledger in created)


def _close(metadata: LedgerMetadata) -> LedgerMetadata | None:
    return None if metadata.state is LedgerState.CLOSED else metadata.updated(state=LedgerState.CLOSED, length=1)


async def _open_ledger(world: World) -> StoredLedger:
    return await world.good.ledgers.create(METADATA)


async def test_an_update_that_was_not_confirmed_is_recognised(world: World) -> None:
    stored = await _open_ledger(world)
    world.driver.plan = ["lost"]
    updated = await world.flaky.ledgers.update(stored, _close)
    assert updated == await world.good.ledgers.read(stored.ledger_id)


async def test_an_update_that_cannot_be_looked_into_is_of_unknown_outcome(world: World) -> None:
    stored = await _open_ledger(world)
    world.driver.plan = ["lost", "unavailable"]
    with pytest.raises(MetadataOutcomeUnknown):
        await world.flaky.ledgers.update(stored, _close)
    assert (await world.good.ledgers.read(stored.ledger_id)).metadata.state is LedgerState.CLOSED


async def test_a_lock_whose_node_was_not_confirmed_is_held_all_the_same(world: World) -> None:
    await world.good.store.create("/lock")
    world.driver.plan = ["lost"]
    async with hold_lock(world.flaky.store, "/lock", real_runtime().rng, owner=b"me"):
        assert await lock_owners(world.good.store, "/lock") == [b"me"]
    assert await lock_owners(world.good.store, "/lock") == []


async def test_a_lock_that_could_not_be_joined_leaves_no_node_behind(world: World) -> None:
    await world.good.store.create("/lock")
    world.driver.plan = ["lost", "unavailable"]
    with pytest.raises(MetadataOutcomeUnknown):
        async with hold_lock(world.flaky.store, "/lock", real_runtime().rng, owner=b"me"):
            raise AssertionError("held")
    async with asyncio.timeout(10), hold_lock(world.good.store, "/lock", real_runtime().rng):
        pass


async def test_a_change_of_mode_that_failed_halfway_is_completed_by_trying_again(world: World) -> None:
    bookie = BookieId("bk1:3181")
    async with world.flaky.bookies.register(bookie, BookieServiceInfo()) as registration:
        world.driver.plan = ["ok", "unavailable"]  # Enter the new list; fail to look at the old one.
        with pytest.raises(MetadataUnavailable):
            await registration.set_readonly(True)
        assert bookie in (await world.good.bookies.listing()).writable
        await registration.set_readonly(True)
        listing = await world.good.bookies.listing()
        assert listing.writable == frozenset()
        assert listing.readonly == {bookie}


async def test_a_registration_that_was_not_confirmed_is_recognised(world: World) -> None:
    bookie = BookieId("bk1:3181")
    world.driver.plan = ["lost"]
    async with world.flaky.bookies.register(bookie, BookieServiceInfo()):
        assert (await world.good.bookies.listing()).writable == {bookie}
    assert (await world.good.bookies.listing()).writable == frozenset()
