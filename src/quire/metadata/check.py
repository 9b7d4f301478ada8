"""Look at every node of a cluster and report what its readers would stumble over. Writes nothing."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from quire.codec.layout import ETCD, FLAT
from quire.codec.ledger_paths import ETCD_LEDGERS, ID_PREFIX, TREES, ledger_id_at
from quire.codec.registration import decode_service_info
from quire.errors import DamagedMetadata, InvalidName, NoSuchLedger, NoSuchNode
from quire.metadata.cluster import SPECIAL_NAMES, Cluster
from quire.metadata.paths import join
from quire.types import bookie_id


@dataclass(frozen=True, slots=True)
class Finding:
    """One node that was looked at, and what is wrong with it, if anything."""

    path: str
    problem: str | None = None
    hint: str = ""


async def check_cluster(cluster: Cluster) -> AsyncIterator[Finding]:
    """Every node of the cluster, in order; the caller counts, and keeps those with a problem.

    Nodes that vanish while the check runs are no findings: somebody deleted them, as is their right.
    """
    yield await _instance_id(cluster)
    for root in (cluster.paths.writable, cluster.paths.readonly):
        async for finding in _registrations(cluster, root):
            yield finding
    async for finding in _cookies(cluster):
        yield finding
    async for finding in _strays(cluster):
        yield finding
    async for ledger in cluster.ledgers.scan():
        path = cluster.ledgers.path(ledger)
        try:
            await cluster.ledgers.read(ledger)
        except NoSuchLedger:
            continue
        except DamagedMetadata as error:
            yield Finding(
                path, str(error), "Every client that opens this ledger fails. Restore the node from a backup."
            )
        else:
            yield Finding(path)


async def _instance_id(cluster: Cluster) -> Finding:
    path = cluster.paths.instance_id
    try:
        found = await cluster.instance_id()
    except DamagedMetadata as error:
        return Finding(path, str(error), "Compare with the instance id in the cookies of the bookies.")
    if found is None:
        return Finding(path, "the cluster has no instance id", "Bookies of another cluster could join unnoticed.")
    return Finding(path)


async def _names(cluster: Cluster, path: str) -> tuple[str, ...]:
    try:
        return (await cluster.store.children(path)).names
    except NoSuchNode:
        return ()


async def _registrations(cluster: Cluster, root: str) -> AsyncIterator[Finding]:
    for name in await _names(cluster, root):
        path = join(root, name)
        if path == cluster.paths.readonly:
            continue
        try:
            node = await cluster.store.get(path)
            decode_service_info(node.data, bookie_id(name))
        except NoSuchNode:
            continue
        except (DamagedMetadata, InvalidName) as error:
            yield Finding(path, str(error), "Java clients hang on such a node. Find out who made it, and delete it.")
            continue
        if node.stat.owner is None:
            yield Finding(path, f"bookie {name!r} is registered for ever: its node belongs to no session", "Delete it.")
        else:
            yield Finding(path)


async def _cookies(cluster: Cluster) -> AsyncIterator[Finding]:
    try:
        instance_id = await cluster.instance_id()
    except DamagedMetadata:
        instance_id = None  # Reported already.
    for name in await _names(cluster, cluster.paths.cookies):
        path = join(cluster.paths.cookies, name)
        hint = f"The bookie {name!r} will refuse to start. Restore the cookie, or decommission the bookie."
        try:
            stored = await cluster.bookies.cookie(bookie_id(name))
        except (DamagedMetadata, InvalidName) as error:
            yield Finding(path, str(error), hint)
            continue
        if stored is None:
            continue
        problem = None
        if stored.cookie.bookie_id != name:
            problem = f"the cookie of {name!r} says that it belongs to {stored.cookie.bookie_id!r}"
        elif stored.cookie.instance_id not in (None, instance_id):
            problem = f"the cookie of {name!r} is of another cluster, {stored.cookie.instance_id}"
        yield Finding(path, problem, hint if problem else "")


async def _strays(cluster: Cluster) -> AsyncIterator[Finding]:
    """Nodes at places where only ledgers belong. Java bookies take some of them for ledgers."""
    layout, root = cluster.layout, cluster.uri.root
    if layout == ETCD:
        candidates = [f"{ETCD_LEDGERS}/{name}" for name in await _names(cluster, join(root, ETCD_LEDGERS))]
    else:
        names = [name for name in await _names(cluster, root) if not _is_special(name)]
        candidates = names if layout == FLAT else [path async for path in _leaves(cluster, names)]
    for path in candidates:
        try:
            ledger_id_at(layout, path)
        except DamagedMetadata as error:
            hint = "Private nodes do not belong here: they keep Apache's tools from working. Move it elsewhere."
            yield Finding(join(root, path), str(error), hint)


def _is_special(name: str) -> bool:
    return name in SPECIAL_NAMES or name.startswith(ID_PREFIX)


async def _leaves(cluster: Cluster, names: list[str]) -> AsyncIterator[str]:
    """The paths below the root that a walk of the ledger trees ends at, whatever they are called."""
    depth_of = {tree[0]: len(tree) for tree in TREES[cluster.layout]}
    for name in names:
        depth = depth_of.get(len(name), 0) if name.isascii() and name.isdigit() else 1
        if depth in (0, 1):
            yield name
            continue
        paths = [name]
        for _ in range(depth - 1):
            paths = [
                f"{path}/{child}" for path in paths for child in await _names(cluster, join(cluster.uri.root, path))
            ]
        for path in paths:
            yield path
