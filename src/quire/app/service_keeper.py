"""Keep one service of a local cluster running: start it, notice what becomes of it, start it again.

A service is a process (`quire.app.bookie_process`, `quire.app.proxy_process`) that does what `quire bookie run` and its
kin do. What becomes of it is read from its log, which it writes itself, so that it does not depend on its keeper: that
it serves and where, that it turned read-only, why it failed.

It is a group of processes of its own, so that Ctrl-C reaches its keeper only, which then stops it in good order. If the
keeper dies, the system tells the service to stop (see `quire.app.processes.stop_with_parent`).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from quire.app.cluster_events import BookieMode, ServiceEnded, ServiceFailing, ServiceKilled, ServiceRestarted, Tell
from quire.app.cluster_state import ServiceState
from quire.app.logs import LogTail, open_log
from quire.app.ports import HOST, is_free
from quire.app.processes import child_ended, mark_of
from quire.app.restarts import RestartPolicy
from quire.values import dataclass

STOP_S: Final = 10.0  # How long a service may take to make everything durable and close.
_KILL_S: Final = 5.0
_LOOK_STARTING_S: Final = 0.02
_LOOK_SERVING_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a service is started with."""

    name: str
    kind: str
    port: int
    """0: any free one, and the same again after a crash if that is possible."""
    is_port_fixed: bool
    """Otherwise another port will do if this one is taken."""
    log: Path
    module: str
    """The program: it takes its options as one argument in JSON, those here and `listen` and `parent`."""
    options: Mapping[str, Any]

    def command(self, port: int) -> list[str]:
        """The command line for a port."""
        options = {**self.options, "listen": f"{HOST}:{port}", "parent": os.getpid()}
        # -P: not with the present folder among the places of modules, where anything may be called like one of them.
        return [sys.executable, "-P", "-m", self.module, json.dumps(options)]


