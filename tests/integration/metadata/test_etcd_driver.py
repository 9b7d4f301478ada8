"""What is special about etcd: its servers die, hang, forget history, end leases, and hold keys that others wrote.

What every driver must do is in `tests/contract/metadata`; here the server itself is the subject.
"""

import asyncio
import itertools
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from quire.errors import (
    InvariantBroken,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NodeNotEmpty,
    QuireError,
    Refused,
    RequestTooLarge,
    SessionExpired,
    StoreClosed,
)
from quire.metadata import ANY_VERSION, Check, Create, Delete, SessionEvent, Set, StoreSettings, Version, parse_uri
from quire.metadata.api import Op, Target
from quire.metadata.drivers.etcd import EtcdDriver, open_driver
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.runtime import real_runtime
from tests.servers.etcd import EtcdServer
from tests.servers.link import Link
from tests.waiting import eventually

pytestmark = pytest.mark.xdist_group("etcd")

PATIENT = StoreSettings(operation_timeout_s=20, session_timeout_s=20)
HASTY = StoreSettings(operation_timeout_s=1, session_timeout_s=2)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server for all tests that leave it as it was; each test keeps to a tree of its own."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server for one test, to be killed, stopped and filled at will."""
    own = EtcdServer(tmp_path)
    own.start()
    yield own
    own.kill()


@asynccontextmanager
async def client(*addresses: str, settings: StoreSettings = PATIENT) -> AsyncIterator[EtcdDriver]:
    driver = await open_driver(parse_uri(f"etcd://{';'.join(addresses)}/ledgers"), settings, real_runtime())
    try:
        yield cast(EtcdDriver, driver)
    finally:
        await driver.aclose()


class Wakes:
    """Counts what a watch or a session tells, and waits for it."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.count = 0

    def notify(self) -> None:
        self.count += 1

    async def more_than(self, count: int) -> None:
        async def woken() -> bool:
            return self.count > count

        await eventually(woken, what=f"woken more than {count} times")

    async def heard(self, *events: SessionEvent) -> None:
        async def complete() -> bool:
            return self.events[-len(events) :] == list(events)

        await eventually(complete, what=f"{self.events} end with {events}")


async def within(seconds: float, call: Awaitable[object]) -> float:
    """Await `call`, which must end in time, and return how long it took; errors pass."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        await call
    return time.monotonic() - begun


# --- Servers that cannot be reached, die, or hang


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


async def test_a_dead_or_silent_first_server_does_not_keep_a_client_from_the_second(shared: EtcdServer) -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (closed.getsockname()[1], silent.getsockname()[1]):
            async with client(
                f"127.0.0.1:{port}", shared.address, settings=StoreSettings(operation_timeout_s=4)
            ) as etcd:
                assert await etcd.stat("/") is not None


async def test_a_client_moves_to_another_server_and_keeps_its_session_and_watches(shared: EtcdServer) -> None:
    """Method: two links to one etcd stand for two servers; the one in use is cut."""
    wakes = Wakes()
    async with Link(shared.port) as first, Link(shared.port) as second:
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


