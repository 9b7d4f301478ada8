"""Handles of blocking code, and what stands behind each of them in the loop thread.

A handle's context manager is entered and left by one task, as asyncio's own blocks want it, whoever opens and closes
the handle. Calls are tasks of their own.

Invariants:
  ChildrenFirst    a handle is closed after those that were opened through it, newest first.
  ClosedIsClosed   from the moment a handle is closed nothing new is begun with it. Whoever waits for records gets
                   `HandleClosed`; other calls run to their end, since they may change something.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from quire.errors import HandleClosed, InvalidArgument
from quire.sync.loop_thread import LoopThread, borrow_thread, return_thread
from quire.sync.pump import Pump

T = TypeVar("T")
A = TypeVar("A")
H = TypeVar("H", bound="Handle")


class Scope:
    """One handle's side in the loop thread. All of it happens there, but for `is_closed`, which anybody may read."""

    def __init__(self, shown: str, parent: "Scope | None") -> None:
        self._shown, self._parent = shown, parent
        self.is_closed = False
        self._children: list[Scope] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._waits: set[asyncio.Task[Any]] = set()  # Those that change nothing, and may never end by themselves.
        self._end: asyncio.Future[BaseException | None]
        self._holding: asyncio.Task[bool] | None = None
        self._closing: asyncio.Task[bool] | None = None

    def check_open(self) -> None:
        if self.is_closed:
            raise HandleClosed(f"{self._shown} was closed", hint="Use it inside its `with` block.")

    # --- Opening

    async def open(self, manager: AbstractAsyncContextManager[A]) -> A:
        """Enter the context manager, and stay in it until `close`. If this is cancelled, it is left again."""
        opened: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._end = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(manager, opened), name=f"hold {self._shown}")
        try:
            either: list[asyncio.Future[Any]] = [opened, self._holding]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.abandon()
            raise
        if not opened.done():
            self.is_closed = True
            self._holding.result()  # Raises why it could not be opened.
        if self._parent is not None:
            self._parent._children.append(self)
        return opened.result()

    async def _hold(self, manager: AbstractAsyncContextManager[A], opened: "asyncio.Future[A]") -> bool:
        """Whether the context manager has swallowed the error of the block."""
        error: BaseException | None = None
        traceback: TracebackType | None = None
        try:
            async with manager as value:
                opened.set_result(value)
                error = await self._end
                if error is not None:
                    traceback = error.__traceback__
                    raise error
        except BaseException as raised:
            if raised is not error:
                raise
            raised.__traceback__ = traceback  # It is the caller's, and goes on there as it came.
            return False
        return error is not None

    async def abandon(self) -> None:
        """Leave the context manager as a cancelled task does, after those of the children."""
        self.is_closed = True
        for child in reversed(list(self._children)):
            await child.abandon()
        for task in self._calls:
            task.cancel()
        if self._holding is not None and not self._holding.done():
            self._holding.cancel()
            await asyncio.wait([self._holding])
            if not self._holding.cancelled():
                self._holding.exception()  # Why it was cancelled says more.

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

    async def close(self, error: BaseException | None) -> bool:
        """Leave the context manager with the error of the caller's block. A second call waits for the first one."""
        if self._closing is None:
            self.is_closed = True
            self._closing = asyncio.create_task(self._close(error), name=f"close {self._shown}")
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._closing.cancel()
            await asyncio.wait([self._closing])
            raise

    async def _close(self, error: BaseException | None) -> bool:
        try:
            await self._end_waits()
            problems = await self._close_children(error)
            swallowed = await self._let_go(error)
            if self._calls:
                await asyncio.wait(self._calls)
        except asyncio.CancelledError:
            await self.abandon()
            raise
        if self._parent is not None and self in self._parent._children:
            self._parent._children.remove(self)
        if problems:
            raise problems[0]
        return swallowed

    async def _end_waits(self) -> None:
        """Among them are handles that are being opened: from here on there are no new children."""
        for task in self._waits:
            task.cancel()
        if self._waits:
            await asyncio.wait(self._waits)

    async def _close_children(self, error: BaseException | None) -> list[Exception]:
        """Close them all, whatever happens to one. Returns what did."""
        problems: list[Exception] = []
        for child in reversed(list(self._children)):
            try:
                await child.close(error)
            except Exception as problem:
                problems.append(problem)
        return problems

    async def _let_go(self, error: BaseException | None) -> bool:
        if self._holding is None or self._holding.done():
            return False
        if not self._end.done():
            self._end.set_result(error)
        return await asyncio.shield(self._holding)


class Handle:
    """What blocking code has in its hands. Any thread may use it."""

    def __init__(self, thread: LoopThread, scope: Scope) -> None:
        self._thread, self._scope = thread, scope

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
    ) -> "Opening[A, H]":
        return Opening(make, wrap, shown, parent=self)

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


class Opening(AbstractContextManager[H], Generic[A, H]):
    """A handle for one `with` block. Without a parent it is a client, and keeps the loop thread alive."""

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[A]],
        wrap: Callable[[LoopThread, Scope, A], H],
        shown: str,
        *,
        parent: Handle | None,
    ) -> None:
        self._make, self._wrap, self._parent = make, wrap, parent
        self._scope = Scope(shown, None if parent is None else parent._scope)
        self._thread: LoopThread | None = None
        self._is_over = False

    def __enter__(self) -> H:
        if self._thread is not None:
            raise InvalidArgument("this was opened before", hint="Ask for another one: each is for one `with` block.")
        parent, scope = self._parent, self._scope
        thread = self._thread = borrow_thread() if parent is None else parent._thread

        async def enter() -> H:
            return self._wrap(thread, scope, await scope.open(self._make()))

        try:
            if parent is None:
                return thread.call(enter)
            return parent._call(enter, is_wait=True)
        except BaseException:  # If an interruption came just when it was open, nobody else would close it.
            self._leave(asyncio.CancelledError())
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        # A block that is left because the program is interrupted is, for asyncio, one that is cancelled.
        return self._leave(error if error is None or isinstance(error, Exception) else asyncio.CancelledError())

    def _leave(self, error: BaseException | None) -> bool:
        thread = cast(LoopThread, self._thread)
        if self._is_over or thread.is_inherited:
            return False  # It is our parent process's, and open there.
        self._is_over = True
        try:
            return thread.call(lambda: self._scope.close(error))
        except HandleClosed:
            if self._parent is None:
                raise
            return False  # With the client.
        finally:
            if self._parent is None:
                return_thread(thread)
