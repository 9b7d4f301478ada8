"""That something changed, told once to whoever waits for it at that moment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class News:
    """One change to come. After it there is another one."""

    def __init__(self) -> None:
        self.has_come = False
        self._wake: dict[object, Callable[[], None]] = {}

    def come(self) -> None:
        self.has_come = True
        for wake in tuple(self._wake.values()):
            wake()

    @contextmanager
    def telling(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called if it comes within the block."""
        key = object()
        self._wake[key] = wake
        try:
            yield
        finally:
            del self._wake[key]
