"""When the answer to a write is lost, the views find out what happened, or say that they do not know. Never a lie.

Nor does a write come after its client has looked whether it happened, and gone on from what it saw.
"""

import asyncio

import pytest
from tests.support.flaky_driver import FlakyDriver

from quire.codec.cookie import Cookie
from quire.codec.registration import BookieServiceInfo
from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, Outcome, SessionExpired
from quire.metadata import (
    BookieListing,
    Cluster,
    MetadataStore,
    StoredLedger,
    hold_lock,
    init_cluster,
    lock_owners,
    parse_uri,
)
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.settings import StoreSettings
from quire.metadata.underreplication import Underreplication
from quire.runtime import real_runtime
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

METADATA = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))

LOOKS = ["ok", "ok"]  # At both lists of bookies, before a registration changes them.


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


@pytest.mark.parametrize("plan", [["unavailable"], ["ok", "unavailable"], ["ok", "ok", "unavailable"]])
async def test_a_change_of_mode_that_failed_is_made_by_trying_again(world: World, plan: list[str]) -> None:
    bookie = BookieId("bk1:3181")
    async with world.flaky.bookies.register(bookie, BookieServiceInfo()) as registration:
        world.driver.plan = plan
        with pytest.raises(MetadataUnavailable):
            await registration.set_readonly(True)
        assert (await world.good.bookies.listing()).writable == {bookie}
        await registration.set_readonly(True)
        listing = await world.good.bookies.listing()
        assert listing.writable == frozenset()
        assert listing.readonly == {bookie}


async def test_a_registration_that_was_not_confirmed_is_recognised(world: World) -> None:
    bookie = BookieId("bk1:3181")
    world.driver.plan = [*LOOKS, "lost"]
    async with world.flaky.bookies.register(bookie, BookieServiceInfo()) as registration:
        assert (await world.good.bookies.listing()).writable == {bookie}
        world.driver.plan = [*LOOKS, "lost"]
        await registration.set_readonly(True)
        assert await world.good.bookies.listing() == BookieListing(frozenset(), frozenset({bookie}))
    assert await world.good.bookies.listing() == BookieListing(frozenset(), frozenset())


# --- Writes that are still under way when their client looks


async def test_what_was_looked_for_in_vain_does_not_come_later(world: World) -> None:
    await world.good.store.create("/a")
    version = (await world.good.store.get("/a")).stat.version
    store, driver = world.flaky.store, world.driver
    for write in (
        lambda: store.create("/new"),
        lambda: store.set("/a", b"late", expected=version),
        lambda: store.delete("/a", expected=version),
    ):
        driver.plan = ["late"]
        with pytest.raises(MetadataOutcomeUnknown):
            await write()
        assert (await store.get("/a")).stat.version == version
        await driver.land()
        assert await store.exists("/new") is None
        assert (await store.get("/a")).stat.version == version


async def test_a_cancelled_write_does_not_come_after_the_next_look_either(world: World) -> None:
    """Method: the driver goes on with a write whose caller is cancelled, as etcd does."""
    store, driver = world.flaky.store, world.driver
    sent = asyncio.Event()

    async def commit(ops: object) -> None:
        driver._late.append(ops)  # type: ignore[arg-type]
        sent.set()
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "commit", commit)
        writing = asyncio.create_task(store.create("/new"))
        await sent.wait()
        writing.cancel()
        await asyncio.wait([writing])
    assert await store.exists("/new") is None
    await driver.land()
    assert await store.exists("/new") is None


async def test_a_write_does_not_move_to_the_session_that_begins_while_doubts_are_settled(world: World) -> None:
    """Who asked for it took the node for one of the session before, and would never delete it."""
    store, driver = world.flaky.store, world.driver
    driver.plan = ["late"]
    with pytest.raises(MetadataOutcomeUnknown):
        await store.create("/a", ephemeral=True)
    settle = driver.settle

    async def settle_in_the_next_session() -> None:
        world.tree.expire(driver.session)
        await settle()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "settle", settle_in_the_next_session)
        with pytest.raises(SessionExpired):
            await store.create("/b", ephemeral=True)
    assert await store.exists("/b") is None
    await store.create("/b", ephemeral=True)


