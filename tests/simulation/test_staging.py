"""Sinks while drivers, bookies and the metadata fail: every batch is in the stream once and as a whole, or not at all.

See `tests/simulation/staging` for what happens, and what is proven. `QUIRE_SEEDS` says how many runs there are in all.
"""

import os
from collections import Counter

import pytest

from tests.simulation.staging.run import WORKLOADS, run

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (2_000 if os.environ.get("QUIRE_TEST_LONG") else 72)) // len(WORKLOADS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_batch_is_in_the_stream_once_or_not_at_all(name: str) -> None:
    failures: dict[int, Exception] = {}
    for seed in range(SEEDS):
        try:
            run(seed, WORKLOADS[name])
        except Exception as error:
            error.add_note(f"workload {name}, seed {seed}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(300)
def test_the_workloads_are_worth_something() -> None:
    """What should happen does: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for name in ("everything", "inline", "doubles", "lost_answers", "swept"):
        for seed in range(3):
            world = run(seed, WORKLOADS[name])
            events += world.events
            events.update(world.changes.met)
            events["inline"] += sum(attempt not in world.attempts for attempt in world.sizes)
            events["published"] += len(world.published & world.staged)
    often = {"new": 50, "recognised": 20, "published": 25, "swept": 40, "inline": 40, "client crashed": 15}
    wanted = often | {"answer lost": 10, "late and done": 3, "driver: StagedGone": 10}
    assert {kind: events[kind] for kind, count in wanted.items() if events[kind] < count} == {}, dict(events)
