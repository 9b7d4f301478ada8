"""All workloads by name, and how many of the seeds each of them gets."""

from tests.simulation.replication import operations, races
from tests.simulation.replication.run import RepairPlan, Workload, mixed

EVERYTHING = RepairPlan(
    {
        "crash": 3,
        "blackout": 0.4,
        "reset": 1,
        "partition": 1,
        "heal": 2,
        "stall": 1,
        "expire": 1,
        "lose_answers": 1,
        "fill": 0.7,
        "make_room": 1,
        "failing_sync": 0.3,
        "crash_repairs": 1,
    }
)

WORKLOADS: dict[str, Workload] = {
    "everything": mixed(EVERYTHING),
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
    "operations": operations.operated(operations.OPERATIONS),
    "growing": operations.operated(operations.GROWING),
    "leaving": operations.operated(operations.LEAVING),
    "nowhere": operations.nowhere,
    "lost_lock": operations.lost_lock,
}
_SHARES = {"everything": 5.0, "one_after_the_other": 2.0, "idle_writer": 2.0, "new_fragment": 2.0}
_SHARES |= {"operations": 3.0, "growing": 1.0, "leaving": 1.0, "nowhere": 0.5, "lost_lock": 0.5}


def seeds_of(total: int) -> dict[str, range]:
    """How many seeds each workload runs, so that there are at least `total` in all."""
    shares = {name: _SHARES.get(name, 1.0) for name in WORKLOADS}
    whole = sum(shares.values())
    return {name: range(-int(-total * share // whole)) for name, share in shares.items()}
