"""What a simulation of streams is made of: how many of each, how fast, and which faults how often.

`EVERYTHING` mixes all that there is. The others aim at one situation each, so that a bug that lives there is met within
few seeds. All of them are run for the correct code; planted bugs name the workload that should find them.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from quire.types import Quorum
from tests.support.simulation.faults import Fault
from tests.support.simulation.world import Setting

StreamFault = Literal[
    "isolate",  # A client reaches nobody for a while, often longer than its session lasts. It does not know why.
    "stall_writer",  # A writer cannot reach the metadata for a while.
    "expire_writer",  # A writer's session is over, and with it its lock.
    "lose_writer_answers",  # A writer's next changes of metadata happen, and it is told that nobody knows.
    "lose_writer_requests",  # They do not happen, and it is told that nobody knows.
    "delay_writer_requests",  # They happen later, if they still can, and it is told that nobody knows.
    "stop_writer",  # A writer stands still right behind a change of metadata, until its session is over.
    "crash_writer",  # The host of a writer dies, and is started again after a while.
]
Ending = Literal["cancel", "crash", "close", "go on", "seal"]


@dataclass(frozen=True, slots=True)
class Plan(Setting):
    """One kind of run."""

    faults: dict[Fault | StreamFault, float] = field(default_factory=dict)
    quorums: tuple[Quorum, ...] = tuple(Quorum(*each) for each in [(3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2)])
    bookies: int = 4
    slow_s: tuple[float, ...] = (0.02, 0.1, 0.4)

    # --- Who writes

    writers: int = 2
    """They wait for each other with the lock."""

    rivals: int = 0
    """They do not: whoever comes last takes over."""

    tenure_s: float = 3.0
    """How long a writer keeps a stream before it gives it to whoever waits."""

    reopen_s: float = 0.3
    appenders: int = 3
    append_pause_s: float = 0.08
    idle_chance: float = 0.05
    roll_bytes: tuple[int, ...] = (200, 600, 2000)
    roll_chance: float = 0.8
    """That segments roll by size at all. Otherwise they do by time, rarely."""

    txids_chance: float = 0.3
    """That a writer gives txids of its own."""

    # --- Who reads

    readers: int = 2
    reading_s: float = 1.5
    """How long a reader stays open."""

    # --- Who removes

    truncators: int = 0
    purges: bool = False
    """Whether segments are deleted: by writers, when they are old, and by those who truncate."""

    endings: tuple[Ending, ...] = ("cancel", "crash", "close", "go on", "seal")
    """What becomes of the writers when everything was repaired."""


EVERYTHING = Plan(
    {
        "crash": 3,
        "blackout": 0.5,
        "reset": 2,
        "partition": 2,
        "heal": 2,
        "stall": 1,
        "expire": 1,
        "lose_answers": 1,
        "slow_sync": 0.5,
        "fast_sync": 0.5,
        "failing_sync": 0.5,
        "fill": 0.5,
        "make_room": 0.5,
        "wipe": 0.2,
        "damage": 0.3,
        "crash_client": 1,
        "isolate": 1,
        "lose_writer_answers": 2,
        "lose_writer_requests": 1,
        "delay_writer_requests": 1,
        "crash_writer": 2,
    },
    rivals=1,
    truncators=1,
    purges=True,
    lasts_s=1.8,
    append_pause_s=0.1,
)

FAILOVER = Plan(
    {"crash_writer": 3, "isolate": 2, "expire_writer": 1, "stall_writer": 1, "reset": 0.5},
    bookies=3,
    writers=3,
    fault_pause_s=0.8,
    readers=1,
)
"""Writers that wait for the lock take over from those that crash, are cut off, or give up."""

TAKEOVERS = Plan(
    {"stop_writer": 1},
    bookies=3,
    writers=3,
    lasts_s=15.0,
    tenure_s=1.0,
    reopen_s=0.05,
    fault_pause_s=3.0,
    append_pause_s=0.4,
    readers=0,
    slow_chance=0.0,
)
"""Writers are stopped on their way to the stream until others have it."""

RIVALS = Plan(
    {"reset": 1, "partition": 1, "heal": 1, "crash_writer": 1, "isolate": 1},
    bookies=3,
    lasts_s=1.5,
    writers=0,
    rivals=3,
    tenure_s=1.0,
    fault_pause_s=0.4,
    slow_chance=0.4,
    readers=1,
)
"""Writers without a lock shut each other out all the time. Some hear of it late."""

ROLLING = Plan(
    {"crash": 2, "reset": 3, "slow_sync": 1, "fast_sync": 1, "blackout": 0.5, "stall_writer": 1},
    writers=1,
    lasts_s=2.0,
    fault_pause_s=0.25,
    append_pause_s=0.02,
    tenure_s=5.0,
    roll_bytes=(100, 200, 400),
    roll_chance=1.0,
    readers=1,
    slow_chance=0.3,
)
"""Segments of a few entries, while bookies fail."""

LOST_ANSWERS = Plan(
    {
        "lose_writer_answers": 4,
        "lose_writer_requests": 2,
        "delay_writer_requests": 3,
        "stall_writer": 1,
        "expire_writer": 1,
        "crash_writer": 1,
    },
    bookies=3,
    lasts_s=1.2,
    fault_pause_s=0.12,
    writers=1,
    rivals=1,
    tenure_s=1.5,
    append_pause_s=0.04,
    roll_bytes=(100, 200),
    roll_chance=1.0,
    readers=1,
    slow_chance=0.1,
)
"""Nobody knows what the metadata say while segments begin and are completed, and others try to take over."""

LATE_WRITES = replace(
    LOST_ANSWERS, faults={"delay_writes": 6, "stall_writer": 1, "crash_writer": 1, "reset": 1, "crash": 1}, writers=2
)
"""What is asked of the metadata happens long after it was asked whether it had."""

EXPIRY = Plan(
    {"expire_writer": 3, "stall_writer": 2, "isolate": 1},
    bookies=3,
    lasts_s=2.5,
    fault_pause_s=0.4,
    writers=3,
    tenure_s=2.0,
    readers=1,
)
"""Locks are lost with their sessions."""

TRUNCATION = Plan(
    {"reset": 1, "crash": 0.5, "lose_answers": 1, "crash_client": 0.5, "stall": 0.5},
    bookies=3,
    lasts_s=1.8,
    writers=1,
    append_pause_s=0.05,
    roll_bytes=(150, 400),
    roll_chance=1.0,
    readers=3,
    reading_s=0.6,
    truncators=2,
    purges=True,
    tenure_s=1.0,
)
"""The old end of the stream goes while readers are at it."""

PURGING = replace(TRUNCATION, faults={"reset": 1}, rivals=1, tenure_s=0.4, truncators=3, readers=1)
"""Hardly a segment is left when the next writer comes."""

DAMAGE = Plan(
    {"damage": 2, "wipe": 1, "crash": 1, "crash_writer": 1, "reset": 1},
    writers=2,
    lasts_s=3.0,
    fault_pause_s=0.7,
    append_pause_s=0.2,
    idle_chance=0.3,
    readers=2,
)
"""One disk goes bad."""

TAILING = Plan(
    {"reset": 2, "crash": 1, "partition": 1, "heal": 1, "stall": 1, "expire": 1, "crash_client": 0.5},
    bookies=3,
    lasts_s=1.3,
    writers=1,
    rivals=1,
    tenure_s=1.0,
    append_pause_s=0.05,
    readers=3,
    reading_s=0.5,
    slow_chance=0.3,
)
"""Many readers, which begin anywhere, stop, and go on where they were."""

CALM = replace(EVERYTHING, faults={}, lasts_s=0.8, slow_chance=0.0)
"""Nothing fails: whatever goes wrong is a plain bug."""
