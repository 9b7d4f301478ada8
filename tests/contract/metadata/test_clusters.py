"""Setting up a cluster, opening it, checking it, over any store."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from quire.codec.cookie import Cookie
from quire.codec.registration import BookieServiceInfo, Endpoint
from quire.errors import AlreadyInitialised, DamagedMetadata, LayoutMismatch, NotInitialised
from quire.metadata import ANY_VERSION, Cluster, MetadataStore, attach_cluster, init_cluster
from quire.metadata.check import check_cluster
from quire.metadata.cluster import ClusterPaths
from quire.runtime import real_runtime
from quire.types import BookieId
from tests.contract.metadata.backends import Backend
from tests.contract.metadata.clusters import LAYOUTS, cluster_uri, new_cluster, some_metadata
from tests.contract.metadata.test_tree import tree_of


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


async def problems(cluster: Cluster) -> dict[str, str]:
    return {found.path: found.problem async for found in check_cluster(cluster) if found.problem}


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
async def test_a_new_cluster_has_what_apache_expects(
    backend: Backend, store: MetadataStore, layout: str | None
) -> None:
    cluster = await new_cluster(backend, store, layout)
    root = cluster.uri.root
    tree = await tree_of(store, root)
    instance_id = await cluster.instance_id()
    assert instance_id is not None
    assert str(UUID(instance_id)) == instance_id
    if cluster.layout == "etcd":
        folders = ["cookies", "bookies", "bookies/writable", "bookies/readonly", "ledgers", "buckets"]
        assert tree == {
            root: b"",
            **{f"{root}/{folder}": b"" for folder in [*folders, "underreplication"]},
            f"{root}/layout": b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0",
            f"{root}/instanceid": instance_id.encode(),
        }
        return
    names = {"flat": "Flat", "hierarchical": "Hierarchical", "longhierarchical": "LongHierarchical"}
    factory = f"org.apache.bookkeeper.meta.{names[layout or 'hierarchical']}LedgerManagerFactory"
    assert tree == {
        root: b"",
        f"{root}/available": b"",
        f"{root}/available/readonly": b"",
        f"{root}/LAYOUT": f"2\n{factory}:1".encode(),
        f"{root}/INSTANCEID": instance_id.encode(),
    }


async def test_setting_up_twice_is_refused_and_changes_nothing(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store)
    before = await tree_of(store, cluster.uri.root)
    with pytest.raises(AlreadyInitialised):
        await new_cluster(backend, store)
    assert await tree_of(store, cluster.uri.root) == before


async def test_of_many_who_set_up_at_once_one_wins(backend: Backend, store: MetadataStore) -> None:
    clients = [store, await backend.open(), await backend.open()]
    results = await asyncio.gather(*(new_cluster(backend, client) for client in clients), return_exceptions=True)
    won = [result for result in results if isinstance(result, Cluster)]
    assert len(won) == 1
    assert sum(isinstance(result, AlreadyInitialised) for result in results) == 2
    assert await problems(won[0]) == {}


async def test_a_root_that_holds_something_else_is_left_alone(backend: Backend, store: MetadataStore) -> None:
    uri = cluster_uri(backend)
    await store.create(f"{uri.root}/mine", b"precious", parents=True)
    with pytest.raises(AlreadyInitialised):
        await init_cluster(store, uri, real_runtime())
    assert await tree_of(store, uri.root) == {uri.root: b"", f"{uri.root}/mine": b"precious"}


@pytest.mark.parametrize("more", [False, True])
async def test_a_cluster_that_has_an_instance_id_and_no_layout_is_completed(
    backend: Backend, store: MetadataStore, more: bool
) -> None:
    """So Pulsar's set-up leaves it. What is there stays as it is, bookies that came first included."""
    whole = await new_cluster(backend, store)
    expected = await tree_of(store, whole.uri.root)
    await store.delete_tree(whole.uri.root)
    instance_id = "0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10"
    await store.create(whole.paths.instance_id, instance_id.encode(), parents=True)
    if more:
        await store.create(f"{whole.paths.writable}/bk1:3181", b"", ephemeral=True, parents=True)
        await store.create(f"{whole.paths.cookies}/bk1:3181", b"not ours to judge", parents=True)
    before = await tree_of(store, whole.uri.root)
    with pytest.raises(NotInitialised, match="no layout") as caught:
        await attach_cluster(store, whole.uri, real_runtime(), create_layout=False)
    assert "quire metadata init" in caught.value.hint
    cluster = await init_cluster(store, whole.uri, real_runtime())
    assert await cluster.instance_id() == instance_id
    assert await tree_of(store, whole.uri.root) == expected | before
    with pytest.raises(AlreadyInitialised):
        await init_cluster(store, whole.uri, real_runtime())


async def test_only_what_is_surely_the_beginning_of_a_cluster_is_completed(
    backend: Backend, store: MetadataStore
) -> None:
    uri = cluster_uri(backend)
    instance_id = ClusterPaths.of(uri).instance_id
    await store.create(instance_id, b"no uuid", parents=True)
    with pytest.raises(DamagedMetadata):
        await init_cluster(store, uri, real_runtime())
    assert await tree_of(store, uri.root) == {uri.root: b"", instance_id: b"no uuid"}
    await store.set(instance_id, b"0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10", expected=ANY_VERSION)
    await store.create(f"{uri.root}/00", b"perhaps ledgers of another layout")
    before = await tree_of(store, uri.root)
    with pytest.raises(AlreadyInitialised):
        await init_cluster(store, uri, real_runtime())
    assert await tree_of(store, uri.root) == before


async def test_an_empty_root_is_filled(backend: Backend, store: MetadataStore) -> None:
    uri = cluster_uri(backend)
    await store.create(uri.root)
    assert await problems(await init_cluster(store, uri, real_runtime())) == {}


