"""One deadline for all steps of a call, and at each step an error of its own that says what may have happened."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from quire.errors import QuireError


class Deadline:
    """Begins when it is made."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._running: asyncio.Timeout | None = None

    @asynccontextmanager
    async def or_raise(self, late: Callable[[], QuireError]) -> AsyncIterator[None]:
        """Cancel the block when time is up, and raise what `late` gives. Other timeouts pass through."""
        try:
            async with asyncio.timeout_at(self._ends_at) as timeout:
                self._running = timeout
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise late() from error

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let a part of the block take as long as it takes: work whose amount nobody knows. If it succeeds, there is as
        much time behind it as in the beginning; if not, as much as there was, so that trying again comes to an end.
        """
        running = self._running
        if running is None or running.expired():
            yield
            return
        now_s = asyncio.get_running_loop().time
        left_s = self._ends_at - now_s()
        running.reschedule(None)
        try:
            yield
            left_s = self.timeout_s
        finally:
            self._ends_at = now_s() + left_s
            running.reschedule(self._ends_at)
