"""Bookie registration and cookies over any store."""

import asyncio
from collections.abc import Sequence

import pytest

from quire.codec.cookie import Cookie
from quire.codec.registration import BookieServiceInfo, Endpoint
from quire.errors import (
    BookieRegistered,
    DamagedMetadata,
    InvalidName,
    NodeExists,
    NoSuchNode,
    StoreClosed,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, BookieListing, Cluster, MetadataStore, attach_cluster
from quire.metadata.driver import Op, Written
from quire.runtime import real_runtime
from quire.types import BookieId
from tests.contract.metadata.backends import Backend, expire
from tests.contract.metadata.clusters import new_cluster
from tests.support.waiting import eventually

BK1, BK2, FOUR = BookieId("bk1:3181"), BookieId("bk2:3181"), BookieId("bookie-four")


def info(host: str = "bk1") -> BookieServiceInfo:
    return BookieServiceInfo((Endpoint("bookie", host, 3181, "bookie-rpc", extensions=("tls",)),), {"k": "v"})


def listing(writable: set[BookieId], readonly: set[BookieId]) -> BookieListing:
    return BookieListing(frozenset(writable), frozenset(readonly))


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


@pytest.fixture
async def cluster(backend: Backend, store: MetadataStore) -> Cluster:
    return await new_cluster(backend, store)


async def other_client(backend: Backend, cluster: Cluster) -> Cluster:
    return await attach_cluster(await backend.open(), cluster.uri, real_runtime())


async def test_a_registered_bookie_is_listed_and_reachable(backend: Backend, cluster: Cluster) -> None:
    other = await other_client(backend, cluster)
    assert await other.bookies.listing() == listing(set(), set())
    async with cluster.bookies.register(FOUR, info("host-four")):
        assert await other.bookies.listing() == listing({FOUR}, set())
        assert await other.bookies.service_info(FOUR) == info("host-four")
    assert await other.bookies.listing() == listing(set(), set())
    with pytest.raises(NoSuchNode):
        await other.bookies.service_info(FOUR)


async def test_a_bookie_changes_its_mode_without_leaving_the_lists(backend: Backend, cluster: Cluster) -> None:
    async with cluster.bookies.register(BK1, info()) as registration:
        await registration.set_readonly(True)
        assert await cluster.bookies.listing() == listing(set(), {BK1})
        assert await cluster.bookies.service_info(BK1) == info()
        await registration.set_readonly(True)
        await registration.set_readonly(False)
        assert await cluster.bookies.listing() == listing({BK1}, set())
    assert await cluster.bookies.listing() == listing(set(), set())


async def test_a_bookie_is_in_one_list_whenever_one_looks(
    backend: Backend, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java clients follow a bookie's node: they lose its address when one goes, though another one came before.

    Method: both lists are looked at after every single change that the bookie's client makes.
    """
    other, driver = await other_client(backend, cluster), cluster.store._driver
    commit, seen = driver.commit, list[tuple[bool, bool]]()

    async def commit_and_look(ops: Sequence[Op]) -> list[Written | None]:
        written = await commit(ops)
        nodes = f"{other.paths.writable}/{BK1}", f"{other.paths.readonly}/{BK1}"
        writable, readonly = [await other.store.exists(node) is not None for node in nodes]
        seen.append((writable, readonly))
        return written

    async with cluster.bookies.register(BK1, info()) as registration:
        monkeypatch.setattr(driver, "commit", commit_and_look)
        await registration.set_readonly(True)
        await registration.set_readonly(False)
    assert seen == [(False, True), (True, False), (False, False)]


async def test_where_a_bookie_is_in_both_lists_writable_wins(cluster: Cluster) -> None:
    async with cluster.bookies.register(BK1, info(), readonly=True):
        await cluster.store.create(f"{cluster.paths.writable}/{BK1}", ephemeral=True)
        assert await cluster.bookies.listing() == listing({BK1}, set())


async def test_a_bookie_without_data_is_reached_by_its_id(cluster: Cluster) -> None:
    await cluster.store.create(f"{cluster.paths.writable}/{BK1}", ephemeral=True)
    endpoint = (await cluster.bookies.service_info(BK1)).rpc_endpoint
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == ("bk1", 3181)


async def test_a_second_process_under_the_same_id_is_refused(backend: Backend, cluster: Cluster) -> None:
    other = await other_client(backend, cluster)
    async with cluster.bookies.register(BK1, info()):
        with pytest.raises(BookieRegistered, match="bk1:3181"):
            async with other.bookies.register(BK1, info("thief")):
                raise AssertionError("two processes are the same bookie")
        assert await other.bookies.service_info(BK1) == info()


async def test_a_restarted_bookie_waits_for_its_predecessors_session_to_end(backend: Backend, cluster: Cluster) -> None:
    async with backend.dying_client(f"{cluster.paths.writable}/{BK1}"):
        assert await cluster.bookies.listing() == listing({BK1}, set())
    async with asyncio.timeout(30), cluster.bookies.register(BK1, info(), wait_s=20):
        assert await cluster.bookies.service_info(BK1) == info()


async def test_a_bookie_that_lost_its_session_is_listed_again(backend: Backend, cluster: Cluster) -> None:
    other = await other_client(backend, cluster)
    async with cluster.bookies.register(BK1, info(), wait_s=10):
        before = cluster.store.session
        await expire(backend, cluster.store)
        async with asyncio.timeout(30):
            async for found in other.bookies.follow():
                if found == listing({BK1}, set()) and cluster.store.session != before:
                    break
        stat = await other.store.exists(f"{cluster.paths.writable}/{BK1}")
        assert stat is not None
        assert stat.owner == cluster.store.session


async def test_followers_see_bookies_come_and_go(backend: Backend, cluster: Cluster) -> None:
    other = await other_client(backend, cluster)
    seen = other.bookies.follow()
    async with asyncio.timeout(30):
        assert await anext(seen) == listing(set(), set())
        async with cluster.bookies.register(BK1, info()) as registration:
            assert await anext(seen) == listing({BK1}, set())
            async with cluster.bookies.register(BK2, info("bk2")):
                assert await anext(seen) == listing({BK1, BK2}, set())
            assert await anext(seen) == listing({BK1}, set())
            await registration.set_readonly(True)
            assert await anext(seen) == listing(set(), {BK1})
        assert await anext(seen) == listing(set(), set())
    await seen.aclose()


async def test_impossible_ids_are_refused_and_foreign_nodes_reported(cluster: Cluster) -> None:
    for impossible in ("a b", "readonly", "ReadOnly", "a,b", ""):
        with pytest.raises(InvalidName):
            async with cluster.bookies.register(BookieId(impossible), info()):
                raise AssertionError("registered")
    assert await cluster.bookies.listing() == listing(set(), set())
    await cluster.store.create(f"{cluster.paths.writable}/not a bookie")
    with pytest.raises(DamagedMetadata, match="not a bookie"):
        await cluster.bookies.listing()


async def test_damaged_registration_data_is_named(cluster: Cluster) -> None:
    await cluster.store.create(f"{cluster.paths.writable}/{BK1}", b"\x32\x7f", ephemeral=True)
    with pytest.raises(DamagedMetadata, match="bk1:3181"):
        await cluster.bookies.service_info(BK1)


# --- Cookies


async def test_cookies_are_created_once_updated_by_version_and_deleted(cluster: Cluster) -> None:
    cookie = Cookie(BK1, ("/journal",), ("/a", "/b"), instance_id=await cluster.instance_id())
    assert await cluster.bookies.cookie(BK1) is None
    assert await cluster.bookies.known() == frozenset()
    version = await cluster.bookies.create_cookie(cookie)
    with pytest.raises(NodeExists):
        await cluster.bookies.create_cookie(cookie)
    stored = await cluster.bookies.cookie(BK1)
    assert stored is not None
    assert (stored.cookie, stored.version) == (cookie, version)
    assert await cluster.bookies.known() == {BK1}

    grown = Cookie(BK1, ("/journal",), ("/a", "/b", "/c"), instance_id=cookie.instance_id)
    newer = await cluster.bookies.update_cookie(grown, expected=version)
    with pytest.raises(VersionConflict):
        await cluster.bookies.update_cookie(cookie, expected=version)
    with pytest.raises(VersionConflict):
        await cluster.bookies.delete_cookie(BK1, expected=version)
    await cluster.bookies.delete_cookie(BK1, expected=newer)
    assert await cluster.bookies.known() == frozenset()


async def test_a_damaged_cookie_is_named(cluster: Cluster) -> None:
    await cluster.bookies.create_cookie(Cookie(BK1, ("/j",), ("/l",)))
    await cluster.store.set(f"{cluster.paths.cookies}/{BK1}", b"5\ngarbage", expected=ANY_VERSION)
    with pytest.raises(DamagedMetadata):
        await cluster.bookies.cookie(BK1)


async def test_a_bookie_that_leaves_while_cut_off_is_not_listed_when_the_link_is_mended(
    backend: Backend, cluster: Cluster
) -> None:
    store = await backend.open(session_timeout_s=60, operation_timeout_s=1)
    leaving = await attach_cluster(store, cluster.uri, real_runtime())
    async with leaving.bookies.register(BK1, info()):
        await backend.cut(store)
    await backend.mend(store)
    async with asyncio.timeout(20):
        async for found in cluster.bookies.follow():
            if found == listing(set(), set()):
                break


async def test_the_clean_up_of_a_registration_leaves_a_newer_one_of_the_same_process_alone(
    backend: Backend, cluster: Cluster
) -> None:
    """A bookie stops while it is cut off, and is started again in the same process, under the same session: what the
    first life still has to remove is what the second one has registered.
    """
    store = await backend.open(session_timeout_s=60, operation_timeout_s=5)
    leaving = await attach_cluster(store, cluster.uri, real_runtime())
    async with leaving.bookies.register(BK1, info()):
        await backend.cut(store)
    assert store._unfinished
    await backend.mend(store)
    async with leaving.bookies.register(BK1, info("again")):

        async def is_cleaned_up() -> bool:
            return not store._unfinished

        await eventually(is_cleaned_up, what="the first registration's clean-up has ended")
        assert await cluster.bookies.listing() == listing({BK1}, set())
        assert await cluster.bookies.service_info(BK1) == info("again")
    assert await cluster.bookies.listing() == listing(set(), set())


@pytest.mark.parametrize("readonly", [False, True])
async def test_the_node_of_a_process_known_to_be_dead_is_taken_over_at_once(
    backend: Backend, cluster: Cluster, readonly: bool
) -> None:
    """Nobody waits for the session's end, which may take a minute. Here the dead one's session lives on."""
    other = await other_client(backend, cluster)
    async with other.bookies.register(BK1, info("dead"), readonly=readonly):
        asked: list[BookieServiceInfo] = []

        def is_dead(found: BookieServiceInfo) -> bool:
            asked.append(found)
            return found == info("dead")

        async with cluster.bookies.register(BK1, info(), readonly=readonly, is_dead=is_dead):
            assert asked == [info("dead")]
            assert await cluster.bookies.service_info(BK1) == info()
            path = f"{cluster.paths.readonly if readonly else cluster.paths.writable}/{BK1}"
            stat = await cluster.store.exists(path)
            assert stat is not None
            assert stat.owner == cluster.store.session


async def test_the_node_of_a_process_that_may_live_is_not_taken_over(backend: Backend, cluster: Cluster) -> None:
    """Whether it is another process, or its data says nothing that could be judged."""
    other = await other_client(backend, cluster)
    async with other.bookies.register(BK1, info("alive")):
        with pytest.raises(BookieRegistered):
            async with cluster.bookies.register(BK1, info(), is_dead=lambda found: found == info("dead")):
                raise AssertionError("two processes are the same bookie")
        assert await cluster.bookies.service_info(BK1) == info("alive")
    await other.store.create(f"{cluster.paths.writable}/{BK2}", b"\x32\x7f", ephemeral=True)
    with pytest.raises(BookieRegistered):
        async with cluster.bookies.register(BK2, info(), is_dead=lambda _: True):
            raise AssertionError("taken over without knowing what it is")


async def test_a_registration_that_cannot_be_renewed_for_any_reason_says_so(backend: Backend, cluster: Cluster) -> None:
    """Also if the reason is a bug: a bookie that serves, is listed nowhere and does not know it would be no use.

    Method: while the bookie is cut off another one takes its place; to ask whether that one is dead raises.
    """

    def is_dead(_: BookieServiceInfo) -> bool:
        raise ZeroDivisionError("a bug")

    store = await backend.open()
    bookies = (await attach_cluster(store, cluster.uri, real_runtime())).bookies
    async with bookies.register(BK1, info(), is_dead=is_dead) as registration:
        await backend.cut(store)
        async with asyncio.timeout(30), cluster.bookies.register(BK1, info("other"), wait_s=20):
            await backend.mend(store)
            with pytest.raises(ZeroDivisionError):
                await registration.wait_lost()


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_a_registration_cancelled_at_any_moment_leaves_nothing(
    backend: Backend, cluster: Cluster, steps: int
) -> None:
    async def register() -> None:
        async with cluster.bookies.register(BK1, info()):
            await asyncio.Event().wait()

    task = asyncio.create_task(register())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        async for found in cluster.bookies.follow():
            if found == listing(set(), set()):
                break


async def test_one_process_cannot_be_the_same_bookie_twice(cluster: Cluster) -> None:
    async with cluster.bookies.register(BK1, info()):
        with pytest.raises(BookieRegistered):
            async with cluster.bookies.register(BK1, info()):
                raise AssertionError("registered twice")
        assert await cluster.bookies.listing() == listing({BK1}, set())


async def test_whoever_waits_for_the_loss_of_a_registration_is_told_of_its_end(cluster: Cluster) -> None:
    async with cluster.bookies.register(BK1, info()) as registration:
        waiting = asyncio.create_task(registration.wait_lost())
    with pytest.raises(StoreClosed):
        await waiting
