"""Chance as an argument: placement, jitter and ids take an `Rng`, so that a simulation can repeat them from a seed."""

import builtins
import os
import random
import uuid
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """A source of randomness. None of it is fit for secrets unless the implementation says so."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def randrange(self, start: int, stop: int | None = None) -> int:
        """An integer in [start, stop), or in [0, start) when `stop` is left out. An empty range raises ValueError."""
        ...

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`; IndexError if there are none."""
        ...

    def shuffle(self, items: list[T]) -> None:
        """Put `items` in random order, in place."""
        ...

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` of `items` at different positions, in random order. ValueError if there are fewer."""
        ...

    def uuid(self) -> uuid.UUID:
        """A random (version 4) UUID."""
        ...

    def bytes(self, count: int) -> builtins.bytes:
        """`count` random bytes."""
        ...


class SystemRng:
    """The operating system's randomness: unpredictable, and still different after a fork."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, start: int, stop: int | None = None) -> int:
        return self._random.randrange(start) if stop is None else self._random.randrange(start, stop)

    def choice(self, items: Sequence[T]) -> T:
        return self._random.choice(items)

    def shuffle(self, items: list[T]) -> None:
        self._random.shuffle(items)

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        return self._random.sample(items, count)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def bytes(self, count: int) -> builtins.bytes:
        return os.urandom(count)
