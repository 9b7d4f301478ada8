"""A local cluster: bookies and proxies as processes on this machine, over one data folder, kept running by one
supervisor.

    await run_local_cluster(LocalOptions("/abs/quire-data"), tell)      # until SIGINT, SIGTERM or SIGHUP

What is in the folder, and where, is told of in `quire.embedded.folder`; the supervisor adds `cluster.json` (what runs
where, for `quire status`) and `logs/`. Clients find the metadata by its path, and everything else there.

Invariants:
  HeldWhileRunning   the supervisor holds the folder from before its first bookie to after its last one. So whoever else
                     finds the folder free and a bookie's own lock taken has met a left-over.
  AskedFirst         what can be known to be in the way (ports, space, left-overs) is told before anything is started.
  NoOrphans          a bookie never outlives its supervisor for longer than it takes to stop.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from quire.app.cluster_events import ClusterEvent, Noted, ServiceShown, Started, Stopped, Stopping, Tell
from quire.app.cluster_state import ClusterState, drop_state, write_state
from quire.app.local_services import (
    AUTORECOVERY,
    BOOKIE,
    LOGS,
    READ_PROXY,
    WRITE_PROXY,
    autorecovery_plan,
    bookie_plan,
    check_count,
    proxy_plans,
)
from quire.app.logs import append_event, bound_logs, open_log
from quire.app.ports import PORT_MAX, check_gateway, check_ports
from quire.app.preconditions import (
    check_space,
    hold_for_cluster,
    note_few_bookies,
    space_settings,
    wait_for_left_overs,
)
from quire.app.processes import own_mark
from quire.app.running import Announcement, announced
from quire.app.service_keeper import ServiceKeeper, ServicePlan
from quire.bookie.space import SpaceSettings
from quire.embedded.folder import DataFolder, unusable
from quire.errors import BookieFailed, InvalidArgument
from quire.metadata import StoreSettings
from quire.runtime import Runtime, real_runtime
from quire.stream.binding import create_namespace
from quire.values import dataclass

BOOKIES_DEFAULT: Final = 3
BOOKIES_MAX: Final = 9
PROXIES_MAX: Final = 9
_SUPERVISOR_LOG: Final = "up.log"
_START_S: Final = 30.0  # How long to wait with the list of what runs for those that have not got anywhere.
_BOUND_LOGS_S: Final = 30.0
_REPAIRS_AFTER_S: Final = 2.0  # Nobody waits for repairs, and whoever has just called `quire up` has other plans.


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What a user says about a local cluster."""

    data: DataFolder
    bookies: int = BOOKIES_DEFAULT
    port: int = 0
    """Of the first bookie; the others follow. 0 takes any free ones."""
    overrides: tuple[str, ...] = ()
    """Settings of every bookie, as `quire bookie run --set` takes them."""
    write_proxies: int = 1
    read_proxies: int = 1
    proxy_port: int | None = None
    """Of the first write proxy; the others follow, then the read proxies. None takes the usual ones where they are
    free, 0 any free ones."""
    gateway: str | None = None
    """Where HTTP is served: HOST:PORT."""
    http_hosts: tuple[str, ...] = ()
    """Other names by which it is asked for there."""
    autorecovery: bool = True
    """Whether ledgers that lack copies are repaired."""

    def __post_init__(self) -> None:
        if not 1 <= self.bookies <= BOOKIES_MAX:
            raise InvalidArgument(
                f"a local cluster has 1 to {BOOKIES_MAX} bookies, not {self.bookies}",
                hint=f"{BOOKIES_DEFAULT} are enough to see everything work: they share one machine and one disk.",
            )
        check_count(WRITE_PROXY, self.write_proxies, PROXIES_MAX)
        check_count(READ_PROXY, self.read_proxies, PROXIES_MAX)
        if not 0 <= self.port <= PORT_MAX:
            raise InvalidArgument(
                f"{self.port} is no port: they end at {PORT_MAX}", hint="Choose another --port, or leave it out."
            )


