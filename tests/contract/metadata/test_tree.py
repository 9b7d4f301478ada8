"""The tree itself: nodes, versions, children, sequences, transactions. The same on every backend."""

import asyncio
from collections.abc import Callable

import pytest

from quire.errors import (
    InvalidArgument,
    InvalidPath,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    QuireError,
    RequestTooLarge,
    StoreClosed,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, Check, Create, Delete, MetadataStore, Set, Version
from quire.metadata.driver import Op
from tests.contract.metadata.backends import Backend


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


async def tree_of(store: MetadataStore, path: str) -> dict[str, bytes]:
    """Everything below `path`, to prove that a refused write left it as it was."""
    found = {path: (await store.get(path)).data}
    for name in (await store.children(path)).names:
        found |= await tree_of(store, f"{path}/{name}")
    return found


async def test_a_created_node_reads_back(backend: Backend, store: MetadataStore) -> None:
    written = await store.create(f"{backend.root}/a", b"\x00one\xff")
    node = await store.get(f"{backend.root}/a")
    assert written.path == f"{backend.root}/a"
    assert node.data == b"\x00one\xff"
    assert node.stat.version == written.version
    assert node.stat.writes == written.writes == 1
    assert node.stat.owner is None
    assert await store.exists(f"{backend.root}/a") == node.stat


async def test_empty_data_is_data(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/a")
    assert (await store.get(f"{backend.root}/a")).data == b""


async def test_half_a_megabyte_fits_and_too_much_is_refused_before_it_is_sent(
    backend: Backend, store: MetadataStore
) -> None:
    await store.create(f"{backend.root}/big", b"x" * 500_000)
    assert len((await store.get(f"{backend.root}/big")).data) == 500_000
    with pytest.raises(RequestTooLarge):
        await store.create(f"{backend.root}/bigger", b"x" * 1_000_001)
    assert await store.exists(f"{backend.root}/bigger") is None


async def test_absent_nodes_are_named_in_the_error(backend: Backend, store: MetadataStore) -> None:
    absent = f"{backend.root}/absent"
    assert await store.exists(absent) is None
    for attempt in (
        store.get(absent),
        store.children(absent),
        store.set(absent, b"", expected=ANY_VERSION),
        store.delete(absent, expected=ANY_VERSION),
        store.create(f"{absent}/child"),
    ):
        with pytest.raises(NoSuchNode, match="absent"):
            await attempt


async def test_a_second_create_is_refused(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/a", b"first")
    with pytest.raises(NodeExists):
        await store.create(f"{backend.root}/a", b"second")
    assert (await store.get(f"{backend.root}/a")).data == b"first"


async def test_missing_parents_are_created_on_request_only(backend: Backend, store: MetadataStore) -> None:
    with pytest.raises(NoSuchNode):
        await store.create(f"{backend.root}/x/y/z")
    await store.create(f"{backend.root}/x/y/z", b"deep", parents=True)
    assert await tree_of(store, f"{backend.root}/x") == {
        f"{backend.root}/x": b"",
        f"{backend.root}/x/y": b"",
        f"{backend.root}/x/y/z": b"deep",
    }


async def test_a_node_that_exists_is_refused_also_with_parents(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/x/y", b"first", parents=True)
    with pytest.raises(NodeExists):
        await store.create(f"{backend.root}/x/y", b"second", parents=True)
    assert (await store.get(f"{backend.root}/x/y")).data == b"first"


async def test_a_sequential_node_gets_its_parents_too(backend: Backend, store: MetadataStore) -> None:
    """Its number has to come from a transaction of its own."""
    first = await store.create(f"{backend.root}/x/y/n-", sequential=True, parents=True)
    second = await store.create(f"{backend.root}/x/y/n-", sequential=True, parents=True)
    assert [first.path, second.path] == [f"{backend.root}/x/y/n-{number:010d}" for number in (0, 1)]


async def test_many_who_need_the_same_missing_parents_get_them(backend: Backend, store: MetadataStore) -> None:
    """Each finds them missing, one creates them, and the others go on below what that one made."""
    names = [f"{number:02d}" for number in range(12)]
    await asyncio.gather(
        *(store.create(f"{backend.root}/x/y/{name}", name.encode(), parents=True) for name in names),
        *(store.create(f"{backend.root}/x/z/n-", sequential=True, parents=True) for _ in names),
    )
    assert sorted((await store.children(f"{backend.root}/x/y")).names) == names
    assert len((await store.children(f"{backend.root}/x/z")).names) == len(names)


async def test_versions_grow_with_each_write(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/a"
    versions = [(await store.create(path)).version]
    for round in range(5):
        written = await store.set(path, b"%d" % round, expected=versions[-1])
        versions.append(written.version)
        assert written.writes == round + 2
        assert (await store.get(path)).stat.writes == round + 2
    assert versions == sorted(set(versions))


async def test_a_stale_version_is_refused(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/a"
    first = (await store.create(path, b"1")).version
    second = (await store.set(path, b"2", expected=first)).version
    with pytest.raises(VersionConflict):
        await store.set(path, b"3", expected=first)
    with pytest.raises(VersionConflict):
        await store.delete(path, expected=first)
    assert (await store.get(path)).data == b"2"
    await store.delete(path, expected=second)
    assert await store.exists(path) is None


async def test_any_version_writes_over_whatever_is_there(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/a"
    await store.create(path, b"1")
    await store.set(path, b"2", expected=ANY_VERSION)
    assert (await store.get(path)).data == b"2"
    await store.delete(path, expected=ANY_VERSION)
    assert await store.exists(path) is None


async def test_children_are_the_direct_ones_sorted(backend: Backend, store: MetadataStore) -> None:
    """Names around '/' in byte order must neither hide one another nor show grandchildren."""
    names = ["a", "a-b", "a.b", "a0", "ab", "b", "urL0000000001", "bk1:3181", "ü", "A", "a b"]
    for name in names:
        await store.create(f"{backend.root}/{name}")
        await store.create(f"{backend.root}/{name}/below")
        await store.create(f"{backend.root}/{name}/below/deeper")
    assert list((await store.children(backend.root)).names) == sorted(names)
    assert (await store.children(f"{backend.root}/a")).names == ("below",)
    assert (await store.children(f"{backend.root}/a/below/deeper")).names == ()


async def test_a_large_folder_is_listed_whole(backend: Backend, store: MetadataStore) -> None:
    names = [f"node-{number:05d}" for number in range(2500)]
    for start in range(0, len(names), 25):
        await store.transaction(*(Create(f"{backend.root}/{name}") for name in names[start : start + 25]))
    assert list((await store.children(backend.root)).names) == names


async def test_listings_of_a_node_have_growing_versions(backend: Backend, store: MetadataStore) -> None:
    versions = [(await store.children(backend.root)).version]
    await store.create(f"{backend.root}/a")
    versions.append((await store.children(backend.root)).version)
    await store.delete(f"{backend.root}/a", expected=ANY_VERSION)
    versions.append((await store.children(backend.root)).version)
    assert versions == sorted(set(versions))


async def test_a_node_with_children_stays(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/a/b", parents=True)
    with pytest.raises(NodeNotEmpty):
        await store.delete(f"{backend.root}/a", expected=ANY_VERSION)
    await store.delete(f"{backend.root}/a/b", expected=ANY_VERSION)
    await store.delete(f"{backend.root}/a", expected=ANY_VERSION)
    assert (await store.children(backend.root)).names == ()


async def test_delete_tree_removes_all_below_and_nothing_beside(backend: Backend, store: MetadataStore) -> None:
    for path in ("a", "a/b", "a/b/c", "a/d", "a-b", "a0", "ab"):
        await store.create(f"{backend.root}/{path}")
    await store.delete_tree(f"{backend.root}/a")
    assert (await store.children(backend.root)).names == ("a-b", "a0", "ab")
    await store.delete_tree(f"{backend.root}/a")  # Nothing there: nothing to do.


async def test_sequential_nodes_are_numbered_in_order(backend: Backend, store: MetadataStore) -> None:
    other = await backend.open()
    paths = [
        (await client.create(f"{backend.root}/n-", sequential=True, data=b"x")).path for client in (store, other) * 4
    ]
    assert paths == sorted(set(paths))
    prefix = f"{backend.root}/n-"
    assert all(path.startswith(prefix) and len(path) == len(prefix) + 10 for path in paths)
    assert all(path.removeprefix(prefix).isdigit() for path in paths)
    assert [f"{backend.root}/{name}" for name in (await store.children(backend.root)).names] == paths


async def test_sequence_numbers_are_not_given_again(backend: Backend, store: MetadataStore) -> None:
    first = (await store.create(f"{backend.root}/n-", sequential=True)).path
    await store.delete(first, expected=ANY_VERSION)
    second = (await store.create(f"{backend.root}/n-", sequential=True)).path
    assert second > first


async def test_racing_sequential_creates_all_get_their_own_number(backend: Backend, store: MetadataStore) -> None:
    """Whoever sees its own node as the lowest holds a lock, so numbers must appear in the order they were given."""
    clients = [store, await backend.open(), await backend.open()]

    async def create_and_list(client: MetadataStore) -> tuple[str, list[str]]:
        path = (await client.create(f"{backend.root}/n-", sequential=True)).path
        await client.sync()
        return path, [f"{backend.root}/{name}" for name in (await client.children(backend.root)).names]

    results = await asyncio.gather(*(create_and_list(client) for client in clients * 5))
    created = sorted(path for path, _ in results)
    assert len(set(created)) == 15
    for path, listed in results:
        earlier = [other for other in created if other < path]
        assert [other for other in listed if other < path] == earlier, "a lower number appeared later"


async def test_two_clients_race_on_versions_and_no_increment_is_lost(backend: Backend, store: MetadataStore) -> None:
    path = f"{backend.root}/counter"
    await store.create(path, b"0")
    other = await backend.open()
    conflicts = 0

    async def increment(client: MetadataStore, times: int) -> None:
        nonlocal conflicts
        done = 0
        while done < times:
            node = await client.get(path)
            try:
                await client.set(path, b"%d" % (int(node.data) + 1), expected=node.stat.version)
                done += 1
            except VersionConflict:
                conflicts += 1

    await asyncio.gather(*(increment(client, 20) for client in (store, other, store, other)))
    assert (await store.get(path)).data == b"80"
    assert conflicts > 0, "the clients never met: this test proved nothing"


# --- Transactions


async def test_a_transaction_happens_as_a_whole(backend: Backend, store: MetadataStore) -> None:
    root = backend.root
    kept = (await store.create(f"{root}/kept", b"1")).version
    old = (await store.create(f"{root}/old")).version
    checked = (await store.create(f"{root}/checked")).version
    results = await store.transaction(
        Check(f"{root}/checked", checked),
        Create(f"{root}/new", b"n"),
        Create(f"{root}/new/child", b"c"),
        Set(f"{root}/kept", b"2", kept),
        Delete(f"{root}/old", old),
    )
    assert await tree_of(store, root) == {
        root: b"",
        f"{root}/checked": b"",
        f"{root}/kept": b"2",
        f"{root}/new": b"n",
        f"{root}/new/child": b"c",
    }
    assert [result and result.path for result in results] == [
        None,
        f"{root}/new",
        f"{root}/new/child",
        f"{root}/kept",
        None,
    ]
    for result in results:
        if result is not None:
            assert (await store.get(result.path)).stat.version == result.version


async def test_a_parent_and_its_children_can_go_together(backend: Backend, store: MetadataStore) -> None:
    root = backend.root
    for path in ("a", "a/b", "a/c", "a-b"):
        await store.create(f"{root}/{path}")
    await store.transaction(*(Delete(f"{root}/{path}", ANY_VERSION) for path in ("a/c", "a/b", "a")))
    assert (await store.children(root)).names == ("a-b",)


REFUSALS: dict[str, tuple[Callable[[str], Op], type[QuireError]]] = {
    "exists": (lambda root: Create(f"{root}/a"), NodeExists),
    "no parent": (lambda root: Create(f"{root}/x/y"), NoSuchNode),
    "ephemeral parent": (lambda root: Create(f"{root}/e/y"), ParentIsEphemeral),
    "set absent": (lambda root: Set(f"{root}/x", b"", ANY_VERSION), NoSuchNode),
    "set stale": (lambda root: Set(f"{root}/a", b"", Version(2**40)), VersionConflict),
    "delete absent": (lambda root: Delete(f"{root}/x", ANY_VERSION), NoSuchNode),
    "delete stale": (lambda root: Delete(f"{root}/a", Version(2**40)), VersionConflict),
    "delete full": (lambda root: Delete(f"{root}/full", ANY_VERSION), NodeNotEmpty),
    "check absent": (lambda root: Check(f"{root}/x", ANY_VERSION), NoSuchNode),
    "check stale": (lambda root: Check(f"{root}/a", Version(2**40)), VersionConflict),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_one_impossible_operation_undoes_the_whole_transaction(
    backend: Backend, store: MetadataStore, refusal: str, position: int
) -> None:
    root = backend.root
    make, expected_error = REFUSALS[refusal]
    for path in ("a", "b", "full", "full/child"):
        await store.create(f"{root}/{path}", b"before")
    await store.create(f"{root}/e", b"before", ephemeral=True)
    before = await tree_of(store, root)
    ops: list[Op] = [Create(f"{root}/new"), Set(f"{root}/b", b"after", ANY_VERSION)]
    ops.insert(position, make(root))
    with pytest.raises(expected_error) as caught:
        await store.transaction(*ops)
    assert caught.value.facts["path"] == ops[position].path
    assert await tree_of(store, root) == before


async def test_a_transaction_that_is_wrong_in_itself_is_refused(backend: Backend, store: MetadataStore) -> None:
    root = backend.root
    with pytest.raises(InvalidArgument, match="twice"):
        await store.transaction(Create(f"{root}/a"), Set(f"{root}/a", b"", ANY_VERSION))
    with pytest.raises(InvalidArgument, match="sequential"):
        await store.transaction(Create(f"{root}/a"), Create(f"{root}/b", sequential=True))
    with pytest.raises(InvalidArgument):
        await store.transaction(Set(f"{root}/a", b"", Version(-7)))
    assert (await store.children(root)).names == ()
    assert await store.transaction() == []


@pytest.mark.parametrize(
    "path", ["", "relative", "/a//b", "/a/", "/../b", "/a/./b", "/a/..", "//", "/nul\x00", "/\x1f", "/\ue000"]
)
async def test_malformed_paths_are_refused_and_change_nothing(
    backend: Backend, store: MetadataStore, path: str
) -> None:
    calls = [
        store.get(path),
        store.exists(path),
        store.children(path),
        store.create(path),
        store.create(path, parents=True),
        store.set(path, b"", expected=ANY_VERSION),
        store.delete(path, expected=ANY_VERSION),
        store.delete_tree(path),
    ]
    for call in calls:
        with pytest.raises(InvalidPath):
            await call
    with pytest.raises(InvalidPath):
        store.watch(path)
    assert (await store.children(backend.root)).names == ()


async def test_the_root_exists_and_cannot_be_written(backend: Backend, store: MetadataStore) -> None:
    assert backend.root.removeprefix("/") in (await store.children("/")).names
    for call in (store.create("/"), store.set("/", b"", expected=ANY_VERSION), store.delete("/", expected=ANY_VERSION)):
        with pytest.raises(InvalidArgument):
            await call


async def test_a_closed_store_says_so(backend: Backend) -> None:
    store = await backend.open()
    await store.aclose()
    await store.aclose()  # Closing twice is harmless.
    for call in (store.get("/a"), store.create("/a"), store.children("/")):
        with pytest.raises(StoreClosed):
            await call


async def test_many_calls_at_once_all_get_their_own_answer(backend: Backend, store: MetadataStore) -> None:
    async def one(number: int) -> bytes:
        path = f"{backend.root}/{number % 20}"
        try:
            await store.create(path, b"%d" % (number % 20))
        except NodeExists:
            pass
        return (await store.get(path)).data

    answers = await asyncio.gather(*(one(number) for number in range(100)))
    assert answers == [b"%d" % (number % 20) for number in range(100)]


async def test_every_error_says_whether_to_retry_and_what_to_do(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/a")
    with pytest.raises(QuireError) as caught:
        await store.set(f"{backend.root}/a", b"", expected=Version(2**40))
    assert caught.value.retryable
    assert caught.value.hint


@pytest.mark.parametrize("data", ["text", bytearray(b"x"), memoryview(b"x"), [1], None])
async def test_data_that_is_not_bytes_is_refused(backend: Backend, store: MetadataStore, data: object) -> None:
    """A bytearray could change after it was stored, and a list would be found out by the backend, too late."""
    with pytest.raises(InvalidArgument, match="not bytes"):
        await store.create(f"{backend.root}/a", data)  # type: ignore[arg-type]
    assert await store.exists(f"{backend.root}/a") is None


async def test_a_sequential_node_never_takes_the_place_of_another(backend: Backend, store: MetadataStore) -> None:
    taken = [f"{backend.root}/n-{number:010d}" for number in range(8)]
    for path in taken:
        await store.create(path, b"precious")
    try:
        created = (await store.create(f"{backend.root}/n-", b"new", sequential=True)).path
    except NodeExists:
        created = ""
    assert created not in taken
    for path in taken:
        assert (await store.get(path)).data == b"precious"


async def test_the_whole_tree_cannot_be_deleted(backend: Backend, store: MetadataStore) -> None:
    await store.create(f"{backend.root}/a")
    with pytest.raises(InvalidArgument):
        await store.delete_tree("/")
    assert (await store.children(backend.root)).names == ("a",)


async def test_a_deep_tree_can_be_deleted(backend: Backend, store: MetadataStore) -> None:
    path = backend.root
    for _ in range(120):
        path += "/d"
        await store.create(path)
    await store.delete_tree(f"{backend.root}/d")
    assert (await store.children(backend.root)).names == ()
