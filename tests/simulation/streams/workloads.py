"""The workloads of streams."""

from tests.simulation.harness import planned, workloads
from tests.simulation.streams import plan, remade
from tests.simulation.streams.run import live

WORKLOADS = workloads(
    "streams",
    planned(
        live,
        everything=plan.EVERYTHING,
        failover=plan.FAILOVER,
        takeovers=plan.TAKEOVERS,
        rivals=plan.RIVALS,
        rolling=plan.ROLLING,
        lost_answers=plan.LOST_ANSWERS,
        late_writes=plan.LATE_WRITES,
        expiry=plan.EXPIRY,
        truncation=plan.TRUNCATION,
        purging=plan.PURGING,
        damage=plan.DAMAGE,
        tailing=plan.TAILING,
        calm=plan.CALM,
    )
    | {"remade": remade.live},
    {"everything": 3, "lost_answers": 2, "calm": 0.5, "purging": 0.5},
    seeds=300,
    seeds_long=10_000,
    time_limit_s=900.0,
    step_limit=300_000,
)
