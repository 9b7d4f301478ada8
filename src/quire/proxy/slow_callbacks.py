"""Where the event loop was when it was late: whoever looks for the cause of a pause gets the lines of code.

The loop cannot say it itself: while it is kept nothing of ours runs on it. So a thread looks from outside. The loop
notes a moment again and again; when that is too long ago, the thread writes down what the loop's thread is doing. That
costs nothing but a look ten times a second, unlike the loop's own debug mode, and works with every loop.
"""

import sys
import threading
import time
from collections import deque
from typing import Any, Final, Self

from quire.values import dataclass

KEPT_MAX: Final = 20
_LOOK_S: Final = 0.05
_FRAMES_MAX: Final = 12


@dataclass(slots=True)
class SlowCallback:
    """One pause of the loop."""

    at_s: float  # Wall time, in seconds since 1970.
    late_s: float  # How long nothing had happened when it was last looked at.
    stack: tuple[str, ...]  # Where it was when it was first noticed, the innermost call first.

    def shown(self) -> dict[str, Any]:
        return {"at_s": self.at_s, "late_s": round(self.late_s, 3), "stack": list(self.stack)}


class SlowCallbacks:
    """Watches the loop of the thread that enters the block. `beat` is to be called on the loop, often."""

    def __init__(self, *, slow_s: float) -> None:
        """A pause is noted when the loop has not beaten for so long."""
        self._slow_s = slow_s
        self._beat_s = time.monotonic()
        self._thread_id = 0
        self._over = threading.Event()
        self._watching: threading.Thread | None = None
        self.found: deque[SlowCallback] = deque(maxlen=KEPT_MAX)

    def beat(self) -> None:
        self._beat_s = time.monotonic()

    def __enter__(self) -> Self:
        self._thread_id = threading.get_ident()
        self.beat()
        self._watching = threading.Thread(target=self._watch, name="watch the loop", daemon=True)
        self._watching.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._watching is not None
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        noted_s: float | None = None  # The beat before the pause that was noted last.
        while not self._over.wait(_LOOK_S):
            beat_s = self._beat_s
            late_s = time.monotonic() - beat_s
            if late_s < self._slow_s:
                continue
            if beat_s == noted_s:
                self.found[-1].late_s = late_s
            else:
                noted_s = beat_s
                self.found.append(SlowCallback(time.time(), late_s, self._stack()))

    def _stack(self) -> tuple[str, ...]:
        frame = sys._current_frames().get(self._thread_id)
        lines: list[str] = []
        while frame is not None and len(lines) < _FRAMES_MAX:
            code = frame.f_code
            lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
            frame = frame.f_back
        return tuple(lines)
