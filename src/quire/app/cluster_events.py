"""What a local cluster tells whoever started it: one value for each thing that happened.

How it is shown, as a line for people or as JSON for programs, is for the command to decide.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from quire.values import dataclass


class ClusterEvent:
    """Something happened. Each kind is a class of fields, but not this one: who inherits from one is slow to define."""

    __slots__ = ()
    event: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"event": self.event, **dataclasses.asdict(self)}  # type: ignore[call-overload]


Tell: TypeAlias = Callable[[ClusterEvent], None]


@dataclass(frozen=True, slots=True)
class ServiceShown:
    """A process in the list of what runs where."""

    name: str
    kind: str
    """bookie, write-proxy or read-proxy."""
    state: str
    address: str | None
    admin: str | None
    pid: int | None
    log: str
    problem: str | None = None
    gateway: str | None = None
    """The URL at which this proxy serves HTTP to clients."""


@dataclass(frozen=True, slots=True)
class Started(ClusterEvent):
    """Everything that can run does."""

    event = "started"
    data: str
    uri: str
    """For clients."""
    direct_uri: str
    """For clients that write and read without proxies, one writer for each stream."""
    pid: int
    services: tuple[ServiceShown, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class Noted(ClusterEvent):
    """Something to know, and what to do about it."""

    event = "note"
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ServiceEnded(ClusterEvent):
    """A service ended, or did not start. It is tried again."""

    event = "ended"
    service: str
    why: str
    again_in_s: float


@dataclass(frozen=True, slots=True)
class ServiceFailing(ClusterEvent):
    """A service did not start several times, always for the same reason."""

    event = "failing"
    service: str
    why: str
    hint: str
    failed_starts: int
    again_in_s: float
    log: str


@dataclass(frozen=True, slots=True)
class ServiceRestarted(ClusterEvent):
    """It serves again."""

    event = "restarted"
    service: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class BookieMode(ClusterEvent):
    """A bookie takes nothing new, or takes it again."""

    event = "mode"
    service: str
    readonly: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopping(ClusterEvent):
    """Somebody wants the cluster to stop."""

    event = "stopping"
    signal: str


@dataclass(frozen=True, slots=True)
class ServiceKilled(ClusterEvent):
    """A service did not stop when it was told to."""

    event = "killed"
    service: str
    pid: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class Stopped(ClusterEvent):
    """Nothing runs any more."""

    event = "stopped"
    data: str
