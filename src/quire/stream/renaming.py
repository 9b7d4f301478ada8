"""Give a stream another name: one transaction that creates all its nodes in the new place and deletes the old ones.

Ledgers do not know the name of their stream, so nothing else has to move. What moves is everything below the stream's
log: segments, positions of subscribers, and what an application keeps at the stream. Streams that are nested in it stay
where they are.

Invariant: nobody holds a lock of the stream, and nobody wrote to it, between the look at its nodes and the move: every
node is deleted in the version that was read, and a member that joined a lock would keep the lock's node from going.
"""

import asyncio
from typing import Final

from quire.codec.stream_metadata.lock import member_owner
from quire.codec.stream_metadata.names import check_new_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import (
    MetadataOutcomeUnknown,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    NoSuchStream,
    StreamExists,
    StreamOwned,
    VersionConflict,
)
from quire.metadata import Create, Delete, MetadataStore, Node, Set
from quire.metadata.driver import Op
from quire.metadata.paths import join, name_of
from quire.stream.settling import settle
from quire.values import dataclass

_READS_MAX: Final = 64  # Nodes that are asked for at once.


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    node: Node


async def rename_stream(store: MetadataStore, old: StreamPaths, new: StreamPaths) -> None:
    """Raises `NoSuchStream`, `StreamExists`, `StreamOwned` if a client writes it, or reads it under a lock,
    `RequestTooLarge` for a stream with more segments than one transaction of the store moves, and `InvalidName` for
    what we do not call a stream.
    """
    check_new_name(new.stream, "stream")

    async def attempt(doubt: MetadataOutcomeUnknown | None) -> None:
        old_log, new_log = await asyncio.gather(store.exists(old.segments), store.exists(new.root))
        if doubt is not None:
            if old_log is None and new_log is not None:
                return  # That is what we wanted to do, so the answer that was lost was a yes.
            if old_log is None or new_log is not None:
                raise doubt
        if old_log is None:
            raise NoSuchStream(f"there is no stream {old.stream!r} to rename", stream=old.stream)
        if new_log is not None:
            raise StreamExists(f"there is a stream {new.stream!r} already", stream=new.stream)
        await store.transaction(*await _move(store, old, new))

    races = (NodeExists, NoSuchNode, NodeNotEmpty, VersionConflict)
    await settle(store, attempt, races=races, shown=f"stream {old.stream!r}")


async def _move(store: MetadataStore, old: StreamPaths, new: StreamPaths) -> list[Op]:
    """The transaction, from what is there now. Raises `NoSuchNode` if it changes under our eyes."""
    wanted = [path for path, _ in old.initial_nodes()]
    stats = await asyncio.gather(*map(store.exists, wanted))
    missing = [path for path, stat in zip(wanted, stats, strict=True) if stat is None]
    if missing:
        raise NoSuchStream(f"{missing[0]!r} is missing, so {old.stream!r} is no whole stream", stream=old.stream)
    top, below = await store.get(old.top), await store.children(old.top)
    found = await _tree(store, old.root)
    for each in found:
        _check_not_held(each, old)
    creates: list[Op] = [Create(path) for path in new.ancestors() if await store.exists(path) is None]
    creates.append(await _new_top(store, new, top.data))
    creates += [Create(new.root + each.path.removeprefix(old.root), each.node.data) for each in found]
    deletes: list[Op] = [Delete(each.path, each.node.stat.version) for each in reversed(found)]
    stays = len(below.names) > 1 or new.top.startswith(f"{old.top}/")
    if not stays:
        deletes.append(Delete(old.top, top.stat.version))
    elif top.data:
        deletes.append(Set(old.top, b"", top.stat.version))
    return [*creates, *deletes]


async def _new_top(store: MetadataStore, new: StreamPaths, data: bytes) -> Op:
    """The node of the new name may be there already, as one that leads to nested streams."""
    stat = await store.exists(new.top)
    return Create(new.top, data) if stat is None else Set(new.top, data, stat.version)


async def _tree(store: MetadataStore, root: str) -> list[_Found]:
    """A node and all below it, each before what is below it."""
    found: list[_Found] = []
    waiting = [root]
    while waiting:
        paths, waiting = waiting[:_READS_MAX], waiting[_READS_MAX:]
        nodes = await asyncio.gather(*(store.get(path) for path in paths))
        found += [_Found(path, node) for path, node in zip(paths, nodes, strict=True)]
        inner = [path for path, node in zip(paths, nodes, strict=True) if node.stat.owner is None]
        for path, children in zip(inner, await asyncio.gather(*(store.children(path) for path in inner)), strict=True):
            waiting += [join(path, name) for name in children.names]
    return found


def _check_not_held(each: _Found, stream: StreamPaths) -> None:
    """Only members of locks belong to a session."""
    if each.node.stat.owner is None:
        return
    member = member_owner(name_of(each.path))
    owner = member.client_id if member is not None else each.node.data.decode(errors="replace")
    raise StreamOwned(f"stream {stream.stream!r} is in use: {each.path!r} belongs to {owner}", owner=owner)
