"""Ask one bookie after the other until somebody has said enough, and another one as well when one is slow.

    bookie 1  ├───────────── slow …
    bookie 2  .  .  .  .  ├── no
    bookie 3  .  .  .  .  .  ├── yes: enough

The next one is asked when nobody is left who may still answer, or when the last one lets us wait for too long. Each
such wait is twice as long as the one before, up to a limit.

Invariants:
  OnceEach       no bookie is asked twice.
  NothingStays   when the call ends, so have all requests that it made.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.errors import QuireError
from quire.types import BookieId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hurry:
    """When to ask another bookie before the last one has answered. After 0 s means never."""

    first_s: float
    s_max: float


async def ask_in_turn(
    bookies: Sequence[BookieId],
    ask: Callable[[BookieId], Coroutine[Any, Any, T]],
    take: Callable[[BookieId, T | QuireError, list[BookieId]], bool],
    hurry: Hurry,
    may_hurry: Callable[[], bool],
) -> None:
    """Ask `bookies`, in this order, until `take` says of an answer or error that it is enough, or all have spoken.

    With each answer `take` gets those who were asked before and are still silent. `may_hurry` says, when it is time
    to ask another one too, whether that would help; if not, it is not asked again until somebody has answered.
    """
    loop = asyncio.get_running_loop()
    running: dict[asyncio.Task[T], BookieId] = {}  # In the order in which they were asked.
    untried = iter(bookies)
    wait_s = hurry.first_s
    alarm_s: float | None = None
    try:
        while True:
            if not running:
                bookie = next(untried, None)
                if bookie is None:
                    return
                running[asyncio.create_task(ask(bookie))] = bookie
                alarm_s = loop.time() + wait_s if wait_s > 0 else None
            patience_s = None if alarm_s is None else max(0.0, alarm_s - loop.time())
            done, _ = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                bookie = next(untried, None) if may_hurry() else None
                if bookie is None:
                    alarm_s = None
                else:
                    running[asyncio.create_task(ask(bookie))] = bookie
                    wait_s = min(max(hurry.s_max, hurry.first_s), wait_s * 2)
                    alarm_s = loop.time() + wait_s
            silent: list[BookieId] = []
            for task, bookie in tuple(running.items()):
                if task not in done:
                    silent.append(bookie)
                    continue
                error = task.exception()
                if error is not None and not isinstance(error, QuireError):
                    raise error
                del running[task]
                if take(bookie, task.result() if error is None else error, silent):
                    return
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
