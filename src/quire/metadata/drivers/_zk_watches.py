"""Watches that go on, made of ZooKeeper's, which fire once and end with the connection.

For each path and target that anybody watches, one task keeps one ZooKeeper watch set: set it, wait until it fires, set
it again, and only then tell everybody. A change before the watch was set again is seen by whoever reads after being
told; a change after that fires the watch. Nothing is compared, so nothing can be missed between the two.

kazoo fires every watch when the connection breaks, so a break is one more reason to set it again once there is a
connection, and to tell everybody then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import partial
from typing import Final

from quire.errors import Refused, StoreClosed, Unavailable
from quire.metadata.driver import Target
from quire.runtime import Clock
from quire.values import dataclass

_RETRY_DELAY_S: Final = 0.1
_REFUSED_DELAY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """What ZooKeeper's watch calls. Equal for the same path and target, so kazoo keeps one however often it is set."""

    path: str
    target: Target
    fire: Callable[[str, Target], None] = field(compare=False)

    def __call__(self, event: object) -> None:
        self.fire(self.path, self.target)


Arm = Callable[[Trigger], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Watched:
    """One path and target that somebody watches."""

    members: dict[object, Callable[[], None]] = field(default_factory=dict)
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    armed: asyncio.Event = field(default_factory=asyncio.Event)  # Set also when the server refused for good.
    refusal: Refused | None = None
    task: asyncio.Task[None] | None = None


class WatchTable:
    """Every watch of one client. `arm` sets a ZooKeeper watch, or raises an error of `quire.errors`."""

    def __init__(self, arm: Arm, clock: Clock) -> None:
        self._arm, self._clock = arm, clock
        self._watched: dict[tuple[str, Target], _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        """Return once the watch is set: the function that ends it. Raises what refused it. Waits without a bound."""
        watched = self._watched.get((path, target)) or self._begin(path, target)
        member = object()
        watched.members[member] = notify
        leave = partial(self._leave, path, target, watched, member)
        try:
            await watched.armed.wait()
            if self._closed:
                raise StoreClosed(f"the store was closed before {path!r} could be watched")
            if watched.refusal is not None:
                raise watched.refusal
        except BaseException:
            leave()
            raise
        return leave

    def _begin(self, path: str, target: Target) -> _Watched:
        watched = self._watched[path, target] = _Watched()
        trigger = Trigger(path, target, self._fire)
        watched.task = asyncio.create_task(self._keep_armed(watched, trigger), name=f"zookeeper-watch {path}")
        self._tasks.add(watched.task)
        watched.task.add_done_callback(self._tasks.discard)
        return watched

    def _leave(self, path: str, target: Target, watched: _Watched, member: object) -> None:
        if watched.members.pop(member, None) is None or watched.members:
            return
        if self._watched.get((path, target)) is watched:
            del self._watched[path, target]
        if watched.task is not None:
            watched.task.cancel()  # ZooKeeper's own watch stays until it fires or the connection ends; nobody is told.

    def _fire(self, path: str, target: Target) -> None:
        watched = self._watched.get((path, target))
        if watched is not None:
            watched.fired.set()

    async def _keep_armed(self, watched: _Watched, trigger: Trigger) -> None:
        again = False
        while True:
            watched.fired.clear()  # Before arming: whatever fires from now on counts.
            try:
                await self._arm(trigger)
                watched.refusal = None
            except Unavailable:
                await self._clock.sleep(_RETRY_DELAY_S)
                continue
            except Refused as error:
                watched.refusal = error
            except StoreClosed:
                return
            watched.armed.set()
            if again:
                for notify in tuple(watched.members.values()):
                    notify()
            again = True
            if watched.refusal is None:
                await watched.fired.wait()
            else:
                # Those who watch were told and meet the refusal when they read. It may be lifted one day.
                await self._clock.sleep(_REFUSED_DELAY_S)
            watched.armed.clear()

    async def aclose(self) -> None:
        """End every watch, without telling anybody but those who still wait for `watch`."""
        self._closed = True
        for watched in self._watched.values():
            watched.armed.set()
        self._watched.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
