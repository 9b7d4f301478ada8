"""The metadata store: one small versioned tree with sessions, the same on every backend.

A node has data, a version and children. Everything that must agree across a cluster is kept in such nodes and changed
by compare-and-swap: a write names the version it was decided from, and is refused when somebody wrote in between.

The promises, checked on every driver by `tests/contract/metadata`:
  Writes are atomic     a transaction happens as a whole or not at all; so does a single write.
  Versions only grow    while a node lives, each write of its data gives it a greater version.
  Sessions own nodes    an ephemeral node lives until its creator deletes it, closes, or is silent for too long.
  Expiry is final       a write of an expired session is refused with `SessionExpired` and changes nothing.
  Watches miss nothing  after a change, also one made while the client was disconnected, every watch of the node wakes.
                        They may wake without a change: read again, always.
  Errors tell the truth `MetadataUnavailable` wrote nothing; `MetadataOutcomeUnknown` may have written.
  Looks are final       a write of unknown outcome has happened before whatever the same handle asks next, or never
                        will: it cannot come after a look that did not find it. (etcd may carry it out much later.)

`MetadataStore` is the half that users see: checks, conveniences, waiting. A `Driver` (`quire.metadata.driver`) is the
half that a backend implements; nothing above this package can tell which one it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from quire.errors import (
    InvalidArgument,
    MetadataOutcomeUnknown,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    RequestTooLarge,
    SessionExpired,
    StoreClosed,
    Unavailable,
)
from quire.metadata.driver import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Driver,
    Node,
    Op,
    SessionEvent,
    SessionId,
    Set,
    Stat,
    Target,
    Version,
    Written,
)
from quire.metadata.paths import ROOT, ancestors_of, check_path, join, parent_of
from quire.runtime import AsyncioClock, Clock

REQUEST_BYTES_MAX: Final = 1_000_000  # Paths and data of one request. ZooKeeper drops connections at 1,048,575.
_RETRY_S: Final = 0.2  # Between tries to finish what must not be left undone.
_RACES_MAX: Final = 100  # Rounds against others who delete what we create, or the reverse, before giving up.


class MetadataStore:
    """A handle on one metadata store, and one session in it. Made by `quire.metadata.open_store`."""

    def __init__(self, driver: Driver, clock: Clock | None = None) -> None:
        self._driver = driver
        self._clock = clock or AsyncioClock()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._unfinished: set[asyncio.Task[None]] = set()
        self._doubts = 0  # Writes whose answers were lost, or not waited for.
        self._settled = 0  # How many of these cannot come any more.
        # In the order of their begin, in which they are told: a simulation does the same whenever it is run.
        self._watches: dict[Watch, None] = {}
        self._session_watches: dict[SessionWatch, None] = {}
        driver.listen(self._on_session_event)

    @property
    def session(self) -> SessionId:
        """The id of the present session, to compare with `Stat.owner`."""
        return self._driver.session

    # --- Reading

    async def get(self, path: str) -> Node:
        """The node's data and stat. Raises `NoSuchNode`."""
        node = await (await self._settled_driver()).get(check_path(path))
        if node is None:
            raise _no_such_node(path)
        return node

    async def exists(self, path: str) -> Stat | None:
        """The node's stat, or None."""
        return await (await self._settled_driver()).stat(check_path(path))

    async def children(self, path: str) -> Children:
        """The names below a node. Raises `NoSuchNode`; never returns a part of them."""
        listing = await (await self._settled_driver()).children(check_path(path))
        if listing is None:
            raise _no_such_node(path)
        return listing

    async def sync(self) -> None:
        """After this, reads through this handle show every write that anybody finished before the call.

        Only ZooKeeper needs it (a follower may lag behind); on the other drivers reads are always up to date.
        """
        await (await self._settled_driver()).sync()

    # --- Writing

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, parents: bool = False
    ) -> Written:
        """Create a node. Raises `NodeExists`, `NoSuchNode` (its parent), `ParentIsEphemeral`.

        With `parents`, missing ones are created with it, empty and persistent, in the same transaction if the node is
        not sequential: then it costs one write to the store, however deep it is.
        """
        missing: list[str] = []
        op = Create(path, data, ephemeral=ephemeral, sequential=sequential)
        for _ in range(_RACES_MAX):
            try:
                if missing and sequential:  # Which has to be alone in its transaction.
                    await self.transaction(*map(Create, missing))
                    missing = []
                written = (await self.transaction(*map(Create, missing), op))[-1]
            except NoSuchNode:
                if not parents:
                    raise
            except NodeExists as error:
                if error.facts.get("path") not in missing:
                    raise
            else:
                assert written is not None
                return written
            # Also when somebody created a parent meanwhile, or deleted one: it is looked at again.
            missing = [ancestor for ancestor in ancestors_of(path) if await self.exists(ancestor) is None]
        raise NoSuchNode(f"the parents of {path!r} are deleted as fast as they are created", path=path)

    async def set(self, path: str, data: bytes, *, expected: Version) -> Written:
        """Replace a node's data if its version is `expected`. Raises `VersionConflict`, `NoSuchNode`."""
        (written,) = await self.transaction(Set(path, data, expected))
        assert written is not None
        return written

    async def delete(self, path: str, *, expected: Version) -> None:
        """Delete a node if its version is `expected`. Raises `VersionConflict`, `NoSuchNode`, `NodeNotEmpty`."""
        await self.transaction(Delete(path, expected))

    async def delete_tree(self, path: str, *, guard: Check | None = None) -> None:
        """Delete a node and all below it. Not atomic; nodes that others add meanwhile are deleted too.

        Every single deletion needs what `guard` checks: else raises what that raises.
        """
        guards = () if guard is None else (guard,)
        if check_path(path) == ROOT:
            raise InvalidArgument("the whole tree cannot be deleted", hint="Name a node below the root.", path=path)
        refilled = 0
        doomed = [path]  # Each before what is below it: the last one is deleted first.
        while doomed:
            try:
                names = (await self.children(doomed[-1])).names
                if names:
                    doomed += [join(doomed[-1], name) for name in names]
                    continue
                await self.transaction(*guards, Delete(doomed[-1], ANY_VERSION))
            except NodeNotEmpty:
                refilled += 1
                if refilled == _RACES_MAX:
                    raise
                continue
            except NoSuchNode as error:
                if guard is not None and error.facts.get("path") == guard.path:
                    raise
            doomed.pop()

    async def transaction(self, *ops: Op) -> list[Written | None]:
        """Carry out all operations, or none and raise what refused the first impossible one.

        Each path may occur once. Later operations see earlier ones. One answer for each operation, None for deletes
        and checks.
        """
        session = self._open_driver().session
        _check_ops(ops)
        if not ops:
            return []
        driver = await self._settled_driver()
        if driver.session != session:
            raise SessionExpired(f"session {session} ended before the write was sent", session=session)
        try:
            return await driver.commit(ops)
        except (MetadataOutcomeUnknown, asyncio.CancelledError):
            self._doubts += 1
            raise

    async def _settled_driver(self) -> Driver:
        """The driver, when no write of ours that is in doubt can come any more."""
        driver = self._open_driver()
        if self._settled < self._doubts:
            doubts = self._doubts  # Those that come while we wait need another round.
            await driver.settle()
            self._settled = max(self._settled, doubts)
        return driver

    # --- What must not be left undone

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out `work` of this session, such as giving up an ephemeral node, even if the store is out of reach now.

        Returns after the first try. If that one failed because the store was unavailable, the work is tried again in
        the background until it succeeds, the session is over (and its nodes with it), or the store is closed. Nor does
        it stop when the caller is cancelled. Anything else that `work` raises is a bug, and reported to the event loop.
        """
        if self._closed:
            return
        tried = asyncio.Event()
        task = asyncio.create_task(self._work_until_done(work, tried), name="metadata clean-up")
        self._unfinished.add(task)
        task.add_done_callback(self._on_finished)
        task.add_done_callback(lambda _: tried.set())
        await tried.wait()

    async def _work_until_done(self, work: Callable[[], Awaitable[None]], tried: asyncio.Event) -> None:
        session = self.session
        while self.session == session:
            try:
                await work()
                break
            except (SessionExpired, StoreClosed):
                break  # What was to be cleaned up has gone with the session.
            except Unavailable:
                tried.set()
                await self._clock.sleep(_RETRY_S)

    def _on_finished(self, task: asyncio.Task[None]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "cleaning up in the metadata store failed"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    # --- Waiting

    def watch(self, path: str) -> "Watch":
        """Watch a node's data, creation and deletion. Use with `async with`."""
        return Watch(self, check_path(path), Target.NODE)

    def watch_children(self, path: str) -> "Watch":
        """Watch which names are below a node. Use with `async with`."""
        return Watch(self, check_path(path), Target.CHILDREN)

    def watch_session(self) -> "SessionWatch":
        """Watch this handle's own session. Use with `with`."""
        self._open_driver()
        return SessionWatch(self._session_watches)

    def _on_session_event(self, event: SessionEvent) -> None:
        for session_watch in tuple(self._session_watches):
            session_watch._notify(event)

    # --- Closing

    def _open_driver(self) -> Driver:
        if self._closed:
            raise StoreClosed("this metadata store was closed", hint="Use it inside its `async with` block.")
        return self._driver

    async def aclose(self) -> None:
        """End the session and let go of the backend. Whoever still waits on a watch gets `StoreClosed`.

        Once begun, closing goes on to its end, also if whoever asked for it is cancelled.
        """
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.create_task(self._close(), name="metadata store closes")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for watch in tuple(self._watches):
            watch._end()
        for session_watch in tuple(self._session_watches):
            session_watch._end()
        unfinished = tuple(self._unfinished)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        await self._driver.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class Watch:
    """Wakes whoever waits when a node may have changed. Changes are merged, never missed:

    async with store.watch(path) as watch:
        while True:
            node = await store.get(path)
            ...
            await watch.wait_changed()
    """

    def __init__(self, store: MetadataStore, path: str, target: Target) -> None:
        self._store, self._path, self._target = store, path, target
        self._wake = asyncio.Event()
        self._ended = False
        self._stop: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        driver = self._store._open_driver()
        self._store._watches[self] = None  # First: closing the store must find whoever is about to wait.
        try:
            self._stop = await driver.watch(self._path, self._target, self._wake.set)
        except BaseException:
            self._store._watches.pop(self, None)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._store._watches.pop(self, None)
        if self._stop is not None:
            self._stop()

    async def wait_changed(self) -> None:
        """Return once the node may have changed since the watch began or since the last return."""
        await self._wake.wait()
        if self._ended:
            raise StoreClosed(f"the store was closed while {self._path!r} was watched")
        self._wake.clear()

    def _end(self) -> None:
        self._ended = True
        self._wake.set()


