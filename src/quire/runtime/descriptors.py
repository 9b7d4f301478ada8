"""File descriptors: a process may have so many at a time, and connections take them from files and directories.

A service that has none left cannot open the next file of its journal, which looks as if its disk had failed. So a
server takes as many as the system allows (`raise_limit`), and connections that others open leave the last ones to the
disk (`is_reserved`). A disk that runs out all the same, because the whole system has, waits for some (`is_shortage`).
"""

import errno
import resource
from contextlib import suppress
from typing import Final

_RESERVE_MAX: Final = 512  # A bookie's index keeps up to 256 files open, its entry logs 128.


def raise_limit() -> None:
    """Let this process have as many descriptors as the system allows it: the usual limit, 1024, is for programs that
    call `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # Some systems allow less than they say; the limit stays as it was then.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_reserved(descriptor: int) -> bool:
    """Whether a descriptor that was just opened is one of the last, which are not for connections.

    The system gives the lowest number that is free: all below it are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(limit // 2, _RESERVE_MAX)


def is_shortage(error: OSError) -> bool:
    """Whether a call failed only because there was no descriptor left, in this process or in the whole system."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
