"""What is special about etcd's tree: its history is forgotten, its keys are flat, and others write them too.

What every driver must do is in `tests/contract/metadata`. Trouble with servers and sessions has files of its own.
"""

import asyncio
import itertools
import random
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from quire.errors import (
    MetadataUnavailable,
    NodeNotEmpty,
    QuireError,
    Refused,
    RequestTooLarge,
)
from quire.metadata import ANY_VERSION, Check, Create, Delete, SessionEvent, Set, Version
from quire.metadata.driver import Op, Target
from quire.metadata.drivers.etcd import EtcdDriver
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.runtime import real_runtime
from tests.integration.metadata.etcd_client import PATIENT, StallingLink, Wakes, client, within
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.link import Link
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("etcd")


# --- History that etcd forgets


async def test_a_listing_starts_over_when_its_revision_is_compacted(shared_etcd: EtcdServer) -> None:
    """Method: between the first page and the second another client adds a child and compacts all history."""
    shared_etcd.put("/compacted")
    shared_etcd.put_many([f"/compacted/{number:05d}" for number in range(1500)])
    async with client(shared_etcd.address) as etcd:
        call, compactions = etcd._client.call, 0

        async def call_then_compact(*args: Any, **kwargs: Any) -> Any:
            nonlocal compactions
            answer = await call(*args, **kwargs)
            if compactions < 2:
                compactions += 1
                revision = await asyncio.to_thread(shared_etcd.put, f"/compacted/new-{compactions}")
                await asyncio.to_thread(shared_etcd.compact, revision)
            return answer

        etcd._client.call = call_then_compact  # type: ignore[method-assign]
        listing = await etcd.children("/compacted")
    assert listing is not None
    assert len(listing.names) == 1502
    assert listing.names[-2:] == ("new-1", "new-2")
    assert compactions == 2


async def test_a_watch_wakes_for_changes_that_were_compacted_while_it_was_cut_off(shared_etcd: EtcdServer) -> None:
    async with Link(shared_etcd.port) as link, client(f"127.0.0.1:{link.port}") as etcd:
        wakes, node = Wakes(), "/watched-through-compaction"
        etcd.listen(wakes.events.append)
        await etcd.commit([Create(node)])
        await etcd.watch(node, Target.CHILDREN, wakes.notify)
        link.cut()
        await wakes.heard(SessionEvent.SUSPENDED)
        before = wakes.count
        revision = await asyncio.to_thread(shared_etcd.put, f"{node}/child")
        await asyncio.to_thread(shared_etcd.put, "/something-else")
        await asyncio.to_thread(shared_etcd.compact, revision + 1)
        link.mend()
        await wakes.more_than(before)
        listing = await etcd.children(node)
        assert listing is not None
        assert listing.names == ("child",)
        before = wakes.count
        await asyncio.to_thread(shared_etcd.put, f"{node}/another")
        await wakes.more_than(before)


@pytest.mark.extended
async def test_a_watch_that_is_too_slow_for_the_history_wakes_and_goes_on(shared_etcd: EtcdServer) -> None:
    """Method: hold the stream back until etcd cannot send any more, and compact what it has yet to send."""
    wakes = Wakes()
    async with StallingLink(shared_etcd.port) as link, client(f"127.0.0.1:{link.port}") as etcd:
        await etcd.commit([Create("/slow")])
        await etcd.watch("/slow", Target.NODE, wakes.notify)
        given = _watch_ids(etcd)
        link.flowing.clear()
        for _ in range(300):
            revision = await asyncio.to_thread(shared_etcd.put, "/slow", b"x" * 200_000)
        await asyncio.to_thread(shared_etcd.compact, revision)
        link.flowing.set()

        async def given_up_and_created_anew() -> bool:
            return _watch_ids(etcd)[1] != set() and _watch_ids(etcd) != given

        await eventually(given_up_and_created_anew, what="etcd gives the watch up")
        assert wakes.count > 0
        before = wakes.count
        await asyncio.to_thread(shared_etcd.put, "/slow", b"on")
        await wakes.more_than(before)


def _watch_ids(etcd: EtcdDriver) -> tuple[object, set[int]]:
    """The ids that etcd has given, and the stream on which it gave them."""
    line = etcd._watches._line
    return line, set(line._watching) if line is not None else set()


# --- The tree


async def test_a_cluster_that_apache_bookkeeper_initialised_is_seen_as_a_tree(shared_etcd: EtcdServer) -> None:
    """Its driver writes plain keys in one transaction; the scope's own parents have no keys at all."""
    scope = "/apache/scope/ledgers"
    layout = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
    shared_etcd.put(scope)
    shared_etcd.put(f"{scope}/layout", layout)
    shared_etcd.put_many(
        [f"{scope}/{name}" for name in ("bookies", "bookies/readonly", "bookies/writable", "cookies", "ledgers")]
    )
    ledger = "00000000-0000-0000-0000-000000000005"
    shared_etcd.put_many([f"{scope}/bookies/writable/127.0.0.1:3181", f"{scope}/ledgers/{ledger}"])
    shared_etcd.put(f"{scope}-2/ledgers")
    async with client(shared_etcd.address) as etcd:
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
        assert f"{scope}/cookies/127.0.0.1:3181" in await asyncio.to_thread(shared_etcd.keys, scope, f"{scope}0")
        assert await etcd.stat("/apache") is None
        assert await etcd.children("/apache/scope") is None
        root = await etcd.children("/")
        assert root is not None
        assert "apache" not in root.names


