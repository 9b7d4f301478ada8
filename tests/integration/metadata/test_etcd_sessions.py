"""Sessions on etcd: leases that end early, and handles that are closed while something is under way."""

import asyncio
from typing import Any

import pytest

from quire.errors import (
    InvariantBroken,
    MetadataOutcomeUnknown,
    SessionExpired,
    StoreClosed,
)
from quire.metadata import ANY_VERSION, Create, MetadataStore, SessionEvent, Set, parse_uri
from quire.metadata.driver import Target
from quire.metadata.drivers.etcd import open_driver
from quire.runtime import real_runtime
from tests.integration.metadata.etcd_client import HASTY, PATIENT, Wakes, calls_under_way, client, within
from tests.support.servers.etcd import EtcdServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("etcd")]


async def test_a_revoked_lease_is_an_expiry_and_a_new_session_begins(shared_etcd: EtcdServer) -> None:
    wakes = Wakes()
    async with client(shared_etcd.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/revoked"), Create("/revoked/mine", ephemeral=True)])
        old = etcd.session
        await asyncio.to_thread(shared_etcd.revoke, old)
        with pytest.raises(SessionExpired):
            await etcd.commit([Create("/revoked/too-late")])
        assert wakes.events == [SessionEvent.EXPIRED, SessionEvent.RESUMED]
        assert etcd.session != old
        assert await etcd.stat("/revoked/mine") is None
        assert await etcd.stat("/revoked/too-late") is None
        await etcd.commit([Create("/revoked/mine", ephemeral=True)])
        stat = await etcd.stat("/revoked/mine")
        assert stat is not None
        assert stat.owner == etcd.session


async def test_an_idle_client_learns_of_its_expiry_from_the_renewal(shared_etcd: EtcdServer) -> None:
    wakes = Wakes()
    async with client(shared_etcd.address, settings=HASTY) as etcd:
        etcd.listen(wakes.events.append)
        old = etcd.session
        await asyncio.to_thread(shared_etcd.revoke, old)
        await wakes.heard(SessionEvent.EXPIRED, SessionEvent.RESUMED)
        assert etcd.session != old


async def test_deleting_a_sessions_key_expels_the_client_and_its_nodes(shared_etcd: EtcdServer) -> None:
    """The lease is still alive then; the client gives it up before it says that its nodes are gone."""
    wakes = Wakes()
    async with client(shared_etcd.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/expelled", ephemeral=True)])
        old = etcd.session
        await asyncio.to_thread(shared_etcd.delete, f"quire/session/{old:x}")
        with pytest.raises(SessionExpired):
            await etcd.commit([Set("/expelled", b"", ANY_VERSION)])
        assert await etcd.stat("/expelled") is None
        assert old not in await asyncio.to_thread(shared_etcd.leases)
        assert wakes.events == [SessionEvent.EXPIRED, SessionEvent.RESUMED]


@pytest.mark.parametrize("looked", [False, True])
async def test_a_write_that_was_held_back_comes_before_its_client_looks_or_never(
    shared_etcd: EtcdServer, looked: bool
) -> None:
    """Method: what should be sent is kept, the client is told that nobody knows, and it is sent later."""
    held: list[Any] = []
    path = f"/held-back-{looked}"
    async with client(shared_etcd.address) as etcd:
        call, store = etcd._client.call, MetadataStore(etcd)

        async def hold(method: Any, request: Any, **options: Any) -> Any:
            held.append((method, request, options))
            raise MetadataOutcomeUnknown("held back")

        for sequential in (False, True):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(etcd, "_find", _nothing)  # What a sequential create asks first.
                patched.setattr(etcd._client, "call", hold)
                with pytest.raises(MetadataOutcomeUnknown):
                    await store.create(path, sequential=sequential)
            if looked:
                assert await store.exists(path) is None
            method, request, options = held.pop()
            answer = await call(method, request, **options)
            assert answer.succeeded is not looked
        assert (await store.exists(path) is None) is looked
        await store.create(f"{path}/below", ephemeral=True, parents=True)
        stat = await store.exists(f"{path}/below")
        assert stat is not None
        assert stat.owner == etcd.session, "the session goes on"


async def _nothing(key: bytes, **_: object) -> None:
    return None


async def test_a_closed_store_leaves_neither_lease_nor_session_key_nor_task(shared_etcd: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    async with client(shared_etcd.address) as etcd:
        await etcd.commit([Create("/closing", ephemeral=True)])
        await etcd.watch("/closing", Target.CHILDREN, lambda: None)
        session = etcd.session
        assert len(asyncio.all_tasks()) > len(tasks)
    assert asyncio.all_tasks() == tasks
    assert session not in await asyncio.to_thread(shared_etcd.leases)
    keys = await asyncio.to_thread(shared_etcd.keys)
    assert "/closing" not in keys
    assert f"quire/session/{session:x}" not in keys


async def test_closing_is_quick_and_clean_without_a_server(own_etcd: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    driver = await open_driver(parse_uri(f"etcd://{own_etcd.address}/ledgers"), PATIENT, real_runtime())
    await driver.watch("/a", Target.NODE, lambda: None)
    own_etcd.kill()
    reading = asyncio.create_task(driver.get("/a"))
    assert await within(5, driver.aclose()) < 4
    async with asyncio.timeout(1):
        with pytest.raises(StoreClosed):
            await reading
    assert asyncio.all_tasks() == tasks


async def test_calls_under_way_end_when_the_store_is_closed(own_etcd: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    driver = await open_driver(parse_uri(f"etcd://{own_etcd.address}/ledgers"), PATIENT, real_runtime())
    await driver.commit([Create("/a")])
    own_etcd.pause()
    try:
        read = asyncio.create_task(driver.get("/a"))
        write = asyncio.create_task(driver.commit([Set("/a", b"", ANY_VERSION)]))
        watch = asyncio.create_task(driver.watch("/a", Target.NODE, lambda: None))
        await calls_under_way(driver, 2)  # The watch is no call of its own.
        await within(5, driver.aclose())
        async with asyncio.timeout(1):
            with pytest.raises(StoreClosed):
                await read
            with pytest.raises(MetadataOutcomeUnknown):
                await write
            with pytest.raises(StoreClosed):
                await watch
        with pytest.raises(StoreClosed):
            await driver.get("/a")
    finally:
        own_etcd.resume()

    async def settled() -> bool:
        return asyncio.all_tasks() == tasks

    await eventually(settled, what="gRPC's own tasks end too")


async def test_a_background_failure_does_not_go_unnoticed(shared_etcd: EtcdServer) -> None:
    """Method: a listener that raises, which ends the task that renews the session."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(event: SessionEvent) -> None:
        raise RuntimeError(f"cannot bear {event}")

    async def noticed() -> bool:
        return bool(reported)

    async with client(shared_etcd.address, settings=HASTY) as etcd:
        etcd.listen(fail)
        await asyncio.to_thread(shared_etcd.revoke, etcd.session)
        await eventually(noticed, what="the event loop is told of the failure")
        with pytest.raises(InvariantBroken):
            await etcd.get("/")
    assert [str(context["exception"]) for context in reported] == ["cannot bear SessionEvent.EXPIRED"], reported
