"""Which local clusters run on this machine: how a command finds the one that `quire up` started in its folder.

Each running cluster has one small file in a folder of this user, `$XDG_STATE_HOME/quire/clusters` (by default below
`~/.local/state`), which names its data folder, its URI and the process that runs it. The file goes when the cluster
stops. One that a killed cluster left behind is recognised by its process, ignored, and removed by whoever looks.

What is in there is a convenience. That nobody runs two clusters in one data folder is ensured by the folder's lock.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from quire.app.processes import ProcessMark, own_mark
from quire.values import dataclass

_FILE_BYTES_MAX: Final = 64 << 10  # More is none of ours.


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster that runs now."""

    data: str
    """Its data folder, as an absolute path."""
    uri: str
    """What clients connect to."""
    pid: int
    """The process of `quire up`."""


def running_clusters() -> list[RunningCluster]:
    """The clusters of this user that run on this machine, ordered by data folder. Never raises for what lies there."""
    found = []
    for path in _files():
        entry = _read(path)
        if entry is None:
            continue  # Not ours: whoever put it there may want it.
        cluster, mark = entry
        if mark.is_alive:
            found.append(cluster)
        elif mark.is_here:
            with suppress(OSError):
                path.unlink()
    return sorted(found, key=lambda cluster: cluster.data)


def cluster_in(data: str) -> RunningCluster | None:
    """The cluster that runs in this data folder."""
    here = os.path.realpath(data)
    return next((cluster for cluster in running_clusters() if os.path.realpath(cluster.data) == here), None)


class Announcement:
    """How others find the cluster that this process runs. `problem` is why they do not."""

    def __init__(self, data: str, path: Path) -> None:
        self._data, self._path, self._uri = data, path, ""
        self._mark = own_mark().to_json()
        self.problem: str | None = None

    def update(self, uri: str) -> None:
        """Let them connect there."""
        if uri == self._uri:
            return
        try:
            if not self._path.is_absolute():
                raise OSError("this user has no home folder")
            _write(self._path, {"data": self._data, "uri": uri, "process": self._mark})
            self._uri, self.problem = uri, None
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror or error}"


@contextmanager
def announced(data: str, uri: str) -> Iterator[Announcement]:
    """Let others find the cluster that this process runs, for the block."""
    path = _folder() / f"{hashlib.sha256(os.fsencode(os.path.realpath(data))).hexdigest()[:16]}.json"
    announcement = Announcement(data, path)
    announcement.update(uri)
    try:
        yield announcement
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # As the specification of this variable wants it.
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state, "quire", "clusters")


def _files() -> list[Path]:
    try:
        return sorted(_folder().glob("*.json"))
    except OSError:
        return []


def _read(path: Path) -> tuple[RunningCluster, ProcessMark] | None:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    data, uri, mark = value.get("data"), value.get("uri"), ProcessMark.from_json(value.get("process"))
    if not isinstance(data, str) or not isinstance(uri, str) or mark is None:
        return None
    return RunningCluster(data, uri, mark.pid), mark


def _write(path: Path, value: dict[str, Any]) -> None:
    """In one step: others look at any time."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)