class StallingLink(Link):
    """A link that can also fall silent: connections stay open and nothing passes."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        gated = asyncio.StreamReader()

        async def feed() -> None:
            while data := await source.read(65536):
                await self.flowing.wait()
                gated.feed_data(data)
            gated.feed_eof()

        feeding = asyncio.create_task(feed())
        try:
            await super()._pump(gated, sink)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def test_a_hanging_server_is_left_for_another_before_the_session_is_lost(shared: EtcdServer) -> None:
    """Its connections look healthy, so only the missing answers tell. The watches move too."""
    wakes = Wakes()
    async with StallingLink(shared.port) as first, Link(shared.port) as second:
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


async def test_an_idle_client_leaves_a_hanging_server_before_its_session_is_lost(shared: EtcdServer) -> None:
    """Nothing but the renewal of the session can notice it."""
    wakes = Wakes()
    async with StallingLink(shared.port) as first, Link(shared.port) as second:
        addresses = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        async with client(*addresses, settings=StoreSettings(session_timeout_s=5)) as etcd:
            etcd.listen(wakes.events.append)
            first.flowing.clear()
            await wakes.heard(SessionEvent.SUSPENDED, SessionEvent.RESUMED)
            assert wakes.events == [SessionEvent.SUSPENDED, SessionEvent.RESUMED]
            assert second.connections > 0
            first.flowing.set()


async def test_a_session_and_its_watches_outlive_a_crash_of_the_server(server: EtcdServer) -> None:
    wakes, other = Wakes(), Wakes()
    async with client(server.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/a", b"before", ephemeral=True)])
        await etcd.watch("/a", Target.NODE, wakes.notify)
        await etcd.watch("/not-yet", Target.CHILDREN, other.notify)
        session = etcd.session
        server.kill()
        await wakes.heard(SessionEvent.SUSPENDED)
        reading = asyncio.create_task(etcd.get("/a"))
        server.launch()
        await asyncio.to_thread(server.wait_ready)
        node = await reading
        assert node is not None
        assert node.data == b"before"
        await wakes.heard(SessionEvent.SUSPENDED, SessionEvent.RESUMED)
        await wakes.more_than(0)  # After the break.
        await other.more_than(0)
        assert node.stat.owner == session == etcd.session
        before, other_before = wakes.count, other.count
        await asyncio.to_thread(server.put, "/a", b"after")
        await wakes.more_than(before)
        await asyncio.to_thread(server.put, "/not-yet/child")
        await other.more_than(other_before)


async def test_a_hanging_server_leaves_reads_unavailable_and_writes_unknown(server: EtcdServer) -> None:
    wakes = Wakes()
    async with client(server.address, settings=HASTY) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/a")])
        server.pause()
        try:
            calls: list[tuple[type[QuireError], Callable[[], Awaitable[object]]]] = [
                (MetadataUnavailable, lambda: etcd.get("/a")),
                (MetadataUnavailable, lambda: etcd.children("/a")),
                (MetadataUnavailable, lambda: etcd.commit([Check("/a", ANY_VERSION)])),
                (MetadataUnavailable, lambda: etcd.watch("/a", Target.NODE, wakes.notify)),
                (MetadataOutcomeUnknown, lambda: etcd.commit([Set("/a", b"maybe", ANY_VERSION)])),
            ]
            for kind, call in calls:
                with pytest.raises(kind, match=server.address):
                    await within(HASTY.operation_timeout_s + 1, call())
            await wakes.heard(SessionEvent.SUSPENDED)
        finally:
            server.resume()

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


async def test_a_write_that_finds_no_connection_was_not_sent(shared: EtcdServer) -> None:
    async with Link(shared.port) as link, client(f"127.0.0.1:{link.port}", settings=HASTY) as etcd:
        wakes = Wakes()
        etcd.listen(wakes.events.append)
        link.cut()
        await wakes.heard(SessionEvent.SUSPENDED)
        with pytest.raises(MetadataUnavailable):
            await within(HASTY.operation_timeout_s + 1, etcd.commit([Create("/never-sent")]))
        link.mend()
        await wakes.heard(SessionEvent.RESUMED)
        assert await etcd.stat("/never-sent") is None


async def test_cancelling_a_call_ends_it_at_once(server: EtcdServer) -> None:
    async with client(server.address) as etcd:
        await etcd.commit([Create("/a")])
        server.pause()
        try:
            waiting = [
                asyncio.create_task(etcd.get("/a")),
                asyncio.create_task(etcd.commit([Set("/a", b"", ANY_VERSION)])),
                asyncio.create_task(etcd.watch("/a", Target.NODE, lambda: None)),
            ]
            await asyncio.wait(waiting, timeout=0.2)
            for task in waiting:
                task.cancel()
            done, pending = await asyncio.wait(waiting, timeout=5)
            assert not pending
            assert all(task.cancelled() for task in done)
        finally:
            server.resume()


# --- Sessions


async def test_a_revoked_lease_is_an_expiry_and_a_new_session_begins(shared: EtcdServer) -> None:
    wakes = Wakes()
    async with client(shared.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/revoked"), Create("/revoked/mine", ephemeral=True)])
        old = etcd.session
        await asyncio.to_thread(shared.revoke, old)
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


async def test_an_idle_client_learns_of_its_expiry_from_the_renewal(shared: EtcdServer) -> None:
    wakes = Wakes()
    async with client(shared.address, settings=HASTY) as etcd:
        etcd.listen(wakes.events.append)
        old = etcd.session
        await asyncio.to_thread(shared.revoke, old)
        await wakes.heard(SessionEvent.EXPIRED, SessionEvent.RESUMED)
        assert etcd.session != old


async def test_deleting_a_sessions_key_expels_the_client_and_its_nodes(shared: EtcdServer) -> None:
    """The lease is still alive then; the client gives it up before it says that its nodes are gone."""
    wakes = Wakes()
    async with client(shared.address) as etcd:
        etcd.listen(wakes.events.append)
        await etcd.commit([Create("/expelled", ephemeral=True)])
        old = etcd.session
        await asyncio.to_thread(shared.delete, f"quire/session/{old:x}")
        with pytest.raises(SessionExpired):
            await etcd.commit([Set("/expelled", b"", ANY_VERSION)])
        assert await etcd.stat("/expelled") is None
        assert old not in await asyncio.to_thread(shared.leases)
        assert wakes.events == [SessionEvent.EXPIRED, SessionEvent.RESUMED]


async def test_a_closed_store_leaves_neither_lease_nor_session_key_nor_task(shared: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    async with client(shared.address) as etcd:
        await etcd.commit([Create("/closing", ephemeral=True)])
        await etcd.watch("/closing", Target.CHILDREN, lambda: None)
        session = etcd.session
        assert len(asyncio.all_tasks()) > len(tasks)
    assert asyncio.all_tasks() == tasks
    assert session not in await asyncio.to_thread(shared.leases)
    keys = await asyncio.to_thread(shared.keys)
    assert "/closing" not in keys
    assert f"quire/session/{session:x}" not in keys


async def test_closing_is_quick_and_clean_without_a_server(server: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    driver = await open_driver(parse_uri(f"etcd://{server.address}/ledgers"), PATIENT, real_runtime())
    await driver.watch("/a", Target.NODE, lambda: None)
    server.kill()
    reading = asyncio.create_task(driver.get("/a"))
    assert await within(5, driver.aclose()) < 4
    async with asyncio.timeout(1):
        with pytest.raises(StoreClosed):
            await reading
    assert asyncio.all_tasks() == tasks


async def test_calls_under_way_end_when_the_store_is_closed(server: EtcdServer) -> None:
    tasks = asyncio.all_tasks()
    driver = await open_driver(parse_uri(f"etcd://{server.address}/ledgers"), PATIENT, real_runtime())
    await driver.commit([Create("/a")])
    server.pause()
    try:
        read = asyncio.create_task(driver.get("/a"))
        write = asyncio.create_task(driver.commit([Set("/a", b"", ANY_VERSION)]))
        watch = asyncio.create_task(driver.watch("/a", Target.NODE, lambda: None))
        await asyncio.wait([read, write, watch], timeout=0.2)
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
        server.resume()

    async def settled() -> bool:
        return asyncio.all_tasks() == tasks

    await eventually(settled, what="gRPC's own tasks end too")


async def test_a_background_failure_does_not_go_unnoticed(shared: EtcdServer) -> None:
    """Method: a listener that raises, which ends the task that renews the session."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(event: SessionEvent) -> None:
        raise RuntimeError(f"cannot bear {event}")

    async def noticed() -> bool:
        return bool(reported)

    async with client(shared.address, settings=HASTY) as etcd:
        etcd.listen(fail)
        await asyncio.to_thread(shared.revoke, etcd.session)
        await eventually(noticed, what="the event loop is told of the failure")
        with pytest.raises(InvariantBroken):
            await etcd.get("/")
    assert [str(context["exception"]) for context in reported] == ["cannot bear SessionEvent.EXPIRED"], reported


