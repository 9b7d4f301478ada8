"""Distributed locks: one holder at a time, in order of arrival, for as long as the holder's session lives.

Each contender puts an ephemeral sequential node below the lock's path; the lowest number holds the lock, and every
other one watches only the node right before its own. A holder that dies or falls silent loses its node, and the next
one moves up.

A lock is a courtesy, not a proof: a holder that was stopped for longer than its session may go on without knowing that
another one has taken over. Whatever must not happen twice goes into a transaction with `HeldLock.guard()`, which the
store refuses once the lock is lost, or is fenced by versions of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from quire.errors import LockLost, MetadataOutcomeUnknown, NoSuchNode, SessionExpired, StoreClosed, Unavailable
from quire.metadata.api import MetadataStore, SessionWatch, wait_any_changed
from quire.metadata.driver import ANY_VERSION, Check, SessionId, Stat, Version
from quire.metadata.paths import join
from quire.runtime import Rng

_PREFIX: Final = "lock-"
_DIGITS: Final = 10  # Of the number that a store appends to a sequential node.


class HeldLock:
    """A lock that this client holds, as far as it knows."""

    def __init__(self, path: str, version: Version) -> None:
        self.path = path  # Of our own node: it exists exactly as long as the lock is ours.
        self._version = version
        self._lost = asyncio.Event()

    @property
    def lost(self) -> bool:
        """True once the session that held the lock is known to be over. False proves nothing; `guard()` does."""
        return self._lost.is_set()

    def guard(self) -> Check:
        """An operation that makes a transaction fail unless the lock is still ours at that very moment."""
        return Check(self.path, self._version)

    def check(self) -> None:
        """Raise `LockLost` if the lock is known to be lost."""
        if self.lost:
            raise LockLost(f"the session that held {self.path!r} has ended", path=self.path)

    async def wait_lost(self) -> None:
        """Return once the lock is known to be lost."""
        await self._lost.wait()


@asynccontextmanager
async def hold_lock(store: MetadataStore, path: str, rng: Rng, *, owner: bytes = b"") -> AsyncIterator[HeldLock]:
    """Wait for the lock at `path`, hold it for the block, release it. `owner` is what others can read about the holder.

    The wait has no limit of its own: put `asyncio.timeout` around it. A cancelled wait leaves the queue.
    """
    # Our node's name carries a token, so that it is found again whatever became of the answer to its creation.
    token = f"{_PREFIX}{rng.uuid().hex}-"
    with store.watch_session() as session:
        creating = asyncio.create_task(_join_queue(store, path, token, owner), name=f"join the queue for {path}")
        creating.add_done_callback(_look_at_error)
        try:
            node = await asyncio.shield(creating)
            stat = await _wait_first(store, path, node)
            held = HeldLock(node, stat.version)
            follower = asyncio.create_task(_follow(store, session, stat.owner, held), name=f"lock session {path}")
            try:
                yield held
            finally:
                follower.cancel()
                await asyncio.wait([follower])
        finally:
            # A node that we forgot would block everybody until our session ends.
            await store.finish(lambda: _leave_queue(store, path, token, creating))


def _look_at_error(task: asyncio.Task[str]) -> None:
    """Whoever waits gets the error; if nobody does any more, asyncio need not warn of it."""
    if not task.cancelled():
        task.exception()


async def lock_owners(store: MetadataStore, path: str) -> list[bytes]:
    """What the holder and those who wait said about themselves, the holder first."""
    owners = []
    for name in await _queue(store, path):
        try:
            owners.append((await store.get(join(path, name))).data)
        except NoSuchNode:
            continue  # It left between the listing and the look.
    return owners


async def _join_queue(store: MetadataStore, path: str, token: str, owner: bytes) -> str:
    """Create our node, or find the one whose creation was not confirmed."""
    try:
        return (await store.create(join(path, token), owner, ephemeral=True, sequential=True, parents=True)).path
    except MetadataOutcomeUnknown as unknown:
        try:
            await store.sync()
            ours = [name for name in await _queue(store, path) if name.startswith(token)]
        except (Unavailable, SessionExpired) as error:
            raise unknown from error
        if not ours:
            raise
        return join(path, ours[0])


async def _queue(store: MetadataStore, path: str) -> list[str]:
    try:
        names = (await store.children(path)).names
    except NoSuchNode:
        return []
    return sorted((name for name in names if name.startswith(_PREFIX)), key=lambda name: name[-_DIGITS:])


async def _wait_first(store: MetadataStore, path: str, node: str) -> Stat:
    """Wait until ours is the lowest node, and return its stat."""
    while True:
        await store.sync()
        stat = await store.exists(node)
        if stat is None:
            raise LockLost(f"the session that waited for {path!r} has ended", path=path)
        before = [name for name in await _queue(store, path) if name[-_DIGITS:] < node[-_DIGITS:]]
        if not before:
            return stat
        predecessor = join(path, before[-1])
        async with store.watch(predecessor) as watch, store.watch(node) as own:
            if await store.exists(predecessor) is not None and await store.exists(node) is not None:
                await wait_any_changed(watch, own)


async def _follow(store: MetadataStore, session: SessionWatch, owner: SessionId | None, held: HeldLock) -> None:
    """Note the end of the session that the lock's node belongs to."""
    try:
        while store.session == owner:
            await session.wait_event()
    except StoreClosed:
        pass  # Closing ends the session too.
    held._lost.set()


async def _leave_queue(store: MetadataStore, path: str, token: str, creating: asyncio.Task[str]) -> None:
    """Delete our node, wherever it is in the queue, once it is clear whether there is one."""
    await asyncio.wait([creating])
    if creating.cancelled() or creating.exception() is not None:
        await store.sync()
        nodes = [join(path, name) for name in await _queue(store, path) if name.startswith(token)]
    else:
        nodes = [creating.result()]
    for node in nodes:
        try:
            await store.delete(node, expected=ANY_VERSION)
        except NoSuchNode:
            pass
