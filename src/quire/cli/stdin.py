"""Lines of standard input as they come, without holding up the event loop, and with an end when Ctrl-C is pressed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


async def input_lines() -> AsyncGenerator[list[bytes]]:
    """One or more lines at a time, without their newlines. The last one counts without a newline, too.

    Ctrl-C ends the input, as its end does: what was read before is not lost.
    """
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    rest = b""
    try:
        while not interrupted.is_set() and (chunk := await _next_chunk(interrupted)):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield lines
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if rest:
        yield [rest]


async def _next_chunk(interrupted: asyncio.Event) -> bytes:
    """What can be read now; nothing at the end. A file can always be read, and the loop cannot watch one."""
    loop, file, readable = asyncio.get_running_loop(), sys.stdin.fileno(), asyncio.Event()
    try:
        loop.add_reader(file, readable.set)
    except PermissionError:
        return os.read(file, _CHUNK_BYTES)
    waiting = [asyncio.create_task(event.wait()) for event in (readable, interrupted)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(file)
        for task in waiting:
            task.cancel()
    return os.read(file, _CHUNK_BYTES) if readable.is_set() else b""
