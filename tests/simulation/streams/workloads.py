"""All workloads by name, and how many of the seeds each of them gets."""

from tests.simulation.streams import plan
from tests.simulation.streams.run import Workload, mixed

WORKLOADS: dict[str, Workload] = {
    "everything": mixed(plan.EVERYTHING),
    "failover": mixed(plan.FAILOVER),
    "rivals": mixed(plan.RIVALS),
    "rolling": mixed(plan.ROLLING),
    "lost_answers": mixed(plan.LOST_ANSWERS),
    "expiry": mixed(plan.EXPIRY),
    "truncation": mixed(plan.TRUNCATION),
    "purging": mixed(plan.PURGING),
    "damage": mixed(plan.DAMAGE),
    "tailing": mixed(plan.TAILING),
    "calm": mixed(plan.CALM),
}
_SHARES = {"everything": 3.0, "lost_answers": 2.0, "calm": 0.5, "purging": 0.5}


def seeds_of(total: int) -> dict[str, range]:
    """How many seeds each workload runs, so that there are at least `total` in all."""
    shares = {name: _SHARES.get(name, 1.0) for name in WORKLOADS}
    whole = sum(shares.values())
    return {name: range(-int(-total * share // whole)) for name, share in shares.items()}
