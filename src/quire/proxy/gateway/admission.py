"""How much is under way at once, and no for the rest: a gateway that is asked for too much stays quick for the others.

Refusing is cheap and tells the client when to come back; queueing would only hide that there is too much.

Invariant: SlowIsNotUnderWay, a request takes part in the bound of requests once its body has arrived, and a body that
comes slowly gives way to others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.errors import OverCapacity
from quire.proxy.gateway.problems import RETRY_AFTER_MS
from quire.runtime.http_server import Pace


class Admission:
    """So much of one thing at most: requests, or bytes."""

    def __init__(self, what: str, *, most: int) -> None:
        self._what, self._most = what, most
        self.used = 0
        self.refused = 0

    def take(self, amount: int = 1) -> None:
        """Raises `OverCapacity`, and takes nothing then."""
        if not self.has_room(amount):
            raise self._over()
        self.used += amount

    def has_room(self, amount: int) -> bool:
        return self.used + amount <= self._most

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

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside `one`: others may have it during the block. Raises `OverCapacity` at the end if none is free then."""
        self.give_back()
        try:
            yield
        finally:
            has_room = self.has_room(1)
            self.used += 1  # In any case: `one` gives it back.
        if not has_room:
            raise self._over()

    def _over(self) -> OverCapacity:
        self.refused += 1
        return OverCapacity(
            f"the gateway has {self.used} {self._what} under way, and {self._most} is the most",
            retry_after_ms=RETRY_AFTER_MS,
        )


class Arrival:
    """A body that is being received. What is there of it counts until it is given back."""

    def __init__(self, now_s: float, end: Callable[[], None]) -> None:
        """`end` has its client refused."""
        self.pace, self.end = Pace(now_s), end
        self.size = 0


class Bodies(Admission):
    """The bytes of all bodies. When there is no room those go whose clients are slow: they may keep no one else out."""

    def __init__(self, *, most: int) -> None:
        super().__init__("bytes of bodies", most=most)
        self._arriving: set[Arrival] = set()

    def begin(self, arrival: Arrival) -> None:
        self._arriving.add(arrival)

    def add(self, arrival: Arrival, amount: int, now_s: float) -> None:
        """More of it has come. Raises `OverCapacity`."""
        if not self.has_room(amount):
            self._make_room(amount, now_s)
        self.take(amount)
        arrival.size += amount
        arrival.pace.on_bytes(amount, now_s)

    def arrived(self, arrival: Arrival) -> None:
        """There is no more to come."""
        self._arriving.discard(arrival)

    def forget(self, arrival: Arrival) -> None:
        self._arriving.discard(arrival)
        self.give_back(arrival.size)
        arrival.size = 0

    def _make_room(self, amount: int, now_s: float) -> None:
        slow = [each for each in self._arriving if each.pace.is_slow(now_s)]
        for each in sorted(slow, key=lambda arrival: arrival.pace.due_s):
            if self.has_room(amount):
                return
            self.forget(each)
            each.end()