async def run_local_cluster(options: LocalOptions, tell: Tell, *, runtime: Runtime | None = None) -> None:
    """Return after a signal, when everything is stopped. Raises why the cluster does not start.

    Raises `FolderInUse`, `FolderUnusable`, `PortInUse`, `DiskFull`, `BookieFailed`, `InvalidArgument`, and what opening
    a metadata store raises.
    """
    began_s = asyncio.get_running_loop().time()
    space = space_settings(options.overrides)
    signals = _Signals(tell)
    try:
        async with AsyncExitStack() as stack:
            if runtime is None:
                runtime = real_runtime()
                stack.push_async_callback(runtime.disk.aclose)
            try:
                plans, announcement = await _prepare(stack, options, space, runtime, signals)
            except OSError as error:
                raise unusable(options.data.path, error) from error
            if not signals.stop.is_set():
                await _Supervisor(options, plans, announcement, signals).run(began_s)
            signals.tell(Stopped(options.data.path))
    finally:
        signals.remove()


async def _prepare(
    stack: AsyncExitStack, options: LocalOptions, space: SpaceSettings, runtime: Runtime, signals: "_Signals"
) -> tuple[list[ServicePlan], Announcement]:
    """Everything that has to be there before the first process. Returns what is to run, and how others find it."""
    folder = options.data
    await stack.enter_async_context(hold_for_cluster(runtime, folder))
    await wait_for_left_overs(folder, signals.tell, signals.stop)
    plans = _plans(options)
    await check_space(runtime, folder, space, signals.tell)
    signals.tell = _logged(folder, signals.tell)
    note_few_bookies(sum(plan.kind == BOOKIE for plan in plans), signals.tell)
    # Sessions of those who used the metadata before end now: nobody but us works in the folder.
    await create_namespace(folder.streams(), settings=StoreSettings(sole_user=True), runtime=runtime)
    announcement = stack.enter_context(announced(folder.path, folder.streams().text))
    if announcement.problem is not None:
        hint = f"Name it with --uri or --data: {announcement.problem}"
        signals.tell(Noted("other commands will not find this cluster by themselves", hint))
    return plans, announcement


def _plans(options: LocalOptions) -> list[ServicePlan]:
    """Raises `PortInUse`."""
    folder = options.data
    numbers = sorted({*range(1, options.bookies + 1), *folder.bookie_numbers()})
    ports = {number: options.port + number - 1 if options.port else 0 for number in numbers}
    check_ports({folder.bookie_id(number): port for number, port in ports.items()})
    if options.gateway not in (None, "none"):
        check_gateway(options.gateway)
    first = options.proxy_port
    behind = first + options.write_proxies if first else first
    count = len(numbers)
    return [
        *(bookie_plan(folder, number, port, options.overrides) for number, port in ports.items()),
        *proxy_plans(
            *(folder, WRITE_PROXY, options.write_proxies, first),
            bookies=count,
            gateway=options.gateway,
            http_hosts=options.http_hosts,
        ),
        *proxy_plans(folder, READ_PROXY, options.read_proxies, behind, bookies=count),
    ]


# --- While it runs


class _Signals:
    """What the user wants: to stop; and, when asked again, to stop without waiting."""

    def __init__(self, tell: Tell) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.tell = tell
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Under nohup it is, and should be.
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self.hurry.set()
            return
        self.stop.set()
        self.tell(Stopping(number.name))

    async def wait_stop(self) -> None:
        await self.stop.wait()

    def remove(self) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)


