"""Bugs that Quire has had, or could have, planted: the simulations have to find each of them, within few seeds.

Each is patched in for one run, never into what is shipped. With -rP the tests tell how many seeds it took.
"""

from collections import Counter

import pytest

from tests.simulation.catalog import FLAWS
from tests.simulation.harness import Flaw, find
from tests.support.tiers import one_in


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", one_in(10, FLAWS), ids=lambda flaw: f"{flaw.workload.area}/{flaw.name}")
def test_a_planted_bug_is_found(flaw: Flaw) -> None:
    seeds, error = find(flaw)
    print(f"{flaw.name}: found after {seeds} seeds: {error!r:.150}")


def test_there_are_many() -> None:
    planted = Counter(area for area, _ in {(flaw.workload.area, flaw.name) for flaw in FLAWS})
    assert planted >= Counter(ledgers=12, streams=12, serving=8)
