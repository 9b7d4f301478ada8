"""The workloads of sinks."""

from tests.simulation.harness import planned, workloads
from tests.simulation.staging import plan
from tests.simulation.staging.run import live

WORKLOADS = workloads(
    "staging",
    planned(
        live,
        calm=plan.CALM,
        crashes=plan.CRASHES,
        doubles=plan.DOUBLES,
        lost_answers=plan.LOST_ANSWERS,
        inline=plan.INLINE,
        swept=plan.SWEPT,
        merged=plan.MERGED,
        everything=plan.EVERYTHING,
    ),
    {},
    seeds=70,
    seeds_long=1_995,
    time_limit_s=900.0,
    step_limit=300_000,
)
