"""Decide what a bookie still takes as its disks fill up, and when it opens again. Sans-IO.

One number rules: the floor, the free space below which a folder's disk counts as nearly full. The others are parts of
it, in the order in which a bookie gives things up:

    free space                 what is given up         and taken up again at
    below the floor            ordinary adds            1.5 floors
    below a quarter            adds of recovery too     3/8
    below a sixteenth          compaction               3/32

The gap between the two columns keeps a bookie at the limit from changing its mind with every file that comes and goes,
since each change is announced to the whole cluster.

Invariants:
  WorstFolderCounts    one nearly full disk is enough: entries go to all of them.
  ManualStays          what an operator closed is opened by an operator, however much space there is.
  FailedStaysClosed    a disk that failed, or refused a write, does not come back by itself.
  NoStateUnexplained   whatever is not writable says why.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

_OPENS_AGAIN: Final = (3, 2)  # The gap, as a ratio. Whole numbers: a float has no place in a comparison of bytes.


class SpaceMode(enum.Enum):
    """What a bookie takes."""

    WRITABLE = enum.auto()
    READ_ONLY = enum.auto()  # Only what has high priority: adds of recovery and re-replication.
    CLOSED = enum.auto()  # No adds at all.


class FolderSpace(NamedTuple):
    """The disk that holds a folder."""

    free_bytes: int
    total_bytes: int


class SpaceLimits(NamedTuple):
    """Below which free space of one disk what is given up."""

    adds: int
    priority_adds: int
    compaction: int

    @classmethod
    def of(cls, total_bytes: int, *, free_bytes_min: int) -> Self:
        """`free_bytes_min` is the floor, or a twentieth of a disk that is so small that this is less."""
        floor = min(free_bytes_min, total_bytes // 20)
        return cls(floor, floor // 4, floor // 16)


class SpaceGate:
    """The state of one bookie's folders. Nothing is given up before the first report."""

    def __init__(self, *, free_bytes_min: int) -> None:
        self._free_bytes_min = free_bytes_min
        self._given_up: dict[str, SpaceLimits] = {}  # By folder: each limit where it applies, else 0.
        self._spaces: dict[str, FolderSpace] = {}
        self._failures: dict[str, str] = {}
        self._manual: str | None = None
        self._no_room: str | None = None

    # --- Events

    def on_usage(self, spaces: Mapping[str, FolderSpace]) -> SpaceMode:
        """How full the disks of these folders are now."""
        for folder, space in spaces.items():
            limits = SpaceLimits.of(space.total_bytes, free_bytes_min=self._free_bytes_min)
            before = self._given_up.get(folder, SpaceLimits(0, 0, 0))
            self._spaces[folder] = space
            self._given_up[folder] = SpaceLimits(
                *(
                    limit if space.free_bytes < (opens_again_at(limit) if given_up else limit) else 0
                    for limit, given_up in zip(limits, before, strict=True)
                )
            )
        return self.mode

    def on_failed(self, folder: str, why: str) -> SpaceMode:
        """A disk does not even tell how full it is."""
        self._failures.setdefault(folder, why)
        return self.mode

    def on_no_room(self, why: str) -> SpaceMode:
        """A write found no room, whatever reports say: they know of no quotas."""
        self._no_room = why
        return self.mode

    def on_manual(self, why: str | None) -> SpaceMode:
        """An operator closes the bookie for ordinary adds, giving a reason, or with None takes that back."""
        self._manual = why
        return self.mode

    # --- Decisions

    @property
    def mode(self) -> SpaceMode:
        if (
            self._failures
            or self._no_room is not None
            or any(given_up.priority_adds for given_up in self._given_up.values())
        ):
            return SpaceMode.CLOSED
        if self._manual is not None or any(given_up.adds for given_up in self._given_up.values()):
            return SpaceMode.READ_ONLY
        return SpaceMode.WRITABLE

    @property
    def spaces(self) -> Mapping[str, FolderSpace]:
        """What was last reported of each folder."""
        return self._spaces

    def may_compact(self, folder: str) -> bool:
        """Whether there is room to copy what is alive before the rest is deleted."""
        given_up = self._given_up.get(folder)
        return folder not in self._failures and (given_up is None or not given_up.compaction)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the bookie is not writable. Empty when it is."""
        found = [f"the disk of {folder} failed: {why}" for folder, why in self._failures.items()]
        if self._no_room is not None:
            found.append(f"a write found no room: {self._no_room}")
        if self._manual is not None:
            found.append(f"an operator made the bookie read-only: {self._manual or 'without a reason'}")
        for folder, given_up in self._given_up.items():
            if given_up.adds:
                limit = given_up.priority_adds or given_up.adds
                what = "no adds at all are" if given_up.priority_adds else "only recovery's adds are"
                found.append(
                    f"{shown_bytes(self._spaces[folder].free_bytes)} are free on the disk of {folder}: {what} taken "
                    f"below {shown_bytes(limit)}, and until {shown_bytes(opens_again_at(limit))} are free"
                )
        return tuple(found)


def opens_again_at(limit_bytes: int) -> int:
    """How much has to be free before what was given up at a limit is taken up again."""
    more, less = _OPENS_AGAIN
    return limit_bytes * more // less


def shown_bytes(count: int) -> str:
    """For people: 1.5 GiB."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
