"""What a simulation of sinks is made of: how many of each, and which faults how often."""

from dataclasses import dataclass

from quire.types import Quorum
from tests.support.simulation.world import Setting


@dataclass(frozen=True, slots=True)
class Plan(Setting):
    """One kind of run. Faults are those of any cluster, and of streams, where they happen to drivers."""

    quorums: tuple[Quorum, ...] = (Quorum(3, 3, 2), Quorum(2, 2, 2))
    fault_pause_s: float = 0.4
    sinks: int = 2
    doubles: int = 0
    """Further drivers of the first sink, which believe to be the only one: whoever killed them did not wait."""
    writers: int = 1
    sweepers: int = 1
    inline_chance: float = 0.3
    forgets_chance: float = 0.3
    """That a driver forgets a commit which it was told of: Spark died before it noted it."""
    dies_at_note_chance: float = 0.0
    """That a driver dies right after the entry of a small batch, before the sink's node tells of it."""
    segments_max: int | None = None
    """How many segments a transaction takes, and how many a batch is merged into that has more. None: any number."""
    sweeps_at_commits: bool = False
    """Whether ledgers are swept in the very moment at which somebody is about to publish them."""


CALM = Plan()
CRASHES = Plan({"crash_driver": 3, "crash": 1}, forgets_chance=0.5)
DOUBLES = Plan({"crash_driver": 1, "stall_driver": 1}, sinks=1, doubles=2, writers=0)
LOST_ANSWERS = Plan({"lose_driver_answers": 3, "delay_driver_requests": 2, "lose_driver_requests": 1})
INLINE = Plan(
    {"crash_driver": 2, "lose_driver_answers": 2, "stall_driver": 1, "expire_driver": 1},
    inline_chance=0.8,
    forgets_chance=0.5,
    dies_at_note_chance=0.1,
)
SWEPT = Plan(sinks=1, writers=0, sweepers=2, sweeps_at_commits=True, inline_chance=0.0)
MERGED = Plan(
    {"crash_driver": 2, "stall_driver": 1, "expire_driver": 1, "lose_driver_answers": 2, "crash": 1},
    segments_max=2,
    sweepers=2,
    inline_chance=0.1,
    forgets_chance=0.5,
)
EVERYTHING = Plan(
    {
        "crash_driver": 2,
        "stall_driver": 2,
        "expire_driver": 1,
        "lose_driver_answers": 2,
        "delay_driver_requests": 2,
        "lose_driver_requests": 1,
        "crash": 1,
        "reset": 1,
        "partition": 1,
        "heal": 2,
    },
    doubles=1,
    sweepers=2,
    inline_chance=0.4,
)
