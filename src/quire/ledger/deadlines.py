"""One deadline for all steps of a call, and at each step an error of its own that says what may have happened."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quire.errors import QuireError


class Deadline:
    """Begins when it is made."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ends_at = asyncio.get_running_loop().time() + timeout_s

    @asynccontextmanager
    async def or_raise(self, late: Callable[[], QuireError]) -> AsyncIterator[None]:
        """Cancel the block when time is up, and raise what `late` gives. Other timeouts pass through."""
        try:
            async with asyncio.timeout_at(self._ends_at) as timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise late() from error
