"""A whole cluster in one thread, from one number: hosts with clocks, disks and a network between them.

    async def main(sim: Simulation) -> None:
        bookie = sim.host("b1")
        bookie.spawn(run_bookie(bookie.runtime))
        ...
        await bookie.crash()                       # power loss: unsynced bytes are in the seed's hands
        bookie.spawn(run_bookie(bookie.runtime))   # a new life, with a new runtime on the old disk

    simulate(seed=7, main)

Everything random comes from the seed, in streams by name, so one host's luck does not depend on the others'.
"""

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, TypeVar

from quire.runtime import Runtime
from quire.testing.sim_clock import SimClock
from quire.testing.sim_disk import SimDisk
from quire.testing.sim_errors import SimStuck, describe_tasks
from quire.testing.sim_loop import STEP_LIMIT, TIME_LIMIT_S, SimLoop
from quire.testing.sim_network import SimNetwork
from quire.testing.sim_rng import SimRng
from quire.testing.sim_run import run_on

T = TypeVar("T")

_CANCEL_ROUNDS_MAX: Final = 10
_CANCEL_PATIENCE_S: Final = 60.0
_current_host: contextvars.ContextVar["SimHost | None"] = contextvars.ContextVar("current_host", default=None)


def simulate(
    seed: int,
    main: Callable[["Simulation"], Coroutine[Any, Any, T]],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    step_limit: int = STEP_LIMIT,
) -> T:
    """Run `main` in a simulation of its own and return its result. Every failure names the seed."""
    return Simulation(seed, time_limit_s=time_limit_s, step_limit=step_limit).run(main)


class Simulation:
    """The simulated world of one run. `rng` is for the test's own choices: what to do, whom to crash, and when."""

    def __init__(self, seed: int, *, time_limit_s: float = TIME_LIMIT_S, step_limit: int = STEP_LIMIT) -> None:
        self.loop = SimLoop(seed, time_limit_s=time_limit_s, step_limit=step_limit)
        self.loop.on_task = _register_task
        self.loop.on_generator = _register_generator
        self.rng = SimRng(f"{seed}/test")
        self._root = SimRng(seed)
        self.network = SimNetwork(self.loop, self._root.child("network"))
        self._hosts: dict[str, SimHost] = {}

    def host(self, name: str) -> "SimHost":
        """The host of this name, created by the first call."""
        if name not in self._hosts:
            self._hosts[name] = SimHost(self.loop, self.network, name, self._root.child(f"host {name}"))
        return self._hosts[name]

    def run(self, main: Callable[["Simulation"], Coroutine[Any, Any, T]]) -> T:
        """Run `main(self)` to its end. Once only: a second run needs a second simulation."""
        return run_on(self.loop, main(self))

    def trace_digest(self) -> str:
        """A hash of every step: two simulations of one seed must agree on it."""
        return self.loop.trace_digest()


class SimHost:
    """A simulated machine. Its tasks are those of `spawn`, and all that they create."""

    def __init__(self, loop: SimLoop, network: SimNetwork, name: str, rng: SimRng) -> None:
        self.name = name
        self.clock = SimClock(loop)
        self.rng = rng.child("rng")
        self.disk = SimDisk(rng.child("disk"))
        self._loop = loop
        self._network = network
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_dying = False
        self._generators: list[weakref.ref[AsyncGenerator[Any, Any]]] = []  # Begun here, in that order.
        network.host(name)

    @property
    def runtime(self) -> Runtime:
        """The machine as its programs see it. After a crash, ask again: the old one is dead."""
        return Runtime(clock=self.clock, disk=self.disk, network=self._network.host(self.name), rng=self.rng)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task on this host. It, and every task it creates in turn, dies with the host."""
        context = contextvars.copy_context()
        context.run(_current_host.set, self)
        return context.run(self._loop.create_task, coro, name=name)

    async def crash(self, *, power_loss: bool = True) -> None:
        """Stop the host at once. Returns when nothing of it runs any more and it could be started again.

        With `power_loss` unsynced changes on its disk are kept, lost or torn; without, only the process dies and the
        kernel keeps everything. Its tasks are cancelled after their disk and network have gone, so `finally` blocks run
        but reach nothing; whatever the tasks raise while dying is dropped.
        """
        if power_loss:
            self.disk.crash()
        self._is_dying = True
        self.disk = self.disk.successor()
        self._network.crash(self.name)
        for _ in range(_CANCEL_ROUNDS_MAX):
            doomed = [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # Looked at and dropped: a dead host's errors reach nobody.
            if not doomed and not self._generators:
                self._tasks.clear()
                self._is_dying = False
                return
            for task in doomed:
                task.cancel()
            if doomed:
                await asyncio.wait(doomed, timeout=_CANCEL_PATIENCE_S)
            else:
                await self._close_generators()
        raise SimStuck(f"tasks of {self.name} outlive its crash:\n{describe_tasks(self._tasks)}")

    async def _close_generators(self) -> None:
        """Those that no task of this host will ever go on with. They may begin tasks once more, which die with it."""
        begun, self._generators = self._generators, []
        left = [generator for reference in begun if (generator := reference()) is not None]
        if left:
            await asyncio.wait([self.spawn(_closed(left))], timeout=_CANCEL_PATIENCE_S)

    def adopt_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Count `generator` as one of this host's."""
        if len(self._generators) > 64:
            self._generators = [known for known in self._generators if known() is not None]
        self._generators.append(weakref.ref(generator))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Count `task` as one of this host's."""
        if len(self._tasks) > 64 and not self._is_dying:  # Of those that fail then, nobody else would hear.
            self._tasks = {known: None for known in self._tasks if not known.done()}
        self._tasks[task] = None


def current_host_name() -> str | None:
    """The host on which the running task is, if it is one of `SimHost.spawn`, or was created by one."""
    host = _current_host.get()
    return None if host is None else host.name


async def _closed(generators: list[AsyncGenerator[Any, Any]]) -> None:
    """One after the other. As with tasks: nobody hears what they raise."""
    for generator in generators:
        with contextlib.suppress(Exception):
            await generator.aclose()


def _register_generator(generator: AsyncGenerator[Any, Any]) -> None:
    host = _current_host.get()
    if host is not None:
        host.adopt_generator(generator)


def _register_task(task: asyncio.Task[Any]) -> None:
    host = _current_host.get()
    if host is not None:
        host.adopt(task)
