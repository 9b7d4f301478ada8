"""An event loop of asyncio on which no timer waits: time passes when nothing else is left to do."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def virtual_time() -> Iterator[None]:
    """For the running loop, and for code that does all its work on it: a thread's work would take no time at all."""
    loop: Any = asyncio.get_running_loop()
    real_time, real_select = loop.time, loop._selector.select
    skipped_s = 0.0

    def time() -> float:
        return float(real_time() + skipped_s)

    def select(timeout_s: float | None) -> object:
        nonlocal skipped_s
        if timeout_s is None:
            return real_select(None)
        ready = real_select(0)
        if not ready:
            skipped_s += timeout_s
        return ready

    with patch.object(loop, "time", time), patch.object(loop._selector, "select", select):
        yield
