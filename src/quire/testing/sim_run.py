"""Run one coroutine on a `SimLoop` from beginning to end, leaving nothing behind and letting nothing pass unseen."""

import asyncio
import gc
import itertools
import sys
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from quire.testing.sim_errors import SimError
from quire.testing.sim_loop import STEP_LIMIT, TIME_LIMIT_S, SimLoop

T = TypeVar("T")

_TIDY_STEPS: Final = 100_000
_TIDY_SECONDS: Final = 3_600.0
_RUNS_PER_COLLECTION: Final = 50

# False if the program freezes its own objects (`gc.freeze`) before each run. A large test suite does: to thaw all of
# them after a run means that the next full collection looks at all of them.
freezes_heap = True
_runs = itertools.count(1)


def run(
    main: Coroutine[Any, Any, T], *, seed: int, time_limit_s: float = TIME_LIMIT_S, step_limit: int = STEP_LIMIT
) -> T:
    """Run `main` in virtual time, interleaved as `seed` says, and return what it returns.

    Raises what `main` raises, with a note that names the seed; `SimDeadlock`, `SimStuck` and `SimUnhandled` (see there)
    with the seed in the message. Tasks still running when `main` ends are cancelled and awaited, as by `asyncio.run`.
    """
    return run_on(SimLoop(seed, time_limit_s=time_limit_s, step_limit=step_limit), main)


def run_on(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """As `run`, on a loop made by the caller, who can then look at its trace. The loop is closed afterwards."""
    if asyncio._get_running_loop() is not None:
        main.close()
        raise RuntimeError("a simulation cannot run inside a running event loop: call it from an ordinary function")
    with _fixed_garbage_collection(), _async_generators(loop) as generators:
        try:
            result: T = loop.run_until_complete(main)
            _tidy(loop, generators)
            gc.collect()  # A failed task that sits in a reference cycle speaks up only when it is collected.
            loop.raise_failure()
        except Exception as error:
            if not isinstance(error, SimError):
                error.add_note(loop.situation())
            _tidy_after_failure(loop, generators, error)
            raise
        finally:
            main.close()
            loop.close()
        return result


def _tidy(loop: SimLoop, generators: "_Generators") -> None:
    """Cancel what still runs and wait for it; then close async generators that were left half way."""
    loop.allow_more(steps=_TIDY_STEPS, seconds=_TIDY_SECONDS)
    while tasks := loop.pending_tasks():
        for task in tasks:
            task.cancel()
        loop.run_until_complete(_settle(loop, tasks))
    loop.run_until_complete(generators.aclose())


async def _settle(loop: SimLoop, tasks: list[asyncio.Task[Any]]) -> None:
    for task, result in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(result, Exception):
            loop.record_failure(f"{task.get_name()} failed when it was cancelled at the end: {result!r}", result)


def _tidy_after_failure(loop: SimLoop, generators: "_Generators", error: Exception) -> None:
    """The same, for a run that has failed already: what goes wrong now is a remark on the first error, no more."""
    try:
        _tidy(loop, generators)
    except Exception as consequence:
        error.add_note(f"and then, while tidying up: {consequence}")
    for task in loop.pending_tasks():
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # It is listed in the error already.


@contextmanager
def _fixed_garbage_collection() -> Iterator[None]:
    """Collect only when the loop says so: finalizers run code, so their moment must not depend on memory use."""
    was_enabled, freezes = gc.isenabled(), freezes_heap
    gc.disable()
    if freezes:
        gc.freeze()  # Collections look only at what the simulation made, which keeps thousands of short runs cheap.
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
        if freezes and next(_runs) % _RUNS_PER_COLLECTION == 0:
            gc.collect()  # Worlds that are over are one cycle each, and counted as old: they would pile up for long.


class _Generators:
    """Async generators that were started and not finished, in the order of their start."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._live: list[weakref.ref[AsyncGenerator[Any, Any]]] = []

    def on_first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._live = [reference for reference in self._live if reference() is not None]
        self._live.append(weakref.ref(generator))
        self._loop.on_generator(generator)

    def on_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._loop.is_closed():
            self._loop.create_task(generator.aclose(), name="aclose of a dropped generator")

    async def aclose(self) -> None:
        for reference in self._live:
            generator = reference()
            if generator is not None:
                await generator.aclose()


@contextmanager
def _async_generators(loop: SimLoop) -> Iterator[_Generators]:
    generators = _Generators(loop)
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=generators.on_first_iteration, finalizer=generators.on_dropped)
    try:
        yield generators
    finally:
        sys.set_asyncgen_hooks(*before)
