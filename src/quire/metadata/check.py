"""Look at every node of a cluster and report what its readers would stumble over. Writes nothing."""

from collections.abc import AsyncIterator

from quire.codec.layout import ETCD
from quire.codec.ledger_paths import ETCD_LEDGERS, ID_PREFIX, TREES, is_tree_name, ledger_id_at
from quire.codec.registration import decode_service_info
from quire.errors import DamagedMetadata, InvalidName, NoSuchLedger, NoSuchNode
from quire.metadata.cluster import SPECIAL_NAMES, Cluster
from quire.metadata.paths import join
from quire.types import bookie_id
from quire.values import dataclass


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
    async for path in _suspects(cluster):
        try:
            ledger_id_at(cluster.layout, path)
        except DamagedMetadata as error:
            hint = "Private nodes do not belong here: they keep Apache's tools from working. Move it elsewhere."
            yield Finding(join(cluster.uri.root, path), str(error), hint)


async def _suspects(cluster: Cluster) -> AsyncIterator[str]:
    """The relative paths at which a ledger must be, or else something does not belong."""
    root = cluster.uri.root
    if cluster.layout == ETCD:
        for name in await _names(cluster, join(root, ETCD_LEDGERS)):
            yield f"{ETCD_LEDGERS}/{name}"
        return
    trees = {tree[0]: tree for tree in TREES.get(cluster.layout, ())}
    for name in await _names(cluster, root):
        if name in SPECIAL_NAMES or name.startswith(ID_PREFIX):
            continue
        tree = trees.get(len(name))
        if tree is None or not is_tree_name(name, tree[0], leaf=False):
            yield name
            continue
        async for path in _ends(cluster, name, tree[1:]):
            yield path


async def _ends(cluster: Cluster, folder: str, digits: tuple[int, ...]) -> AsyncIterator[str]:
    """Where a walk below `folder` ends: at the depth of ledgers, or at the first name that is no part of a tree."""
    for name in await _names(cluster, join(cluster.uri.root, folder)):
        path = f"{folder}/{name}"
        if len(digits) > 1 and is_tree_name(name, digits[0], leaf=False):
            async for end in _ends(cluster, path, digits[1:]):
                yield end
        else:
            yield path
