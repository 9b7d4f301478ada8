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
from typing import Any, TypeVar

from quire.errors import QuireError
from quire.ledger.reading.news import News
from quire.types import BookieId
from quire.values import dataclass

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
    *,
    news: News | None = None,
) -> None:
    """Ask `bookies`, in this order, until `take` says of an answer or error that it is enough, or all have spoken.

    With each answer `take` gets those who were asked before and are still silent. `may_hurry` says, when it is time
    to ask another one too, whether that would help; if not, it is not asked again until somebody has answered. If
    `news` comes, nobody is waited for any longer.
    """
    loop = asyncio.get_running_loop()
    running: dict[asyncio.Task[T], BookieId] = {}  # In the order in which they were asked.
    untried = iter(bookies)
    wait_s = hurry.first_s
    # Rung by each answer, by the alarm and by news: what `asyncio.wait` does for a call, at a fraction of its cost.
    bell = asyncio.Event()
    alarm: asyncio.TimerHandle | None = None
    is_late = False

    def ring(_: object = None) -> None:
        bell.set()

    def on_alarm() -> None:
        nonlocal is_late
        is_late = True
        bell.set()

    def begin(bookie: BookieId) -> None:
        nonlocal alarm, is_late
        task = asyncio.create_task(ask(bookie))
        task.add_done_callback(ring)
        running[task] = bookie
        if alarm is not None:
            alarm.cancel()
        alarm, is_late = loop.call_later(wait_s, on_alarm) if wait_s > 0 else None, False

    try:
        if news is not None:
            news.tell(ring)
        while news is None or not news.has_come:
            if not running:
                bookie = next(untried, None)
                if bookie is None:
                    return
                begin(bookie)
            await bell.wait()
            bell.clear()
            done = [task for task in running if task.done()]
            if not done and is_late:
                is_late, bookie = False, next(untried, None) if may_hurry() else None
                if bookie is not None:
                    wait_s = min(max(hurry.s_max, hurry.first_s), wait_s * 2)
                    begin(bookie)
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
        if news is not None:
            news.forget(ring)
        if alarm is not None:
            alarm.cancel()
        if running:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
