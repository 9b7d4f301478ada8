"""Lines of standard input, or of files, as they come: without holding up the event loop, and with an end when Ctrl-C is
pressed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

from quire.cli.output import erase_ctrl_c
from quire.errors import InvalidArgument, RecordTooLarge

STDIN: Final = "-"

_CHUNK_BYTES: Final = 1 << 16


async def input_lines(
    interrupted: asyncio.Event, name: str = STDIN, *, end: bytes | None = b"\n", line_bytes_max: int | None = None
) -> AsyncGenerator[list[bytes]]:
    """One or more lines at a time, without what ends them. The last one of a file counts without an end, too.

    With no `end` the file is one line as a whole. When `interrupted` is set the input is over, as at its end: what was
    read before is not lost. Raises `RecordTooLarge` at a line that is longer than `line_bytes_max`, and
    `InvalidArgument` if the file cannot be read, both after all that comes before it.
    """
    lines = _Lines(name, end, line_bytes_max)
    with _opened(name) as file:
        while chunk := await _next_chunk(name, file, interrupted):
            if found := lines.feed(chunk):
                yield found
            lines.check()
    if rest := lines.rest(is_cut=interrupted.is_set()):
        yield rest


@contextmanager
def ctrl_c() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C sets, for the block. Pressed again, it ends the command at once."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()

    def press() -> None:
        pressed.set()
        erase_ctrl_c()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class _Lines:
    """What was read of one file, cut into lines."""

    def __init__(self, name: str, end: bytes | None, line_bytes_max: int | None) -> None:
        self._name, self._end, self._bytes_max = name, end, line_bytes_max
        self._parts: list[bytes] = []  # Of the line that has no end yet.
        self._size = 0
        self._number = 0
        self._too_long: RecordTooLarge | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in `chunk`, up to one that is too long."""
        if self._end is None or self._end not in chunk:
            self._keep(chunk)
            return []
        first, *lines = chunk.split(self._end)
        lines.insert(0, b"".join((*self._parts, first)))
        self._parts, self._size = [], 0
        rest = lines.pop()
        if self._bytes_max is not None and max(map(len, lines)) > self._bytes_max:
            place = next(place for place, line in enumerate(lines) if len(line) > self._bytes_max)
            self._number += place
            self._refuse()
            return lines[:place]
        self._number += len(lines)
        self._keep(rest)
        return lines

    def _keep(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._size += len(part)
        if self._bytes_max is not None and self._size > self._bytes_max:
            self._refuse()

    def _refuse(self) -> None:
        name = shown_name(self._name)
        where = f"{name} as a whole" if self._end is None else f"line {self._number + 1} of {name}"
        self._too_long = RecordTooLarge(f"{where} has more than {self._bytes_max} bytes", file=self._name)

    def check(self) -> None:
        """Raise `RecordTooLarge` once there is nothing before it any more that nobody was given."""
        if self._too_long is not None:
            raise self._too_long

    def rest(self, *, is_cut: bool) -> list[bytes]:
        """What is left at the end of the file. Of one that is a line as a whole, a part is none."""
        if self._end is None:
            return [] if is_cut else [b"".join(self._parts)]
        return [b"".join(self._parts)] if self._parts else []


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        if sys.stdin is None:  # Its number may be another file's by now.
            raise InvalidArgument("standard input is closed", hint="Give the records by a pipe, or with --file.")
        yield sys.stdin.fileno()
        return
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # Else a pipe without a writer would hold up everything.
    except OSError as error:
        raise _unreadable(name, error) from error
    try:
        yield file
    finally:
        os.close(file)


async def _next_chunk(name: str, file: int, interrupted: asyncio.Event) -> bytes:
    """What can be read now; nothing at the end. A file can always be read, and the loop cannot watch one."""
    while not interrupted.is_set():
        try:
            if await _is_readable(file, interrupted):
                return os.read(file, _CHUNK_BYTES)
        except BlockingIOError:
            continue  # Somebody else was quicker, as another process on the same terminal.
        except OSError as error:
            raise _unreadable(name, error) from error
    return b""


async def _is_readable(file: int, interrupted: asyncio.Event) -> bool:
    """Wait until something can be read, or Ctrl-C is pressed. Whether it was the former."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(file, readable.set)
    except PermissionError:
        await asyncio.sleep(0)  # Others want their turn.
        return True
    waiting = [asyncio.create_task(event.wait()) for event in (readable, interrupted)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(file)
        for task in waiting:
            task.cancel()
    return readable.is_set()


def _unreadable(name: str, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"{shown_name(name)} cannot be read: {error.strerror}", hint="Name a file that you may read."
    )


def shown_name(name: str) -> str:
    """A file as messages name it."""
    return "standard input" if name == STDIN else repr(name)
