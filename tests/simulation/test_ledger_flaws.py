"""Bugs that ledgers have had, planted again: the simulations have to find each of them, within few seeds.

Each flaw is patched in for one simulation, never into what is shipped. The test says how many seeds it took.
"""

import pytest

from quire.errors import InvariantBroken
from quire.testing import SimDeadlock, SimStuck
from tests.simulation.ledgers.flaws import FLAWS
from tests.simulation.ledgers.run import run
from tests.simulation.planted import Flaw

# A broken promise, or somebody who waits for ever. Any other error would be one of the patch itself.
FOUND = (AssertionError, InvariantBroken, SimDeadlock, SimStuck)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_planted_bug_is_found(flaw: Flaw) -> None:
    for seed in range(flaw.seeds_max):
        try:
            with flaw.plant():
                run(seed, flaw.workload)
        except FOUND as error:
            print(f"{flaw.name}: found after {seed + 1} seeds: {error!r:.150}")
            return
    pytest.fail(f"{flaw.seeds_max} seeds do not find it: {flaw.plant.__doc__}")


def test_there_are_many() -> None:
    assert len({flaw.name for flaw in FLAWS}) >= 12
