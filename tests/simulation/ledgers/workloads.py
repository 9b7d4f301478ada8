"""The workloads of ledgers."""

from tests.simulation.harness import planned, workloads
from tests.simulation.ledgers import plan, races
from tests.simulation.ledgers.run import live

WORKLOADS = workloads(
    "ledgers",
    {
        **planned(
            live,
            everything=plan.EVERYTHING,
            fencing=plan.FENCING,
            changes=plan.CHANGES,
            late_writes=plan.LATE_WRITES,
            power=plan.POWER,
            damage=plan.DAMAGE,
            handovers=plan.HANDOVERS,
            tailing=plan.TAILING,
        ),
        "late_adds": races.late_adds,
        "late_adds_and_a_crash": races.late_adds_and_a_crash,
        "missed_fence": races.missed_fence,
        "new_fragment": races.new_fragment,
        "late_change": races.late_change,
        "amnesia": races.amnesia,
        "compaction": races.compaction,
        "bad_disk": races.bad_disk,
    },
    {
        "everything": 5,
        "changes": 2,
        "handovers": 2,
        "tailing": 2,
        "missed_fence": 0.5,
        "late_change": 0.5,
        "compaction": 0.5,
    },
    seeds=550,
    seeds_long=10_000,
    time_limit_s=600.0,
)
