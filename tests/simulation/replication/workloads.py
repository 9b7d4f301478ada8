"""The workloads of autorecovery, and of operators."""

from tests.simulation.harness import planned, workloads
from tests.simulation.replication import operations, races, run

WORKLOADS = workloads(
    "replication",
    {
        **planned(run.live, everything=run.EVERYTHING, late_writes=run.LATE_WRITES),
        "one_after_the_other": races.one_after_the_other,
        "idle_writer": races.idle_writer,
        "new_fragment": races.new_fragment,
        "fenced_targets": races.fenced_targets,
        "empty_fragment": races.empty_fragment,
        "came_back": races.came_back,
        "marked_again": races.marked_again,
        "zombie": races.zombie,
        "buried_before": races.buried_before,
        "damaged_open": races.damaged_open,
        "damaged_logs": races.damaged_logs,
        "limbo": races.limbo,
        **planned(
            operations.live,
            operations=operations.OPERATIONS,
            growing=operations.GROWING,
            leaving=operations.LEAVING,
        ),
        "nowhere": operations.nowhere,
        "lost_lock": operations.lost_lock,
    },
    {"everything": 5, "one_after_the_other": 2, "idle_writer": 2, "new_fragment": 2}
    | {"operations": 3, "nowhere": 0.5, "lost_lock": 0.5},
    seeds=275,
    seeds_long=5_000,
    time_limit_s=2000.0,
)
