"""Commands whose process does something of its own before it becomes the program; its process id stays the same.

This is what `preexec_fn` is for, and that is not safe where threads run. gRPC's are there once a test used etcd, and
were seen to write into the program's output between fork and exec. So it is done by a Python of its own.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

# 1 is PR_SET_PDEATHSIG. A parent that died before is noticed, too.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
os.nice(int(sys.argv[2]))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
"""

_HEAR_HANGUPS: Final = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""

_TAKE_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def dying_with_us(command: Sequence[str], *, nice: int = 0) -> list[str]:
    """Killed when the thread that starts it ends: start it from the main thread. The higher `nice`, the longer it waits
    for others."""
    return [*_python(_DIE_WITH_PARENT), str(os.getpid()), str(nice), *command]


def hearing_hangups(command: Sequence[str]) -> list[str]:
    """Ended by SIGHUP also if whoever runs the tests is deaf to it, as under nohup."""
    return [*_python(_HEAR_HANGUPS), *command]


def at_terminal(command: Sequence[str]) -> list[str]:
    """Its standard input is the terminal that Ctrl-C comes from. Start it in a session of its own."""
    return [*_python(_TAKE_TERMINAL), *command]


def _python(program: str) -> list[str]:
    return [sys.executable, "-IS", "-c", program]
