"""Autorecovery while bookies die for good, come back, fill up and go bad, and operators at work in the middle of it: in
the end every ledger has all its copies.

Real bookies, clients, auditors, workers and operators' commands run in one thread; see `tests/simulation/replication`
for what happens to them and how it is proven. `QUIRE_REPAIR_SEEDS` says how many runs there are in all.
"""

import os
from collections import Counter

import pytest

from quire.errors import InvariantBroken
from quire.testing import SimDeadlock, SimStuck, Simulation
from tests.simulation.planted import Flaw
from tests.simulation.replication.flaws import FLAWS
from tests.simulation.replication.operator_flaws import OPERATOR_FLAWS
from tests.simulation.replication.run import TIME_LIMIT_S, run
from tests.simulation.replication.workloads import WORKLOADS, seeds_of

SEEDS = int(os.environ.get("QUIRE_REPAIR_SEEDS") or (5_000 if os.environ.get("QUIRE_TEST_LONG") else 275))
CHUNK = 10 if SEEDS < 1000 else 50
FOUND = (AssertionError, InvariantBroken, SimDeadlock, SimStuck)


def chunks() -> list[tuple[str, range]]:
    return [(name, seeds[first : first + CHUNK]) for name, seeds in seeds_of(SEEDS).items() for first in seeds[::CHUNK]]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seeds"), chunks(), ids=lambda each: each if isinstance(each, str) else str(each[0]))
def test_everything_has_all_its_copies_in_the_end(name: str, seeds: range) -> None:
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(seed, WORKLOADS[name])
        except Exception as error:
            error.add_note(f"again: python -m tests.simulation.replication {name} {seed}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", [*FLAWS, *OPERATOR_FLAWS], ids=lambda flaw: flaw.name)
def test_a_planted_bug_is_found(flaw: Flaw) -> None:
    for seed in range(flaw.seeds_max):
        try:
            with flaw.plant():
                run(seed, flaw.workload)
        except FOUND as error:
            print(f"{flaw.name}: found after {seed + 1} seeds: {error!r:.150}")
            return
    pytest.fail(f"{flaw.seeds_max} seeds do not find it: {flaw.plant.__doc__}")


@pytest.mark.parametrize("name", ["everything", "one_after_the_other", "operations"])
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
    for seed in range(10):
        events += run(seed, WORKLOADS["everything"]).events
    expected = {"acknowledged": 500, "tailed": 100, "closed": 10, "metadata repaired": 20, "wiped": 5, "damaged": 2}
    expected |= {"crash_repairs": 3, "deleted": 3, "bookie crashed": 15, "expire": 1, "lose_answers": 1, "fill": 1}
    missing = {kind: events[kind] for kind, count in expected.items() if events[kind] < count}
    assert missing == {}, dict(events)


@pytest.mark.timeout(300)
def test_operators_have_something_to_do() -> None:
    events: Counter[str] = Counter()
    expected = {"acknowledged": 500, "read at random": 50, "moves made": 20, "plans carried out": 10, "left": 4}
    expected |= {"moved ledgers dropped": 20, "copies counted": 500, "crash_operator": 5, "drained": 3, "wiped": 2}
    expected |= {"changed by autorecovery": 4, "changed by rebalancer": 20, "decommissions": 4}
    for seed in range(40):  # One in ten exchanges a disk, so that it may take some until there are two.
        events += run(seed, WORKLOADS["operations"]).events
        missing = {kind: events[kind] for kind, count in expected.items() if events[kind] < count}
        if not missing:
            break
    assert missing == {}, dict(events)
