"""Metadata in ZooKeeper, the store that Apache BookKeeper and DistributedLog use themselves.

The tree, its versions and its sessions are ZooKeeper's own, so this driver adds only what kazoo leaves to its users:
  A deadline on every call. A read whose connection breaks is repeated until then. A write is never repeated: once it
    was sent, only its reply can tell what became of it, and without one its outcome is unknown.
  Expiry is final. A write belongs to the session that its caller knew. It is sent within that session or not at all,
    however short the moment in which one session replaced the other (`LoopClient.submit`).
  Watches go on, across events, broken connections and sessions (`WatchTable`).

Paths are absolute on the server: no chroot is used.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import KeeperState, ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from quire.errors import MetadataUnavailable, StoreClosed
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
from quire.metadata.drivers._zk_client import DEFAULT_PORT, LoopClient
from quire.metadata.drivers._zk_errors import ASTRAY, Failures
from quire.metadata.drivers._zk_watches import Trigger, WatchTable
from quire.metadata.paths import ROOT
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri
from quire.runtime import Runtime

_RETRY_DELAY_S: Final = 0.05
_VERSION_MAX: Final = 2**31 - 1
_ACL: Final = OPEN_ACL_UNSAFE  # As Apache's programs do by default; a cluster is protected by its network.


async def open_driver(uri: MetadataUri, settings: StoreSettings, runtime: Runtime) -> Driver:
    """Connect to one of the servers in `uri` and begin a session.

    Raises `MetadataUnavailable` if there is none within the operation timeout, and leaves nothing behind then.
    """
    driver = ZooKeeperDriver(uri, settings, runtime)
    try:
        await driver.connect()
    except BaseException:
        await driver.aclose()
        raise
    return driver


class ZooKeeperDriver:
    """The `Driver` of `quire.metadata.api` for ZooKeeper."""

    def __init__(self, uri: MetadataUri, settings: StoreSettings, runtime: Runtime) -> None:
        servers = tuple(_with_port(server) for server in uri.servers)
        self._failures = Failures(servers, settings.operation_timeout_s)
        self._timeout_s = settings.operation_timeout_s
        self._clock = runtime.clock
        self._close_patience_s = min(settings.session_timeout_s, settings.operation_timeout_s)
        self._client = LoopClient(
            servers,
            session_timeout_s=settings.session_timeout_s,
            # Every server gets its chance before a session or a call runs out of time, and the first one a second.
            connect_timeout_s=self._close_patience_s / (len(servers) + 1),
            on_state=self._on_state,
        )
        self._watches = WatchTable(self._arm, runtime.clock)
        self._tell: Callable[[SessionEvent], None] = lambda event: None
        self._state_changed = asyncio.Event()  # A new one after each change, so that all who wait are woken once.
        self._connected = self._closed = False
        self._epoch = 0  # The epoch of the session that our callers know; behind the client's until they are told.
        self._session = SessionId(0)

    # --- The session

    @property
    def session(self) -> SessionId:
        return self._session

    async def connect(self) -> None:
        """Begin the first session."""
        self._client.start_async()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._connected:
                    await self._state_changed.wait()
        except TimeoutError as error:
            raise self._unavailable(ROOT) from error

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._tell = callback

    def _on_state(self, state: str, epoch: int, session: int | None) -> None:
        self._state_changed.set()
        self._state_changed = asyncio.Event()
        was_connected, self._connected = self._connected, session is not None
        if self._closed:
            return
        if session is not None:
            self._session = SessionId(session)
            self._tell(SessionEvent.RESUMED)
            return
        if was_connected:
            self._tell(SessionEvent.SUSPENDED)
        if state != KeeperState.CONNECTING:
            self._epoch = epoch
            self._tell(SessionEvent.EXPIRED)

    async def aclose(self) -> None:
        self._closed = True
        self._state_changed.set()
        await self._watches.aclose()
        await self._client.aclose(self._close_patience_s)

    # --- Reading

    async def get(self, path: str) -> Node | None:
        found = await self._read(path, lambda: self._client.get_async(path))
        return None if found is None else Node(found[0] or b"", _stat(found[1]))

    async def stat(self, path: str) -> Stat | None:
        found = await self._read(path, lambda: self._client.exists_async(path))
        return None if found is None else _stat(found)

    async def children(self, path: str) -> Children | None:
        found = await self._read(path, lambda: self._client.get_children_async(path, include_data=True))
        return None if found is None else Children(tuple(sorted(found[0])), Version(found[1].cversion))

    async def sync(self) -> None:
        await self._read(ROOT, lambda: self._client.sync_async(ROOT))

    async def settle(self) -> None:
        """The servers keep the order of a session, and refuse what an old connection of it still brings."""
        await self.sync()

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        self._check_open()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._watches.watch(path, target, notify)
        except TimeoutError as error:
            raise self._unavailable(path) from error

    async def _arm(self, trigger: Trigger) -> None:
        path = trigger.path
        if trigger.target is Target.CHILDREN:
            # A listing leaves no watch on a node that does not exist. Only `exists` does, and it leaves none for the
            # children of a node that was created a moment before: so look again until both agree.
            while await self._read(path, lambda: self._client.get_children_async(path, watch=trigger)) is None:
                if await self._read(path, lambda: self._client.exists_async(path, watch=trigger)) is None:
                    return
        else:
            await self._read(path, lambda: self._client.exists_async(path, watch=trigger))

    async def _read(self, path: str, send: Callable[[], Any]) -> Any:
        """The reply to a read, asked for again after each broken connection; None if there is no such node."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await (await self._submit(send))
                    except NoNodeError:
                        return None
                    except ASTRAY:
                        await self._clock.sleep(_RETRY_DELAY_S)
        except TimeoutError as error:
            raise self._unavailable(path) from error
        except KazooException as error:
            raise self._failures.translated(error, path) from error

    # --- Writing

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        if len(ops) > 1:
            return await self._commit_together(ops)
        client, op = self._client, ops[0]
        if isinstance(op, Create):
            flags = {"ephemeral": op.ephemeral, "sequence": op.sequential}
            return [_written(op, await self._write(op, lambda: client.create_async(op.path, op.data, _ACL, **flags)))]
        if isinstance(op, Set):
            return [_written(op, await self._write(op, lambda: client.set_async(op.path, op.data, _expected(op))))]
        if isinstance(op, Delete):
            return [_written(op, await self._write(op, lambda: client.delete_async(op.path, _expected(op))))]
        await self._check(op)
        return [None]

    async def _commit_together(self, ops: Sequence[Op]) -> list[Written | None]:
        def send() -> Any:
            request = self._client.transaction()
            for op in ops:
                if isinstance(op, Create):
                    request.create(op.path, op.data, _ACL, ephemeral=op.ephemeral)
                elif isinstance(op, Set):
                    request.set_data(op.path, op.data, _expected(op))
                elif isinstance(op, Delete):
                    request.delete(op.path, _expected(op))
                else:
                    request.check(op.path, _expected(op))
            return request.commit_async()

        results = await self._write(ops[0], send)
        refused = [(op, result) for op, result in zip(ops, results, strict=True) if isinstance(result, KazooException)]
        for op, error in refused:
            # The operations before the impossible one were rolled back, those after it were not tried.
            if not isinstance(error, RolledBackError | RuntimeInconsistency):
                raise self._failures.translated(error, op.path, op) from error
        if refused:
            raise self._unavailable(ops[0].path) from refused[0][1]
        return [_written(op, result) for op, result in zip(ops, results, strict=True)]

    async def _check(self, op: Check) -> None:
        """A check on its own has nothing to be atomic with: it is a read."""
        found = await self._read(op.path, lambda: self._client.exists_async(op.path))
        if found is None:
            raise self._failures.translated(NoNodeError(), op.path, op)
        if op.expected not in (ANY_VERSION, found.version):
            raise self._failures.translated(BadVersionError(), op.path, op)

    async def _write(self, op: Op, send: Callable[[], Any]) -> Any:
        epoch = self._epoch
        sent = False
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._submit(send, epoch=epoch)
                sent = True
                return await reply
        except TimeoutError as error:
            raise (self._failures.outcome_unknown(op.path) if sent else self._unavailable(op.path)) from error
        except KazooException as error:
            raise self._failures.translated(error, op.path, op) from error

    # --- Both

    async def _submit(self, send: Callable[[], Any], *, epoch: int | None = None) -> asyncio.Future[Any]:
        """Wait for a connection and put a request on it. Raises `SessionExpiredError` if `epoch` ends meanwhile."""
        while True:
            self._check_open()
            try:
                reply = self._client.submit(send, epoch=epoch)
            except SessionExpiredError:
                # Told first, so that a caller who tries again at once does so in the next session.
                while self._epoch == epoch and not self._closed:
                    await self._state_changed.wait()
                raise
            if reply is not None:
                return reply
            await self._state_changed.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this connection to ZooKeeper was closed")

    def _unavailable(self, path: str) -> MetadataUnavailable:
        return self._failures.unavailable(path, reason="" if self._connected else self._client.last_failure)


def _with_port(server: str) -> str:
    return server if ":" in server and server.rpartition(":")[2].isdigit() else f"{server}:{DEFAULT_PORT}"


def _expected(op: Set | Delete | Check) -> int:
    # No node gets that far; a number beyond it would not fit the request, and break the connection instead.
    return min(op.expected, _VERSION_MAX)


def _stat(stat: ZnodeStat) -> Stat:
    owner = SessionId(stat.ephemeralOwner) if stat.ephemeralOwner else None
    return Stat(version=Version(stat.version), writes=stat.version + 1, created_ms=stat.ctime, owner=owner)


def _written(op: Op, result: Any) -> Written | None:
    if isinstance(op, Create):
        return Written(path=result, version=Version(0), writes=1)  # A new node is always at version 0.
    if isinstance(op, Set):
        return Written(path=op.path, version=Version(result.version), writes=result.version + 1)
    return None
