"""An async iterator as blocking code consumes it: one task takes items out, whoever asks gets all that are ready.

Invariant: not more than one item is taken ahead of those who ask, but for what is ready at the same moment.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_AT_ONCE_MAX: Final = 1000


class Pump(Generic[T]):
    """Takes items out of one async iterator. All of it happens in the loop thread.

    `adopt` is told the task, and may refuse.
    """

    def __init__(self, source: AsyncIterator[T], adopt: "Callable[[asyncio.Task[None]], None]") -> None:
        self._source, self._adopt = source, adopt
        self._ready: list[T] = []
        self._has_some = asyncio.Event()
        self._is_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def take(self) -> list[T]:
        """What is ready, as soon as anything is; nothing at the end. Raises what the iterator raises, behind that."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pump")
            self._task.add_done_callback(lambda _: self._has_some.set())
            self._adopt(self._task)
        self._is_wanted.set()
        if not self._ready:
            await self._has_some.wait()
        await asyncio.sleep(0)  # What is ready at the same moment comes along.
        self._is_wanted.clear()
        items, self._ready = self._ready, []
        if not self._task.done():
            self._has_some.clear()
        elif not items:
            self._task.result()
        return items

    async def _run(self) -> None:
        try:
            async for item in self._source:
                self._ready.append(item)
                self._has_some.set()
                if len(self._ready) >= _AT_ONCE_MAX:
                    self._is_wanted.clear()
                await self._is_wanted.wait()
        finally:
            if isinstance(self._source, AsyncGenerator):
                await self._source.aclose()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to close. Anybody may ask."""
        return self._task is None or self._task.done()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Close the iterator; return when it is closed."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # Whoever closes it does not want to know.
