"""Streams that are archived, dropped and restored while everything fails: readers do not notice.

The workloads, faults and proofs are those of `tests/simulation/streams`, with archivers beside the other clients and a
cold storage that fails as well. `QUIRE_SEEDS` says how many runs there are in all.
"""

import functools
import os
from collections import Counter
from dataclasses import replace

import pytest

from quire.testing import Simulation
from tests.simulation.cold.world import ColdWorld
from tests.simulation.streams import plan
from tests.simulation.streams.run import STEP_LIMIT, TIME_LIMIT_S, Workload, live, run

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (2000 if os.environ.get("QUIRE_TEST_LONG") else 32))
CHUNK = 4
PLANS = {
    "rolling": replace(plan.ROLLING, lasts_s=1.2),
    "tailing": replace(plan.TAILING, roll_bytes=(100, 200), roll_chance=1.0),
    "truncation": replace(plan.TRUNCATION, truncators=1, lasts_s=1.2),
    "lost_answers": replace(
        plan.LOST_ANSWERS, faults=plan.LOST_ANSWERS.faults | {"lose_answers": 3, "crash_client": 1}
    ),
}


def workload(name: str) -> Workload:
    return functools.partial(live, plan=PLANS[name], stage=ColdWorld)


def chunks() -> list[tuple[str, range]]:
    share = -(-SEEDS // len(PLANS))
    return [(name, range(first, min(first + CHUNK, share))) for name in PLANS for first in range(0, share, CHUNK)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "seeds"), chunks(), ids=lambda each: each if isinstance(each, str) else str(each[0]))
def test_readers_do_not_notice_where_segments_are(name: str, seeds: range) -> None:
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(seed, workload(name))
        except Exception as error:
            error.add_note(f"again: seed {seed} of {name}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("lost_answers", 5),  # A ledger that was being filled was taken for a leftover, and the restore failed.
        ("truncation", 26),  # One dropped a segment while another one restored that before it: what is hot had a gap.
    ],
)
def test_a_seed_that_found_a_bug(name: str, seed: int) -> None:
    run(seed, workload(name))


@pytest.mark.timeout(300)
def test_the_workloads_are_worth_something() -> None:
    """What should happen does: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for name in PLANS:
        for seed in range(3):
            world = run(seed, workload(name))
            events += world.events
            events.update(world.changes.met)
    wanted = {"archived": 20, "moved to cold": 50, "moved to hot": 10, "cold at the end": 40, "shown": 600}
    assert {kind: events[kind] for kind, count in wanted.items() if events[kind] < count} == {}, dict(events)


def test_a_seed_says_everything() -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(3, time_limit_s=TIME_LIMIT_S, step_limit=STEP_LIMIT)
        simulation.run(workload("rolling"))
        digests.add(simulation.trace_digest())
    assert len(digests) == 1