# --- History that etcd forgets


async def test_a_listing_starts_over_when_its_revision_is_compacted(shared: EtcdServer) -> None:
    """Method: between the first page and the second another client adds a child and compacts all history."""
    shared.put("/compacted")
    shared.put_many([f"/compacted/{number:05d}" for number in range(1500)])
    async with client(shared.address) as etcd:
        call, compactions = etcd._client.call, 0

        async def call_then_compact(*args: Any, **kwargs: Any) -> Any:
            nonlocal compactions
            answer = await call(*args, **kwargs)
            if compactions < 2:
                compactions += 1
                revision = await asyncio.to_thread(shared.put, f"/compacted/new-{compactions}")
                await asyncio.to_thread(shared.compact, revision)
            return answer

        etcd._client.call = call_then_compact  # type: ignore[method-assign]
        listing = await etcd.children("/compacted")
    assert listing is not None
    assert len(listing.names) == 1502
    assert listing.names[-2:] == ("new-1", "new-2")
    assert compactions == 2


async def test_a_watch_wakes_for_changes_that_were_compacted_while_it_was_cut_off(shared: EtcdServer) -> None:
    async with Link(shared.port) as link, client(f"127.0.0.1:{link.port}") as etcd:
        wakes, node = Wakes(), "/watched-through-compaction"
        etcd.listen(wakes.events.append)
        await etcd.commit([Create(node)])
        await etcd.watch(node, Target.CHILDREN, wakes.notify)
        link.cut()
        await wakes.heard(SessionEvent.SUSPENDED)
        before = wakes.count
        revision = await asyncio.to_thread(shared.put, f"{node}/child")
        await asyncio.to_thread(shared.put, "/something-else")
        await asyncio.to_thread(shared.compact, revision + 1)
        link.mend()
        await wakes.more_than(before)
        listing = await etcd.children(node)
        assert listing is not None
        assert listing.names == ("child",)
        before = wakes.count
        await asyncio.to_thread(shared.put, f"{node}/another")
        await wakes.more_than(before)


