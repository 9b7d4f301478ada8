"""Clusters in each layout on each backend, for tests of the typed views."""

from quire.metadata import Cluster, MetadataStore, MetadataUri, init_cluster
from quire.runtime import real_runtime
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, Quorum
from tests.contract.metadata.backends import Backend

LAYOUTS = ("flat", "hierarchical", "longhierarchical", "etcd")

BOOKIES = tuple(BookieId(f"bk{number}:3181") for number in range(1, 5))


def cluster_uri(backend: Backend, layout: str | None = None) -> MetadataUri:
    """A URI below the test's own root, in the store's own shape unless a layout is named.

    The views know no backend, so every layout must work on every store: ZooKeeper's on etcd, and etcd's on ZooKeeper.
    """
    root = f"{backend.root}/ledgers"
    if layout == "etcd" or (layout is None and backend.name == "etcd"):
        return MetadataUri("etcd:test", "etcd", root)
    return MetadataUri("zk:test", "zk", root, layout=layout)


async def new_cluster(backend: Backend, store: MetadataStore, layout: str | None = None) -> Cluster:
    return await init_cluster(store, cluster_uri(backend, layout), real_runtime())


def some_metadata(**changes: object) -> LedgerMetadata:
    plain = LedgerMetadata(Quorum(3, 2, 2), (Fragment(EntryId(0), BOOKIES[:3]),), password=b"secret")
    return plain.updated(**changes)