async def test_a_ledger_that_was_created_twice_and_removed_does_not_come_back(world: World) -> None:
    await world.good.ledgers.create(METADATA, with_id=6)
    world.driver.plan = ["late"]
    await world.flaky.ledgers.create(METADATA, with_id=7)
    await world.flaky.ledgers.remove(LedgerId(7))
    await world.driver.land()
    assert await world.ledgers() == [6]


async def test_an_update_that_was_given_up_after_a_look_never_happens(world: World) -> None:
    stored = await _open_ledger(world)
    calls = 0

    def close_at_once_or_not_at_all(metadata: LedgerMetadata) -> LedgerMetadata | None:
        nonlocal calls
        calls += 1
        return _close(metadata) if calls == 1 else None

    world.driver.plan = ["late"]
    found = await world.flaky.ledgers.update(stored, close_at_once_or_not_at_all)
    assert found.metadata.state is LedgerState.OPEN
    await world.driver.land()
    assert (await world.good.ledgers.read(stored.ledger_id)).metadata.state is LedgerState.OPEN


async def test_a_lock_that_was_given_up_is_not_queued_for_later(world: World) -> None:
    await world.good.store.create("/lock")
    world.driver.plan = ["late"]
    with pytest.raises(MetadataOutcomeUnknown):
        async with hold_lock(world.flaky.store, "/lock", real_runtime().rng, owner=b"me"):
            raise AssertionError("held")
    await world.driver.land()
    assert await lock_owners(world.good.store, "/lock") == []


async def test_the_lock_of_a_ledger_that_was_not_had_does_not_come_later(world: World) -> None:
    """Else nobody repairs the ledger as long as the session lasts."""
    runtime, root = real_runtime(), world.good.paths.root
    good = Underreplication(world.good.store, root, runtime, "good")
    flaky = Underreplication(world.flaky.store, root, runtime, "flaky")
    await good.prepare()
    async with flaky.locked(LedgerId(5)) as lock:
        assert lock is not None
    world.driver.plan = ["late"]
    async with flaky.locked(LedgerId(7)) as lock:
        assert lock is None
    await world.driver.land()
    assert await good.lock_holder(LedgerId(7)) is None


async def test_a_bookie_that_gave_up_registering_is_not_listed_later(world: World) -> None:
    world.driver.plan = [*LOOKS, "late"]
    with pytest.raises(MetadataOutcomeUnknown):
        async with world.flaky.bookies.register(BookieId("bk1:3181"), BookieServiceInfo()):
            raise AssertionError("registered")
    await world.driver.land()
    assert (await world.good.bookies.listing()).writable == frozenset()


async def test_a_change_of_mode_that_is_not_wanted_any_more_does_not_come_later(world: World) -> None:
    bookie = BookieId("bk1:3181")
    async with world.flaky.bookies.register(bookie, BookieServiceInfo()) as registration:
        world.driver.plan = [*LOOKS, "late"]
        with pytest.raises(MetadataOutcomeUnknown):
            await registration.set_readonly(True)
        await registration.set_readonly(False)
        await world.driver.land()
        assert await world.good.bookies.listing() == BookieListing(frozenset({bookie}), frozenset())


async def test_a_cookie_that_was_looked_for_in_vain_is_not_stored_later(world: World) -> None:
    bookie = BookieId("bk1:3181")
    cookie = Cookie(bookie, ("/journal",), ("/data",))
    await world.good.bookies.create_cookie(Cookie(BookieId("bk2:3181"), ("/journal",), ("/data",)))
    world.driver.plan = ["late"]
    with pytest.raises(MetadataOutcomeUnknown):
        await world.flaky.bookies.create_cookie(cookie)
    assert await world.flaky.bookies.cookie(bookie) is None
    await world.driver.land()
    assert await world.good.bookies.cookie(bookie) is None
