"""Who works in a data folder at this moment, and which folder a command without one means.

Whoever holds a lock wrote its process number into the lock file. That alone proves nothing: the process may be gone,
and its number may be another's. So a process counts only if it has that very file open, which is also what makes it
safe to signal it.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from quire.app.processes import ProcessMark, holder_of
from quire.app.running import running_clusters
from quire.bookie.identity import LOCK
from quire.embedded.folder import SUPERVISOR, DataFolder, unusable
from quire.errors import InvalidArgument, NotRunning
from quire.values import dataclass

DEFAULT_DATA: Final = "quire-data"


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A bookie that runs though nobody supervises it."""

    name: str
    said: str
    """What its lock file says: who holds it."""
    process: ProcessMark | None
    """That process, if it could be verified."""


def supervisor_of(folder: DataFolder) -> ProcessMark | None:
    """The `quire up` that runs in the folder."""
    return holder_of(folder.lock) if said_in(folder.lock).startswith(SUPERVISOR) else None


def program_in(folder: DataFolder) -> str | None:
    """What is said of the program that has the folder open, if it is no `quire up`: an embedded log."""
    said = said_in(folder.lock)
    return None if said.startswith(SUPERVISOR) or holder_of(folder.lock) is None else said


def left_overs(folder: DataFolder) -> list[LeftOver]:
    """Bookies of the folder that run. For those who hold the folder: tries the bookies' locks."""
    found = []
    for name, path in bookie_locks(folder):
        if _is_locked(path):
            found.append(LeftOver(name, said_in(path) or "somebody", holder_of(path)))
    return found


def running_bookies(folder: DataFolder) -> list[LeftOver]:
    """Bookies of the folder that run as processes and can be verified. For those who do not hold it: disturbs nobody.

    Those of a program that has the folder open as an embedded log are no processes of their own: they are left out.
    """
    if program_in(folder) is not None:
        return []
    found = []
    for name, path in bookie_locks(folder):
        mark = holder_of(path)
        if mark is not None:
            found.append(LeftOver(name, said_in(path), mark))
    return found


def bookie_locks(folder: DataFolder) -> list[tuple[str, str]]:
    """The bookies that have been in a folder, each with its lock file. Raises `FolderUnusable`."""
    try:
        numbers = folder.bookie_numbers()
    except OSError as error:
        raise unusable(folder.path, error) from error
    return [(folder.bookie_id(number), f"{folder.bookie(number).data}/{LOCK}") for number in numbers]


def chosen_folder(data: str | None) -> DataFolder:
    """The folder of the cluster that a command means: the one it names, else `./quire-data` if something runs there.

    Raises `NotRunning`, and `InvalidArgument` if clusters run in other folders only: `quire down` must not stop what
    belongs to another project.
    """
    if data is not None:
        return data_folder(data)
    here = data_folder(DEFAULT_DATA)
    if os.path.isdir(here.path) and (supervisor_of(here) is not None or running_bookies(here)):
        return here
    clusters = running_clusters()
    if not clusters:
        raise not_running(None)
    where = ", ".join(cluster.data for cluster in clusters)
    raise InvalidArgument(
        f"no local cluster runs in {here.path!r}; running: {where}",
        hint=f"Say which one is meant: --data {clusters[0].data}",
    )


def data_folder(path: str) -> DataFolder:
    if not path or "\x00" in path:
        raise InvalidArgument(f"{path!r} names no folder", hint="Write, for example, --data ./quire-data.")
    return DataFolder(os.path.abspath(path))


def not_running(folder: DataFolder | None) -> NotRunning:
    if folder is None:
        return NotRunning("no local cluster runs", hint="Start one with `quire up`.")
    if (program := program_in(folder)) is not None:
        return NotRunning(
            f"no local cluster runs in {folder.path!r}: it is open in {program}",
            hint="End that program to start one there.",
        )
    return NotRunning(
        f"no local cluster runs in {folder.path!r}", hint=f"Start it with `quire up --data {folder.path}`."
    )


def said_in(path: str) -> str:
    """What a lock file says of the last one who had it."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)  # And with it the lock.
    return False
