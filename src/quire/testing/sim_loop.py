"""An asyncio event loop in which time is a number and the seed decides who runs next.

Nothing here waits: when no callback is ready, the clock jumps to the next timer. Among task steps that are ready at the
same moment the seed picks one, so a thousand seeds try a thousand interleavings, and one seed repeats one of them.

Rules of order:
  CallbacksAreFifo   plain callbacks keep the order in which they were scheduled. asyncio promises that, and code rests
                     on it: a transport schedules `connection_made`, then `data_received`, then `connection_lost`.
  StepsAreFree       task steps run in any order: asyncio promises nothing about different tasks, and in production
                     their order hangs on timing. A step may be overtaken by whatever comes later.
  NoOvertaking       but a step never overtakes a callback that was scheduled before it: after `call_soon(f)`, a task
                     that gives way with `sleep(0)` may count on `f` having run.
  TiesAreFree        timers due at the same instant fire in any order, as on asyncio's heap.

What could differ between two runs of one seed is removed: tasks and futures hash by number instead of by address (sets
of them, as in `asyncio.wait` and `TaskGroup`, would otherwise iterate in memory order), default task names count from
one in every loop, and the garbage collector runs only at fixed steps. What is left is the caller's: iterating a set of
strings, reading the real clock, global `random`. Two runs of one seed with different `trace_digest()`s show it.
"""

import asyncio
import contextvars
import functools
import gc
import hashlib
import heapq
import random
import threading
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from quire.testing.sim_errors import SimDeadlock, SimRefused, SimStuck, SimUnhandled, describe_tasks
from quire.testing.sim_refusals import RefusesReality

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TIME_LIMIT_S: Final = 86_400.0
STEP_LIMIT: Final = 1_000_000
_TRACE_TAIL: Final = 20
_TRACE_CHUNK: Final = 4_096
_COLLECT_EVERY_STEPS: Final = 50_000

_TASK_INTERFACE: Final = frozenset(dir(asyncio.Task))
_Ready = tuple[asyncio.Handle, "str | asyncio.Task[Any]"]  # With the callback's name, or the task that it is a step of.


