"""The workloads of streams that are archived meanwhile: segments have to be completed for that, and soon."""

from dataclasses import replace
from functools import partial

from tests.simulation.cold.world import ColdWorld
from tests.simulation.harness import planned, workloads
from tests.simulation.streams import plan
from tests.simulation.streams.run import live

_LOST = plan.LOST_ANSWERS.faults | {"lose_answers": 3, "crash_client": 1}

WORKLOADS = workloads(
    "cold",
    planned(
        partial(live, world_type=ColdWorld),
        rolling=replace(plan.ROLLING, lasts_s=1.2),
        tailing=replace(plan.TAILING, roll_bytes=(100, 200), roll_chance=1.0),
        truncation=replace(plan.TRUNCATION, truncators=1, lasts_s=1.2),
        lost_answers=replace(plan.LOST_ANSWERS, faults=_LOST),
    ),
    {},
    seeds=32,
    seeds_long=2_000,
    time_limit_s=900.0,
    step_limit=1_000_000,
)
