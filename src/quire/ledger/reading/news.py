"""That something changed, told once to whoever waits for it at that moment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class News:
    """One change to come. After it there is another one."""

    def __init__(self) -> None:
        self.has_come = False
        self._wake: dict[Callable[[], None], None] = {}  # In order, which a set would not keep.

    def come(self) -> None:
        self.has_come = True
        for wake in tuple(self._wake):
            wake()

    def tell(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when it comes, until `forget`."""
        self._wake[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        self._wake.pop(wake, None)

    @contextmanager
    def telling(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called if it comes within the block."""
        self.tell(wake)
        try:
            yield
        finally:
            self.forget(wake)
