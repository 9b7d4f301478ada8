"""What has to be so before a local cluster starts. Whatever is in the way is told at once, with what to do about it.

Each is asked of the system, not remembered: who has the folder open, which bookies of an earlier run still live, how
much room there is. Ports are in `quire.app.ports`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from quire.app.cluster_events import Noted, Tell
from quire.app.occupancy import LeftOver, left_overs
from quire.bookie.space import SpaceSettings
from quire.embedded.folder import SUPERVISOR, DataFolder, hold_folder
from quire.errors import DiskFull, FolderInUse
from quire.protocol.space import FolderSpace, SpaceGate, SpaceLimits, SpaceMode, shown_bytes
from quire.runtime import Runtime

_COPIES: Final = 3  # What a writer asks for unless it is told otherwise: see `quire.stream.settings`.
_LEFT_OVER_WAIT_S: Final = 5.0  # For bookies whose supervisor was killed: they are being told to stop.
_LOOK_S: Final = 0.05


@asynccontextmanager
async def hold_for_cluster(runtime: Runtime, folder: DataFolder) -> AsyncIterator[None]:
    """Have the folder alone. Raises `FolderInUse`, `FolderUnusable`, `DiskFull`."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                hold_folder(runtime, folder, holder=f"{SUPERVISOR} (process {os.getpid()})")
            )
        except FolderInUse as error:
            holder = str(error.facts.get("holder", ""))
            if holder.startswith(SUPERVISOR):
                problem = f"a local cluster runs in {folder.path!r} already: {holder}"
                hint = f"`quire status --data {folder.path}` shows it, `quire down --data {folder.path}` stops it."
            else:
                problem = str(error)
                hint = "End that program, or name another folder with --data; then let it connect to the cluster."
            raise FolderInUse(problem, hint=hint, **error.facts) from error
        yield


async def wait_for_left_overs(folder: DataFolder, tell: Tell, stop: asyncio.Event) -> None:
    """Bookies of a supervisor that was killed stop by themselves. Raises `FolderInUse` if some do not."""
    deadline_s = asyncio.get_running_loop().time() + _LEFT_OVER_WAIT_S
    found = left_overs(folder)
    if found:
        tell(Noted(f"waiting for {_shown(found)} of an earlier run to stop"))
    while found and not stop.is_set():
        if asyncio.get_running_loop().time() > deadline_s:
            raise FolderInUse(
                f"an earlier run left something behind in {folder.path!r}: {_shown(found)}",
                hint=f"`quire down --data {folder.path}` stops what is left.",
                path=folder.path,
                pids=[each.process.pid for each in found if each.process is not None],
            )
        await asyncio.sleep(_LOOK_S)
        found = left_overs(folder)


def _shown(found: list[LeftOver]) -> str:
    return ", ".join(f"{each.name} ({each.said})" for each in found)


def space_settings(overrides: tuple[str, ...]) -> SpaceSettings:
    """How much space the bookies will leave alone. Raises `InvalidArgument` for settings that there are not."""
    if not overrides:
        return SpaceSettings()
    from quire.app.bookie import default_settings  # All of a bookie: only whoever changes something waits for it.
    from quire.app.overrides import with_overrides

    return with_overrides(default_settings(), overrides).space


async def check_space(runtime: Runtime, folder: DataFolder, settings: SpaceSettings, tell: Tell) -> None:
    """Say so if the bookies will take nothing new. If there is nothing to be read either, raises `DiskFull`."""
    usage = await runtime.disk.usage(folder.path)
    space = FolderSpace(usage.free_bytes, usage.total_bytes)
    gate = SpaceGate(free_bytes_min=settings.free_bytes_min)
    if gate.on_usage({folder.path: space}) is SpaceMode.WRITABLE:
        return
    limits = SpaceLimits.of(usage.total_bytes, free_bytes_min=settings.free_bytes_min)
    problem = (
        f"the disk of {folder.path!r} is nearly full: {shown_bytes(usage.free_bytes)} are free, and bookies take "
        f"nothing new below {shown_bytes(limits.adds)}"
    )
    hint = "Free some space, or choose a folder on another disk with --data."
    if not folder.bookie_numbers():
        raise DiskFull(problem, hint=hint, path=folder.path, free_bytes=usage.free_bytes)
    tell(Noted(f"{problem}; what is there can be read", "Free some space: they take up writing by themselves."))


def note_few_bookies(count: int, tell: Tell) -> None:
    """Say so if writers have to be told to ask for less."""
    if count < _COPIES:
        settings = f"quire.StreamSettings(ensemble={count}, write_quorum={count}, ack_quorum={count})"
        tell(
            Noted(
                f"writers ask for {_COPIES} bookies unless told otherwise, and this cluster has {count}",
                f"Connect with settings={settings}, or start with --bookies {_COPIES}.",
            )
        )
