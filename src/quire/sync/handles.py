"""Handles of blocking code, and what stands behind each of them in the loop thread.

A handle's context manager is entered and left by one task, as asyncio's own blocks want it, whoever opens and closes
the handle. Calls are tasks of their own.

Invariants:
  ChildrenFirst    a handle is closed after those that were opened through it, newest first. One that is forgotten is
                   closed when it is collected, with a `ResourceWarning` that names it.
  ClosedIsClosed   from the moment a handle is closed nothing new is begun with it. Whoever waits for records gets
                   `HandleClosed`; other calls run to their end, since they may change something.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from quire.errors import HandleClosed
from quire.runtime.opening import Held, warn_open
from quire.sync.loop_thread import LoopThread, borrow_thread, return_thread
from quire.sync.pump import Pump

T = TypeVar("T")
A = TypeVar("A")
H = TypeVar("H", bound="Handle")


class Scope(Held):
    """One handle's side in the loop thread. All of it happens there, but for `is_closed`, which any thread may read."""

    def __init__(self, shown: str, parent: "Scope | None") -> None:
        super().__init__(shown, parent)
        self.shown = shown
        self._calls: set[asyncio.Task[Any]] = set()
        self._waits: set[asyncio.Task[Any]] = set()  # Those that change nothing, and may never end by themselves.

    # --- Calls

    async def run(self, work: Callable[[], Awaitable[T]], *, is_wait: bool = False) -> T:
        """Do `work` as this handle's. One that `is_wait` ends when the handle is closed."""
        self.check_open()
        task, running = asyncio.current_task(), self._waits if is_wait else self._calls
        assert task is not None
        running.add(task)
        try:
            return await work()
        except asyncio.CancelledError:
            self.check_open()  # That is why.
            raise
        finally:
            running.discard(task)

    def adopt(self, task: "asyncio.Task[None]") -> None:
        """A task that is to end with this handle."""
        self.check_open()
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    # --- Closing

    async def abandon(self) -> None:
        self.is_closed = True
        for task in self._calls:
            task.cancel()
        await super().abandon()

    async def close_children(self, error: BaseException | None) -> list[Exception]:
        """Ends those who wait, too. Among them are handles that are being opened: then there are no new children."""
        for task in self._waits:
            task.cancel()
        if self._waits:
            await asyncio.wait(self._waits)
        return await super().close_children(error)

    async def _let_go(self, error: BaseException | None) -> bool:
        swallowed = await super()._let_go(error)
        if self._calls:
            await asyncio.wait(self._calls)
        return swallowed


class Handle:
    """What blocking code has in its hands: open, and for a `with` block, or to be closed. Any thread may use it."""

    def __init__(self, thread: LoopThread, scope: Scope) -> None:
        self._thread, self._scope = thread, scope
        self._parent: Handle | None = None  # Kept: a client that is collected is closed, with all its children.
        self._left = threading.Lock()  # Taken once, by the first who closes.

    def __enter__(self) -> Self:
        self._scope.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        # A block that is left because the program is interrupted is, for asyncio, one that is cancelled.
        return self._leave(error if error is None or isinstance(error, Exception) else asyncio.CancelledError())

    def close(self) -> None:
        """Close it, after what was opened through it. Fine if it is closed."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> bool:
        if self._thread.is_inherited or not self._left.acquire(blocking=False):
            return False  # If inherited, it is our parent process's, and open there.
        return _close(self._thread, self._scope, error, is_client=self._parent is None)

    def __del__(self) -> None:
        if "_left" in self.__dict__ and not self._thread.is_inherited and not self._scope.is_closed:
            self._forget()

    def _forget(self) -> None:
        """Close it without waiting for that: any thread may be the one that collects garbage."""
        thread, scope, is_client = self._thread, self._scope, self._parent is None

        def begin() -> None:
            task = thread.start_task(scope.close(None))
            if is_client:
                task.add_done_callback(lambda _: return_thread(thread))

        try:
            thread.post(begin)
        except HandleClosed:
            return  # The thread has ended, and so has the handle.
        warn_open(scope.shown, "and forgotten", "call its `close()`, or use `with`")

    def _call(self, work: Callable[[], Awaitable[T]], *, is_wait: bool = False) -> T:
        """Do `work` in the loop thread, and wait for it."""
        scope = self._scope
        self._thread.check_process()
        scope.check_open()
        return self._thread.call(lambda: scope.run(work, is_wait=is_wait))

    def _ask(self, question: Callable[[], T]) -> T:
        """The same for what need not be awaited."""

        async def ask() -> T:
            return question()

        return self._call(ask)

    def _open(
        self, make: Callable[[], AbstractAsyncContextManager[A]], wrap: Callable[[LoopThread, Scope, A], H], shown: str
    ) -> H:
        return open_handle(make, wrap, shown, parent=self)

    def _iterate(self, make: Callable[[], AsyncIterator[T]]) -> Generator[T]:
        """All that an async iterator gives, as many at a time as are ready. What `make` raises is raised at once."""
        return self._pumped(self._ask(make))

    def _pumped(self, source: AsyncIterator[T]) -> Generator[T]:
        pump = Pump(source, self._scope.adopt)
        try:
            while items := self._call(pump.take, is_wait=True):
                yield from items
        finally:
            self._end(pump)

    def _end(self, pump: Pump[Any]) -> None:
        """Close the iterator. Closed handles have done so."""
        if pump.is_over or self._thread.is_inherited or self._scope.is_closed:
            return
        try:
            if self._thread.is_current:  # A generator that was forgotten, and is collected: nobody may wait here.
                self._thread.post(pump.cancel)
            else:
                self._thread.call(pump.aclose)
        except HandleClosed:
            pass


def open_handle(
    make: Callable[[], AbstractAsyncContextManager[A]],
    wrap: Callable[[LoopThread, Scope, A], H],
    shown: str,
    *,
    parent: Handle | None,
) -> H:
    """Open one. Without a parent it is a client, and keeps the loop thread alive."""
    scope = Scope(shown, None if parent is None else parent._scope)
    thread = borrow_thread() if parent is None else parent._thread

    async def enter() -> H:
        return wrap(thread, scope, await scope.open(make()))

    try:
        handle = thread.call(enter) if parent is None else parent._call(enter, is_wait=True)
    except BaseException:  # If an interruption came just when it was open, nothing else would close it.
        _close(thread, scope, asyncio.CancelledError(), is_client=parent is None)
        raise
    handle._parent = parent
    return handle


def _close(thread: LoopThread, scope: Scope, error: BaseException | None, *, is_client: bool) -> bool:
    try:
        return thread.call(lambda: scope.close(error))
    except HandleClosed:
        if is_client:
            raise
        return False  # With the client.
    finally:
        if is_client:
            return_thread(thread)
