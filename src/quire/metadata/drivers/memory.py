"""A metadata tree in this process: for tests, for simulation, and as the plainest reading of the contract.

`MemoryTree` is the server: it applies operations to a dictionary, keeps the sessions, and wakes watches. `MemoryDriver`
is one client of it. A simulation holds the tree and decides when a client is cut off, comes back, or loses its session;
a client that stays cut off for its session timeout loses it as with any other store.

One tree belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from quire.errors import (
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    SessionExpired,
    VersionConflict,
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
from quire.metadata.paths import ROOT, name_of, parent_of
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri
from quire.runtime import Runtime
from quire.values import dataclass

_shared: dict[str, "MemoryTree"] = {}  # The named trees that somebody has open.


async def open_driver(uri: MetadataUri, settings: StoreSettings, runtime: Runtime) -> Driver:
    """`memory:` is a tree of its own; `memory:name` is shared in this process while any handle is open."""
    if not uri.location:
        return MemoryDriver(MemoryTree(), settings, runtime)
    return MemoryDriver(_shared.setdefault(uri.location, MemoryTree(uri.location)), settings, runtime)


_FIRST: Final = Version(0)


@dataclass(slots=True)
class _Entry:
    data: bytes
    version: Version
    created_ms: int
    owner: SessionId | None
    writes: int = 1
    children: set[str] = field(default_factory=set)
    children_version: Version = _FIRST
    next_sequence: int = 0

    def stat(self) -> Stat:
        return Stat(self.version, self.writes, self.created_ms, self.owner)


class MemoryTree:
    """The server half. Every write gets the next revision as its version, so no version ever comes back."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._entries: dict[str, _Entry] = {ROOT: _Entry(b"", Version(0), 0, None)}
        self._revision = 0
        self._alive: set[SessionId] = set()
        self._clients: dict[SessionId, MemoryDriver] = {}  # By the last session each client knows of.
        self._next_session = 1
        self._watches: dict[tuple[str, Target], list[tuple[MemoryDriver, Callable[[], None]]]] = {}

    # --- What a simulation does to a client

    def disconnect(self, session: SessionId) -> None:
        """Cut this session's client off. Its calls wait; after its session timeout the session expires."""
        self._clients[session]._disconnect()

    def reconnect(self, session: SessionId) -> None:
        """Let the client that was cut off under `session` reach the tree again."""
        self._clients[session]._reconnect()

    def expire(self, session: SessionId) -> None:
        """End a session as if its client had been silent for too long."""
        self.end_session(session)
        self._clients[session]._on_expired()

    # --- What a client asks for

    def begin_session(self, client: "MemoryDriver") -> SessionId:
        session = SessionId(self._next_session)
        self._next_session += 1
        self._alive.add(session)
        self._clients[session] = client
        return session

    def is_alive(self, session: SessionId) -> bool:
        return session in self._alive

    def end_session(self, session: SessionId) -> None:
        self._alive.discard(session)
        for path in [path for path, entry in self._entries.items() if entry.owner == session]:
            self._remove(path)

    def forget(self, session: SessionId) -> None:
        self._clients.pop(session, None)

    def drop_if_unused(self) -> None:
        if not self._clients:
            _shared.pop(self._name, None)

    def settle(self, session: SessionId) -> None:
        """Nothing to do: here no write outlives its call."""

    def find(self, path: str) -> _Entry | None:
        return self._entries.get(path)

    def commit(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        if not self.is_alive(session):
            raise SessionExpired(f"session {session} has expired", session=session)
        self._refuse_impossible(ops)
        return [self._apply(op, session, now_ms) for op in ops]

    def _refuse_impossible(self, ops: Sequence[Op]) -> None:
        """Raise what refuses the first impossible operation, before anything changes."""
        created: dict[str, bool] = {}  # Path → ephemeral.
        deleted: set[str] = set()
        for op in ops:
            path = op.path
            if isinstance(op, Create):
                self._check_parent(path, created, deleted)
                path = self._numbered(op)
                if path in self._entries:
                    raise NodeExists(f"the metadata node {path!r} exists already", path=path)
                created[path] = op.ephemeral
                continue
            entry = self._entries.get(path)
            if entry is None:
                raise NoSuchNode(f"there is no metadata node {path!r}", path=path)
            if op.expected not in (ANY_VERSION, entry.version):
                raise VersionConflict(
                    f"{path!r} has version {entry.version}, not {op.expected}", path=path, stored=entry.version
                )
            if isinstance(op, Delete):
                left = {f"{path}/{name}" for name in entry.children} - deleted
                if left or any(parent_of(child) == path for child in created):
                    raise NodeNotEmpty(f"{path!r} has children", path=path)
                deleted.add(path)

    def _check_parent(self, path: str, created: dict[str, bool], deleted: set[str]) -> None:
        parent = parent_of(path)
        entry = self._entries.get(parent)
        if parent not in created and (entry is None or parent in deleted):
            raise NoSuchNode(f"there is no parent {parent!r} to create {path!r} in", path=path, parent=parent)
        if created.get(parent, False) or (entry is not None and entry.owner is not None):
            raise ParentIsEphemeral(f"{parent!r} is ephemeral and cannot have children", path=path, parent=parent)

    def _apply(self, op: Op, session: SessionId, now_ms: int) -> Written | None:
        if isinstance(op, Check):
            return None
        if isinstance(op, Delete):
            self._remove(op.path)
            return None
        self._revision += 1
        version = Version(self._revision)
        if isinstance(op, Set):
            entry = self._entries[op.path]
            entry.data, entry.version, entry.writes = op.data, version, entry.writes + 1
            self._wake(op.path, Target.NODE)
            return Written(op.path, version, entry.writes)
        parent, path = self._entries[parent_of(op.path)], self._numbered(op)
        parent.next_sequence += 1  # As in ZooKeeper, every child takes a number.
        self._entries[path] = _Entry(op.data, version, now_ms, session if op.ephemeral else None)
        parent.children.add(name_of(path))
        parent.children_version = version
        self._wake_existence(path)
        return Written(path, version, 1)

    def _numbered(self, op: Create) -> str:
        return f"{op.path}{self._entries[parent_of(op.path)].next_sequence:010d}" if op.sequential else op.path

    def _remove(self, path: str) -> None:
        self._revision += 1
        del self._entries[path]
        parent = self._entries[parent_of(path)]
        parent.children.discard(name_of(path))
        parent.children_version = Version(self._revision)
        self._wake_existence(path)

    # --- Watches

    def add_watch(self, driver: "MemoryDriver", path: str, target: Target, notify: Callable[[], None]) -> None:
        self._watches.setdefault((path, target), []).append((driver, notify))

    def remove_watch(self, driver: "MemoryDriver", path: str, target: Target, notify: Callable[[], None]) -> None:
        members = self._watches.get((path, target), [])
        if (driver, notify) in members:
            members.remove((driver, notify))
        if not members:
            self._watches.pop((path, target), None)

    def _wake_existence(self, path: str) -> None:
        self._wake(path, Target.NODE)
        self._wake(path, Target.CHILDREN)
        self._wake(parent_of(path), Target.CHILDREN)

    def _wake(self, path: str, target: Target) -> None:
        for driver, notify in self._watches.get((path, target), ()):
            driver._deliver(notify)


class MemoryDriver:
    """One client of a `MemoryTree`."""

    def __init__(self, tree: MemoryTree, settings: StoreSettings, runtime: Runtime) -> None:
        self._tree = tree
        self._settings = settings
        self._clock = runtime.clock
        self._connected = asyncio.Event()
        self._connected.set()
        self._held_back: dict[Callable[[], None], None] = {}  # Wake-ups while cut off, in order: runs must repeat.
        self._watches: list[tuple[str, Target, Callable[[], None]]] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._tell: Callable[[SessionEvent], None] = _ignore
        self.session = tree.begin_session(self)

    async def get(self, path: str) -> Node | None:
        entry = await self._find(path)
        return None if entry is None else Node(entry.data, entry.stat())

    async def stat(self, path: str) -> Stat | None:
        entry = await self._find(path)
        return None if entry is None else entry.stat()

    async def children(self, path: str) -> Children | None:
        entry = await self._find(path)
        return None if entry is None else Children(tuple(sorted(entry.children)), entry.children_version)

    async def _find(self, path: str) -> _Entry | None:
        await self._reach()
        return self._tree.find(path)

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        session = self.session  # Before waiting: a write belongs to the session it was decided under.
        await self._reach()
        return self._tree.commit(ops, session, self._clock.wall_ms())

    async def sync(self) -> None:
        await self._reach()

    async def settle(self) -> None:
        await self._reach()
        self._tree.settle(self.session)

    async def _reach(self) -> None:
        """Give way to other tasks, as a network would, and wait while cut off."""
        try:
            async with asyncio.timeout(self._settings.operation_timeout_s):
                await self._clock.sleep(0)
                await self._connected.wait()
        except TimeoutError as error:
            raise MetadataUnavailable(
                f"the metadata tree could not be reached for {self._settings.operation_timeout_s:g} s"
            ) from error

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        await self._reach()
        self._tree.add_watch(self, path, target, notify)
        self._watches.append((path, target, notify))

        def stop() -> None:
            self._tree.remove_watch(self, path, target, notify)
            self._watches.remove((path, target, notify))

        return stop

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._tell = callback

    async def aclose(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for path, target, notify in self._watches:
            self._tree.remove_watch(self, path, target, notify)
        self._tree.end_session(self.session)
        self._tree.forget(self.session)
        self._tree.drop_if_unused()

    # --- What the tree tells its client

    def _deliver(self, notify: Callable[[], None]) -> None:
        if self._connected.is_set():
            notify()
        else:
            self._held_back[notify] = None

    def _disconnect(self) -> None:
        if self._connected.is_set():
            self._connected.clear()
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(self._settings.session_timeout_s, self._tree.expire, self.session)
            self._tell(SessionEvent.SUSPENDED)

    def _reconnect(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._connected.set()
        if not self._tree.is_alive(self.session):
            self._renew()
        self._tell(SessionEvent.RESUMED)
        self._flush()

    def _on_expired(self) -> None:
        if self._connected.is_set():  # Otherwise it learns of it when it comes back.
            self._renew()
            self._tell(SessionEvent.RESUMED)
            self._flush()

    def _renew(self) -> None:
        self._tree.forget(self.session)
        self.session = self._tree.begin_session(self)
        self._tell(SessionEvent.EXPIRED)
        self._held_back.update((notify, None) for _, _, notify in self._watches)

    def _flush(self) -> None:
        held_back, self._held_back = self._held_back, {}
        for notify in held_back:
            notify()


def _ignore(_: SessionEvent) -> None:
    """Nobody listens yet."""
