"""The lock of DistributedLog: one client at a time writes a stream, or reads it under one name.

Members are called as Apache's clients call them, so ours and theirs wait in one queue. Apache's clients claim a lock
that is held by a member of their own client id and session; hence each lock here has a client id of its own, with a
random part, and is nobody's but its holder's. The same part lets a member be found whose creation was not confirmed.

Invariant: a name of ours tells its owner, as it has no `_` but those that Apache's clients split it at.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from quire.codec.stream_metadata.lock import (
    LockOwner,
    encode_member,
    member_owner,
    member_prefix,
    member_sequence,
    members_in_order,
)
from quire.errors import (
    LockLost,
    MetadataUnavailable,
    NoSuchNode,
    NoSuchStream,
    SessionExpired,
    StreamOwned,
    Unavailable,
)
from quire.metadata import HeldLock, MetadataStore, SessionId
from quire.metadata.locks import hold_place, queue_of
from quire.metadata.paths import join
from quire.runtime import Rng
from quire.stream.context import StreamContext

_RANDOM_BYTES: Final = 6
_SESSIONS_MAX: Final = 5  # Sessions that may end while we wait for one lock, before we give up.


class StreamMembers:
    """How a client's members of a lock are called: `member_<client id>_s<session>_<number>`."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.mark = member_prefix(LockOwner(client_id, 0)).rpartition("_s")[0] + "_s"

    def name(self, session: SessionId) -> str:
        return member_prefix(LockOwner(self.client_id, session))

    def queue(self, names: Iterable[str]) -> list[str]:
        """In the order of their numbers. What bears none can never hold the lock, so nobody waits for it."""
        return [name for name in members_in_order(names) if member_sequence(name) is not None]


async def others_wait(store: MetadataStore, path: str) -> bool:
    """Whether somebody waits for the lock at `path`, which is held. What cannot be told now is told later: no."""
    try:
        names = (await store.children(path)).names
    except (NoSuchNode, SessionExpired, Unavailable):
        return False
    return sum(member_sequence(name) is not None for name in names) > 1


def hold_stream_lock(
    context: StreamContext, path: str, *, timeout_s: float | None, shown: str
) -> AbstractAsyncContextManager[HeldLock]:
    """Hold the lock at `path`, which is one of a stream's, for the block. `shown` is what errors say it protects.

    Waits `timeout_s` for those who have it: 0 is not at all, None for ever. Raises `StreamOwned` with the `owner`,
    `NoSuchStream`, and what the metadata store raises; then we are not in the queue any more, or soon will not be.
    """
    return hold_lock_as(
        context.store, context.runtime.rng, path, client_id=context.client_id, timeout_s=timeout_s, shown=shown
    )


@asynccontextmanager
async def hold_lock_as(
    store: MetadataStore, rng: Rng, path: str, *, client_id: str, timeout_s: float | None, shown: str
) -> AsyncIterator[HeldLock]:
    """The same for those without a namespace."""
    attempt = _Attempt(store, path, StreamMembers(unique_client_id(client_id, rng)), shown)
    async with AsyncExitStack() as stack:
        try:
            if timeout_s == 0:
                held = await attempt.take_or_refuse(stack)
            else:
                async with asyncio.timeout(timeout_s) as limit:
                    held = await attempt.wait(stack)
        except NoSuchNode as error:
            raise NoSuchStream(f"there is no {shown}: {path!r} does not exist", path=path) from error
        except TimeoutError as error:
            if timeout_s is None or not limit.expired():
                raise
            raise await attempt.late(limit_s=timeout_s) from error
        yield held


def unique_client_id(client_id: str, rng: Rng) -> str:
    """`client_id` with a random part, as one lock bears it."""
    return f"{client_id.replace('_', '-')}-{rng.bytes(_RANDOM_BYTES).hex()}"


class _Attempt:
    """To get one lock."""

    def __init__(self, store: MetadataStore, path: str, members: StreamMembers, shown: str) -> None:
        self._store, self._path, self._members, self._shown = store, path, members, shown
        self._holder: str | None = None  # The name of the member that was seen last to have the lock.

    async def wait(self, stack: AsyncExitStack) -> HeldLock:
        """Wait in the queue until the lock is ours."""
        return await self._enter(stack, immediate=False)

    async def take_or_refuse(self, stack: AsyncExitStack) -> HeldLock:
        """Take the lock if it is free; otherwise nobody who waits for it need ever see a node of ours."""
        await self._store.sync()
        queue = await queue_of(self._store, self._path, self._members)
        if queue:
            self._holder = queue[0]
            raise await self.owned("is held")
        try:
            return await self._enter(stack, immediate=True)
        except _Overtaken as error:
            raise await self.owned("is held") from error

    async def _enter(self, stack: AsyncExitStack, *, immediate: bool) -> HeldLock:
        """A session that ends meanwhile takes our member along: then we queue up again, at the end."""

        def on_wait(holder: str) -> None:
            self._holder = holder
            if immediate:
                raise _Overtaken

        sessions = 0
        while True:
            place = hold_place(
                self._store,
                self._path,
                self._members,
                owner=encode_member(LockOwner(self._members.client_id, self._store.session)),
                on_wait=on_wait,
            )
            try:
                return await stack.enter_async_context(place)
            except (SessionExpired, LockLost) as error:
                sessions += 1
                if sessions == _SESSIONS_MAX:
                    raise SessionExpired(f"{self._shown}: no session lasted until its lock was free") from error

    async def late(self, *, limit_s: float) -> StreamOwned | MetadataUnavailable:
        """The error for a wait that took too long: for another client, or for the metadata store."""
        if self._holder is None:
            return MetadataUnavailable(
                f"{self._shown}: who has its lock could not be told within {limit_s:g} s", path=self._path
            )
        return await self.owned(f"was not given up within {limit_s:g} s")

    async def owned(self, how: str) -> StreamOwned:
        """The error that names the holder, as far as one was seen."""
        owner = await self._owner()
        by = f" by {owner}" if owner else ""
        return StreamOwned(f"{self._shown}: its lock {how}{by}", owner=owner, path=self._path)

    async def _owner(self) -> str | None:
        if self._holder is None:
            return None
        named = member_owner(self._holder)
        if named is not None:
            return named.client_id
        try:
            return (await self._store.get(join(self._path, self._holder))).data.decode(errors="replace")
        except NoSuchNode:
            return None  # It has gone meanwhile.


class _Overtaken(Exception):
    """Another client is before us in the queue, and we do not wait."""
