"""Named positions of a stream's readers, kept in its metadata: where each of them goes on.

What is stored is the place to resume at, as Apache's readers take it: the first record that they deliver is the one at
that place or behind it. Positions only move forward, unless somebody says otherwise.
"""

from typing import Final

from quire.codec.stream_metadata.names import check_new_name
from quire.codec.stream_metadata.tree import StreamPaths, decode_subscription, encode_subscription
from quire.errors import (
    DamagedMetadata,
    LockLost,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, Create, HeldLock, MetadataStore, Set
from quire.metadata.driver import Op
from quire.stream.same_stream import SameStream, missing
from quire.types import DLSN

_RACES_MAX: Final = 100


class Subscriptions:
    """All named positions of one stream. Names are free, but for slashes: others raise `InvalidName`."""

    def __init__(self, store: MetadataStore, paths: StreamPaths, same: SameStream | None = None) -> None:
        """With `same` positions are stored in that stream only."""
        self._store, self._paths, self._same = store, paths, same or SameStream(store, paths)

    async def read(self, name: str) -> DLSN | None:
        """The position that was committed last; None if none was. Raises `DamagedMetadata`."""
        path = self._paths.subscriber(name)
        await self._store.sync()
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            return None
        return _decoded(path, node.data)

    async def names(self) -> list[str]:
        """Who has, or had, a position or a lock here."""
        try:
            return list((await self._store.children(self._paths.subscribers)).names)
        except NoSuchNode:
            return []

    async def commit(
        self, name: str, position: DLSN, *, may_go_back: bool = False, lock: HeldLock | None = None
    ) -> DLSN:
        """Store a position, unless a later one is stored; return what is stored then.

        With `may_go_back` it is stored in any case, over a damaged one too. With `lock` only while that is held: else
        raises `LockLost`. Raises `NoSuchStream`; `DamagedMetadata` if what is stored cannot be compared.
        """
        path, data = self._paths.subscriber(name), encode_subscription(position)
        guard: list[Op] = [] if lock is None else [lock.guard()]
        await self._same.know()
        for _ in range(_RACES_MAX):
            try:
                node = await self._store.get(path)
            except NoSuchNode:
                await self._create(name, [Create(path, data), *guard], lock)
                continue
            if not may_go_back:
                stored = _decoded(path, node.data)
                if stored is not None and stored >= position:
                    return stored
            try:
                await self._same.transaction(Set(path, data, node.stat.version), *guard)
            except (VersionConflict, NoSuchNode):
                await self._check_lock(lock)
            else:
                return position
        raise self._contended(name)

    async def prepare_lock(self, name: str) -> str:
        """Where a subscriber's lock is; its nodes are made if need be."""
        path = self._paths.subscriber_lock(name)
        await self._same.know()
        for _ in range(_RACES_MAX):
            if await self._store.exists(path) is not None:
                return path
            if await self._store.exists(self._paths.subscriber(name)) is None:
                await self._create(name, [Create(self._paths.subscriber(name))], None)
            else:
                try:
                    await self._store.create(path)
                except (NodeExists, NoSuchNode):
                    continue
        raise self._contended(name)

    async def delete(self, name: str) -> None:
        """Forget a subscriber. Fine if there is none. Raises `NodeNotEmpty` while somebody has its lock."""
        for path in (self._paths.subscriber_lock(name), self._paths.subscriber(name)):
            try:
                await self._store.delete(path, expected=ANY_VERSION)
            except NoSuchNode:
                continue

    async def _create(self, name: str, ops: list[Op], lock: HeldLock | None) -> None:
        """Create a subscriber's node, or what it needs; the caller looks again. A deleted stream is not revived. Raises
        `InvalidName` for what we do not call a subscription."""
        check_new_name(name, "subscription")
        try:
            await self._same.transaction(*ops)
        except NodeExists:
            return
        except (VersionConflict, NoSuchNode):
            await self._check_lock(lock)
            try:
                await self._store.create(self._paths.subscribers)
            except NodeExists:
                return
            except NoSuchNode as error:
                raise missing(self._paths.stream) from error

    async def _check_lock(self, lock: HeldLock | None) -> None:
        """A transaction was refused: if the lock that guards it is lost, that is why."""
        if lock is not None and await self._store.exists(lock.path) is None:
            raise LockLost(f"{lock.path!r} is not ours any more, so no position was stored", path=lock.path)

    def _contended(self, name: str) -> MetadataUnavailable:
        return MetadataUnavailable(
            f"others write the position of subscriber {name!r} of stream {self._paths.stream!r} all the time",
            stream=self._paths.stream,
            subscription=name,
        )


def _decoded(path: str, data: bytes) -> DLSN | None:
    try:
        return decode_subscription(data)
    except DamagedMetadata as error:
        raise DamagedMetadata(
            f"{path}: {error}",
            hint="Commit a position with `may_go_back`, or delete the subscription to begin anew.",
            path=path,
        ) from error
