"""etcd servers that cannot be reached, die, or hang: what a client of them says, and how it goes on."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from quire.errors import (
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    QuireError,
)
from quire.metadata import ANY_VERSION, Check, Create, SessionEvent, Set, StoreSettings
from quire.metadata.driver import Target
from tests.integration.metadata.etcd_client import HASTY, StallingLink, Wakes, calls_under_way, client, within
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.link import Link
from tests.support.waiting import eventually

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("etcd")]


async def test_an_unreachable_server_is_named_within_the_deadline() -> None:
    """Method: one port that refuses, one that accepts and never says a word."""
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (closed.getsockname()[1], silent.getsockname()[1]):
            begun = time.monotonic()
            with pytest.raises(MetadataUnavailable, match=f"127.0.0.1:{port}"):
                async with client(f"127.0.0.1:{port}", settings=HASTY):
                    raise AssertionError("nothing is there")
            assert time.monotonic() - begun < HASTY.operation_timeout_s + 1


async def test_a_server_without_a_port_is_asked_at_2379() -> None:
    with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.2:2379"):
        async with client("127.0.0.2", settings=StoreSettings(operation_timeout_s=0.2)):
            raise AssertionError("nothing is there")


async def test_a_dead_or_silent_first_server_does_not_keep_a_client_from_the_second(shared_etcd: EtcdServer) -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (closed.getsockname()[1], silent.getsockname()[1]):
            async with client(
                f"127.0.0.1:{port}", shared_etcd.address, settings=StoreSettings(operation_timeout_s=4)
            ) as etcd:
                assert await etcd.stat("/") is not None


async def test_a_client_moves_to_another_server_and_keeps_its_session_and_watches(shared_etcd: EtcdServer) -> None:
    """Method: two links to one etcd stand for two servers; the one in use is cut."""
    wakes = Wakes()
    async with Link(shared_etcd.port) as first, StallingLink(shared_etcd.port) as second:
        addresses = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        async with client(*addresses) as etcd:
            etcd.listen(wakes.events.append)
            await etcd.commit([Create("/moving", ephemeral=True)])
            await etcd.watch("/moving", Target.NODE, wakes.notify)
            session = etcd.session
            assert second.connections == 0
            first.cut()
            await wakes.more_than(0)
            before = wakes.count
            await etcd.commit([Set("/moving", b"on", ANY_VERSION)])
            await wakes.more_than(before)
            assert second.connections > 0
            stat = await etcd.stat("/moving")
            assert stat is not None
            assert stat.owner == session == etcd.session
            assert SessionEvent.EXPIRED not in wakes.events


async def test_a_hanging_server_is_left_for_another_before_the_session_is_lost(shared_etcd: EtcdServer) -> None:
    """Its connections look healthy, so only the missing answers tell. The watches move too."""
    wakes = Wakes()
    async with StallingLink(shared_etcd.port) as first, StallingLink(shared_etcd.port) as second:
        addresses = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        async with client(*addresses, settings=StoreSettings(operation_timeout_s=4, session_timeout_s=9)) as etcd:
            etcd.listen(wakes.events.append)
            await etcd.commit([Create("/hanging", ephemeral=True)])
            await etcd.watch("/hanging", Target.NODE, wakes.notify)
            first.flowing.clear()
            assert await etcd.get("/hanging") is not None
            await wakes.more_than(0)
            before = wakes.count
            await etcd.commit([Set("/hanging", b"on", ANY_VERSION)])
            await wakes.more_than(before)
            assert SessionEvent.EXPIRED not in wakes.events
            first.flowing.set()


async def test_an_idle_client_leaves_a_hanging_server_before_its_session_is_lost(shared_etcd: EtcdServer) -> None:
    """Nothing but the renewal of the session can notice it."""
    wakes = Wakes()
    async with StallingLink(shared_etcd.port) as first, StallingLink(shared_etcd.port) as second:
        addresses = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        async with client(*addresses, settings=StoreSettings(session_timeout_s=5)) as etcd:
            etcd.listen(wakes.events.append)
            first.flowing.clear()
            await wakes.heard(SessionEvent.SUSPENDED, SessionEvent.RESUMED)
            assert wakes.events == [SessionEvent.SUSPENDED, SessionEvent.RESUMED]
            assert second.connections > 0
            first.flowing.set()


async def test_a_session_and_its_watches_outlive_a_crash_of_the_server(own_etcd: EtcdServer) -> None:
    wakes, other = Wakes(), Wakes()
    async with client(own_etcd.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/a", b"before", ephemeral=True)])
        await etcd.watch("/a", Target.NODE, wakes.notify)
        await etcd.watch("/not-yet", Target.CHILDREN, other.notify)
        session = etcd.session
        own_etcd.kill()
        await wakes.heard(SessionEvent.SUSPENDED)
        reading = asyncio.create_task(etcd.get("/a"))
        own_etcd.launch()
        await asyncio.to_thread(own_etcd.wait_ready)
        node = await reading
        assert node is not None
        assert node.data == b"before"
        await wakes.heard(SessionEvent.SUSPENDED, SessionEvent.RESUMED)
        await wakes.more_than(0)  # After the break.
        await other.more_than(0)
        assert node.stat.owner == session == etcd.session
        before, other_before = wakes.count, other.count
        await asyncio.to_thread(own_etcd.put, "/a", b"after")
        await wakes.more_than(before)
        await asyncio.to_thread(own_etcd.put, "/not-yet/child")
        await other.more_than(other_before)


async def test_a_hanging_server_leaves_reads_unavailable_and_writes_unknown(own_etcd: EtcdServer) -> None:
    wakes = Wakes()
    async with client(own_etcd.address, settings=HASTY) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/a")])
        own_etcd.pause()
        try:
            calls: list[tuple[type[QuireError], Callable[[], Awaitable[object]]]] = [
                (MetadataUnavailable, lambda: etcd.get("/a")),
                (MetadataUnavailable, lambda: etcd.children("/a")),
                (MetadataUnavailable, lambda: etcd.commit([Check("/a", ANY_VERSION)])),
                (MetadataUnavailable, lambda: etcd.watch("/a", Target.NODE, wakes.notify)),
                (MetadataOutcomeUnknown, lambda: etcd.commit([Set("/a", b"maybe", ANY_VERSION)])),
            ]
            for kind, call in calls:
                with pytest.raises(kind, match=own_etcd.address):
                    await within(HASTY.operation_timeout_s + 1, call())
            await wakes.heard(SessionEvent.SUSPENDED)
        finally:
            own_etcd.resume()

        async def answers() -> bool:
            try:
                return await etcd.get("/a") is not None
            except MetadataUnavailable:
                return False

        await eventually(answers, what="the server is used again once it goes on")
        await eventually(
            lambda: _ends_with(wakes.events, SessionEvent.RESUMED), what="the session, or a new one, goes on"
        )


async def _ends_with(events: list[SessionEvent], event: SessionEvent) -> bool:
    return events[-1:] == [event]


async def test_a_write_that_finds_no_connection_was_not_sent(shared_etcd: EtcdServer) -> None:
    async with Link(shared_etcd.port) as link, client(f"127.0.0.1:{link.port}", settings=HASTY) as etcd:
        wakes = Wakes()
        etcd.listen(wakes.events.append)
        link.cut()
        await wakes.heard(SessionEvent.SUSPENDED)
        with pytest.raises(MetadataUnavailable):
            await within(HASTY.operation_timeout_s + 1, etcd.commit([Create("/never-sent")]))
        link.mend()
        await wakes.heard(SessionEvent.RESUMED)
        assert await etcd.stat("/never-sent") is None


async def test_cancelling_a_call_ends_it_at_once(own_etcd: EtcdServer) -> None:
    async with client(own_etcd.address) as etcd:
        await etcd.commit([Create("/a")])
        own_etcd.pause()
        try:
            waiting = [
                asyncio.create_task(etcd.get("/a")),
                asyncio.create_task(etcd.commit([Set("/a", b"", ANY_VERSION)])),
                asyncio.create_task(etcd.watch("/a", Target.NODE, lambda: None)),
            ]
            await calls_under_way(etcd, 2)  # The watch is no call of its own.
            for task in waiting:
                task.cancel()
            done, pending = await asyncio.wait(waiting, timeout=5)
            assert not pending
            assert all(task.cancelled() for task in done)
        finally:
            own_etcd.resume()


async def test_what_is_asked_next_waits_for_writes_that_were_cancelled(own_etcd: EtcdServer) -> None:
    """Else whoever tidies up after a cancelled write finds nothing, and what it made comes a moment later, and stays.

    Method: the server stands still while writes are sent to it and cancelled; the ones who ask are waiting when it
    goes on.
    """
    paths = [f"/cancelled-{number}" for number in range(20)]
    async with client(own_etcd.address) as etcd:
        for path in paths:
            await etcd.commit([Create(path, b"before")])
        own_etcd.pause()
        writing = [asyncio.create_task(etcd.commit([Set(path, b"after", ANY_VERSION)])) for path in paths]
        await calls_under_way(etcd, len(paths))
        for write in writing:
            write.cancel()
        ended = await asyncio.gather(*writing, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}
        asking = [asyncio.create_task(etcd.get(path)) for path in paths]
        await asyncio.sleep(0)
        own_etcd.resume()
        found = [node.data for node in await asyncio.gather(*asking) if node is not None]
        assert found == [b"after"] * len(paths)
