"""Which ledger cluster a namespace writes to: finding out, and saying so.

The binding is the data of the namespace's own node. A namespace without one takes that of the nearest node above it, so
that one binding serves many namespaces. In a store of this machine (SQLite, memory) the ledgers are in the same store,
and only the root of their cluster is of interest.

Invariant: a node that holds anything but a binding ends the search with an error. Passing it by could lead to another
cluster than the one that all others write to.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final
from urllib.parse import quote

from quire.codec.stream_metadata.binding import NamespaceBinding, decode_binding, encode_binding
from quire.errors import (
    AlreadyInitialised,
    DamagedMetadata,
    InvalidUri,
    LayoutMismatch,
    MetadataOutcomeUnknown,
    NodeExists,
    NoSuchNode,
    NotBound,
    VersionConflict,
)
from quire.metadata import (
    MetadataStore,
    MetadataUri,
    Node,
    StoreSettings,
    attach_cluster,
    init_cluster,
    open_store,
    parse_uri,
)
from quire.metadata.paths import ROOT, join, parent_of
from quire.runtime import Runtime, real_runtime
from quire.stream.settling import settle
from quire.stream.uri import StreamUri, parse_stream_uri
from quire.types import Lssn
from quire.values import dataclass

DEFAULT_LEDGERS: Final = "/ledgers"


@dataclass(frozen=True, slots=True)
class FoundBinding:
    """The binding that counts for a namespace, and the node that says so."""

    binding: NamespaceBinding  # As stored: see `NamespaceBinding.resolved`.
    at: str


# --- Finding out


async def resolve_binding(store: MetadataStore, path: str) -> FoundBinding:
    """The binding of the namespace at `path`, its own or that of a node above. Raises `NotBound`, `DamagedMetadata`."""
    await store.sync()
    at = path
    while True:
        node = await _get(store, at)
        if node is not None and node.data:
            return FoundBinding(_decoded(node, at), at)
        if at == ROOT:
            raise NotBound(f"neither {path!r} nor a node above it is bound to a ledger cluster", path=path)
        at = parent_of(at)


def ledgers_uri(uri: StreamUri, binding: NamespaceBinding) -> str:
    """The metadata URI of the bound ledger cluster, as the ledger client takes it."""
    root = quote(binding.ledgers_path)
    if uri.is_local:
        return f"{uri.store.backend}:{quote(uri.store.location)}?root={root}"
    return f"{uri.store.backend}://{binding.bk_servers.replace(',', ';')}{root}"


def bound_ledgers(uri: StreamUri, found: FoundBinding) -> str:
    """The same, checked. Raises `DamagedMetadata` if the binding names no place where a cluster could be."""
    text = ledgers_uri(uri, found.binding)
    try:
        parse_uri(text)
    except InvalidUri as error:
        raise DamagedMetadata(f"the binding at {found.at!r} names no ledger cluster: {error}", path=found.at) from error
    return text


async def scan_namespaces(store: MetadataStore, ledgers_path: str) -> AsyncIterator[str]:
    """The paths of all namespaces in a store that are bound to the ledgers at this path, from the root down.

    Reads every node that is above them or beside them: for stores that hold nothing else, as those of this machine.
    """
    waiting = [ROOT]
    while waiting:
        at = waiting.pop()
        try:
            node = await store.get(at)
            names = (await store.children(at)).names
        except NoSuchNode:
            continue  # Deleted meanwhile.
        try:
            if node.data and decode_binding(node.data).ledgers_path == ledgers_path:
                yield at
                continue
        except DamagedMetadata:
            pass  # It is no namespace: what is below it may be one.
        waiting += sorted((path for name in names if (path := join(at, name)) != ledgers_path), reverse=True)


async def _get(store: MetadataStore, path: str) -> Node | None:
    try:
        return await store.get(path)
    except NoSuchNode:
        return None


def _decoded(node: Node, at: str) -> NamespaceBinding:
    try:
        binding = decode_binding(node.data)
    except DamagedMetadata as error:
        raise DamagedMetadata(
            f"{at!r} holds something, and it is no binding of a namespace: {error}",
            hint="Correct the namespace in the URI, or bind it to a ledger cluster with `bind_namespace`.",
            path=at,
        ) from error
    if binding.federated:
        raise LayoutMismatch(
            f"the namespace at {at!r} is federated: its streams are spread over namespaces below it",
            hint="Quire does not write there, since a stream in two places would make all of it unusable for others.",
            path=at,
        )
    return binding


# --- Saying so


async def bind_namespace(
    uri: str | StreamUri,
    *,
    ledgers: str = DEFAULT_LEDGERS,
    create: bool = True,
    replace: bool = False,
    encode_region: bool = False,
    first_lssn: Lssn | None = None,
    settings: StoreSettings | None = None,
    runtime: Runtime | None = None,
) -> NamespaceBinding:
    """Bind a namespace to the ledger cluster at `ledgers`: a metadata URI, or a path in the namespace's own store.

    Fine if it is bound like that already. Raises `AlreadyInitialised` if it is bound otherwise, unless `replace`, and
    `NoSuchNode` if its node does not exist and `create` is false. Open namespaces do not notice: open them again.
    """
    parsed, runtime = _parsed(uri), runtime or real_runtime()
    binding = binding_for(parsed, ledgers, encode_region=encode_region, first_lssn=first_lssn)
    async with open_store(parsed.store, settings=settings, runtime=runtime) as store:
        await write_binding(store, parsed.path, binding, create=create, replace=replace)
    return binding


async def unbind_namespace(
    uri: str | StreamUri, *, settings: StoreSettings | None = None, runtime: Runtime | None = None
) -> None:
    """Take the binding off a namespace's node. Its streams stay; nobody can open it until it is bound again.

    Fine if it has none. Raises `NoSuchNode`.
    """
    parsed = _parsed(uri)
    async with open_store(parsed.store, settings=settings, runtime=runtime or real_runtime()) as store:

        async def unbind(_: object) -> None:
            node = await store.get(parsed.path)
            if node.data:
                await store.set(parsed.path, b"", expected=node.stat.version)

        await settle(store, unbind, races=(VersionConflict,), shown=f"the binding of {parsed.path!r}")


async def create_namespace(
    uri: str | StreamUri,
    *,
    ledgers_root: str = DEFAULT_LEDGERS,
    settings: StoreSettings | None = None,
    runtime: Runtime | None = None,
) -> NamespaceBinding:
    """Set up a ledger cluster in the namespace's own store and bind the namespace to it, as far as that is missing."""
    parsed, runtime = _parsed(uri), runtime or real_runtime()
    binding = binding_for(parsed, ledgers_root)
    async with open_store(parsed.store, settings=settings, runtime=runtime) as store:
        cluster = parse_uri(ledgers_uri(parsed, binding))
        try:
            await init_cluster(store, cluster, runtime)
        except (AlreadyInitialised, MetadataOutcomeUnknown):
            await attach_cluster(store, cluster, runtime, create_layout=False)  # Raises unless it is a cluster.
        await write_binding(store, parsed.path, binding, create=True)
    return binding


