"""Writes that go past the kernel's memory, straight from ours to the disk (`O_DIRECT`).

For much that is written once and seldom read soon after. In the kernel's memory it would drive out what is read, and
cost a copy into fresh pages.

Only whole blocks can be written so, from a buffer that is aligned as they are. What stands before the first whole block
of a write and behind the last one goes through the kernel's memory as usual. Of a file that is only appended to, no
block is therefore ever written both ways at once: where one write ends and the next begins, both go the usual way.

It is an advantage and no promise: where a system, a file system or a disk has no such thing, all is written as usual.
Nothing is durable without a sync, either way.
"""

import errno
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Final

from quire.runtime.disk import Buffer

BLOCK_BYTES: Final = max(4096, mmap.PAGESIZE)
DIRECT_BYTES_MIN: Final = 2 * max(64 << 10, BLOCK_BYTES)  # Less is cheaper as usual. So much holds a whole block.
_BUFFER_BYTES: Final = max(1 << 20, BLOCK_BYTES)
_REFUSALS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class DirectRefusedError(Exception):
    """This file cannot be written so. Some of the bytes may have been: write them all as usual."""


class DirectWriter:
    """Writes whole blocks of any files, one call at a time: all of them share the buffer, whose memory stays in use.

    Whoever waits for its turn holds a thread. Of a bookie there is one file that grows, and now and then a second one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer: memoryview | None = None

    def write(self, descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        """Write `parts`, which are whole blocks together, into a file from `offset` on, where a block begins. Returns
        how many bytes were written, fewer than all if the disk takes no more: the usual way will tell why.

        Raises `DirectRefusedError`, and what the disk raises.
        """
        with self._lock:
            buffer = self._buffer = self._buffer or _aligned_buffer()
            direct = _reopened(descriptor)
            try:
                return _write_blocks(direct, parts, offset, buffer)
            except OSError as error:
                if error.errno in _REFUSALS:
                    raise DirectRefusedError from error
                raise
            finally:
                os.close(direct)


def _aligned_buffer() -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, _BUFFER_BYTES))  # Begins at a page, as all such memory does.
    except OSError as error:
        raise DirectRefusedError from error


def _reopened(descriptor: int) -> int:
    """Another descriptor of the same file, since whoever reads from the first one could not do so directly."""
    if not hasattr(os, "O_DIRECT"):
        raise DirectRefusedError
    try:  # Not by its name: it may have another one by now.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        raise DirectRefusedError from error


def _write_blocks(descriptor: int, parts: Sequence[Buffer], offset: int, buffer: memoryview) -> int:
    """Fill the buffer and write it, again and again, until all is written or the disk takes less than it was given."""
    written = filled = 0
    for part in parts:
        rest = memoryview(part)
        while rest:
            count = min(len(rest), len(buffer) - filled)
            buffer[filled : filled + count] = rest[:count]
            rest = rest[count:]
            filled += count
            if filled == len(buffer):
                done = os.pwrite(descriptor, buffer, offset + written)
                written += done
                if done < filled:
                    return written
                filled = 0
    return written + (os.pwrite(descriptor, buffer[:filled], offset + written) if filled else 0)
