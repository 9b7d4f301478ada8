"""All workloads by name, and how many of the seeds each of them gets."""

from tests.simulation.ledgers import races
from tests.simulation.ledgers.plan import CHANGES, DAMAGE, EVERYTHING, FENCING, HANDOVERS, POWER, TAILING
from tests.simulation.ledgers.run import Workload, mixed

WORKLOADS: dict[str, Workload] = {
    "everything": mixed(EVERYTHING),
    "fencing": mixed(FENCING),
    "changes": mixed(CHANGES),
    "power": mixed(POWER),
    "damage": mixed(DAMAGE),
    "handovers": mixed(HANDOVERS),
    "tailing": mixed(TAILING),
    "late_adds": races.late_adds,
    "late_adds_and_a_crash": races.late_adds_and_a_crash,
    "missed_fence": races.missed_fence,
    "new_fragment": races.new_fragment,
    "late_change": races.late_change,
    "amnesia": races.amnesia,
    "bad_disk": races.bad_disk,
}
_SHARES = {"everything": 5.0, "changes": 2.0, "handovers": 2.0, "tailing": 2.0, "missed_fence": 0.5, "late_change": 0.5}


def seeds_of(total: int) -> dict[str, range]:
    """How many seeds each workload runs, so that there are at least `total` in all."""
    shares = {name: _SHARES.get(name, 1.0) for name in WORKLOADS}
    whole = sum(shares.values())
    return {name: range(-int(-total * share // whole)) for name, share in shares.items()}
