"""How every simulated workload is run: its seeds, a replay, and the bugs that it has to find.

A workload is a coroutine that lives through everything and then proves that all promises were kept. A planted bug is a
patch around one run, never part of what is shipped: a workload that does not find it proves little.

`QUIRE_SEEDS` says how many seeds each area runs, `QUIRE_TEST_LONG` that there are many.
"""

import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from quire.errors import InvariantBroken
from quire.testing import SimDeadlock, SimStuck, Simulation
from quire.testing.sim_loop import STEP_LIMIT
from tests.support.simulation.world import Setting

# A broken promise, or somebody who waits for ever. Any other error would be one of the patch itself.
_FOUND: Final = (AssertionError, InvariantBroken, SimDeadlock, SimStuck)


class Lived(Protocol):
    """What is left of a run."""

    @property
    def plan(self) -> Setting: ...
    def tally(self) -> Counter[str]:
        """How often what happened."""


Live = Callable[[Simulation], Coroutine[Any, Any, Lived]]
Patch = AbstractContextManager[object]


@dataclass(frozen=True, slots=True)
class Workload:
    """What to live through, with which seeds, and for how long at most."""

    area: str
    name: str
    live: Live
    seeds: range
    time_limit_s: float
    step_limit: int

    def __str__(self) -> str:
        return f"{self.area}/{self.name}"

    def simulation(self, seed: int) -> Simulation:
        return Simulation(seed, time_limit_s=self.time_limit_s, step_limit=self.step_limit)


class Flaw(NamedTuple):
    """A bug, where it should be met, and within how many seeds."""

    plant: Callable[[], Patch]
    workload: Workload
    seeds_max: int

    @property
    def name(self) -> str:
        return self.plant.__name__


def planned(live: Any, **plans: Setting) -> dict[str, Live]:
    """The same life with one plan after the other."""
    return {name: partial(live, plan=plan) for name, plan in plans.items()}


def workloads(
    area: str,
    lives: Mapping[str, Live],
    shares: Mapping[str, float],
    *,
    seeds: int,
    seeds_long: int,
    time_limit_s: float,
    step_limit: int = STEP_LIMIT,
) -> dict[str, Workload]:
    """The workloads of an area, by AREA/NAME. Each runs its share of the seeds, rounded up: 1 unless it is given."""
    total = int(os.environ.get("QUIRE_SEEDS") or (seeds_long if os.environ.get("QUIRE_TEST_LONG") else seeds))
    share_of = dict.fromkeys(lives, 1.0) | dict(shares)
    whole = sum(share_of.values())
    made = [
        Workload(area, name, live, range(-int(-total * share_of[name] // whole)), time_limit_s, step_limit)
        for name, live in lives.items()
    ]
    return {str(workload): workload for workload in made}


def run(workload: Workload, seed: int, flaw: Flaw | None = None) -> Lived:
    """Run one seed. Raises what proves that a promise was broken; every failure says how to repeat it."""
    try:
        with flaw.plant() if flaw else nullcontext():
            return workload.simulation(seed).run(workload.live)
    except Exception as error:
        error.add_note(f"again: {_command(workload, seed, flaw)}")
        raise


def run_all(workload: Workload, seeds: Iterable[int]) -> None:
    """Run all of these seeds, also behind one that fails. Raises the first failure, which lists the others."""
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(workload, seed)
        except Exception as error:
            failures[seed] = error
    for first in failures.values():
        first.add_note(f"seeds of {workload} that fail: {list(failures)}")
        raise first


def trace_digest(workload: Workload, seed: int) -> str:
    """Of everything that happened in a run."""
    simulation = workload.simulation(seed)
    simulation.run(workload.live)
    return simulation.trace_digest()


def find(flaw: Flaw) -> tuple[int, Exception]:
    """How many seeds it takes until a planted bug is found, and by what."""
    for seed in range(flaw.seeds_max):
        try:
            run(flaw.workload, seed, flaw)
        except _FOUND as error:
            return seed + 1, error
    again = _command(flaw.workload, f"0 {flaw.seeds_max}", flaw)
    raise LookupError(f"{flaw.seeds_max} seeds do not find it: {flaw.plant.__doc__} Again: {again}")


def _command(workload: Workload, seeds: object, flaw: Flaw | None) -> str:
    return f"python -m tests.simulation {workload} {seeds}" + (f" --flaw {flaw.name}" if flaw else "")
