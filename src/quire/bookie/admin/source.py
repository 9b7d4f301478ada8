"""What the admin API of a bookie tells, and what it asks the bookie to do."""

from dataclasses import field
from typing import Any, NotRequired, Protocol, TypedDict

from quire.telemetry.metrics import Registry
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the bookie does its work, and if not, why."""

    ok: bool
    state: str  # In one word: "writable", "readonly", "starting", "stopping", "failed".
    reasons: list[str] = field(default_factory=list)


class GcStatus(TypedDict):
    """What garbage collection and compaction do, and did since the start. Times are wall milliseconds, 0 for never."""

    forced: bool  # A run that somebody asked for is under way.
    major_running: bool
    minor_running: bool
    major_suspended: bool
    minor_suspended: bool
    last_major_ms: int
    last_minor_ms: int
    major_count: int
    minor_count: int


class JournalStatus(TypedDict):
    """How far a journal is not needed any more: everything before is in the ledger storage."""

    file: str  # With its folder: each journal has one.
    file_id: int
    offset: int


class BookieStatus(TypedDict):
    """What the paths of Apache tell about a bookie, and `details` of any kind that JSON can hold."""

    bookie_id: str
    running: bool  # Started whole, and not stopping.
    readonly: bool
    stopping: bool
    high_priority_writes: bool  # Whether recovery may still write here.
    free_bytes: int
    total_bytes: int
    journals: list[JournalStatus]
    gc: GcStatus
    details: NotRequired[dict[str, Any]]


class AdminSource(Protocol):
    """The bookie, as far as the admin API knows it. A `Refused` becomes 409, any other error 500."""

    @property
    def metrics(self) -> Registry: ...

    def health(self) -> Health: ...

    def status(self) -> BookieStatus: ...

    async def trigger_gc(self, *, major: bool, minor: bool) -> None:
        """Begin a run of garbage collection, with these compactions forced. Returns once it has begun."""
        ...

    async def set_readonly(self, readonly: bool) -> None:
        """Become read-only or writable, in the metadata store too. Raises `Refused` if that cannot be."""
        ...

    def suspend_compaction(self, *, major: bool, minor: bool) -> None: ...

    def resume_compaction(self, *, major: bool, minor: bool) -> None: ...