class SimFuture(asyncio.Future[T]):
    """A future with a hash that does not depend on its address."""

    def __init__(self, *, loop: "SimLoop", number: int) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[T]):
    """A task with a hash that does not depend on its address."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: "SimLoop", number: int, **options: Any) -> None:
        self.number = number  # First, because asyncio puts the task into a set while it is being constructed.
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class SimLoop(RefusesReality):
    """A deterministic event loop: virtual time, seeded interleaving, no threads, no sockets."""

    def __init__(self, seed: int, *, time_limit_s: float = TIME_LIMIT_S, step_limit: int = STEP_LIMIT) -> None:
        self.seed = seed
        self.steps = 0
        self.executor_delay_max_s = 0.001  # How long a call on a thread takes at most: such as a commit of an index.
        self.on_task: Callable[[asyncio.Task[Any]], None] | None = None  # Told of every task, in its creator's context.
        self.on_generator: Callable[[AsyncGenerator[Any, Any]], None] = lambda generator: None  # The same.
        self._time_limit_s = time_limit_s
        self._step_limit = step_limit
        self._random = random.Random(f"{seed}/loop")  # A string: seeds through SHA-512, equal in every process.
        self._now = 0.0
        self._free: list[_Ready] = []  # Task steps with no callback before them: any of these may run next.
        self._queue: deque[_Ready] = deque()  # A callback, then whatever was scheduled after it.
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle, str]] = []
        self._timers_cancelled = 0
        self._numbers = 0
        self._tasks = 0
        self._thread = threading.get_ident()
        self._running = False
        self._closed = False
        self._failure: tuple[str, BaseException | None] | None = None
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._trace = hashlib.blake2b(digest_size=16)
        self._trace_tail: list[tuple[float, str]] = []  # The end of what is in the hash already.
        self._trace_times = array("d")  # What is not, because one update of the hash for each step takes long.
        self._trace_events: list[str] = []

    # --- The trace --------------------------------------------------------------------------------------------

    def trace(self, event: str) -> None:
        """Add a line to the trace. It must be the same in every run of this seed: no addresses, no real times."""
        self._trace_times.append(self._now)
        self._trace_events.append(event)
        if len(self._trace_events) >= _TRACE_CHUNK:
            self._digest_trace()

    def trace_digest(self) -> str:
        """A hash of everything that happened so far: two runs of one seed must agree on it."""
        self._digest_trace()
        return self._trace.hexdigest()

    def _digest_trace(self) -> None:
        self._trace_tail = self._last_events()
        self._trace.update(self._trace_times.tobytes())
        self._trace.update("\n".join(self._trace_events).encode())
        self._trace_times, self._trace_events = array("d"), []

    def _last_events(self) -> list[tuple[float, str]]:
        recent = zip(self._trace_times[-_TRACE_TAIL:], self._trace_events[-_TRACE_TAIL:], strict=True)
        return [*self._trace_tail, *recent][-_TRACE_TAIL:]

    def situation(self) -> str:
        """Seed, time, steps and the last events, for a message about a failure."""
        tail = "\n".join(f"  {now:.9f} {event}" for now, event in self._last_events())
        return f"seed {self.seed}, at {self._now:.6f} s, step {self.steps}; the last steps were:\n{tail}"

    # --- Scheduling -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._refuse_closed()
        handle = asyncio.Handle(callback, args, self, context)
        owner = getattr(callback, "__self__", None)
        task = owner if isinstance(owner, asyncio.Task) and _is_step(callback) else None
        if task is None:
            self._queue.append((handle, _name_of(callback)))
        elif self._queue:
            self._queue.append((handle, task))
        else:
            self._free.append((handle, task))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            refusal = SimRefused("a thread called into the simulated loop: its timing cannot be repeated from a seed")
            self.record_failure(str(refusal), refusal)
            raise refusal
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._refuse_closed()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._random.random(), self._numbers, handle, _name_of(callback)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Called by asyncio. Most timers are timeouts that never fire; without this the heap would keep all of them.
        self._timers_cancelled += 1
        if self._timers_cancelled > 100 and self._timers_cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[3].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        self._numbers += 1
        return SimFuture(loop=self, number=self._numbers)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if self._closed:
            self._refuse_closed()
        self._numbers += 1
        self._tasks += 1
        # asyncio's own default names count on through the whole process, so a second run would have other names.
        chosen = f"Task-{self._tasks}" if name is None else str(name)
        task = SimTask(coro, loop=self, number=self._numbers, name=chosen, context=context, **options)  # type: ignore[arg-type]
        if self.on_task is not None:
            self.on_task(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` on this thread, a random moment later, whatever the executor. It must not block."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            # A real pool drops a cancelled call only while it is queued; the seed decides whether it got that far.
            if future.cancelled() and self._random.random() < 0.5:
                return
            try:
                result = func(*args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        work.__qualname__ = f"executor {_name_of(func)}"
        self.call_later(self._random.random() * self.executor_delay_max_s, work)
        return future

    # --- Running ----------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` is done. Raises `SimDeadlock`, `SimStuck` or `SimUnhandled` if it cannot be."""
        if self._closed:
            self._refuse_closed()
        task = asyncio.ensure_future(future, loop=self)
        self._thread = threading.get_ident()
        self._running = True
        asyncio._set_running_loop(self)
        try:
            while not task.done():
                self._run_one()
        finally:
            asyncio._set_running_loop(None)
            self._running = False
        return task.result()

    def _run_one(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            self._fire_timer()
        if not self._free and not self._queue:
            self._advance_time()
            return
        handle, origin = self._pick()
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps > self._step_limit:
            self._stuck(f"still not done after {self._step_limit} steps")
        # The name is asked for now, not when the step was scheduled: asyncio names a task after creating it.
        self.trace(origin if isinstance(origin, str) else origin.get_name())
        handle._run()
        del handle, origin  # A task that has failed and that nobody keeps is to be found out at this step.
        if self.steps % _COLLECT_EVERY_STEPS == 0:
            gc.collect()
        if self._failure is not None:
            self.raise_failure()

    def _pick(self) -> _Ready:
        free, queue = self._free, self._queue
        choices = len(free) + (1 if queue else 0)
        chosen = int(self._random.random() * choices) if choices > 1 else 0
        if chosen < len(free):
            last = free.pop()
            if chosen == len(free):
                return last
            picked, free[chosen] = free[chosen], last
            return picked
        callback = queue.popleft()
        while queue and not isinstance(queue[0][1], str):
            free.append(queue.popleft())
        return callback

    def _fire_timer(self) -> None:
        _, _, _, handle, name = heapq.heappop(self._timers)
        if handle.cancelled():
            self._timers_cancelled = max(0, self._timers_cancelled - 1)
        else:
            self._queue.append((handle, name))

    def _advance_time(self) -> None:
        while self._timers and self._timers[0][3].cancelled():
            self._fire_timer()
        if not self._timers:
            raise SimDeadlock(
                f"nothing is ready and nothing is scheduled; waiting for ever:\n{self._pending()}\n{self.situation()}"
            )
        if self._timers[0][0] > self._time_limit_s:
            self._stuck(f"still not done after {self._time_limit_s} s of virtual time")
        self._now = self._timers[0][0]

    def _stuck(self, problem: str) -> NoReturn:
        raise SimStuck(f"{problem}; still running:\n{self._pending()}\n{self.situation()}")

    def _pending(self) -> str:
        return describe_tasks(self.pending_tasks())

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that are not done, in order of creation."""
        return sorted(asyncio.all_tasks(self), key=hash)

    def allow_more(self, *, steps: int, seconds: float) -> None:
        """Move the limits to a little beyond the present: for tidying up after one of them was reached."""
        self._step_limit = self.steps + steps
        self._time_limit_s = self._now + seconds

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def _refuse_closed(self) -> NoReturn:
        raise RuntimeError("the simulated loop is closed")

    # --- Failures ---------------------------------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember the first error that asyncio could only have logged; it ends the run."""
        if self._handler is not None:
            self._handler(self, context)
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        name = f" ({task.get_name()})" if isinstance(task, asyncio.Task) else ""
        self.record_failure(f"{context.get('message', 'unhandled error')}{name}: {error!r}", error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing more to do: `call_exception_handler` has made the run fail."""

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """`handler` is called too, but cannot keep the run from failing."""
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._handler

    def record_failure(self, problem: str, error: BaseException | None) -> None:
        """Make the run fail after the present step. Only the first failure counts: the others follow from it."""
        if self._failure is None:
            self._failure = (problem, error)

    def raise_failure(self) -> None:
        """Raise the recorded failure, if there is one."""
        if self._failure is not None:
            problem, error = self._failure
            self._failure = None
            raise SimUnhandled(f"{problem}\n{self.situation()}") from error

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored: asyncio's debug mode measures real time, and failures are never silent here anyway."""


def _is_step(callback: Callable[..., object]) -> bool:
    """Whether this method of a task is a step of it.

    asyncio schedules steps as methods of the task that are not part of its interface; `call_soon(task.cancel)` is
    somebody's ordinary callback.
    """
    return getattr(callback, "__name__", "step") not in _TASK_INTERFACE


def _name_of(callback: Any) -> str:
    """A name without an address: the same in every run."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", None) or type(callback).__qualname__)
