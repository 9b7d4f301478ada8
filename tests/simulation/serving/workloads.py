"""All workloads by name, and how many of the seeds each of them gets."""

from tests.simulation.serving import plan
from tests.simulation.serving.plan import Plan

WORKLOADS: dict[str, Plan] = {
    "crash": plan.CRASH,  # Row 1 of the failure table.
    "expiry": plan.EXPIRY,  # 2
    "rivals": plan.RIVALS,  # 3
    "deadlines": plan.DEADLINES,  # 4
    "slow": plan.SLOW,  # 5
    "storage": plan.STORAGE,  # 6 and 11
    "metadata_down": plan.METADATA_DOWN,  # 7
    "drain": plan.DRAIN,  # 8
    "cold_start": plan.COLD_START,  # 9
    "cut_off": plan.CUT_OFF,  # 10
    "limits": plan.LIMITS,  # 12
    "over_capacity": plan.OVER_CAPACITY,  # 13
    "balance": plan.BALANCE,  # 13, when streams are moved because of load.
    "move": plan.MOVE,  # 16 and 17
    "readers": plan.READERS,  # 19
    "truncation": plan.TRUNCATION,  # 20, and rolls under load.
    "lossy": plan.LOSSY,
    "everything": plan.EVERYTHING,
}
_SHARES = {"everything": 3.0, "slow": 0.5, "limits": 0.5, "over_capacity": 0.5, "metadata_down": 0.5}


def seeds_of(total: int) -> dict[str, range]:
    """How many seeds each workload runs, so that there are at least `total` in all."""
    shares = {name: _SHARES.get(name, 1.0) for name in WORKLOADS}
    whole = sum(shares.values())
    return {name: range(-int(-total * share // whole)) for name, share in shares.items()}
