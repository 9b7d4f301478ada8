"""The thread that everything of `quire.sync` runs in, and calls from other threads into it.

All clients of a process share one loop in one thread. It begins with the first client and ends with the last one.

Invariants:
  NothingLeftBehind   a call that is interrupted is cancelled, and over, before its caller goes on. Only a second
                      interruption leaves it to end by itself.
  NobodyWaitsForever  a call that the thread never got to see, because it ended, raises `HandleClosed`.
  ForksAreStrangers   a forked child has none of its parent's threads: its own clients get a new one, and the handles
                      that it inherited raise `HandleClosed`.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from quire.errors import HandleClosed

T = TypeVar("T")

# How often whoever waits makes sure that the thread is there. A signal that comes at the very moment at which a wait
# begins does not end it: then this is how long Ctrl-C takes.
_LOOK_S: Final = 0.25


class LoopThread:
    """One loop, in one thread."""

    def __init__(self) -> None:
        import uvloop  # Programs without blocking code need not have waited for it.

        self._pid = os.getpid()
        self.is_inherited = False  # Whether this is a forked child of the process that the thread is in.
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(uvloop.new_event_loop,), name="quire-sync", daemon=True)
        self._thread.start()
        self._is_up.wait()

    def _run(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._is_up.set()
        await self._over.wait()

    def stop(self) -> None:
        """End the thread, and return when it has ended. Called in the thread itself, it does not wait."""
        self._loop.call_soon_threadsafe(self._over.set)
        if not self.is_current:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether we are in that very thread: garbage may be collected there, too."""
        return threading.current_thread() is self._thread

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` in the thread and return, or raise, what it does."""
        self.check_process()
        if self.is_current:
            raise HandleClosed("blocking calls cannot be made from the thread that carries them out")
        return _Call(self, work).result()

    def check_process(self) -> None:
        """Raise `HandleClosed` in a forked child."""
        if self.is_inherited:
            raise HandleClosed(
                f"this handle was opened by process {self._pid}, and cannot be used in its fork {os.getpid()}",
                hint="Open a client of its own in each process, after the fork.",
            )

    def post(self, callback: Callable[[], object]) -> None:
        """Have `callback` called in the thread. Raises `HandleClosed` if it has ended."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError as error:  # What asyncio says of a closed loop.
            raise _ended() from error

    def start_task(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """For those who are in the thread."""
        return self._loop.create_task(work)


class _Call(Generic[T]):
    """One call of one thread, from its posting to its end."""

    __slots__ = ("_error", "_is_over", "_task", "_thread", "_value", "_work")

    def __init__(self, thread: LoopThread, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._thread, self._work = thread, work
        self._task: asyncio.Task[T] | None = None
        self._is_over = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def result(self) -> T:
        try:
            self._thread.post(self._begin)
            self._wait()
        except BaseException:  # Above all `KeyboardInterrupt`, and whatever else a signal's handler may raise.
            self._interrupt()
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback leads here: without this the two would keep each other alive.
        return self._value

    def _wait(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            if not self._thread.is_alive and not self._is_over.is_set():
                raise _ended()

    def _interrupt(self) -> None:
        try:
            self._thread.post(self._cancel)
        except HandleClosed:
            return
        self._wait()

    # --- In the thread

    def _begin(self) -> None:
        self._task = self._thread.start_task(self._work())
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is None:  # It was not even posted: what is posted is done in this order.
            self._is_over.set()
        else:
            self._task.cancel()

    def _on_done(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self._error = _ended()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._value = task.result()
        self._is_over.set()


def _ended() -> HandleClosed:
    return HandleClosed("the client was closed during this call", hint="Use it inside its `with` block.")


# --- One for all


class _Shared:
    """The thread of this process, and how many clients need it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.users = 0


_shared = _Shared()


def borrow_thread() -> LoopThread:
    """The thread of this process, which begins if need be. Give it back with `return_thread`."""
    with _shared.lock:
        if _shared.thread is None:
            _shared.thread = LoopThread()
        _shared.users += 1
        return _shared.thread


def return_thread(thread: LoopThread) -> None:
    """The last one to do so ends it."""
    if thread.is_inherited:
        return  # It is our parent's.
    with _shared.lock:
        _shared.users -= 1
        if _shared.users:
            return
        _shared.thread = None
    thread.stop()


def _forget_after_fork() -> None:
    """What a child inherits is of no use: the thread is not there, and the lock may be held for ever."""
    global _shared
    if _shared.thread is not None:
        _shared.thread.is_inherited = True
    _shared = _Shared()


os.register_at_fork(after_in_child=_forget_after_fork)
