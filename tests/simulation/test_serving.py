"""Proxies while they crash, drain, are cut off, lose sessions, bookies and rights: they keep their promises.

Real clients, proxies and bookies run in one thread; see `tests/simulation/serving` for what happens to them, and its
`history.py` for what is proven afterwards. Workloads are rows of the failure table that are about time or order: see
`workloads.py` there. `QUIRE_SEEDS` says how many runs there are in all.
"""

import functools
import os
from collections import Counter

import pytest

from quire.testing import Simulation
from tests.simulation.serving.run import STEP_LIMIT, TIME_LIMIT_S, live, run
from tests.simulation.serving.workloads import WORKLOADS, seeds_of

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (5000 if os.environ.get("QUIRE_TEST_LONG") else 240))
CHUNK = 5 if SEEDS < 1000 else 50  # Seeds for each test: few enough to share the work, enough to be worth a test.


def chunks() -> list[tuple[str, range]]:
    return [(name, seeds[first : first + CHUNK]) for name, seeds in seeds_of(SEEDS).items() for first in seeds[::CHUNK]]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seeds"), chunks(), ids=lambda each: each if isinstance(each, str) else str(each[0]))
def test_proxies_keep_their_promises(name: str, seeds: range) -> None:
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(seed, WORKLOADS[name])
        except Exception as error:
            error.add_note(f"again: python -m tests.simulation.serving {name} {seed}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("everything", 159),  # A proxy that was shut out of an idle stream, and asked to seal it, kept it for ever.
        ("balance", 118),  # A proxy that was killed while it gave a stream up; and two lives of a proxy were listed.
    ],
)
def test_a_seed_that_found_a_bug(name: str, seed: int) -> None:
    run(seed, WORKLOADS[name])


@pytest.mark.timeout(300)
def test_the_workloads_are_worth_something() -> None:
    """What should happen does: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for plan in WORKLOADS.values():
        for seed in range(2000, 2012):
            if seed >= 2003 and all(events[fault] for fault in plan.faults):
                break  # Chance decides which faults there are: a few more seeds, if one has not been drawn.
            events += run(seed, plan)
    planned = {fault for plan in WORKLOADS.values() for fault in plan.faults}
    assert {fault for fault in planned if not events[fault]} == set()
    often = {"acknowledged": 800, "shown": 2000, "reader reopened": 200, "segments": 100, "full": 50}
    some = {
        "append: AppendOutcomeUnknown": 10,
        "append: StreamUnavailable": 5,
        "confirmed": 20,
        "hidden": 2,
        "ordered": 10,
        "during a move": 3,
        "full": 20,
    }
    missing = {kind: events[kind] for kind, count in (often | some).items() if events[kind] < count}
    assert missing == {}, dict(events)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_seed_says_everything(seed: int) -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(seed, time_limit_s=TIME_LIMIT_S, step_limit=STEP_LIMIT)
        simulation.run(functools.partial(live, plan=WORKLOADS["everything"]))
        digests.add(simulation.trace_digest())
    assert len(digests) == 1
