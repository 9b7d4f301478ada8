"""Something to open with blocking code that needs no cluster: it tells what happens to it."""

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from quire.errors import InvalidArgument, QuireError
from quire.sync.handles import Handle, Scope, open_handle
from quire.sync.loop_thread import LoopThread

WITHIN_S = 20.0


class Thing:
    """An async object that is open."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.waiting = threading.Event()  # Set once somebody waits.
        self.closed = threading.Event()
        self.go = asyncio.Event()

    async def add(self, number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise InvalidArgument(f"{number} is below 0", number=number)
        return number + 1

    async def wait(self) -> str:
        """Until `go` is set."""
        self.waiting.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            for _ in range(10):
                await asyncio.sleep(0)  # Cleaning up takes some turns of the loop.
            self.log.append("cancelled")
            raise
        return "done"

    async def count(self, end: int) -> AsyncIterator[int]:
        try:
            for number in range(end):
                if number % 700 == 0:
                    await asyncio.sleep(0)
                yield number
            self.waiting.set()
            await self.go.wait()
        finally:
            await asyncio.sleep(0)
            self.log.append("iterator closed")


@asynccontextmanager
async def open_thing(name: str, log: list[str], *, late: bool = False) -> AsyncIterator[Thing]:
    """Entering and leaving must be done by one task: the timeout insists."""
    log.append(f"open {name}")
    async with asyncio.timeout(WITHIN_S * 10):
        thing = Thing(name, log)
        if late:
            try:
                opening.set()
                await thing.go.wait()
            finally:
                log.append(f"gave up {name}")
        try:
            yield thing
        except BaseException as error:
            log.append(f"{type(error).__name__} in {name}")
            raise
        finally:
            await asyncio.sleep(0)
            log.append(f"close {name}")
            thing.closed.set()


opening = threading.Event()  # Set once a late one is being opened.


class SyncThing(Handle):
    """The same for blocking code."""

    def __init__(self, thread: LoopThread, scope: Scope, thing: Thing) -> None:
        super().__init__(thread, scope)
        self.thing = thing
        self.sources: list[AsyncIterator[int]] = []  # Kept: so only who closes them can have closed them.

    def add(self, number: int) -> int:
        return self._call(lambda: self.thing.add(number))

    def wait(self, *, is_wait: bool = False) -> str:
        return self._call(self.thing.wait, is_wait=is_wait)

    def let_go(self) -> None:
        self._ask(self.thing.go.set)

    def count(self, end: int) -> Generator[int]:
        def make() -> AsyncIterator[int]:
            self.sources.append(self.thing.count(end))
            return self.sources[-1]

        return self._iterate(make)

    def open(self, name: str, *, late: bool = False) -> "SyncThing":
        return self._open(lambda: open_thing(name, self.thing.log, late=late), SyncThing, name)


def sync_thing(log: list[str], name: str = "a", *, late: bool = False) -> SyncThing:
    return open_handle(lambda: open_thing(name, log, late=late), SyncThing, name, parent=None)


@contextmanager
def interrupt_when(condition: threading.Event) -> Iterator[None]:
    """Ctrl-C for the main thread, once the condition holds."""

    def interrupt() -> None:
        if condition.wait(WITHIN_S):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        yield
    finally:
        condition.set()
        thread.join(WITHIN_S)


class Worker(threading.Thread):
    """A thread whose outcome is looked at."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._work()
        except QuireError as error:
            self.outcome = error

    def result(self) -> object:
        self.join(WITHIN_S)
        assert not self.is_alive(), "the thread hangs"
        return self.outcome


def in_fork(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of exactly what is tested here.
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(int(WITHIN_S))
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def announced(call: Callable[[Any], object], event: threading.Event) -> Callable[[Any], object]:
    """The same, and `event` is set each time it begins."""

    def announce(argument: Any) -> object:
        event.set()
        return call(argument)

    return announce
