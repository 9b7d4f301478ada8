"""A cluster's metadata as a whole: where everything is, which layout its ledgers have, how it is set up.

Apache's ZooKeeper and etcd drivers put the same things under different names. `ClusterPaths` is the one place that
knows both; SQLite and memory use ZooKeeper's. Opening a cluster compares the layout that the URI names with the stored
one, and changes nothing when they differ.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final, Self
from uuid import UUID

from quire.codec.damage import utf8
from quire.codec.layout import (
    ETCD,
    HIERARCHICAL,
    MANAGER_VERSIONS,
    LedgerLayout,
    decode_layout,
    encode_layout,
    layout_for,
    layout_name,
)
from quire.errors import (
    AlreadyInitialised,
    DamagedMetadata,
    LayoutMismatch,
    NodeExists,
    NoSuchNode,
    NotInitialised,
)
from quire.metadata.api import MetadataStore
from quire.metadata.bookies import Bookies
from quire.metadata.driver import ANY_VERSION, Check, Create, Op
from quire.metadata.ledgers import Ledgers
from quire.metadata.paths import ancestors_of, join, name_of
from quire.metadata.registry import open_store
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri, parse_uri
from quire.runtime import Runtime, real_runtime
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The nodes of a cluster, and which of them a new one starts with."""

    root: str
    layout: str
    instance_id: str
    writable: str
    readonly: str
    cookies: str
    folders: tuple[str, ...]  # Created empty with the cluster, parents first.

    @classmethod
    def of(cls, uri: MetadataUri) -> Self:
        root = uri.root
        if uri.backend == ETCD:
            folders: tuple[str, ...] = (
                "cookies",
                "bookies",
                "bookies/writable",
                "bookies/readonly",
                "ledgers",
                "buckets",
                "underreplication",
            )
            names = ("layout", "instanceid", "bookies/writable", "bookies/readonly", "cookies")
        else:
            folders = ("available", "available/readonly")
            names = ("LAYOUT", "INSTANCEID", "available", "available/readonly", "cookies")
        layout, instance_id, writable, readonly, cookies = (join(root, name) for name in names)
        return cls(
            root, layout, instance_id, writable, readonly, cookies, tuple(join(root, folder) for folder in folders)
        )


# The names directly below a ZooKeeper-shaped root that are not ledgers, as Apache's tools know them.
SPECIAL_NAMES: Final = frozenset(
    {"available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long", "disableHealthCheck"}
)


class Cluster:
    """A cluster that is set up, through one store handle."""

    def __init__(self, store: MetadataStore, uri: MetadataUri, layout: str, runtime: Runtime) -> None:
        self.store, self.uri, self.layout = store, uri, layout
        self.paths = paths = ClusterPaths.of(uri)
        self.ledgers = Ledgers(store, uri.root, layout, runtime.rng)
        self.bookies = Bookies(
            store,
            runtime.clock,
            writable_root=paths.writable,
            readonly_root=paths.readonly,
            cookies_root=paths.cookies,
        )

    async def instance_id(self) -> str | None:
        """The cluster's own id; None for clusters that were set up without one. Raises `DamagedMetadata`."""
        try:
            data = (await self.store.get(self.paths.instance_id)).data
        except NoSuchNode:
            return None
        text = utf8(data, "instance id")
        try:
            UUID(text)
        except ValueError as error:
            raise DamagedMetadata(f"the instance id {text!r} is not a UUID", path=self.paths.instance_id) from error
        return text