async def wait_any_changed(*watches: Watch) -> None:
    """Return once one of `watches` has woken. The others keep what they have not told yet."""
    waits = [asyncio.create_task(watch._wake.wait()) for watch in watches]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
    for watch in watches:
        if watch._wake.is_set():
            await watch.wait_changed()  # Returns at once; raises if the store was closed.


class SessionWatch:
    """Tells what happens to a session. An expiry is always told, short interruptions may be merged away."""

    def __init__(self, members: dict["SessionWatch", None]) -> None:
        self._members = members
        self._wake = asyncio.Event()
        self._ended = False
        self._expired = False
        self._suspended = False
        self._told_suspended = False

    def __enter__(self) -> Self:
        self._members[self] = None
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._members.pop(self, None)

    async def wait_event(self) -> SessionEvent:
        """The next event. Raises `StoreClosed` when the store is closed meanwhile."""
        while True:
            if self._expired:
                self._expired = False
                self._told_suspended = True  # What follows an expiry is told: the store can be reached, or not yet.
                return SessionEvent.EXPIRED
            if self._suspended != self._told_suspended:
                self._told_suspended = self._suspended
                return SessionEvent.SUSPENDED if self._suspended else SessionEvent.RESUMED
            if self._ended:
                raise StoreClosed("the store was closed while its session was watched")
            self._wake.clear()
            await self._wake.wait()

    def _notify(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._expired = True
        else:
            self._suspended = event is SessionEvent.SUSPENDED
        self._wake.set()

    def _end(self) -> None:
        self._ended = True
        self._wake.set()


def _check_ops(ops: Sequence[Op]) -> None:
    seen: set[str] = set()
    size = 0
    for op in ops:
        path = op.path
        check_path(path + "0" if isinstance(op, Create) and op.sequential else path)
        if path == ROOT:
            raise InvalidArgument("the root of the tree cannot be written", hint="Name a node below it.", path=path)
        if path in seen:
            raise InvalidArgument(f"{path!r} occurs twice in one transaction", hint="Use one operation per path.")
        seen.add(path)
        if isinstance(op, Create):
            if op.sequential and len(ops) > 1:
                raise InvalidArgument(
                    "a sequential create cannot be part of a transaction", hint="Create it on its own.", path=path
                )
        elif op.expected < ANY_VERSION:
            raise InvalidArgument(f"{op.expected} is no version of {path!r}", hint="Use a version that was read.")
        size += len(path) * 4
        if isinstance(op, Create | Set):
            if not isinstance(op.data, bytes):
                raise InvalidArgument(
                    f"the data of {path!r} is a {type(op.data).__name__}, not bytes", hint="Encode it first.", path=path
                )
            size += len(op.data)
    if size > REQUEST_BYTES_MAX:
        raise RequestTooLarge(
            f"a metadata request of {size} bytes is over the limit of {REQUEST_BYTES_MAX}", bytes=size, path=ops[0].path
        )


def _no_such_node(path: str) -> NoSuchNode:
    return NoSuchNode(f"there is no metadata node {path!r}", path=path, parent=parent_of(path))
