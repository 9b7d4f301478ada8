"""What runs in a data folder, for others to read: the file `cluster.json`, replaced in one step after each change.

The supervisor writes it, `quire status` reads it. It is there while the cluster runs, and after a supervisor that was
killed; whether its processes live is for the reader to find out, by their marks.
"""

import json
import os
from pathlib import Path
from typing import Any, Final, Self

from quire.app.processes import ProcessMark
from quire.values import dataclass

STATE: Final = "cluster.json"
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One process as its supervisor sees it."""

    name: str
    kind: str
    """bookie, write-proxy or read-proxy."""
    state: str
    """starting, up, readonly, restarting, or failing: it does not start, for a reason that stays the same."""
    log: str
    process: ProcessMark | None = None
    address: str | None = None
    admin: str | None = None
    """Where its admin API is."""
    restarts: int = 0
    problem: str | None = None
    """Why it is not up."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises `ValueError`, `TypeError` or `KeyError` for what is none."""
        texts = [value["name"], value["kind"], value["state"], value["log"]]
        perhaps = [value["address"], value["admin"], value["problem"]]
        if not all(isinstance(text, str) for text in texts + [text for text in perhaps if text is not None]):
            raise ValueError("a text is none")
        name, kind, state, log = texts
        address, admin, problem = perhaps
        process = ProcessMark.from_json(value["process"])
        return cls(name, kind, state, log, process, address, admin, int(value["restarts"]), problem)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "process": None if self.process is None else self.process.to_json(),
            "address": self.address,
            "admin": self.admin,
            "log": self.log,
            "restarts": self.restarts,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as its supervisor sees it."""

    supervisor: ProcessMark
    uri: str
    services: tuple[ServiceState, ...]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises `ValueError`, `TypeError` or `KeyError` for what is none."""
        supervisor = ProcessMark.from_json(value["supervisor"])
        if value["version"] != _VERSION or supervisor is None or not isinstance(value["uri"], str):
            raise ValueError("no state of a cluster that we know")
        return cls(supervisor, value["uri"], tuple(map(ServiceState.from_json, value["services"])))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "supervisor": self.supervisor.to_json(),
            "uri": self.uri,
            "services": [service.to_json() for service in self.services],
        }


def state_path(folder: str) -> Path:
    return Path(folder, STATE)


def read_state(folder: str) -> ClusterState | None:
    """What the last supervisor wrote. None if there is nothing, or nothing that reads."""
    try:
        return ClusterState.from_json(json.loads(state_path(folder).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_state(folder: str, state: ClusterState) -> None:
    """Not synced: after a crash of the machine nothing of it is true any more. Raises `OSError`."""
    path = state_path(folder)
    temporary = path.with_name(f"{STATE}.new")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(state.to_json(), indent=2))
    os.replace(temporary, path)


def drop_state(folder: str) -> None:
    """Raises `OSError`."""
    state_path(folder).unlink(missing_ok=True)
