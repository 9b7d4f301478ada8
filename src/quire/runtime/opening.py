"""Handles are opened for a block with `async with`, or without one with `await`, and then closed with `close`.

    async with quire.connect(uri) as client: ...

    client = await quire.connect(uri)
    ...
    await client.close()

Behind both is one async context manager. A block enters it directly. When it is awaited, a task enters it and holds it
until the handle is closed: the handle may be closed by another task than the one that opened it.

Invariants:
  OneTask          a context manager is entered and left by one task, as `asyncio.timeout` and its kin require.
  ChildrenFirst    a handle is closed after those that were opened through it without a block, newest first.
  NoSilentLeaks    what is never opened, or still open when its event loop ends, causes a warning that names it.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from quire.errors import HandleClosed, InvalidArgument

A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Held:
    """A context manager that a task of its own enters, holds until `close`, and leaves."""

    def __init__(self, shown: str, parent: "Held | None") -> None:
        self._shown, self._parent = shown, parent
        self.is_closed = False
        self._children: list[Held] = []
        self._end: asyncio.Future[BaseException | None]
        self._holding: asyncio.Task[bool] | None = None
        self._closing: asyncio.Task[bool] | None = None

    def check_open(self) -> None:
        if self.is_closed:
            raise HandleClosed(f"{self._shown} was closed", hint="Open another one.")

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
            if self._parent.is_closed:  # Since we began.
                await self.abandon()
                self._parent.check_open()
            self._parent._children.append(self)
        return opened.result()

    async def _hold(self, manager: AbstractAsyncContextManager[A], opened: "asyncio.Future[A]") -> bool:
        """Whether the context manager has swallowed the error of the block."""
        error: BaseException | None = None
        traceback: TracebackType | None = None
        is_forgotten = False
        try:
            async with manager as value:
                opened.set_result(value)
                try:
                    error = await self._end
                except asyncio.CancelledError:  # The loop ends, unless it was `abandon`.
                    is_forgotten = not self.is_closed
                    self.is_closed = True
                    await self._wait_children()
                    raise
                if error is not None:
                    traceback = error.__traceback__
                    raise error
        except BaseException as raised:
            if is_forgotten:
                warn_open(self._shown, "when its event loop ended", "`await` its `close()`, or use `async with`")
            if raised is not error:
                raise
            raised.__traceback__ = traceback  # It is the caller's, and goes on there as it came.
            return False
        return error is not None

    async def _wait_children(self) -> None:
        """Until they have closed by themselves, since they are cancelled as we are."""
        if held := [child._holding for child in self._children if child._holding is not None]:
            await asyncio.wait(held)

    async def abandon(self) -> None:
        """Leave the context manager as a cancelled task does, after those of the children."""
        self.is_closed = True
        for child in reversed(list(self._children)):
            await child.abandon()
        if self._holding is not None and not self._holding.done():
            self._holding.cancel()
            await asyncio.wait([self._holding])
            if not self._holding.cancelled():
                self._holding.exception()  # Why it was cancelled says more.

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
            problems = await self.close_children(error)
            swallowed = await self._let_go(error)
        except asyncio.CancelledError:
            await self.abandon()
            raise
        if self._parent is not None and self in self._parent._children:
            self._parent._children.remove(self)
        if problems:
            raise problems[0]
        return swallowed

    async def close_children(self, error: BaseException | None) -> list[Exception]:
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


class Opening(AbstractAsyncContextManager[T_co]):
    """A handle that is to be opened, once: `async with` it, or `await` it and close what that gives."""

    def __init__(
        self, manager: AbstractAsyncContextManager[T_co], shown: str, *, parent: "Opening[Any] | None" = None
    ) -> None:
        """`shown` is its name in errors and warnings. If `parent` is closed, this is closed first."""
        self._manager, self._shown = manager, shown
        self._held: Held = Held(shown, None if parent is None else parent._held)
        self._is_begun = self._is_block = False

    def _begin(self) -> None:
        if self._is_begun:
            raise InvalidArgument(f"{self._shown} was opened before", hint="Ask for another one: each is opened once.")
        self._is_begun = True
        if self._held._parent is not None:
            self._held._parent.check_open()

    # --- Without a block

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._open().__await__()

    async def _open(self) -> T_co:
        self._begin()
        return self._linked(await self._held.open(self._manager))

    @property
    def is_held(self) -> bool:
        """Whether it is open without a block, and is not being closed."""
        return self._is_begun and not self._is_block and not self._held.is_closed

    async def close(self) -> None:
        """Close what was opened. Fine if it is closed. In a block this is the block's end for it."""
        if self._is_block:
            await self.__aexit__(None, None, None)
        else:
            await self._held.close(None)

    # --- With a block

    async def __aenter__(self) -> T_co:
        self._begin()
        self._is_block = True
        return self._linked(await self._manager.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._held.is_closed:
            return False
        self._held.is_closed = True
        try:
            problems = await self._held.close_children(error)
        except BaseException as raised:  # We were cancelled meanwhile.
            await self._manager.__aexit__(type(raised), raised, raised.__traceback__)
            raise
        is_swallowed = await self._manager.__aexit__(kind, error, traceback)
        if problems and error is None:
            raise problems[0]
        return is_swallowed

    def _linked(self, value: A) -> A:
        if isinstance(value, Opened):
            value.opening = self
        return value

    # --- Neither

    def __del__(self) -> None:
        if not self.__dict__.get("_is_begun", True):
            told = f"{self._shown} was never opened: `await` it, or use `async with`"
            warnings.warn(told, RuntimeWarning, stacklevel=2, source=self)

    if not TYPE_CHECKING:  # Type checkers know that there is nothing else.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # What copies and debuggers look for.
                raise AttributeError(name)
            raise AttributeError(
                f"{self._shown} is not open yet, so it has no {name!r}: `await` it, or use `async with`",
                name=name,
                obj=self,
            )


class Opened:
    """What an `Opening` gives."""

    opening: Opening[Any] | None = None
    """By which it was opened, if it was by one."""

    async def _close_opening(self) -> None:
        if self.opening is not None:
            await self.opening.close()

    async def _closed_by(self, own: Awaitable[None]) -> None:
        """For what closes by itself: have it do so, then close what else was opened. In a block, its end does that."""
        try:
            await own
        except Exception:
            await self._close_held()
            raise
        await self._close_held()

    async def _close_held(self) -> None:
        if self.opening is not None and self.opening.is_held:
            await self.opening.close()


def opens(shown: str) -> Callable[[Callable[P, AsyncIterator[A]]], Callable[P, Opening[A]]]:
    """As `asynccontextmanager`, for methods of what was opened itself: they give an `Opening`."""

    def decorate(function: Callable[P, AsyncIterator[A]]) -> Callable[P, Opening[A]]:
        managed = asynccontextmanager(function)

        @wraps(function)
        def make(*arguments: P.args, **options: P.kwargs) -> Opening[A]:
            owner = arguments[0] if arguments else None
            parent = owner.opening if isinstance(owner, Opened) else None
            return Opening(managed(*arguments, **options), shown, parent=parent)

        return make

    return decorate


def warn_open(shown: str, when: str, advice: str) -> None:
    """Tell a program that it should have closed something."""
    warnings.warn(f"{shown} was left open {when}: {advice}", ResourceWarning, stacklevel=3)