async def test_a_cluster_that_is_not_there_is_not_made_by_looking(backend: Backend, store: MetadataStore) -> None:
    uri = cluster_uri(backend)
    with pytest.raises(NotInitialised) as caught:
        await attach_cluster(store, uri, real_runtime())
    assert "quire metadata init" in caught.value.hint
    assert (await store.children(backend.root)).names == ()


async def test_a_missing_layout_is_written_by_who_may_write(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store)
    await store.delete(cluster.paths.layout, expected=ANY_VERSION)
    with pytest.raises(NotInitialised):
        await attach_cluster(store, cluster.uri, real_runtime(), create_layout=False)
    assert await store.exists(cluster.paths.layout) is None
    assert (await attach_cluster(store, cluster.uri, real_runtime())).layout == cluster.layout
    assert await store.exists(cluster.paths.layout) is not None


async def test_a_uri_that_contradicts_the_stored_layout_is_refused(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store, "hierarchical")
    before = await tree_of(store, cluster.uri.root)
    runtime = real_runtime()
    for layout in ("flat", "longhierarchical"):
        with pytest.raises(LayoutMismatch) as caught:
            await attach_cluster(store, replace(cluster.uri, layout=layout), runtime)
        assert cluster.layout in str(caught.value)
    assert (await attach_cluster(store, replace(cluster.uri, layout=None), runtime)).layout == cluster.layout
    assert await tree_of(store, cluster.uri.root) == before


LAYOUT_DAMAGE = {
    b"": DamagedMetadata,
    b"\xff\xfe": DamagedMetadata,
    b"3\norg.example.Factory:1": DamagedMetadata,
    b"2\nno version": DamagedMetadata,
    b"2\norg.example.OtherFactory:1": LayoutMismatch,
    b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:9": LayoutMismatch,
}


@pytest.mark.parametrize("data", LAYOUT_DAMAGE)
async def test_a_layout_we_do_not_understand_stops_everything(
    backend: Backend, store: MetadataStore, data: bytes
) -> None:
    cluster = await new_cluster(backend, store, "hierarchical")
    await store.set(cluster.paths.layout, data, expected=ANY_VERSION)
    with pytest.raises(LAYOUT_DAMAGE[data]):
        await attach_cluster(store, cluster.uri, real_runtime())
    assert (await store.get(cluster.paths.layout)).data == data


async def test_layouts_of_version_1_and_of_renamed_classes_are_understood(
    backend: Backend, store: MetadataStore
) -> None:
    cluster = await new_cluster(backend, store, "hierarchical")
    spelled = {
        b"1\nhierarchical:1": "hierarchical",
        b"1\nflat:1": "flat",
        b"2\ndlshade.org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1": "longhierarchical",
    }
    for data, layout in spelled.items():
        await store.set(cluster.paths.layout, data, expected=ANY_VERSION)
        attached = await attach_cluster(store, replace(cluster.uri, layout=None), real_runtime())
        assert attached.layout == layout


async def test_a_healthy_cluster_has_no_problems(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store)
    info = BookieServiceInfo((Endpoint("bookie", "bk1", 3181, "bookie-rpc"),))
    await cluster.bookies.create_cookie(
        Cookie(BookieId("bk1:3181"), ("/j",), ("/l",), instance_id=await cluster.instance_id())
    )
    for number in (None, 5, 2**40):
        await cluster.ledgers.create(some_metadata(), with_id=number)
    async with cluster.bookies.register(BookieId("bk1:3181"), info):
        found = [finding async for finding in check_cluster(cluster)]
    assert [finding for finding in found if finding.problem] == []
    assert len(found) >= 6  # The instance id, the registration, the cookie, three ledgers.


async def test_the_check_names_every_damaged_node(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store)
    paths = cluster.paths
    await cluster.bookies.create_cookie(Cookie(BookieId("bk1:3181"), ("/j",), ("/l",), instance_id="another cluster"))
    ledger = await cluster.ledgers.create(some_metadata())
    await cluster.ledgers.create(some_metadata())
    ledger_path = cluster.ledgers.path(ledger.ledger_id)
    bad = {
        f"{paths.writable}/bk1:3181": b"\x32\x7f",
        f"{paths.writable}/bk2:3181": b"",  # Persistent: nobody's session.
        f"{paths.cookies}/bk2:3181": b"garbage",
        f"{ledger_path.rpartition('/')[0]}/stray": b"",
    }
    for path, data in bad.items():
        await store.create(path, data, parents=True)
    await store.set(ledger_path, b"garbage", expected=ANY_VERSION)
    await store.set(paths.instance_id, b"not a uuid", expected=ANY_VERSION)
    before = await tree_of(store, cluster.uri.root)
    found = await problems(cluster)
    assert set(found) == {*bad, ledger_path, paths.instance_id, f"{paths.cookies}/bk1:3181"}
    assert await tree_of(store, cluster.uri.root) == before, "a check changes nothing"


async def test_the_check_finds_strays_on_every_level(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store, "hierarchical")
    await cluster.ledgers.create(some_metadata(), with_id=7)
    await cluster.ledgers.create(some_metadata(), with_id=2**40)
    strays = {f"{cluster.uri.root}/{stray}" for stray in ("weird", "00/junk", "00/0000/stray", "000/0001/zzz", "0000")}
    for stray in strays:
        await store.create(stray)
    assert set(await problems(cluster)) == strays


async def test_a_missing_instance_id_is_a_finding(backend: Backend, store: MetadataStore) -> None:
    cluster = await new_cluster(backend, store)
    await store.delete(cluster.paths.instance_id, expected=ANY_VERSION)
    assert await cluster.instance_id() is None
    assert set(await problems(cluster)) == {cluster.paths.instance_id}
