"""Stop a local cluster from outside: its supervisor, which stops the rest, or what a supervisor that was killed left.

Nobody is signalled but processes that have this folder's own lock files open. What does not stop in time is named and
left alone: whether to kill it is for the user to decide.
"""

import asyncio
import os
import signal
from contextlib import ExitStack
from typing import Final

from quire.app.cluster_state import drop_state
from quire.app.occupancy import LeftOver, bookie_locks, left_overs, not_running, program_in, supervisor_of
from quire.app.processes import NoSuchProcess, OpenProcess, ProcessMark, open_process
from quire.app.service_keeper import STOP_S
from quire.embedded.folder import DataFolder, hold_folder
from quire.errors import FolderInUse, Refused
from quire.runtime import real_runtime
from quire.values import dataclass

_SUPERVISOR_S: Final = STOP_S + 10.0  # It kills what does not stop in time, and then has to close everything.
_LEFT_OVERS_S: Final = STOP_S


@dataclass(frozen=True, slots=True)
class StoppedCluster:
    """What was stopped."""

    data: str
    supervisor: int | None
    left_overs: tuple[str, ...] = ()
    """Bookies that nobody supervised any more."""


async def stop_cluster(folder: DataFolder) -> StoppedCluster:
    """Return when nothing runs in the folder any more.

    Raises `NotRunning` if nothing did, `FolderInUse` if it is something else or does not stop, `Refused` if this user
    may not stop it.
    """
    supervisor = supervisor_of(folder)
    if supervisor is not None:
        await _stop_supervisor(folder, supervisor)
    elif (program := program_in(folder)) is not None:
        raise FolderInUse(
            f"the folder {folder.path!r} is open in {program}, which is no local cluster",
            hint="End that program.",
            path=folder.path,
        )
    stopped = await _stop_left_overs(folder)
    if supervisor is None and not stopped:
        raise not_running(folder)
    return StoppedCluster(folder.path, None if supervisor is None else supervisor.pid, stopped)


async def _stop_supervisor(folder: DataFolder, mark: ProcessMark) -> None:
    try:
        with open_process(mark) as process:
            _tell_to_stop(process, f"`quire up` (process {mark.pid})")
            if await process.wait_ended(within_s=_SUPERVISOR_S):
                return
    except NoSuchProcess:
        return
    raise FolderInUse(
        f"`quire up` (process {mark.pid}) has been told to stop, and still runs after {_SUPERVISOR_S:g} s",
        hint=f"If it never ends: kill -9 {mark.pid}. Nothing that was acknowledged is lost by that.",
        path=folder.path,
        pids=[mark.pid],
    )


async def _stop_left_overs(folder: DataFolder) -> tuple[str, ...]:
    """Nobody starts anything here meanwhile: the folder is held."""
    if not bookie_locks(folder):
        return ()
    runtime = real_runtime()
    try:
        async with hold_folder(runtime, folder, holder=f"quire down (process {os.getpid()})"):
            found = left_overs(folder)
            await _end_all(folder, found)
            drop_state(folder.path)
            return tuple(f"{each.name} ({each.said})" for each in found)
    finally:
        await runtime.disk.aclose()


async def _end_all(folder: DataFolder, found: list[LeftOver]) -> None:
    """All at once. Raises `FolderInUse` with those that are left when the time is up."""
    with ExitStack() as stack:
        told = []
        for each in found:
            if each.process is None:
                continue  # Nobody knows who that is.
            try:
                process = stack.enter_context(open_process(each.process))
            except NoSuchProcess:
                continue
            _tell_to_stop(process, f"{each.name} ({each.said})")
            told.append(process)
        await asyncio.gather(*(process.wait_ended(within_s=_LEFT_OVERS_S) for process in told))
    left = left_overs(folder)
    if left:
        pids = [each.process.pid for each in left if each.process is not None]
        kill = f"kill -9 {' '.join(map(str, pids))}" if pids else "Look for it among the processes of other users."
        raise FolderInUse(
            f"still running in {folder.path!r}: {', '.join(f'{each.name} ({each.said})' for each in left)}",
            hint=f"If they never end: {kill}. Nothing that was acknowledged is lost by that." if pids else kill,
            path=folder.path,
            pids=pids,
        )


def _tell_to_stop(process: OpenProcess, shown: str) -> None:
    try:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # One that was stopped has to hear it, too.
    except PermissionError as error:
        raise Refused(
            f"{shown} belongs to another user, and cannot be stopped by this one", hint="Ask that user, or root."
        ) from error