# --- The tree


async def test_a_cluster_that_apache_bookkeeper_initialised_is_seen_as_a_tree(shared: EtcdServer) -> None:
    """Its driver writes plain keys in one transaction; the scope's own parents have no keys at all."""
    scope = "/apache/scope/ledgers"
    layout = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
    shared.put(scope)
    shared.put(f"{scope}/layout", layout)
    shared.put_many(
        [f"{scope}/{name}" for name in ("bookies", "bookies/readonly", "bookies/writable", "cookies", "ledgers")]
    )
    ledger = "00000000-0000-0000-0000-000000000005"
    shared.put_many([f"{scope}/bookies/writable/127.0.0.1:3181", f"{scope}/ledgers/{ledger}"])
    shared.put(f"{scope}-2/ledgers")
    async with client(shared.address) as etcd:
        listing = await etcd.children(scope)
        assert listing is not None
        assert listing.names == ("bookies", "cookies", "layout", "ledgers")
        bookies, ledgers = await etcd.children(f"{scope}/bookies/writable"), await etcd.children(f"{scope}/ledgers")
        assert bookies is not None
        assert ledgers is not None
        assert (bookies.names, ledgers.names) == (("127.0.0.1:3181",), (ledger,))
        node = await etcd.get(f"{scope}/layout")
        assert node is not None
        assert (node.data, node.stat.writes, node.stat.owner) == (layout, 1, None)
        await etcd.commit(
            [Set(f"{scope}/layout", layout, node.stat.version), Create(f"{scope}/cookies/127.0.0.1:3181")]
        )
        assert f"{scope}/cookies/127.0.0.1:3181" in await asyncio.to_thread(shared.keys, scope, f"{scope}0")
        assert await etcd.stat("/apache") is None
        assert await etcd.children("/apache/scope") is None
        root = await etcd.children("/")
        assert root is not None
        assert "apache" not in root.names


