"""Work, counted: lines of some modules that ran. The same work is the same number on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


class Steps:
    """How many so far."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def counted_steps(*modules: ModuleType) -> Iterator[Steps]:
    """Lines that these modules run within the block, in functions that begin there."""
    steps, files = Steps(), {module.__file__ for module in modules}

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            steps.count += 1
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield steps
    finally:
        sys.settrace(before)
