"""Bugs that simulations have to find. Nothing of this is ever part of what is shipped."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from quire.testing import Simulation

Patch = AbstractContextManager[object]


class Flaw(NamedTuple):
    """A bug, where it should be met, and within how many seeds."""

    plant: Callable[[], Patch]
    workload: Callable[[Simulation], Coroutine[Any, Any, Any]]
    seeds_max: int

    @property
    def name(self) -> str:
        return self.plant.__name__
