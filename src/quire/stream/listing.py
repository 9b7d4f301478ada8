"""The streams of a namespace: all of them in order, and the top ones as they come and go.

A name with slashes is a path below the namespace. A node on such a path may be a stream itself, or only lead to some;
Apache's list does not tell the two apart, this one does: it has what `stream_exists` would say yes to. Listing looks at
each node once, some at a time, and keeps no more than the names that it has not looked at yet.

Order: depth first, and by name within a level. So a stream comes before those that are nested in it.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from quire.codec.stream_metadata.names import is_reserved, stream_name
from quire.codec.stream_metadata.tree import DEFAULT_LOG, StreamPaths
from quire.errors import InvalidName, NoSuchNode, Unavailable
from quire.metadata import MetadataStore
from quire.metadata.paths import join
from quire.runtime import Clock
from quire.values import dataclass

_LOOKS_MAX: Final = 64  # Nodes that are looked at together.
_RETRY_S: Final = 1.0


async def scan_streams(store: MetadataStore, namespace: str, prefix: str = "") -> AsyncIterator[str]:
    """The names that begin with `prefix`, of every stream that is there throughout."""
    await store.sync()
    folder = prefix.removeprefix("/").rpartition("/")[0]
    above = f"{folder}/" if folder else ""
    names = [above + name for name in await _children(store, join(namespace, folder) if folder else namespace)]
    waiting = [_Visit(name) for name in reversed(names) if name.startswith(prefix.removeprefix("/")) and _is_name(name)]
    while waiting:
        if waiting[-1].look is None:
            await _look_at(store, namespace, waiting[-_LOOKS_MAX:])
        visit = waiting.pop()
        look = visit.look
        assert look is not None
        if look.is_stream:
            yield visit.name
        nested = [f"{visit.name}/{name}" for name in look.below if name != DEFAULT_LOG]
        waiting += [_Visit(name) for name in reversed(nested) if _is_name(name)]


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at a node."""

    is_stream: bool
    below: tuple[str, ...]


@dataclass(slots=True)
class _Visit:
    """A node that may be a stream, or lead to streams."""

    name: str
    look: _Look | None = None


async def _look_at(store: MetadataStore, namespace: str, visits: list[_Visit]) -> None:
    async def look(visit: _Visit) -> None:
        paths = StreamPaths(namespace, visit.name)
        below = await _children(store, paths.top)
        is_stream = DEFAULT_LOG in below and await store.exists(paths.segments) is not None
        visit.look = _Look(is_stream, below)

    await asyncio.gather(*(look(visit) for visit in visits if visit.look is None))


async def watch_streams(store: MetadataStore, clock: Clock, namespace: str) -> AsyncIterator[frozenset[str]]:
    """The top-level names now, and again whenever they changed: of streams, and of nodes that lead to nested ones.

    Changes that follow one another quickly may be told together. While the store cannot be reached nothing is told.
    """
    told: frozenset[str] | None = None
    async with store.watch_children(namespace) as watch:
        while True:
            try:
                await store.sync()
                names = frozenset(name for name in await _children(store, namespace) if _is_name(name))
            except Unavailable:
                await clock.sleep(_RETRY_S)
                continue
            if names != told:
                told = names
                yield names
            await watch.wait_changed()


async def _children(store: MetadataStore, path: str) -> tuple[str, ...]:
    try:
        return (await store.children(path)).names
    except NoSuchNode:
        return ()


def _is_name(name: str) -> bool:
    """Whether a stream can be called that: the namespace has nodes of its own beside its streams."""
    try:
        return not is_reserved(name) and stream_name(name) == name
    except InvalidName:
        return False
