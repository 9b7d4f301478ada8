"""Planted bugs are found: each within few seeds of the workload that should find it."""

import pytest

from tests.simulation.cold.flaws import FLAWS, SEEDS_MAX
from tests.simulation.streams.run import run
from tests.simulation.test_cold import workload

# A broken promise. Any other error would be one of the patch itself.
FOUND = AssertionError


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FLAWS)
def test_a_planted_bug_is_found(name: str) -> None:
    plant, plan = FLAWS[name]
    with plant():
        for seed in range(SEEDS_MAX):
            try:
                run(seed, workload(plan))
            except FOUND:
                return
    raise AssertionError(f"{name}: not found within {SEEDS_MAX} seeds")
