"""The whole of what ZooKeeper holds below a path, to prove that somebody changed nothing at all."""

import asyncio

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

Tree = dict[str, tuple[bytes, ZnodeStat]]


async def tree_below(address: str, root: str) -> Tree:
    """Every node with its data and everything that the server knows of it: also a write of the same bytes shows."""
    return await asyncio.to_thread(_read_tree, address, root)


def _read_tree(address: str, root: str) -> Tree:
    client = KazooClient(hosts=address)
    client.start(timeout=20)
    try:
        found: Tree = {}
        paths = [root]
        while paths:
            path = paths.pop()
            found[path] = client.get(path)
            paths += [f"{path}/{name}" for name in client.get_children(path)]
        return found
    finally:
        client.stop()
        client.close()