class ServiceKeeper:
    """Runs one service from `start` to `stop`. `on_change` is called after each change of `state`."""

    def __init__(
        self, plan: ServicePlan, *, tell: Tell, on_change: Callable[[], None], policy: RestartPolicy | None = None
    ) -> None:
        self._plan, self._tell, self._on_change = plan, tell, on_change
        self.state = ServiceState(plan.name, plan.kind, "starting", str(plan.log))
        self.hint = ""
        self.settled = asyncio.Event()
        """The first start has succeeded, or failed: then nobody is told but who waits for this."""
        self.gateway: str | None = None
        """Where it serves HTTP to clients, if it does."""
        self._policy = policy or RestartPolicy()
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._serving_since_s: float | None = None
        self._admin: str | None = None
        self._reasons: tuple[str, ...] = ()
        self._error = self._last_line = ""

    @property
    def serves(self) -> bool:
        return self.state.state in ("up", "readonly")

    def start(self) -> asyncio.Task[None]:
        """Begin. The task never ends by itself, unless something is wrong with this very program."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self._plan.name}")
        return self._task

    # --- One life after the other

    async def _keep(self) -> None:
        while True:
            try:
                self._launch()
            except OSError as error:  # No memory, no descriptors, no room for a log: perhaps only now.
                await self._pause(f"it cannot be started: {error}")
            else:
                await self._pause(self._why(await self._live()))

    def _launch(self) -> None:
        self._error = self._last_line = self.hint = ""
        self._admin, self._reasons, self._serving_since_s = None, (), None
        log = open_log(self._plan.log)
        try:
            self._tail = LogTail(self._plan.log)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                self._plan.command(self._port()),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._change(process=mark_of(self._process.pid))

    def _port(self) -> int:
        """The port that it had before, so that what people wrote down stays right, unless somebody took it."""
        plan, before = self._plan, self.state.address
        if plan.port and plan.is_port_fixed:
            return plan.port
        wanted = plan.port if before is None else int(before.rpartition(":")[2])
        return wanted if wanted and is_free(wanted) else 0

    async def _live(self) -> int:
        """Follow a life to its end. Returns the exit code."""
        following = asyncio.create_task(self._follow(), name=f"follow the log of {self._plan.name}")
        ending = asyncio.create_task(child_ended(self._running), name=f"wait for the end of {self._plan.name}")
        try:
            await asyncio.wait([ending, following], return_when=asyncio.FIRST_COMPLETED)
            return ending.result() if ending.done() else following.result()
        finally:
            following.cancel()
            ending.cancel()
            await asyncio.wait([ending, following])

    async def _follow(self) -> NoReturn:
        while True:
            self._read_log()
            await asyncio.sleep(_LOOK_SERVING_S if self.serves else _LOOK_STARTING_S)

    async def _pause(self, why: str) -> None:
        loop, served_since_s = asyncio.get_running_loop(), self._serving_since_s
        served_s = None if served_since_s is None else loop.time() - served_since_s
        restart = self._policy.on_end(served_s=served_s, why=why)
        self._process = None
        self._change(state="failing" if restart.is_failing else "restarting", process=None, admin=None, problem=why)
        if restart.is_news and self.settled.is_set():
            self._tell_end(why, restart.delay_s, is_failing=restart.is_failing)
        self.settled.set()
        await asyncio.sleep(restart.delay_s)
        self._change(restarts=self.state.restarts + 1)

    def _tell_end(self, why: str, delay_s: float, *, is_failing: bool) -> None:
        name = self._plan.name
        if is_failing:
            failed_starts, log = self._policy.failed_starts, str(self._plan.log)
            self._tell(ServiceFailing(name, why, self.hint, failed_starts, delay_s, log))
        else:
            self._tell(ServiceEnded(name, why, delay_s))

    def _why(self, code: int) -> str:
        while self._read_log():
            pass  # To its very end, which is what counts now.
        if self._error:
            return self._error
        if code < 0:
            return f"it was ended by {_signal_name(-code)}"
        return f"it ended with exit code {code}" + (f": {self._last_line}" if self._last_line else "")

    # --- What it says

    def _read_log(self) -> bool:
        """Whether there was anything new."""
        lines = self._tail.lines()
        for line in lines:
            event = _event(line)
            match event.get("event"):
                case "admin.listening":
                    self._admin = f"{event.get('host')}:{event.get('port')}"
                case "bookie.serving" | "proxy.serving" | "autorecovery.serving":
                    self.gateway = event.get("gateway")
                    self._on_serving(str(event.get("address")), str(event.get("mode", "writable")))
                case "bookie.mode":
                    self._on_mode(str(event.get("mode")), event.get("reasons"))
                case "bookie.refused" | "bookie.failed" | "proxy.refused" | "autorecovery.refused":
                    self._error, self.hint = str(event.get("error")), str(event.get("hint", ""))
                case None if line.strip():
                    self._last_line = line.strip()  # Perhaps the last one of a traceback, which says most.
        return bool(lines)

    def _on_serving(self, address: str, mode: str) -> None:
        self._serving_since_s = asyncio.get_running_loop().time()
        is_first = not self.settled.is_set()
        state = "up" if mode == "writable" else "readonly"
        self._change(state=state, address=address, admin=self._admin, problem="; ".join(self._reasons) or None)
        self.settled.set()
        if not is_first:
            self._tell(ServiceRestarted(self._plan.name, address, self._running.pid))

    def _on_mode(self, mode: str, reasons: Any) -> None:
        self._reasons = tuple(map(str, reasons)) if isinstance(reasons, list) else ()
        readonly = mode != "writable"
        if self.serves:
            self._change(state="readonly" if readonly else "up", problem="; ".join(self._reasons) or None)
        self._tell(BookieMode(self._plan.name, readonly, self._reasons))

    # --- The end

    async def stop(self, hurry: asyncio.Event) -> None:
        """End the service in good order; one that takes too long, or for which nobody wants to wait, is killed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        process = self._process
        if process is None or process.poll() is not None:
            return
        began_s = asyncio.get_running_loop().time()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # One that was stopped has to hear it, too.
        ending, hurrying = asyncio.create_task(child_ended(process)), asyncio.create_task(hurry.wait())
        await asyncio.wait([ending, hurrying], timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not ending.done():
            process.kill()
            self._tell(ServiceKilled(self._plan.name, process.pid, asyncio.get_running_loop().time() - began_s))
        await asyncio.wait([ending, hurrying], timeout=_KILL_S)
        ending.cancel()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _change(self, **facts: Any) -> None:
        self.state = replace(self.state, **facts)
        self._on_change()


def _event(line: str) -> dict[str, Any]:
    """The event that a line tells of; nothing is in it if it is another kind of line."""
    try:
        event = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
