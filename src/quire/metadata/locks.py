"""Distributed locks: one holder at a time, in order of arrival, for as long as the holder's session lives.

Each contender puts an ephemeral sequential node below the lock's path; the lowest number holds the lock, and every
other one watches only the node right before its own. A holder that dies or falls silent loses its node, and the next
one moves up. How the nodes are called is for `Members` to say: programs that share a lock must agree on it.

A lock is a courtesy, not a proof: a holder that was stopped for longer than its session may go on without knowing that
another one has taken over. Whatever must not happen twice goes into a transaction with `HeldLock.guard()`, which the
store refuses once the lock is lost, or is fenced by versions of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from quire.errors import (
    LockLost,
    MetadataOutcomeUnknown,
    NoSuchNode,
    SessionExpired,
    StoreClosed,
    Unavailable,
    VersionConflict,
)
from quire.metadata.api import MetadataStore, SessionWatch, wait_any_changed
from quire.metadata.driver import ANY_VERSION, Check, SessionId, Stat, Version
from quire.metadata.paths import join, name_of
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

    async def prove(self, store: MetadataStore) -> None:
        """Raise `LockLost` unless the lock is ours at this moment, as the store sees it."""
        self.check()
        try:
            await store.transaction(self.guard())
        except (NoSuchNode, VersionConflict) as error:
            raise LockLost(f"{self.path!r} is not ours any more", path=self.path) from error

    async def wait_lost(self) -> None:
        """Return once the lock is known to be lost."""
        await self._lost.wait()


class Members(Protocol):
    """What the nodes of a lock are called, for one contender."""

    @property
    def mark(self) -> str:
        """How our own nodes begin, and nobody else's: so one is found again if the answer to its creation is lost."""

    def name(self, session: SessionId) -> str:
        """Our node as it is asked for in this session. The store appends a number."""

    def queue(self, names: Iterable[str]) -> list[str]:
        """Those of the nodes below the lock that wait for it, the holder first."""


class _Tokens:
    """Our own naming: `lock-<random>-<number>`."""

    def __init__(self, token: str = "") -> None:
        self.mark = f"{_PREFIX}{token}-"

    def name(self, session: SessionId) -> str:
        return self.mark

    def queue(self, names: Iterable[str]) -> list[str]:
        return sorted((name for name in names if name.startswith(_PREFIX)), key=lambda name: name[-_DIGITS:])


def hold_lock(
    store: MetadataStore, path: str, rng: Rng, *, owner: bytes = b""
) -> AbstractAsyncContextManager[HeldLock]:
    """Wait for the lock at `path`, hold it for the block, release it. `owner` is what others can read about the holder.

    The wait has no limit of its own: put `asyncio.timeout` around it. A cancelled wait leaves the queue.
    """
    return hold_place(store, path, _Tokens(rng.uuid().hex), owner=owner, parents=True)


def _wait_patiently(_: str) -> None:
    """Whoever holds the lock may hold it."""


@asynccontextmanager
async def hold_place(
    store: MetadataStore,
    path: str,
    members: Members,
    *,
    owner: bytes,
    parents: bool = False,
    on_wait: Callable[[str], None] = _wait_patiently,
) -> AsyncIterator[HeldLock]:
    """As `hold_lock`, with nodes that are called as `members` says. Without `parents` the lock's path has to exist.

    `on_wait` is told the name of the holder's node before each wait. What it raises ends the attempt.
    """
    with store.watch_session() as session:
        joining = _join_queue(store, path, members, owner, parents)
        creating = asyncio.create_task(joining, name=f"join the queue for {path}")
        creating.add_done_callback(_look_at_error)
        try:
            node = await asyncio.shield(creating)
            stat = await _wait_first(store, path, members, node, on_wait)
            held = HeldLock(node, stat.version)
            follower = asyncio.create_task(_follow(store, session, stat.owner, held), name=f"lock session {path}")
            try:
                yield held
            finally:
                follower.cancel()
                await asyncio.wait([follower])
        finally:
            # A node that we forgot would block everybody until our session ends.
            await store.finish(lambda: _leave_queue(store, path, members, creating))


def _look_at_error(task: asyncio.Task[str]) -> None:
    """Whoever waits gets the error; if nobody does any more, asyncio need not warn of it."""
    if not task.cancelled():
        task.exception()


async def lock_owners(store: MetadataStore, path: str) -> list[bytes]:
    """What the holder and those who wait said about themselves, the holder first."""
    owners = []
    for name in await queue_of(store, path, _Tokens()):
        try:
            owners.append((await store.get(join(path, name))).data)
        except NoSuchNode:
            continue  # It left between the listing and the look.
    return owners


async def queue_of(store: MetadataStore, path: str, members: Members) -> list[str]:
    """The names of the nodes that wait for the lock at `path`, the holder's first."""
    try:
        return members.queue((await store.children(path)).names)
    except NoSuchNode:
        return []


async def _join_queue(store: MetadataStore, path: str, members: Members, owner: bytes, parents: bool) -> str:
    """Create our node, or find the one whose creation was not confirmed."""
    wanted = join(path, members.name(store.session))
    try:
        return (await store.create(wanted, owner, ephemeral=True, sequential=True, parents=parents)).path
    except MetadataOutcomeUnknown as unknown:
        try:
            await store.sync()
            ours = await _own_nodes(store, path, members)
        except (Unavailable, SessionExpired) as error:
            raise unknown from error
        if not ours:
            raise
        return ours[0]


async def _own_nodes(store: MetadataStore, path: str, members: Members) -> list[str]:
    return [join(path, name) for name in await queue_of(store, path, members) if name.startswith(members.mark)]


async def _wait_first(
    store: MetadataStore, path: str, members: Members, node: str, on_wait: Callable[[str], None]
) -> Stat:
    """Wait until ours is the first node of the queue, and return its stat."""
    while True:
        await store.sync()
        stat, queue = await store.exists(node), await queue_of(store, path, members)
        if stat is None or name_of(node) not in queue:
            raise LockLost(f"the session that waited for {path!r} has ended", path=path)
        place = queue.index(name_of(node))
        if place == 0:
            return stat
        on_wait(queue[0])
        predecessor = join(path, queue[place - 1])
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


async def _leave_queue(store: MetadataStore, path: str, members: Members, creating: asyncio.Task[str]) -> None:
    """Delete our node, wherever it is in the queue, once it is clear whether there is one."""
    await asyncio.wait([creating])
    if creating.cancelled() or creating.exception() is not None:
        await store.sync()
        nodes = await _own_nodes(store, path, members)
    else:
        nodes = [creating.result()]
    for node in nodes:
        try:
            await store.delete(node, expected=ANY_VERSION)
        except NoSuchNode:
            pass
