"""A service of a local cluster, as its keeper starts it: options in, events out, and an end with its parent's.

    python -m quire.app.bookie_process '{"parent": 123, "listen": "127.0.0.1:0", …}'

Everything that it says is an event, as a line of JSON on standard error. It does what the command for people does,
without what only people need, so that it starts sooner.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from quire.app.processes import stop_with_parent
from quire.errors import QuireError
from quire.telemetry.events import configure, logger


def run_child(kind: str, work: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> int:
    """Run a service with the options of the command line. Returns the exit code."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    if not stop_with_parent(options.pop("parent")):
        return 1
    configure(json=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(options))
    except QuireError as error:
        logger(kind).error(f"{kind}.refused", error=str(error), kind=type(error).__name__, hint=error.hint)
        return 1
    return 0