async def test_what_has_keys_below_it_is_not_deleted_even_if_they_are_no_children(shared: EtcdServer) -> None:
    """Keys of others may lie deeper without a parent between. Deleting above them would hide them for ever."""
    shared.put_many(["/above", "/above/missing/below"])
    async with client(shared.address) as etcd:
        listing = await etcd.children("/above")
        assert listing is not None
        assert listing.names == ()
        with pytest.raises(NodeNotEmpty):
            await etcd.commit([Delete("/above", ANY_VERSION)])


async def test_a_directory_costs_what_its_children_cost_not_what_is_below_them(shared: EtcdServer) -> None:
    """Method: count the calls that etcd served. Six children with 2,000 keys below each; then 3,000 flat ones."""
    shared.put("/deep")
    shared.put_many([f"/deep/{child}" for child in "abcdef"])
    shared.put_many([f"/deep/{child}/{number}" for child in "abcdef" for number in range(2000)])
    shared.put("/flat")
    shared.put_many([f"/flat/{number:04d}" for number in range(3000)])

    def calls() -> int:
        return shared.calls("Range") + shared.calls("Txn")

    async with client(shared.address) as etcd:
        for path, names, calls_max in (
            ("/deep", list("abcdef"), 8),
            ("/flat", [f"{number:04d}" for number in range(3000)], 3),
        ):
            before = await asyncio.to_thread(calls)
            listing = await etcd.children(path)
            assert listing is not None
            assert list(listing.names) == names
            assert await asyncio.to_thread(calls) - before <= calls_max


async def test_many_clients_racing_for_numbers_all_get_one_in_time(shared: EtcdServer) -> None:
    """Each has one node to create, as when a lock is released that everybody wants."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(client(shared.address)) for _ in range(40)]
        await crowd[0].commit([Create("/crowd")])
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.commit([Create("/crowd/n-", sequential=True)]) for each in crowd))
        listing = await crowd[0].children("/crowd")
        assert listing is not None
        assert list(listing.names) == [f"n-{number:010d}" for number in range(40)]


async def test_sequential_numbers_of_racing_clients_follow_the_order_of_creation(shared: EtcdServer) -> None:
    async with client(shared.address) as one, client(shared.address) as two, client(shared.address) as three:
        await one.commit([Create("/race")])
        made = await asyncio.gather(
            *(each.commit([Create("/race/n-", sequential=True)]) for each in (one, two, three) for _ in range(15))
        )
        written = sorted((node for (node,) in made if node is not None), key=lambda node: node.version)
        assert [node.path for node in written] == [f"/race/n-{number:010d}" for number in range(45)]
        await one.commit([Delete(node.path, ANY_VERSION) for node in written[:40]])
        (late,) = await two.commit([Create("/race/other-", sequential=True)])
        assert late is not None
        assert late.path == "/race/other-0000000045", "numbers do not come back while the parent lives"
        await asyncio.to_thread(shared.put, "/race/n-0000000046")
        (skipped,) = await two.commit([Create("/race/n-", sequential=True)])
        assert skipped is not None
        assert skipped.path == "/race/n-0000000047", "a name that is taken is passed over"


async def test_random_transactions_end_as_in_the_memory_tree(shared: EtcdServer) -> None:
    """What the unit tests assume of etcd's comparisons, asked of etcd itself. The seed is fixed: a failure repeats."""
    rng, root = random.Random(20240229), "/random"
    tree = MemoryDriver(MemoryTree(), PATIENT, real_runtime())
    errors: set[type[QuireError]] = set()
    async with client(shared.address) as etcd:
        for driver in (etcd, tree):
            await driver.commit([Create(root)])
        for _ in range(400):
            drawn = _draw(rng, root)
            outcomes = [await _outcome(driver, drawn) for driver in (etcd, tree)]
            assert outcomes[0] == outcomes[1], drawn
            if isinstance(outcomes[0], tuple):
                errors.add(outcomes[0][0])
        for path in (root, *(f"{root}/{name}" for name in _NAMES)):
            ours, theirs = await etcd.children(path), await tree.children(path)
            assert (ours and ours.names) == (theirs and theirs.names)
    assert len(errors) == 5, f"the transactions were refused for too few reasons: {errors}"


