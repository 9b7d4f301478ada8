"""How a local cluster is: what its supervisor wrote down, what its processes are doing, what its bookies say."""

import asyncio
import json
import os
import shutil
import urllib.error
import urllib.request
from typing import Any, Final

from quire.app.cluster_state import ClusterState, ServiceState, read_state
from quire.app.local_services import BOOKIE
from quire.app.occupancy import running_bookies, supervisor_of
from quire.app.processes import ProcessMark
from quire.embedded.folder import DataFolder
from quire.errors import QuireError
from quire.metadata import StoreSettings, open_store
from quire.stream.listing import scan_streams
from quire.values import dataclass

_ASK_S: Final = 3.0
_STREAMS_S: Final = 10.0
_WELL: Final = ("up", "busy")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One process now."""

    name: str
    kind: str
    state: str
    address: str | None
    admin: str | None
    pid: int | None
    uptime_s: float | None
    restarts: int
    used_bytes: int | None
    """What a bookie takes on the disk."""
    log: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A local cluster now."""

    data: str
    running: bool
    uri: str
    pid: int | None
    uptime_s: float | None
    streams: int | None
    """None if they could not be counted."""
    free_bytes: int
    total_bytes: int
    services: tuple[ServiceStatus, ...]

    @property
    def is_well(self) -> bool:
        """Whether everything that should run does, and takes records. What was slow for a moment does."""
        return self.running and bool(self.services) and all(service.state in _WELL for service in self.services)


async def cluster_status(folder: DataFolder) -> ClusterStatus | None:
    """None if nothing runs in the folder."""
    supervisor, state = supervisor_of(folder), read_state(folder.path)
    if supervisor is None:
        services = tuple(_left_over(folder, each.name, each.process) for each in running_bookies(folder))
        if not services:
            return None
    else:
        known = state.services if _is_of(state, supervisor) and state is not None else ()
        services = tuple(await asyncio.gather(*(_status(folder, service) for service in known)))
    usage = shutil.disk_usage(folder.path)
    return ClusterStatus(
        folder.path,
        running=supervisor is not None,
        uri=state.uri if _is_of(state, supervisor) and state is not None else folder.streams().text,
        pid=None if supervisor is None else supervisor.pid,
        uptime_s=None if supervisor is None else _rounded(supervisor.age_s),
        streams=await _count_streams(folder),
        free_bytes=usage.free,
        total_bytes=usage.total,
        services=services,
    )


def _is_of(state: ClusterState | None, supervisor: ProcessMark | None) -> bool:
    """Whether this supervisor wrote it. One that has just started may not have come to that."""
    return state is not None and state.supervisor == supervisor


def _left_over(folder: DataFolder, name: str, process: ProcessMark | None) -> ServiceStatus:
    return ServiceStatus(
        name,
        BOOKIE,
        "left over",
        address=None,
        admin=None,
        pid=None if process is None else process.pid,
        uptime_s=None if process is None else _rounded(process.age_s),
        restarts=0,
        used_bytes=_used_bytes(f"{folder.path}/{name}"),
        log=None,
        problem="nobody supervises it: its `quire up` was killed",
    )


async def _status(folder: DataFolder, known: ServiceState) -> ServiceStatus:
    state, problem = known.state, known.problem
    age_s = None if known.process is None else known.process.age_s
    if known.process is not None and age_s is None:
        state, problem = "restarting", "it has just ended"  # Its supervisor will notice in a moment.
    elif known.admin is not None:
        path = "/api/v1/bookie/status" if known.kind == BOOKIE else "/readyz"
        answer = await asyncio.to_thread(_ask, known.admin, path)
        if answer is not None:
            says = str(answer.get("state", "up" if answer.get("ok") else "not ready"))
            state = {"writable": "up"}.get(says, says)
            problem = "; ".join(map(str, answer.get("reasons", ()))) or None
        else:
            state, problem = "silent", f"its admin API does not answer within {_ASK_S:g} s"
    return ServiceStatus(
        known.name,
        known.kind,
        state,
        known.address,
        known.admin,
        None if age_s is None or known.process is None else known.process.pid,
        _rounded(age_s),
        known.restarts,
        await asyncio.to_thread(_used_bytes, f"{folder.path}/{known.name}") if known.kind == BOOKIE else None,
        known.log,
        problem,
    )


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 1)


def _ask(admin: str, path: str) -> dict[str, Any] | None:
    """What a service says of itself; also if it says that something is wrong."""
    try:
        with urllib.request.urlopen(f"http://{admin}{path}", timeout=_ASK_S) as answer:
            status = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            try:
                status = json.loads(error.read())
            except (OSError, ValueError):
                return None
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def _used_bytes(folder: str) -> int:
    """What the files below a folder take up on the disk. Files come and go while we look."""
    used = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.lstat(f"{path}/{name}").st_blocks * 512
            except OSError:
                pass  # It has gone.
    return used


async def _count_streams(folder: DataFolder) -> int | None:
    uri = folder.streams()
    settings = StoreSettings(operation_timeout_s=_ASK_S, create_missing=False)
    try:
        async with asyncio.timeout(_STREAMS_S), open_store(uri.store, settings=settings) as store:
            return len([name async for name in scan_streams(store, uri.path)])
    except (QuireError, TimeoutError):
        return None
