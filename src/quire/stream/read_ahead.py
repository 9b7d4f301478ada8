"""What a reader has ready: a task fetches runs of entries, and waits while there are enough of them.

Entries are kept as they came, and decoded when they are taken: as records they would need several times the memory.

Invariants:
  Bounded          what is ready, and what the source may hold at the same time, is `bytes_max` or one entry.
  ErrorsComeLast   what ends the source is told after all that it gave before; and then each time.
  NothingStays     when the block ends nothing of it runs any more.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from quire.stream.entry_source import Run


class ReadAhead:
    """Runs from a source that is asked ahead of time. For use as `async with`."""

    def __init__(self, runs: AsyncGenerator[Run], *, bytes_max: int) -> None:
        """While `bytes_max` or more are ready the source is not asked."""
        self._source, self._bytes_max = runs, bytes_max
        self._ready: deque[Run] = deque()
        self._end: Exception | None = None
        self._traceback: TracebackType | None = None
        self._came = asyncio.Event()  # There is something to take, or an end.
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0
        self.entries = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._fill(), name="read ahead in a stream")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def take(self) -> Run | None:
        """The next run; None if there is none now. Raises what ended the source, `StopAsyncIteration` at its end."""
        if not self._ready:
            if self._end is not None:
                # Else each raise would add to its traceback, and so to what that keeps alive.
                raise self._end.with_traceback(self._traceback)
            self._came.clear()
            return None
        run = self._ready.popleft()
        self.bytes -= run.size_bytes
        self.entries -= len(run.entries)
        if self.bytes < self._bytes_max:
            self._room.set()
        return run

    async def wait(self) -> None:
        """Return when `take` has something to say."""
        await self._came.wait()

    def end(self, error: Exception) -> None:
        """Say that there is nothing more, at once: what is ready is dropped."""
        self._ready.clear()
        self.bytes = self.entries = 0
        self._finish(error)
        if self._task is not None:
            self._task.cancel()

    async def _fill(self) -> None:
        try:
            async with aclosing(self._source) as runs:
                async for run in runs:
                    if self._ready and not self._ready[-1].entries:
                        self._ready.pop()  # The end of a segment, with nothing before it to be told first.
                    self._ready.append(run)
                    self.bytes += run.size_bytes
                    self.entries += len(run.entries)
                    self._came.set()
                    while self.bytes >= self._bytes_max:
                        self._room.clear()
                        await self._room.wait()
            self._finish(StopAsyncIteration())
        except Exception as error:  # Delivered, not dropped: a bug in the source reaches whoever reads, too.
            self._finish(error)

    def _finish(self, error: Exception) -> None:
        self._end, self._traceback = error, error.__traceback__
        self._came.set()