async def test_what_has_keys_below_it_is_not_deleted_even_if_they_are_no_children(shared_etcd: EtcdServer) -> None:
    """Keys of others may lie deeper without a parent between. Deleting above them would hide them for ever."""
    shared_etcd.put_many(["/above", "/above/missing/below"])
    async with client(shared_etcd.address) as etcd:
        listing = await etcd.children("/above")
        assert listing is not None
        assert listing.names == ()
        with pytest.raises(NodeNotEmpty):
            await etcd.commit([Delete("/above", ANY_VERSION)])


async def test_a_parent_is_deleted_or_gets_its_child_but_never_both(shared_etcd: EtcdServer) -> None:
    """Method: a child is created while its parent is deleted, after the look that found the parent empty or before."""
    refused: set[str] = set()
    async with client(shared_etcd.address) as one, client(shared_etcd.address) as two:
        for number in range(60):
            parent = f"/contested-{number}"
            await one.commit([Create(parent)])
            create, delete = await asyncio.gather(
                one.commit([Create(f"{parent}/child")]),
                two.commit([Delete(parent, ANY_VERSION)]),
                return_exceptions=True,
            )
            failures = [type(each).__name__ for each in (create, delete) if isinstance(each, BaseException)]
            assert len(failures) == 1
            refused.update(failures)
            kept = await asyncio.to_thread(shared_etcd.keys, parent, f"{parent}0")
            assert kept in ([], [parent, f"{parent}/child"])
    assert refused <= {"NodeNotEmpty", "NoSuchNode"}


async def test_a_directory_costs_what_its_children_cost_not_what_is_below_them(shared_etcd: EtcdServer) -> None:
    """Method: count the calls that etcd served. Six children with 2,000 keys below each; then 3,000 flat ones."""
    shared_etcd.put("/deep")
    shared_etcd.put_many([f"/deep/{child}" for child in "abcdef"])
    shared_etcd.put_many([f"/deep/{child}/{number}" for child in "abcdef" for number in range(2000)])
    shared_etcd.put("/flat")
    shared_etcd.put_many([f"/flat/{number:04d}" for number in range(3000)])

    def calls() -> int:
        return shared_etcd.calls("Range") + shared_etcd.calls("Txn")

    async with client(shared_etcd.address) as etcd:
        for path, names, calls_max in (
            ("/deep", list("abcdef"), 8),
            ("/flat", [f"{number:04d}" for number in range(3000)], 3),
        ):
            before = await asyncio.to_thread(calls)
            listing = await etcd.children(path)
            assert listing is not None
            assert list(listing.names) == names
            assert await asyncio.to_thread(calls) - before <= calls_max


async def test_many_clients_racing_for_numbers_all_get_one_in_time(shared_etcd: EtcdServer) -> None:
    """Each has one node to create, as when a lock is released that everybody wants."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(client(shared_etcd.address)) for _ in range(40)]
        await crowd[0].commit([Create("/crowd")])
        async with asyncio.timeout(10):
            await asyncio.gather(*(each.commit([Create("/crowd/n-", sequential=True)]) for each in crowd))
        listing = await crowd[0].children("/crowd")
        assert listing is not None
        assert list(listing.names) == [f"n-{number:010d}" for number in range(40)]


async def test_sequential_numbers_of_racing_clients_follow_the_order_of_creation(shared_etcd: EtcdServer) -> None:
    async with (
        client(shared_etcd.address) as one,
        client(shared_etcd.address) as two,
        client(shared_etcd.address) as three,
    ):
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
        await asyncio.to_thread(shared_etcd.put, "/race/n-0000000046")
        (skipped,) = await two.commit([Create("/race/n-", sequential=True)])
        assert skipped is not None
        assert skipped.path == "/race/n-0000000047", "a name that is taken is passed over"


async def test_random_transactions_end_as_in_the_memory_tree(shared_etcd: EtcdServer) -> None:
    """What the unit tests assume of etcd's comparisons, asked of etcd itself. The seed is fixed: a failure repeats."""
    rng, root = random.Random(20240229), "/random"
    tree = MemoryDriver(MemoryTree(), PATIENT, real_runtime())
    errors: set[type[QuireError]] = set()
    async with client(shared_etcd.address) as etcd:
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


async def test_more_operations_than_etcd_takes_are_refused_as_too_large(shared_etcd: EtcdServer) -> None:
    async with client(shared_etcd.address) as etcd:
        with pytest.raises(RequestTooLarge):
            await etcd.commit([Create(f"/many-{number}") for number in range(200)])
        assert await etcd.stat("/many-0") is None
        with pytest.raises(RequestTooLarge):
            await etcd.commit([Create("/large", b"x" * 3_000_000)])


async def test_a_full_database_is_named(tmp_path: Path) -> None:
    small_etcd = EtcdServer(tmp_path, "--quota-backend-bytes=400000")
    small_etcd.start()
    try:
        async with client(small_etcd.address) as etcd:

            async def fill() -> None:
                for number in itertools.count():
                    await etcd.commit([Create(f"/filled-{number}", b"x" * 100_000)])

            with pytest.raises(MetadataUnavailable, match="space") as caught:
                await within(30, fill())  # etcd looks at its size a few times a second.
            assert "full" in caught.value.hint
    finally:
        small_etcd.kill()


async def test_a_server_that_wants_a_user_refuses_with_a_hint(own_etcd: EtcdServer) -> None:
    async with client(own_etcd.address) as etcd:
        own_etcd.ask("/v3/auth/user/add", name="root", password="root")
        own_etcd.ask("/v3/auth/user/grant", user="root", role="root")
        own_etcd.ask("/v3/auth/enable")
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
