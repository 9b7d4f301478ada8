"""Metadata in one SQLite file, shared by all processes of one machine. The embedded default.

The tree and its rules are in `_sqlite_tree`, the thread that works on the file in `_sqlite_worker`; this module is what
the event loop sees. Nothing is ever cached here: every read goes to the file, so it shows the newest commit.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from quire.errors import InvalidUri, MetadataOutcomeUnknown, MetadataUnavailable
from quire.metadata.driver import Children, Driver, Node, Op, SessionEvent, SessionId, Stat, Target, Written
from quire.metadata.drivers._sqlite_tree import Change, SqliteTree
from quire.metadata.drivers._sqlite_worker import Call, Reports, SqliteWorker
from quire.metadata.paths import parent_of
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri
from quire.runtime import Clock, Rng, Runtime

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def open_driver(uri: MetadataUri, settings: StoreSettings, runtime: Runtime) -> Driver:
    """Open the file; it is created when `settings` allow it. Its folder must exist."""
    path = Path(uri.location)
    await asyncio.to_thread(_check_place, path, uri)
    driver = SqliteDriver(path, settings, runtime.clock, runtime.rng)
    await driver.open()
    return driver


def _check_place(path: Path, uri: MetadataUri) -> None:
    if str(path) == ":memory:":
        raise InvalidUri(f"{uri.text!r} would be a database of this handle alone", hint="Write memory: for that.")
    if not path.parent.is_dir():
        raise InvalidUri(
            f"the folder of {uri.text!r} does not exist", hint=f"Create {path.parent}/ first.", uri=uri.text
        )
    if path.is_dir():
        raise InvalidUri(
            f"{uri.text!r} names a folder", hint="Name a file, such as metadata.db, inside it.", uri=uri.text
        )


class SqliteDriver:
    """The event loop's side of a `SqliteWorker`."""

    def __init__(self, path: Path, settings: StoreSettings, clock: Clock, rng: Rng) -> None:
        self._path, self._settings, self._clock = path, settings, clock
        self._loop = asyncio.get_running_loop()
        self._worker = SqliteWorker(
            path,
            settings,
            rng,
            Reports(
                session_event=lambda event, session: self._post(self._on_session_event, event, session),
                changes=lambda changes: self._post(self._on_changes, changes),
            ),
        )
        self._watches: dict[tuple[str, Target], list[Callable[[], None]]] = {}
        self._answered: deque[asyncio.Future[None]] = deque()  # Whom to tell, on the event loop's thread.
        self._is_telling = False
        self._tell: Callable[[SessionEvent], None] | None = None
        self.session = SessionId(0)

    def _post(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call back on the event loop's thread."""
        self._loop.call_soon_threadsafe(callback, *args)

    async def open(self) -> None:
        self._worker.start()
        try:
            self.session = await asyncio.shield(asyncio.wrap_future(self._worker.opened))
        except asyncio.CancelledError:
            self._worker.stop()
            raise

    # --- Reading

    async def get(self, path: str) -> Node | None:
        return await self._read(lambda tree, _: tree.get(path))

    async def stat(self, path: str) -> Stat | None:
        return await self._read(lambda tree, _: tree.stat(path))

    async def children(self, path: str) -> Children | None:
        return await self._read(lambda tree, _: tree.children(path))

    async def sync(self) -> None:
        """Nothing to wait for: every read sees the newest commit."""

    async def settle(self) -> None:
        """One thread carries out everything in its order, so a call that does nothing comes after every write."""
        await self._read(lambda tree, session: None)

    async def _read(self, run: Callable[[SqliteTree, SessionId], T]) -> T:
        result: T = await self._call(Call(run, self._deadline_s()))
        return result

    def _deadline_s(self) -> float:
        return time.monotonic() + self._settings.operation_timeout_s

    # --- Writing

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        now_ms = self._clock.wall_ms()

        def run(tree: SqliteTree, session: SessionId) -> list[Written | None]:
            return [tree.apply(op, session, now_ms) for op in ops]

        result: list[Written | None] = await self._call(Call(run, self._deadline_s(), self.session))
        return result

    async def _call(self, call: Call) -> Any:
        timeout_s = self._settings.operation_timeout_s
        told: asyncio.Future[None] = self._loop.create_future()
        call.result.add_done_callback(lambda _: self._on_answered(told))
        self._worker.submit(call)
        try:
            async with asyncio.timeout(timeout_s):
                await told
            return call.result.result()
        except asyncio.CancelledError:
            call.result.cancel()  # If it has not begun it need not.
            raise
        except TimeoutError as error:
            if call.result.done() and not call.result.cancelled():
                return call.result.result()  # It was answered in time; this loop was too busy to hear it.
            if call.result.cancel() or call.session is None:  # Withdrawn before it began, or only a read.
                raise MetadataUnavailable(
                    f"the metadata file {str(self._path)!r} did not answer within {timeout_s:g} s", path=str(self._path)
                ) from error
            raise MetadataOutcomeUnknown(
                f"a write to the metadata file {str(self._path)!r} took longer than {timeout_s:g} s",
                path=str(self._path),
            ) from error

    def _on_answered(self, told: "asyncio.Future[None]") -> None:
        """A call is answered, on the worker's thread. `asyncio.wrap_future` would do, at several times the cost."""
        self._answered.append(told)
        if not self._is_telling and not self._loop.is_closed():
            self._is_telling = True
            self._post(self._tell_answered)

    def _tell_answered(self) -> None:
        self._is_telling = False  # First: what is answered from here on is told by another call of this.
        while self._answered:
            told = self._answered.popleft()
            if not told.done():
                told.set_result(None)

    # --- Waiting

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        self._watches.setdefault((path, target), []).append(notify)

        def stop() -> None:
            members = self._watches.get((path, target), [])
            if notify in members:
                members.remove(notify)
            if not members:
                self._watches.pop((path, target), None)
            if not self._watches:
                self._worker.disarm()

        try:
            await self._read(self._worker.arm)
        except BaseException:
            stop()
            raise
        return stop

    def _on_changes(self, changes: list[Change] | None) -> None:
        if changes is None:  # There were too many to tell: anything may have changed.
            touched = set(self._watches)
        else:
            touched = {key for change in changes for key in _touched_by(change)} & set(self._watches)
        for key in touched:
            for notify in tuple(self._watches.get(key, ())):
                notify()

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._tell = callback

    def _on_session_event(self, event: SessionEvent, session: SessionId) -> None:
        self.session = session
        if self._tell is not None:
            self._tell(event)

    # --- Closing

    async def aclose(self) -> None:
        self._worker.stop()
        await asyncio.shield(asyncio.wrap_future(self._worker.closed))
        self._worker.join()


def _touched_by(change: Change) -> list[tuple[str, Target]]:
    if not change.existence:
        return [(change.path, Target.NODE)]
    return [
        (change.path, Target.NODE),
        (change.path, Target.CHILDREN),
        (parent_of(change.path), Target.CHILDREN),
    ]