@asynccontextmanager
async def open_cluster(
    uri: str | MetadataUri,
    *,
    settings: StoreSettings | None = None,
    runtime: Runtime | None = None,
    store: MetadataStore | None = None,
) -> AsyncIterator[Cluster]:
    """Open a store, unless one is given, and the cluster in it. Raises `NotInitialised`, `LayoutMismatch`, and what
    `open_store` raises.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    runtime = runtime or real_runtime()
    async with (
        open_store(parsed, settings=settings, runtime=runtime) if store is None else nullcontext(store) as opened
    ):
        yield await attach_cluster(opened, parsed, runtime)


async def attach_cluster(
    store: MetadataStore, uri: MetadataUri, runtime: Runtime, *, create_layout: bool = True
) -> Cluster:
    """The cluster at the URI's root in an open store. A LAYOUT that is missing is created, as Apache's clients do,
    unless `create_layout` forbids it: who only looks writes nothing.
    """
    return Cluster(store, uri, await _resolve_layout(store, uri, create=create_layout), runtime)


async def init_cluster(store: MetadataStore, uri: MetadataUri, runtime: Runtime) -> Cluster:
    """Set up a new cluster at the URI's root, or complete one that has an instance id and no layout yet: so Pulsar's
    set-up leaves it. Raises `AlreadyInitialised` and changes nothing if there is anything else, `DamagedMetadata` for
    an instance id that is none.

    Everything that is missing comes into being in one transaction, so that a cluster is there as a whole or not at all.
    """
    paths = ClusterPaths.of(uri)
    cluster = Cluster(store, uri, _default_layout(uri), runtime)
    wanted: dict[str, bytes] = dict.fromkeys(paths.folders, b"")
    wanted[paths.layout] = encode_layout(layout_for(cluster.layout))
    wanted[paths.instance_id] = str(runtime.rng.uuid()).encode()
    ops: list[Op] = [Create(path, data) for path, data in wanted.items()]
    if await store.exists(uri.root) is None:
        await _create_folders(store, ancestors_of(uri.root))
        ops.insert(0, Create(uri.root))
    elif (await store.children(uri.root)).names:
        if not await _is_begun(cluster):
            raise _already_initialised(uri)
        ops = [Create(path, data) for path, data in wanted.items() if await store.exists(path) is None]
        ops.append(Check(paths.instance_id, ANY_VERSION))
    try:
        await store.transaction(*ops)
    except NodeExists as error:
        raise _already_initialised(uri) from error
    return cluster


async def _is_begun(cluster: Cluster) -> bool:
    """Whether there is an instance id, no layout, and nothing but what a cluster without ledgers may have."""
    store, paths = cluster.store, cluster.paths
    known = SPECIAL_NAMES | {name_of(path) for path in (*paths.folders, paths.instance_id)}
    if not known.issuperset((await store.children(paths.root)).names) or await store.exists(paths.layout) is not None:
        return False
    return await cluster.instance_id() is not None


def _already_initialised(uri: MetadataUri) -> AlreadyInitialised:
    return AlreadyInitialised(
        f"there is something at {uri.root!r} already; nothing was changed",
        hint="Look at it with `quire metadata show`, or choose another root in the URI.",
        uri=uri.text,
    )


async def _create_folders(store: MetadataStore, paths: list[str]) -> None:
    for path in paths:
        try:
            await store.create(path)
        except NodeExists:
            continue


def _default_layout(uri: MetadataUri) -> str:
    return ETCD if uri.backend == ETCD else uri.layout or HIERARCHICAL


async def _resolve_layout(store: MetadataStore, uri: MetadataUri, *, create: bool) -> str:
    """The stored layout, checked against the URI."""
    path = ClusterPaths.of(uri).layout
    try:
        data = (await store.get(path)).data
    except NoSuchNode as error:
        if not create or await store.exists(uri.root) is None:
            is_begun = await store.exists(ClusterPaths.of(uri).instance_id) is not None
            do = "Complete it" if is_begun else "Set it up"
            raise NotInitialised(
                f"the cluster at {uri.root!r} has no layout" if is_begun else f"there is no cluster at {uri.root!r}",
                hint=f"{do} with `quire metadata init '{uri.text}'`, or correct the root in the URI.",
                uri=uri.text,
            ) from error
        wanted = encode_layout(layout_for(_default_layout(uri)))
        try:
            await store.create(path, wanted)
            data = wanted
        except NodeExists:
            data = (await store.get(path)).data  # Another client wrote it meanwhile: its word counts.
    return _check_layout(decode_layout(data), uri, path)


def _check_layout(stored: LedgerLayout, uri: MetadataUri, path: str) -> str:
    name = layout_name(stored.manager)
    if name is None:
        raise LayoutMismatch(
            f"the ledgers at {uri.root!r} are laid out by {stored.manager!r}, which Quire does not know",
            hint="Nothing was changed. Quire reads the flat, hierarchical, longhierarchical and etcd layouts.",
            path=path,
        )
    if stored.manager_version != MANAGER_VERSIONS[name]:
        raise LayoutMismatch(
            f"the {name} layout at {uri.root!r} has version {stored.manager_version}, not {MANAGER_VERSIONS[name]}",
            hint="Nothing was changed. A newer program may have set this cluster up.",
            path=path,
        )
    if uri.layout not in (None, name):
        raise LayoutMismatch(
            f"the ledgers at {uri.root!r} have the {name} layout, the URI says {uri.layout}",
            hint=f"Nothing was changed. Write zk+{name}://…, or zk://… to take what is stored.",
            path=path,
            stored=name,
        )
    return name
