"""Waiting for something to become true, under a deadline. The one place where tests let real time pass."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = 20.0, what: str = "") -> None:
    """Return once `condition` answers true; fail with `what` if it does not within the deadline."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not await condition():
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"still not true after {within_s:g} s: {what or condition}")
        await asyncio.sleep(0.01)


async def at_a_random_moment(within_s: float, chance: float) -> None:
    """Return after `chance` (0 to 1) of the time: where the moment itself is what is tested, as that of a crash."""
    await asyncio.sleep(within_s * chance)


async def paced(every_s: float) -> AsyncIterator[None]:
    """Again and again, so far apart: load at a steady pace. Turns that were missed are not made up for."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        await asyncio.sleep(due_s - loop.time())
        yield
        due_s = max(due_s + every_s, loop.time())
