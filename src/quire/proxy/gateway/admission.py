"""How much is under way at once, and no for the rest: a gateway that is asked for too much stays quick for the others.

Refusing is cheap and tells the client when to come back; queueing would only hide that there is too much.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import OverCapacity
from quire.proxy.gateway.problems import RETRY_AFTER_MS


class Admission:
    """So much of one thing at most: requests, or bytes."""

    def __init__(self, what: str, *, most: int) -> None:
        self._what, self._most = what, most
        self.used = 0
        self.refused = 0

    def take(self, amount: int = 1) -> None:
        """Raises `OverCapacity`, and takes nothing then."""
        if self.used + amount > self._most:
            self.refused += 1
            raise OverCapacity(
                f"the gateway has {self.used} {self._what} under way, and {self._most} is the most",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.used += amount

    def give_back(self, amount: int = 1) -> None:
        self.used -= amount

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more, for the block."""
        self.take()
        try:
            yield
        finally:
            self.give_back()
