"""A folder that many processes of this machine use at once, without anybody running `quire up`.

    async with hosted(DataFolder("/abs/data")) as bookies:          # how many bookies serve it
        async with open_namespace(folder.streams(), copies_max=bookies) as namespace: ...

An embedded log has its bookies inside one process. Where a program consists of many, as one of Spark does, the first
that needs the folder starts a process which holds it and runs its bookies on ports of the loopback interface
(`quire.embedded.host_process`); the metadata is in a file that all of them open. The host ends some seconds after its
last user.

    host-start.lock   held by whoever starts a host, until it serves or has failed
    host.lock         held by the host as long as it lives
    host-users.lock   shared by all users; the host takes it for itself to end
    logs/host.log     what the host has to say

All are locks of the kernel's, which go with the process that holds them, however it ends.

Invariants:
  OneHost           of processes that start a host at the same time one does, and the others find it.
  NotWhileUsed      a host ends only when it holds `host-users.lock` alone: whoever has its share finds bookies behind
                    the start, and whoever comes too late waits for the end, and starts another one.
"""

import asyncio
import errno
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import quire.errors
from quire.embedded.folder import HOST, SUPERVISOR, DataFolder, unusable
from quire.errors import BookieFailed, FolderInUse, QuireError

IDLE_S: Final = 10.0
START: Final = "host-start.lock"
ALIVE: Final = "host.lock"
USERS: Final = "host-users.lock"
LOG: Final = "logs/host.log"

_START_S: Final = 60.0  # A host brings back what a crash left in a journal before it serves.
_LOOK_S: Final = 0.02


@asynccontextmanager
async def hosted(folder: DataFolder, *, idle_s: float = IDLE_S) -> AsyncIterator["Hosting"]:
    """The folder, served while the block runs. Made if it is new. `idle_s` is for the host if one is started.

    Raises `FolderInUse` if a program has it that does not share it, `FolderUnusable`, `DiskFull`, `BookieFailed`.
    """
    hosting = Hosting(folder, idle_s)
    await asyncio.to_thread(hosting.join)
    try:
        yield hosting
    finally:
        hosting.leave()


class Hosting:
    """One user's share of a folder that is served."""

    def __init__(self, folder: DataFolder, idle_s: float) -> None:
        self._folder, self._idle_s = folder, idle_s
        self._share: int | None = None

    @property
    def bookies(self) -> int:
        """How many copies of anything there can be."""
        return len(self._folder.bookie_numbers())

    def join(self) -> None:
        """Take a share, and see to it that there is a host. Blocks."""
        try:
            os.makedirs(f"{self._folder.path}/logs", mode=0o700, exist_ok=True)
            self._share = _locked(f"{self._folder.path}/{USERS}", fcntl.LOCK_SH, _START_S)
            self.ensure()
        except OSError as error:
            self.leave()
            raise unusable(self._folder.path, error) from error
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        if self._share is not None:
            os.close(self._share)
            self._share = None

    def ensure(self) -> None:
        """Start a host if the one that there was has been killed. Blocks; cheap if there is one."""
        if is_held(f"{self._folder.path}/{ALIVE}"):
            return
        with _start_lock(self._folder):
            if is_held(f"{self._folder.path}/{ALIVE}") or self._has_supervisor():
                return
            _start(self._folder, self._idle_s)

    def _has_supervisor(self) -> bool:
        """Whether `quire up` serves the folder: then there is nothing to start."""
        try:
            said = Path(self._folder.lock).read_text(errors="replace")
        except OSError:
            return False
        return said.startswith(SUPERVISOR) and is_held(self._folder.lock)


# --- Starting a host


@contextmanager
def _start_lock(folder: DataFolder) -> Iterator[None]:
    try:
        descriptor = _locked(f"{folder.path}/{START}", fcntl.LOCK_EX, _START_S)
    except TimeoutError:
        raise BookieFailed(
            f"another process has been starting bookies in {folder.path!r} for {_START_S:g} s",
            hint=f"Look into {folder.path}/{LOG}.",
            path=folder.path,
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _start(folder: DataFolder, idle_s: float) -> None:
    """Start a host, and return when it serves. Raises why it does not."""
    package = str(Path(quire.__file__).parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    command = [sys.executable, "-m", "quire.embedded.host_process", folder.path, str(idle_s)]
    with (
        open(f"{folder.path}/{LOG}", "ab", opener=_private) as log,
        subprocess.Popen(  # noqa: S603 - our own interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        ) as process,  # It leaves the host behind and ends at once.
    ):
        assert process.stdout is not None
        said = _first_line(process.stdout.fileno())
    answer: dict[str, Any] = json.loads(said) if said.startswith("{") else {}
    if "error" in answer:
        error = _raised(answer)
        if not (isinstance(error, FolderInUse) and str(error.facts.get("holder")).startswith((SUPERVISOR, HOST))):
            raise error
    elif not answer:
        raise BookieFailed(
            f"the bookies of {folder.path!r} did not start" + ("" if said else f" within {_START_S:g} s"),
            hint=f"Why is in {folder.path}/{LOG}.",
            path=folder.path,
        )


def _first_line(descriptor: int) -> str:
    """What a process writes up to a line break, or up to its end; nothing if it takes too long."""
    ends_s, line = time.monotonic() + _START_S, b""
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, ends_s - time.monotonic()))[0]:
            return ""
        part = os.read(descriptor, 1 << 16)
        if not part:
            return line.decode(errors="replace") or "-"
        line += part
    return line.decode(errors="replace")


def told(error: BaseException) -> str:
    """An error as a host tells the process that started it."""
    facts = getattr(error, "facts", {})
    shown = {name: value for name, value in facts.items() if isinstance(value, str | int)}
    return json.dumps({"error": str(error), "kind": type(error).__name__, "hint": _hint_of(error), "facts": shown})


def _hint_of(error: BaseException) -> str:
    return error.hint if isinstance(error, QuireError) else ""


def _raised(answer: dict[str, Any]) -> QuireError:
    kind = getattr(quire.errors, str(answer.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, QuireError)):
        kind = BookieFailed
    facts = answer.get("facts") or {}
    error: QuireError = kind(str(answer["error"]), hint=str(answer.get("hint") or ""))
    error.facts = dict(facts)
    return error


# --- Locks


def is_held(path: str) -> bool:
    """Whether somebody holds a lock for itself. Asking takes a share for a moment."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(path: str, kind: int, timeout_s: float) -> int:
    """A descriptor that holds a lock. Raises `TimeoutError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    ends_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > ends_s:
                os.close(descriptor)
                raise TimeoutError(errno.ETIMEDOUT, f"{path} was held for {timeout_s:g} s") from None
        except BaseException:
            os.close(descriptor)
            raise
        time.sleep(_LOOK_S)