_NAMES = ("a", "a-", "a.b", "b")


def _draw(rng: random.Random, root: str) -> list[tuple[str, str, str]]:
    paths = {
        root + "".join(f"/{rng.choice(_NAMES)}" for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 4))
    }
    kinds = ("create", "create", "ephemeral", "set", "delete", "delete", "check")
    ordered = sorted(paths)
    rng.shuffle(ordered)
    return [(rng.choice(kinds), path, rng.choice(("any", "right", "right", "wrong", "zero"))) for path in ordered]


async def _outcome(driver: EtcdDriver | MemoryDriver, drawn: list[tuple[str, str, str]]) -> object:
    ops: list[Op] = []
    for kind, path, expectation in drawn:
        stat = await driver.stat(path)
        numbers = {"any": ANY_VERSION, "right": stat.version if stat else 1, "wrong": 10**9, "zero": 0}
        expected = Version(numbers[expectation])
        if kind in ("create", "ephemeral"):
            ops.append(Create(path, b"new", ephemeral=kind == "ephemeral"))
        elif kind == "set":
            ops.append(Set(path, b"set", expected))
        else:
            ops.append(Delete(path, expected) if kind == "delete" else Check(path, expected))
    try:
        return [(written.path, written.writes) if written else None for written in await driver.commit(ops)]
    except QuireError as error:
        return type(error), error.facts.get("path")


# --- What etcd refuses


async def test_more_operations_than_etcd_takes_are_refused_as_too_large(shared: EtcdServer) -> None:
    async with client(shared.address) as etcd:
        with pytest.raises(RequestTooLarge):
            await etcd.commit([Create(f"/many-{number}") for number in range(200)])
        assert await etcd.stat("/many-0") is None
        with pytest.raises(RequestTooLarge):
            await etcd.commit([Create("/large", b"x" * 3_000_000)])


async def test_a_full_database_is_named(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path, "--quota-backend-bytes=400000")
    server.start()
    try:
        async with client(server.address) as etcd:

            async def fill() -> None:
                for number in itertools.count():
                    await etcd.commit([Create(f"/filled-{number}", b"x" * 100_000)])

            with pytest.raises(MetadataUnavailable, match="space") as caught:
                await within(30, fill())  # etcd looks at its size a few times a second.
            assert "full" in caught.value.hint
    finally:
        server.kill()


async def test_a_server_that_wants_a_user_refuses_with_a_hint(server: EtcdServer) -> None:
    async with client(server.address) as etcd:
        server.ask("/v3/auth/user/add", name="root", password="root")
        server.ask("/v3/auth/user/grant", user="root", role="root")
        server.ask("/v3/auth/enable")
        with pytest.raises(Refused, match="user name is empty") as caught:
            await etcd.get("/a")
        assert "authenticate" in caught.value.hint
        with pytest.raises(Refused):
            await etcd.commit([Create("/a")])
        with pytest.raises(Refused):
            await etcd.watch("/a", Target.NODE, lambda: None)


def test_without_grpcio_the_import_names_the_missing_module() -> None:
    program = (
        "import sys; sys.modules['grpc'] = None\n"
        "try: import quire.metadata.drivers.etcd\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ran.stdout == "grpc\n"
