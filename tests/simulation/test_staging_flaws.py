"""Bugs that sinks could have, planted: the simulations have to find each of them, within few seeds."""

import pytest

from quire.errors import InvariantBroken
from quire.testing import SimDeadlock, SimStuck
from tests.simulation.staging.flaws import FLAWS, Flaw
from tests.simulation.staging.run import run

FOUND = (AssertionError, InvariantBroken, SimDeadlock, SimStuck)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_planted_bug_is_found(flaw: Flaw) -> None:
    for seed in range(flaw.seeds_max):
        try:
            with flaw.plant():
                run(seed, flaw.plan)
        except FOUND as error:
            print(f"{flaw.name}: found after {seed + 1} seeds: {error!r:.150}")
            return
    pytest.fail(f"{flaw.seeds_max} seeds do not find it: {flaw.plant.__doc__}")
