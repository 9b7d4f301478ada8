"""Randomness that a seed repeats, split into streams by name.

Each part of a simulation draws from a stream of its own. So a change in one part (one more delay drawn by the network)
does not shift the luck of the others, and a failing seed stays close to what it was while its bug is being fixed.
"""

import builtins
import random
import uuid
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SimRng:
    """An `Rng` that is a pure function of its seed, in every process."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed)
        # Seeded by text: Python derives the state through SHA-512, not through `hash`, which differs per process.
        self._random = random.Random(self._seed)

    def child(self, name: str) -> "SimRng":
        """An independent stream, the same for the same name however much was drawn from this one."""
        return SimRng(f"{self._seed}/{name}")

    def random(self) -> float:
        return self._random.random()

    def randrange(self, start: int, stop: int | None = None) -> int:
        return self._random.randrange(start) if stop is None else self._random.randrange(start, stop)

    def uniform(self, bounds: tuple[float, float]) -> float:
        """A number between two bounds."""
        low, high = bounds
        return low + (high - low) * self._random.random()

    def choice(self, items: Sequence[T]) -> T:
        return self._random.choice(items)

    def shuffle(self, items: list[T]) -> None:
        self._random.shuffle(items)

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        return self._random.sample(items, count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)

    def bytes(self, count: int) -> builtins.bytes:
        return self._random.randbytes(count)
