"""Things to do a little later, each under a name: while one is under way, asking for it again changes nothing."""

import asyncio
from collections.abc import Callable


class Timers:
    """Timers of one writer, on the running loop."""

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Have `act` called, unless that is under way already."""

        def ring() -> None:
            del self._handles[name]
            act()

        if name not in self._handles:
            self._handles[name] = asyncio.get_running_loop().call_later(seconds, ring)

    def cancel_all(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
