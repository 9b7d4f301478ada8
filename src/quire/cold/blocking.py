"""Calls that would keep the event loop waiting, each with a time limit, which grows with what the call has to carry.

They run in threads, and a thread cannot be stopped: what it does after its time is up must leave nothing behind. A
simulation, which has none, runs them at once: nothing in it takes long.
"""

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from quire.errors import ColdUnavailable

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 60.0
_BYTES_PER_S_MIN: Final = 1 << 20  # Slower than that is taken for hanging.
_THREADS: Final = 8


class Run(Protocol):
    """How blocking work is done."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


async def at_once(work: Callable[[], T]) -> T:
    """In the event loop's own thread."""
    return work()


class Threads:
    """A pool of threads for one purpose: work that hangs must not keep anybody else's waiting. They end when idle work
    is done and the program ends.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, work: Callable[[], T]) -> T:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-cold")
        call = functools.partial(contextvars.copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Wait for nothing: what hangs ends by its own time limit."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def time_for(seconds: float, size_bytes: int) -> float:
    """The limit of a call that carries so many bytes, if one that carries nothing has `seconds`."""
    return seconds + size_bytes / _BYTES_PER_S_MIN


async def within(seconds: float, call: Awaitable[T], shown: str) -> T:
    """What `call` gives. Raises `ColdUnavailable` if it takes longer."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ColdUnavailable(f"{shown} did not answer within {seconds:g} s") from error
