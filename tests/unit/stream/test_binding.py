"""Bindings: found at the namespace or above it, written once, and never passed by."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from tests.support.flaky_driver import FlakyDriver

from quire.codec.stream_metadata.binding import NamespaceBinding, decode_binding, encode_binding
from quire.errors import (
    AlreadyInitialised,
    DamagedMetadata,
    InvalidUri,
    LayoutMismatch,
    MetadataOutcomeUnknown,
    NoSuchNode,
    NotBound,
    NotInitialised,
)
from quire.metadata import ANY_VERSION, MetadataStore, StoreSettings, open_cluster, open_store
from quire.metadata.drivers.memory import MemoryTree
from quire.runtime import real_runtime
from quire.stream.binding import (
    FoundBinding,
    bind_namespace,
    binding_for,
    bound_ledgers,
    create_namespace,
    ledgers_uri,
    open_bound,
    resolve_binding,
    unbind_namespace,
    write_binding,
)
from quire.stream.uri import StreamUri, parse_stream_uri
from quire.types import Lssn

BINDING = NamespaceBinding("zk:2181", "/ledgers")
OTHER = NamespaceBinding("zk:2181", "/others")


@pytest.fixture
def name() -> str:
    return f"binding-{uuid4().hex}"


@pytest.fixture
def uri(name: str) -> StreamUri:
    return parse_stream_uri(f"distributedlog+memory:{name}/messaging/ns")


@pytest.fixture
async def store(name: str) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory:{name}") as store:
        yield store


# --- Finding out


@pytest.mark.parametrize("at", ["/messaging/ns", "/messaging"])
async def test_the_nearest_binding_counts(store: MetadataStore, at: str) -> None:
    await store.create("/messaging", encode_binding(OTHER))
    await store.create("/messaging/ns", encode_binding(BINDING) if at == "/messaging/ns" else b"")
    expected = BINDING if at == "/messaging/ns" else OTHER
    assert await resolve_binding(store, "/messaging/ns") == FoundBinding(expected, at)


async def test_the_namespace_need_not_exist_to_be_bound_from_above(store: MetadataStore) -> None:
    await store.create("/messaging", encode_binding(BINDING))
    assert (await resolve_binding(store, "/messaging/deep/ns")).at == "/messaging"


async def test_nothing_found_is_not_bound(store: MetadataStore) -> None:
    await store.create("/messaging/ns", parents=True)
    with pytest.raises(NotBound, match="/messaging/ns"):
        await resolve_binding(store, "/messaging/ns")


async def test_a_node_that_holds_anything_else_is_not_passed_by(store: MetadataStore) -> None:
    await store.create("/messaging", encode_binding(BINDING))
    await store.create("/messaging/ns", b"1\nBKDL\n{ }")
    with pytest.raises(DamagedMetadata, match="/messaging/ns"):
        await resolve_binding(store, "/messaging/ns")


async def test_a_federated_namespace_is_refused(store: MetadataStore) -> None:
    await store.create("/ns", encode_binding(NamespaceBinding("zk:2181", "/ledgers", federated=True)))
    with pytest.raises(LayoutMismatch, match="federated"):
        await resolve_binding(store, "/ns")
    with pytest.raises(LayoutMismatch):
        await write_binding(store, "/ns", BINDING, create=True, replace=True)


@pytest.mark.parametrize(
    ("namespace", "servers", "expected"),
    [
        ("distributedlog://dl:2181/ns", "zk1:2181,zk2:2181", "zk://zk1:2181;zk2:2181/some/ledgers"),
        ("distributedlog+etcd://dl:2379/ns", "e1:2379,e2:2379", "etcd://e1:2379;e2:2379/some/ledgers"),
        ("distributedlog+sqlite:a folder/m.db/ns", "local", "sqlite:a%20folder/m.db?root=/some/ledgers"),
        ("distributedlog+memory:test/ns", "local", "memory:test?root=/some/ledgers"),
    ],
)
def test_a_binding_leads_to_a_ledger_cluster(namespace: str, servers: str, expected: str) -> None:
    found = FoundBinding(NamespaceBinding(servers, "/some/ledgers"), "/ns")
    assert bound_ledgers(parse_stream_uri(namespace), found) == expected


@pytest.mark.parametrize("binding", [NamespaceBinding("", "/ledgers"), NamespaceBinding("zk:2181", "")])
def test_a_binding_that_leads_nowhere_is_damaged(binding: NamespaceBinding) -> None:
    with pytest.raises(DamagedMetadata, match="'/ns'"):
        bound_ledgers(parse_stream_uri("distributedlog://zk:2181/ns"), FoundBinding(binding, "/ns"))


# --- Saying so


def test_the_bytes_are_those_of_apaches_bind() -> None:
    """Vector K of the specification."""
    data = encode_binding(binding_for(parse_stream_uri("distributedlog://127.0.0.1:2181/NS"), "/ledgers"))
    assert len(data) == 173
    assert hashlib.sha256(data).hexdigest() == "533b7f10146147a4bcd4841c3b3eba9954cccb531a37d3a0b8dbfe87d3ecd199"


def test_ledgers_may_be_on_servers_of_their_own() -> None:
    uri = parse_stream_uri("distributedlog://dl1:2181;dl2:2181/ns")
    binding = binding_for(uri, "zk+hierarchical://bk1:2181;bk2:2181/ledgers", encode_region=True, first_lssn=Lssn(5))
    assert binding == NamespaceBinding(
        "bk1:2181,bk2:2181",
        "/ledgers",
        encode_region=True,
        bk_servers_for_reader="bk1:2181,bk2:2181",
        dl_servers_for_writer="dl1:2181,dl2:2181",
        dl_servers_for_reader="dl1:2181,dl2:2181",
        first_lssn=Lssn(5),
    )
    assert ledgers_uri(uri, binding) == "zk://bk1:2181;bk2:2181/ledgers"


@pytest.mark.parametrize(
    ("namespace", "ledgers"),
    [
        ("distributedlog://zk:2181/ns", "etcd://host:2379/ledgers"),
        ("distributedlog+sqlite:m.db/ns", "sqlite:other.db"),
        ("distributedlog+sqlite:m.db/ns", "zk://zk:2181/ledgers"),
        ("distributedlog+memory:a/ns", "memory:b"),
        ("distributedlog://zk:2181/ns", "ledgers"),
    ],
)
def test_ledgers_that_the_binding_could_not_name_are_refused(namespace: str, ledgers: str) -> None:
    with pytest.raises(InvalidUri):
        binding_for(parse_stream_uri(namespace), ledgers)


def test_the_same_file_may_be_spelt_differently() -> None:
    uri = parse_stream_uri("distributedlog+sqlite:./data/m.db/ns")
    assert binding_for(uri, "sqlite:data/m.db?root=/mine").ledgers_path == "/mine"


async def test_binding_creates_the_node_and_its_parents(uri: StreamUri, store: MetadataStore) -> None:
    bound = await bind_namespace(uri, ledgers="/mine")
    assert bound.ledgers_path == "/mine"
    assert decode_binding((await store.get("/messaging/ns")).data) == bound
    assert (await store.get("/messaging")).data == b""
    assert (await resolve_binding(store, uri.path)).binding == bound


async def test_binding_twice_is_fine_and_binding_otherwise_is_not(uri: StreamUri, store: MetadataStore) -> None:
    bound = await bind_namespace(str(uri))
    before = await store.get(uri.path)
    await bind_namespace(uri)
    assert await store.get(uri.path) == before, "nothing was written"
    with pytest.raises(AlreadyInitialised, match="/ledgers"):
        await bind_namespace(uri, ledgers="/others")
    assert await store.get(uri.path) == before
    moved = await bind_namespace(uri, ledgers="/others", replace=True)
    assert (await resolve_binding(store, uri.path)).binding == moved != bound


async def test_without_create_the_node_has_to_be_there(uri: StreamUri, store: MetadataStore) -> None:
    with pytest.raises(NoSuchNode):
        await bind_namespace(uri, create=False)
    assert await store.exists("/messaging") is None
    await store.create(uri.path, parents=True)
    await bind_namespace(uri, create=False)
    await resolve_binding(store, uri.path)


async def test_an_unbound_namespace_can_be_bound_again(uri: StreamUri, store: MetadataStore) -> None:
    with pytest.raises(NoSuchNode):
        await unbind_namespace(uri)
    await bind_namespace(uri)
    await unbind_namespace(uri)
    await unbind_namespace(str(uri))
    assert (await store.get(uri.path)).data == b""
    with pytest.raises(NotBound):
        await resolve_binding(store, uri.path)
    await bind_namespace(uri, ledgers="/others")


async def test_something_else_at_the_namespace_is_replaced_only_on_demand(uri: StreamUri, store: MetadataStore) -> None:
    await store.create(uri.path, b"precious", parents=True)
    with pytest.raises(DamagedMetadata):
        await bind_namespace(uri)
    assert (await store.get(uri.path)).data == b"precious"
    await bind_namespace(uri, replace=True)
    await resolve_binding(store, uri.path)


async def test_many_who_bind_at_once_agree(uri: StreamUri, store: MetadataStore) -> None:
    await asyncio.gather(*(bind_namespace(uri) for _ in range(10)))
    assert (await store.get(uri.path)).stat.writes == 1


async def test_a_binding_that_was_not_confirmed_is_recognised() -> None:
    driver = FlakyDriver(MemoryTree())
    async with MetadataStore(driver) as store:
        driver.plan = ["ok", "lost"]
        await write_binding(store, "/ns", BINDING, create=True)
        assert (await store.get("/ns")).stat.writes == 1
        driver.plan = ["ok", "lost", "unavailable"]
        with pytest.raises(MetadataOutcomeUnknown):  # It is stored: "nothing was written" would be a lie.
            await write_binding(store, "/ns", OTHER, create=True, replace=True)
        assert decode_binding((await store.get("/ns")).data) == OTHER


# --- Everything at once


async def test_a_namespace_with_a_cluster_of_its_own_is_made_once(uri: StreamUri, store: MetadataStore) -> None:
    first = await create_namespace(uri, ledgers_root="/mine")
    layout = await store.get("/mine/LAYOUT")
    assert await create_namespace(str(uri), ledgers_root="/mine") == first
    assert await store.get("/mine/LAYOUT") == layout
    async with open_cluster(bound_ledgers(uri, await resolve_binding(store, uri.path))) as cluster:
        assert await cluster.instance_id() is not None


async def test_a_root_that_is_no_cluster_is_not_bound_to(uri: StreamUri, store: MetadataStore) -> None:
    await store.create("/mine/something", parents=True)
    with pytest.raises(NotInitialised):
        await create_namespace(uri, ledgers_root="/mine")
    assert await store.exists(uri.path) is None


async def test_opening_with_create_binds_a_local_namespace(uri: StreamUri, store: MetadataStore) -> None:
    with pytest.raises(NotBound):
        async with open_bound(uri, create=False, settings=StoreSettings(), runtime=real_runtime()):
            raise AssertionError("open")
    async with open_bound(uri, create=True, settings=None, runtime=real_runtime()) as (_, found):
        assert (found.at, found.binding.ledgers_path) == (uri.path, "/ledgers")


async def test_opening_with_create_keeps_to_a_binding_from_above(uri: StreamUri, store: MetadataStore) -> None:
    await store.create("/messaging", encode_binding(binding_for(uri, "/mine")))
    async with open_bound(uri, create=False, settings=None, runtime=real_runtime()):
        assert await store.exists(uri.path) is None
    async with open_bound(uri, create=True, settings=None, runtime=real_runtime()) as (_, found):
        assert (found.at, found.binding.ledgers_path) == ("/messaging", "/mine")
    assert (await store.get(uri.path)).data == b""
    await store.set("/messaging", b"", expected=ANY_VERSION)