def binding_for(
    uri: StreamUri, ledgers: str = DEFAULT_LEDGERS, *, encode_region: bool = False, first_lssn: Lssn | None = None
) -> NamespaceBinding:
    """A binding with all servers named, as Apache's `bind` writes it. Raises `InvalidUri` for what cannot be bound."""
    cluster = _cluster(uri, ledgers)
    servers = uri.authority if uri.is_local else ",".join(cluster.servers)
    return NamespaceBinding(
        servers,
        cluster.root,
        encode_region=encode_region,
        bk_servers_for_reader=servers,
        dl_servers_for_writer=uri.authority,
        dl_servers_for_reader=uri.authority,
        first_lssn=first_lssn,
    )


def _cluster(uri: StreamUri, ledgers: str) -> MetadataUri:
    if ledgers.startswith("/"):
        return parse_uri(ledgers_uri(uri, NamespaceBinding(uri.authority, ledgers)))
    cluster = parse_uri(ledgers)
    if cluster.backend != uri.store.backend or (uri.is_local and _place(cluster) != _place(uri.store)):
        raise InvalidUri(
            f"the namespace {uri.text!r} cannot be bound to {ledgers!r}, which is in another kind of store",
            hint="Name ledgers in the namespace's own store by their path alone, such as /ledgers.",
            uri=ledgers,
        )
    return cluster


def _place(local: MetadataUri) -> str:
    return os.path.abspath(local.location) if local.backend == "sqlite" else local.location


async def write_binding(
    store: MetadataStore, path: str, binding: NamespaceBinding, *, create: bool, replace: bool = False
) -> None:
    """Make `binding` the data of the node at `path`. See `bind_namespace`."""
    data = encode_binding(binding)

    async def write(_: object) -> None:
        node = await _get(store, path)
        if node is None and create:
            await store.create(path, data, parents=True)
        elif node is None:
            raise NoSuchNode(
                f"the namespace {path!r} does not exist", hint="Correct its path, or say `create`.", path=path
            )
        elif node.data != data:
            if node.data:
                _check_replaceable(node, path, replace=replace)
            await store.set(path, data, expected=node.stat.version)

    await settle(store, write, races=(NodeExists, VersionConflict), shown=f"the binding of {path!r}")


def _check_replaceable(node: Node, path: str, *, replace: bool) -> None:
    """A federated namespace stays one, whatever the caller wants: its streams would be lost to everybody."""
    try:
        present = _decoded(node, path)
    except DamagedMetadata:
        if replace:
            return
        raise
    if not replace:
        raise AlreadyInitialised(
            f"the namespace {path!r} is bound to the ledgers at {present.bk_servers}{present.ledgers_path} already",
            hint="Nothing was changed. Its streams are there: say `replace` only if that cluster has moved.",
            path=path,
        )


def _parsed(uri: str | StreamUri) -> StreamUri:
    return parse_stream_uri(uri) if isinstance(uri, str) else uri


@asynccontextmanager
async def open_bound(
    uri: StreamUri,
    *,
    create: bool,
    settings: StoreSettings | None,
    runtime: Runtime,
    store: MetadataStore | None = None,
) -> AsyncIterator[tuple[MetadataStore, FoundBinding]]:
    """The store of a namespace, opened unless it is given, and its binding.

    With `create` its node is made if it is missing, and, in a store of this machine, bound to the ledgers at the usual
    place if nothing says where they are. No ledger cluster is set up: see `create_namespace`.
    """
    async with (
        open_store(uri.store, settings=settings, runtime=runtime) if store is None else nullcontext(store) as opened
    ):
        try:
            found = await resolve_binding(opened, uri.path)
        except NotBound:
            if not create or not uri.is_local:
                raise
            await write_binding(opened, uri.path, binding_for(uri), create=True)
            found = await resolve_binding(opened, uri.path)
        if create and found.at != uri.path:
            await _ensure_node(opened, uri.path)
        yield opened, found


async def _ensure_node(store: MetadataStore, path: str) -> None:
    async def ensure(_: object) -> None:
        if await store.exists(path) is None:
            await store.create(path, parents=True)

    await settle(store, ensure, races=(NodeExists,), shown=f"the node of the namespace {path!r}")
