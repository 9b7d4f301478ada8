"""What is special about ZooKeeper: a server that stops, freezes or comes back, and sessions that end behind our back.

What every driver must do is checked by `tests/contract/metadata`.
"""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from quire.errors import (
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    QuireError,
    Refused,
    SessionExpired,
    StoreClosed,
    VersionConflict,
)
from quire.metadata.api import MetadataStore, SessionWatch, Watch
from quire.metadata.driver import ANY_VERSION, Check, Create, Delete, Op, SessionEvent, Set, Version
from quire.metadata.drivers.zookeeper import ZooKeeperDriver, _with_port, open_driver
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import parse_uri
from quire.runtime import real_runtime
from tests.support.servers.link import Link
from tests.support.servers.zookeeper import ZooKeeperServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("zookeeper")

# Long sessions: no test waits for one to run out, and a slow machine must not end one by accident.
PATIENT = StoreSettings(operation_timeout_s=30, session_timeout_s=15)
HASTY = StoreSettings(operation_timeout_s=1.5, session_timeout_s=30)


@pytest.fixture(scope="module")
def started_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(started_server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    yield started_server
    if started_server.running:
        started_server.thaw()
    else:
        started_server.start()


@pytest.fixture
def root(server: ZooKeeperServer) -> str:
    """An empty node of this test's own."""
    path = f"/test-{uuid4().hex}"
    with other_client(server) as other:
        other.create(path)
    return path


@contextmanager
def other_client(server: ZooKeeperServer, **options: object) -> Iterator[KazooClient]:
    """A plain kazoo client, straight to the server, that the driver knows nothing of."""
    client = KazooClient(hosts=server.address, timeout=20, **options)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@asynccontextmanager
async def opened(port: int, settings: StoreSettings = PATIENT) -> AsyncIterator[tuple[MetadataStore, ZooKeeperDriver]]:
    driver = await open_driver(parse_uri(f"zk://127.0.0.1:{port}/unused"), settings, real_runtime())
    assert isinstance(driver, ZooKeeperDriver)
    async with MetadataStore(driver) as store:
        yield store, driver


def end_session(server: ZooKeeperServer, driver: ZooKeeperDriver) -> None:
    """Take over the driver's session and close it; the driver must be cut off, or it takes the session back."""
    session = driver._client._session_id, driver._client._session_passwd
    with other_client(server, client_id=session):
        pass


async def next_event(watch: SessionWatch) -> SessionEvent:
    async with asyncio.timeout(30):
        return await watch.wait_event()


async def changed(watch: Watch) -> None:
    async with asyncio.timeout(30):
        await watch.wait_changed()


def kazoo_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "zookeeper" in thread.name}


async def fails_within(seconds: float, call: Awaitable[object]) -> QuireError:
    began = time.monotonic()
    with pytest.raises(QuireError) as caught:
        await call
    assert time.monotonic() - began < seconds
    return caught.value


# --- Servers that are not there


async def test_opening_fails_within_the_deadline_and_names_every_address() -> None:
    """One address refuses connections and another accepts them but never says a word."""
    with socket.socket() as deaf, socket.socket() as silent:
        deaf.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        servers = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (deaf, silent)]
        uri = parse_uri(f"zk://{';'.join(servers)}/ledgers")
        error = await fails_within(10, open_driver(uri, StoreSettings(1, 30), real_runtime()))
    assert isinstance(error, MetadataUnavailable)
    assert all(server in str(error) for server in servers)
    assert error.facts["servers"] == tuple(servers)
    assert not kazoo_threads()