class _Supervisor:
    """The bookies of one cluster, from the first start to the last stop."""

    def __init__(
        self,
        options: LocalOptions,
        plans: Sequence[ServicePlan],
        announcement: Announcement,
        signals: _Signals,
    ) -> None:
        self._options, self._folder, self._announcement = options, options.data, announcement
        self._tell, self._signals = signals.tell, signals
        self._own_mark = own_mark()
        self._keepers = [ServiceKeeper(plan, tell=self._tell, on_change=self._on_change) for plan in plans]

    @property
    def _bookies(self) -> list[ServiceKeeper]:
        return [keeper for keeper in self._keepers if keeper.state.kind == BOOKIE]

    @property
    def _uri(self) -> str:
        """Through the proxies, once there are both kinds of them; where they are now, or were before a crash."""
        states = [keeper.state for keeper in self._keepers]
        seeds = [state.address for state in states if state.kind == WRITE_PROXY and state.address is not None]
        if not seeds or not any(state.kind == READ_PROXY and state.address is not None for state in states):
            return self._folder.streams().text
        return f"quire://{','.join(seeds)}{self._folder.streams().path}"

    async def run(self, began_s: float) -> None:
        """Start everything, wait for a signal, stop everything. Raises `BookieFailed` if nothing starts."""
        keeping: list[asyncio.Task[None]] = []
        bounding = asyncio.create_task(self._bound_logs(), name="bound logs")
        stopping = asyncio.create_task(self._signals.wait_stop(), name="wait for a signal")
        try:
            keeping += [keeper.start() for keeper in self._keepers]
            await self._wait_settled(stopping)
            if not self._signals.stop.is_set():
                self._tell_started(began_s)
                if self._options.autorecovery:
                    keeping.append(asyncio.create_task(self._keep_repairs(), name="keep autorecovery"))
            working = [bounding, *keeping]
            await asyncio.wait([stopping, *working], return_when=asyncio.FIRST_COMPLETED)
            for task in working:
                if task.done():
                    task.result()  # None of them ends by itself: a bug of ours, which nobody may swallow.
        finally:
            bounding.cancel()
            stopping.cancel()
            await self._stop()
            await asyncio.wait([bounding, stopping])

    async def _keep_repairs(self) -> None:
        await asyncio.sleep(_REPAIRS_AFTER_S)
        keeper = ServiceKeeper(autorecovery_plan(self._folder), tell=self._tell, on_change=self._on_change)
        self._keepers.append(keeper)
        await keeper.start()

    async def _wait_settled(self, stopping: asyncio.Task[None]) -> None:
        async def all_settled() -> None:
            for keeper in self._bookies:
                await keeper.settled.wait()
            if any(keeper.serves for keeper in self._bookies):  # Else there is nothing to wait for.
                for keeper in self._keepers:
                    await keeper.settled.wait()

        settling = asyncio.create_task(all_settled(), name="wait for the first start")
        await asyncio.wait([settling, stopping], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        settling.cancel()
        await asyncio.wait([settling])

    def _tell_started(self, began_s: float) -> None:
        if not any(keeper.serves or not keeper.settled.is_set() for keeper in self._bookies):
            first = self._bookies[0]
            raise BookieFailed(
                f"no bookie starts; {first.state.name} says: {first.state.problem}",
                hint=first.hint or f"More may be in {first.state.log}.",
            )
        took_s = asyncio.get_running_loop().time() - began_s
        services = tuple(map(_shown, self._keepers))
        direct = self._folder.streams().text
        self._tell(Started(self._folder.path, self._uri, direct, os.getpid(), services, round(took_s, 3)))

    def _on_change(self) -> None:
        self._announcement.update(self._uri)
        # Autorecovery is shown from its first start on: before, nobody misses it.
        shown = tuple(
            keeper.state
            for keeper in self._keepers
            if keeper.state.kind != AUTORECOVERY or keeper.serves or keeper.settled.is_set()
        )
        state = ClusterState(self._own_mark, self._uri, shown)
        try:
            write_state(self._folder.path, state)
        except OSError as error:  # A full disk, perhaps. Bookies should go on.
            self._tell(Noted(f"`quire status` is out of date: {error.strerror or error}"))

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_BOUND_LOGS_S)
            await asyncio.to_thread(bound_logs, Path(self._folder.path, LOGS))

    async def _stop(self) -> None:
        """Everything, whatever else goes wrong."""
        results: list[BaseException | None] = []
        for are_bookies in (False, True):  # Proxies complete their segments, and need bookies for that.
            stops = (
                keeper.stop(self._signals.hurry)
                for keeper in self._keepers
                if (keeper.state.kind == BOOKIE) is are_bookies
            )
            results += await asyncio.gather(*stops, return_exceptions=True)
        try:
            drop_state(self._folder.path)
        except OSError:
            pass  # It names processes that have ended, as everybody will find out who reads it.
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _shown(keeper: ServiceKeeper) -> ServiceShown:
    state = keeper.state
    pid = None if state.process is None else state.process.pid
    return ServiceShown(
        state.name,
        state.kind,
        state.state,
        state.address,
        state.admin,
        pid,
        state.log,
        state.problem,
        keeper.gateway,
    )


def _logged(folder: DataFolder, tell: Tell) -> Callable[[ClusterEvent], None]:
    """Keep what is told in a file, too."""
    path = Path(folder.path, LOGS, _SUPERVISOR_LOG)
    os.close(open_log(path))

    def tell_and_log(event: ClusterEvent) -> None:
        append_event(path, {"pid": os.getpid(), **event.to_json()})
        tell(event)

    return tell_and_log
