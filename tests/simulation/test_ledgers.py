"""Replicated ledgers while bookies, clients, disks, the network and the metadata fail: they keep their promises.

The real client and real bookies run in one thread; see `tests/simulation/ledgers` for what happens to them and
`tests/support/ledgers/history.py` for what is proven afterwards. `QUIRE_SEEDS` says how many runs there are in all.
"""

import os
from collections import Counter

import pytest

from quire.testing import Simulation
from tests.simulation.ledgers.run import TIME_LIMIT_S, run
from tests.simulation.ledgers.workloads import WORKLOADS, seeds_of

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (10_000 if os.environ.get("QUIRE_TEST_LONG") else 550))
CHUNK = 10 if SEEDS < 2000 else 50  # Seeds for each test: few enough to share the work, enough to be worth a test.


def chunks() -> list[tuple[str, range]]:
    return [(name, seeds[first : first + CHUNK]) for name, seeds in seeds_of(SEEDS).items() for first in seeds[::CHUNK]]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seeds"), chunks(), ids=lambda each: each if isinstance(each, str) else str(each[0]))
def test_ledgers_keep_their_promises(name: str, seeds: range) -> None:
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(seed, WORKLOADS[name])
        except Exception as error:
            error.add_note(f"again: python -m tests.simulation.ledgers {name} {seed}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("tailing", 13),  # A reader was shown entries that the writer then sealed the ledger before.
        ("everything", 57),  # A recovery took the same two unreachable bookies in turn, without end.
        ("power", 1185),
        ("tailing", 1056),
        ("late_change", 1020),  # So did a writer, a thousand times within a moment, and gave up.
        ("late_change", 1175),
    ],
)
def test_a_seed_that_found_a_bug(name: str, seed: int) -> None:
    run(seed, WORKLOADS[name])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_says_everything(name: str) -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(3, time_limit_s=TIME_LIMIT_S)
        simulation.run(WORKLOADS[name])
        digests.add(simulation.trace_digest())
    assert len(digests) == 1


@pytest.mark.timeout(300)
def test_the_workload_is_worth_something() -> None:
    """What should happen does: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for seed in range(20):
        events += run(seed, WORKLOADS["everything"]).events
    few = {"wiped": 1, "damage": 1, "blackout": 1, "failing_sync": 1, "fill": 1, "expire": 1, "fragment moved": 3}
    often = {"acknowledged": 2000, "tailed": 500, "recovered": 20, "fenced": 10, "bookie crashed": 20, "stall": 5}
    missing = {kind: events[kind] for kind, count in (few | often).items() if events[kind] < count}
    assert missing == {}, dict(events)
    for kind in ("crash", "reset", "partition", "heal", "lose_answers", "slow_sync", "client crashed"):
        assert events[kind] >= 3, kind