async def test_opening_can_be_cancelled_and_leaves_no_thread() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = parse_uri(f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await open_driver(uri, PATIENT, real_runtime())
    assert not kazoo_threads()


async def test_one_reachable_server_is_enough(server: ZooKeeperServer, root: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        uri = parse_uri(f"zk://127.0.0.1:{deaf.getsockname()[1]};{server.address}/unused")
        driver = await open_driver(uri, PATIENT, real_runtime())
        try:
            assert await driver.stat(root) is not None
        finally:
            await driver.aclose()


async def test_an_ipv6_address_in_brackets_is_reached(server: ZooKeeperServer, root: str) -> None:
    ended = asyncio.Event()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()
        await sink.wait_closed()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        ended.set()

    async with await asyncio.start_server(forward, "::1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        driver = await open_driver(parse_uri(f"zk://[::1]:{port}/unused"), PATIENT, real_runtime())
        try:
            assert await driver.stat(root) is not None
        finally:
            await driver.aclose()
        async with asyncio.timeout(30):
            await ended.wait()


def test_a_server_without_a_port_gets_zookeepers_own() -> None:
    assert _with_port("zk1") == "zk1:2181"
    assert _with_port("zk1:2182") == "zk1:2182"
    assert _with_port("[::1]") == "[::1]:2181"
    assert _with_port("[::1]:2182") == "[::1]:2182"


@pytest.mark.extended
async def test_calls_without_a_connection_wait_for_it_and_then_say_that_nothing_was_sent(
    server: ZooKeeperServer, root: str
) -> None:
    """A write that gave up waiting must not be carried out later, when the connection is back."""
    async with Link(server.port) as link, opened(link.port, HASTY) as (store, _):
        with store.watch_session() as session:
            link.cut()
            assert await next_event(session) is SessionEvent.SUSPENDED
            address = f"127.0.0.1:{link.port}"
            for call in (store.get(root), store.create(f"{root}/late"), store.sync(), store.watch(root).__aenter__()):
                error = await fails_within(10, call)
                assert isinstance(error, MetadataUnavailable)
                assert address in str(error)
            link.mend()
            assert await next_event(session) is SessionEvent.RESUMED
        # Requests of one client are carried out in order: whatever was left in a queue came before this one.
        await store.create(f"{root}/next")
        assert (await store.children(root)).names == ("next",)


# --- A server that stops and comes back


async def test_session_and_watches_survive_a_restart_of_the_server(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.port) as (store, _):
        before = store.session
        await store.create(f"{root}/mine", ephemeral=True)
        with store.watch_session() as session:
            async with store.watch(f"{root}/absent") as node, store.watch_children(root) as listing:
                server.kill()
                assert await next_event(session) is SessionEvent.SUSPENDED
                server.start()
                assert await next_event(session) is SessionEvent.RESUMED
                await changed(node)  # Something may have been missed during the break.
                await changed(listing)
                with other_client(server) as other:
                    other.create(f"{root}/absent", b"now")
                await changed(node)
                await changed(listing)
                assert (await store.get(f"{root}/absent")).data == b"now"
                assert (await store.children(root)).names == ("absent", "mine")
        assert store.session == before


@pytest.mark.extended
async def test_reads_outlive_a_broken_connection(server: ZooKeeperServer, root: str) -> None:
    """Reads that were sent when the server died are asked again; none fails and none is answered twice."""
    async with opened(server.port) as (store, driver):
        server.freeze()
        reads = [asyncio.create_task(driver.get(root)) for _ in range(20)]
        await asyncio.sleep(0)  # All of them are sent now.
        server.kill()
        server.start()
        assert [node is not None for node in await asyncio.gather(*reads)] == [True] * 20
        assert await store.exists(root) is not None


async def test_a_write_that_was_under_way_when_the_server_died_has_an_unknown_outcome(
    server: ZooKeeperServer, root: str
) -> None:
    async with opened(server.port) as (store, _):
        server.freeze()
        write = asyncio.create_task(store.create(f"{root}/new"))
        await asyncio.sleep(0)
        server.kill()
        with pytest.raises(MetadataOutcomeUnknown) as caught:
            await write
        assert caught.value.facts["path"] == f"{root}/new"
        assert server.address in str(caught.value)
        server.start()
        assert await store.exists(root) is not None


async def test_a_frozen_server_makes_reads_unavailable_and_writes_unknown(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.port, HASTY) as (store, _):
        server.freeze()
        errors = await asyncio.gather(
            fails_within(10, store.get(root)),
            fails_within(10, store.children(root)),
            fails_within(10, store.watch(root).__aenter__()),
            fails_within(10, store.create(f"{root}/new")),
            fails_within(10, store.transaction(Check(root, ANY_VERSION), Create(f"{root}/both"))),
        )
        assert [type(error) for error in errors] == [MetadataUnavailable] * 3 + [MetadataOutcomeUnknown] * 2
        server.thaw()
        # In this client's order the create came first, so what is read now is what became of it.
        assert (await store.children(root)).names == ("both", "new")


@pytest.mark.extended
async def test_the_loop_never_blocks_on_a_server_that_takes_no_more_bytes(server: ZooKeeperServer, root: str) -> None:
    """More requests than all socket buffers hold: every one still ends by its own deadline, not with the session."""
    async with opened(server.port, HASTY) as (_, driver):
        server.freeze()
        ops = [Set(root, bytes(100_000), ANY_VERSION)]
        began = time.monotonic()
        results = await asyncio.gather(*(driver.commit(ops) for _ in range(600)), return_exceptions=True)
        assert {type(result) for result in results} == {MetadataOutcomeUnknown}
        assert time.monotonic() - began < 15


# --- Sessions that end


async def test_an_expiry_is_told_and_a_new_session_begins(server: ZooKeeperServer, root: str) -> None:
    async with Link(server.port) as link, opened(link.port) as (store, driver):
        before = store.session
        await store.create(f"{root}/mine", ephemeral=True)
        with store.watch_session() as session:
            async with store.watch(f"{root}/mine") as watch:
                link.cut()
                assert await next_event(session) is SessionEvent.SUSPENDED
                await asyncio.to_thread(end_session, server, driver)
                link.mend()
                assert await next_event(session) is SessionEvent.EXPIRED
                assert await next_event(session) is SessionEvent.RESUMED
                await changed(watch)
                assert await store.exists(f"{root}/mine") is None
                assert store.session != before
                await store.create(f"{root}/mine", ephemeral=True)
                await changed(watch)
                stat = await store.exists(f"{root}/mine")
                assert stat is not None
                assert stat.owner == store.session


async def test_writes_that_wait_are_refused_when_their_session_ends(server: ZooKeeperServer, root: str) -> None:
    """Reads go on in the next session: they promise nothing about the old one."""
    async with Link(server.port) as link, opened(link.port) as (store, driver):
        with store.watch_session() as session:
            link.cut()
            assert await next_event(session) is SessionEvent.SUSPENDED
            single = asyncio.create_task(store.create(f"{root}/single"))
            both = asyncio.create_task(store.transaction(Create(f"{root}/a"), Create(f"{root}/b")))
            read = asyncio.create_task(store.get(root))
            await asyncio.to_thread(end_session, server, driver)
            link.mend()
            for write in (single, both):
                with pytest.raises(SessionExpired):
                    await write
            await read
            await store.create(f"{root}/after")
            assert (await store.children(root)).names == ("after",)


async def test_a_write_is_refused_although_its_caller_was_not_told_of_the_expiry_yet(
    server: ZooKeeperServer, root: str
) -> None:
    """Method: the loop stands still while one session ends and the next one begins, as in a process that was stopped.

    kazoo alone would carry out the write in the new session.
    """
    async with opened(server.port) as (store, driver):
        old = store.session
        deadline_s = time.monotonic() + 20
        while not (driver._client.connected and driver._client.client_id[0] != old):
            assert time.monotonic() < deadline_s
            if driver._client._session_id == old:
                end_session(server, driver)  # The driver may win it back once or twice.
        with pytest.raises(SessionExpired):
            await store.create(f"{root}/late")
        await store.create(f"{root}/after")
        assert (await store.children(root)).names == ("after",)
        assert store.session != old


async def test_a_reply_that_cannot_be_read_does_not_end_the_driver(server: ZooKeeperServer, root: str) -> None:
    """kazoo's thread ends when a reply makes no sense. A new session begins, and its user is told."""
    async with Link(server.port) as link, opened(link.port) as (store, _):
        with store.watch_session() as session:
            link.inject(struct.pack(">iiqi", 16, 12345, 0, 0))  # A reply to a request that was never made.
            assert await next_event(session) is SessionEvent.EXPIRED
            assert await next_event(session) is SessionEvent.RESUMED
        assert await store.exists(root) is not None


# --- Watches


async def test_a_change_during_a_break_wakes_the_watch(server: ZooKeeperServer, root: str) -> None:
    async with Link(server.port) as link, opened(link.port) as (store, _), store.watch(root) as watch:
        link.cut()
        with other_client(server) as other:
            other.set(root, b"meanwhile")
        link.mend()

        async def seen() -> bool:
            await watch.wait_changed()
            return (await store.get(root)).data == b"meanwhile"

        await eventually(seen, what="the change is read after a wake-up")


async def test_many_watches_of_one_node_share_one_in_zookeeper(server: ZooKeeperServer, root: str) -> None:
    """However often a node is watched and let go again, one watch is left, and everybody who watches is woken."""
    async with opened(server.port) as (store, driver):
        for _ in range(50):
            async with store.watch(root):
                pass
        async with store.watch(root) as one, store.watch(root) as two:
            assert len(driver._client._data_watchers[root]) == 1
            assert len(driver._watches._tasks) == 1
            with other_client(server) as other:
                other.set(root, b"new")
            await changed(one)
            await changed(two)

        async def no_task() -> bool:
            return not driver._watches._tasks

        await eventually(no_task, what="the task of the watch ends with it")


async def test_a_children_watch_sees_its_node_come_change_and_go(server: ZooKeeperServer, root: str) -> None:
    path = f"{root}/later"
    async with opened(server.port) as (store, _), store.watch_children(path) as watch:
        with other_client(server) as other:
            for change, names in (
                (lambda: other.create(path), ()),
                (lambda: other.create(f"{path}/child"), ("child",)),
                (lambda: other.delete(f"{path}/child"), ()),
                (lambda: other.delete(path), None),
                (lambda: other.create(path), ()),
            ):
                await asyncio.to_thread(change)

                async def seen(names: tuple[str, ...] | None = names) -> bool:
                    await watch.wait_changed()
                    listing = await store._driver.children(path)
                    return (None if listing is None else listing.names) == names

                await eventually(seen, what=f"the children are {names}")


# --- Refusals


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (lambda root: Create(f"{root}/there"), NodeExists),
        (lambda root: Create(f"{root}/absent/child"), NoSuchNode),
        (lambda root: Create(f"{root}/brief/child"), ParentIsEphemeral),
        (lambda root: Set(f"{root}/there", b"", Version(7)), VersionConflict),
        (lambda root: Set(f"{root}/there", b"", Version(2**40)), VersionConflict),
        (lambda root: Set(f"{root}/absent", b"", ANY_VERSION), NoSuchNode),
        (lambda root: Delete(f"{root}/there", Version(7)), VersionConflict),
        (lambda root: Delete(f"{root}/full", ANY_VERSION), NodeNotEmpty),
        (lambda root: Check(f"{root}/there", Version(7)), VersionConflict),
        (lambda root: Check(f"{root}/absent", ANY_VERSION), NoSuchNode),
    ],
)
async def test_the_first_impossible_operation_is_the_one_reported(
    server: ZooKeeperServer, root: str, broken: Callable[[str], Op], error: type[QuireError]
) -> None:
    """Alone, and between one that is possible and one that is impossible too."""
    op = broken(root)
    async with opened(server.port) as (store, _):
        await store.transaction(
            Create(f"{root}/there"),
            Create(f"{root}/full"),
            Create(f"{root}/full/child"),
            Create(f"{root}/brief", ephemeral=True),
        )
        for ops in ([op], [Create(f"{root}/new"), op, Delete(f"{root}/gone", ANY_VERSION)]):
            with pytest.raises(error) as caught:
                await store.transaction(*ops)
            assert type(caught.value) is error
            assert caught.value.facts["path"] == op.path
        assert (await store.children(root)).names == ("brief", "full", "there")


async def test_a_node_that_others_protect_is_refused_with_advice(server: ZooKeeperServer, root: str) -> None:
    with other_client(server, auth_data=[("digest", "owner:secret")]) as other:
        other.create(f"{root}/private", acl=[make_digest_acl("owner", "secret", all=True)])
    async with opened(server.port) as (store, _):
        for call in (
            store.get(f"{root}/private"),
            store.create(f"{root}/private/child"),
            store.watch_children(f"{root}/private").__aenter__(),
        ):
            with pytest.raises(Refused, match="private") as caught:
                await call
            assert "ACL" in caught.value.hint


# --- Closing


async def test_closing_removes_ephemeral_nodes_at_once_and_leaves_no_thread(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.port) as (store, driver):
        await store.create(f"{root}/mine", ephemeral=True)
        assert kazoo_threads() == {"quire-zookeeper-connection"}
    assert not kazoo_threads()
    with other_client(server) as other:
        assert other.get_children(root) == []
    with pytest.raises(StoreClosed):
        await driver.get(root)


@pytest.mark.parametrize("trouble", ["frozen", "killed"])
async def test_closing_is_bounded_when_the_server_is_out_of_reach(
    server: ZooKeeperServer, root: str, trouble: str
) -> None:
    async with opened(server.port, HASTY) as (store, driver), store.watch(root), store.watch_children(root):
        if trouble == "frozen":
            server.freeze()
        else:
            with store.watch_session() as session:
                server.kill()
                assert await next_event(session) is SessionEvent.SUSPENDED
        read = asyncio.create_task(driver.get(root))
        write = asyncio.create_task(driver.commit([Create(f"{root}/new")]))
        await asyncio.sleep(0)
        began = time.monotonic()
        await store.aclose()
        assert time.monotonic() - began < 10
        assert not kazoo_threads()
        not_sent = (StoreClosed, MetadataUnavailable)
        with pytest.raises(not_sent):
            await read
        with pytest.raises(MetadataOutcomeUnknown if trouble == "frozen" else not_sent):
            await write


def test_the_driver_survives_a_loop_that_closed_before_it(server: ZooKeeperServer, root: str) -> None:
    """A program that forgets to close: what the server still says finds nobody, and does no harm."""

    async def forget() -> ZooKeeperDriver:
        driver = await open_driver(parse_uri(f"zk://{server.address}/unused"), PATIENT, real_runtime())
        assert isinstance(driver, ZooKeeperDriver)
        await driver.commit([Set(root, b"", ANY_VERSION)])
        driver._client.exists_async(root, watch=lambda event: None)
        return driver

    driver = asyncio.run(forget())
    client = driver._client
    with other_client(server) as other:
        other.set(root, b"unheard")
    assert client.get(root)[0] == b"unheard"  # The server sends the event before this reply, so it was met.
    assert client.client_id[0] == driver.session
    client.handler.begin_close()
    client._close(asyncio.Event())
    assert not kazoo_threads()


def test_importing_the_driver_without_kazoo_names_the_missing_module(tmp_path: Path) -> None:
    program = """
import sys
from importlib.machinery import PathFinder

class WithoutKazoo(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "kazoo" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutKazoo
try:
    import quire.metadata.drivers.zookeeper
except ModuleNotFoundError as error:
    print(error.name)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout == "kazoo\n"
