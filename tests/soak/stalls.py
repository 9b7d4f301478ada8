"""Run a command on a machine that stands still now and then: whoever guesses from time what is so, guesses wrong.

All processes that come of the command are stopped together for up to a second, every few seconds, as a virtual machine
does to its guests. A test that fails here fails some day on a busy machine, and nobody will know why.

    python -m tests.soak.stalls pytest -n 2 --dist loadgroup

Linux only. The exit code is that of the command.
"""

import argparse
import ctypes
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.support.processes import below, is_running, sent

_BETWEEN_S: Final = (6.0, 16.0)
_STALLS_S: Final = (0.3, 0.6, 1.0)
_PR_SET_CHILD_SUBREAPER: Final = 36


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stalls")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--between", type=float, nargs=2, default=_BETWEEN_S, metavar="SECONDS", help="least and most")
    parser.add_argument("command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    rng, stalls = random.Random(given.seed), 0
    running = _Running([given.command, *given.arguments])
    while not running.ended.wait(rng.uniform(*given.between)):
        stalls += running.stall(rng.choice(_STALLS_S))
    print(f"{stalls} stalls, seed {given.seed}")
    return running.code


class _Running:
    """A command. What it leaves behind becomes a child of this process: found when it has to stop, and buried."""

    def __init__(self, command: list[str]) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._pid = os.posix_spawnp(command[0], command, os.environ)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; its end is ours.
        self.code = 0
        self.ended = threading.Event()
        threading.Thread(target=self._bury, daemon=True).start()

    def stall(self, for_s: float) -> bool:
        """Whether there was anything to stop. Who is stopped by a test stays so."""
        parents_first = reversed(below(os.getpid()))
        stopped = [pid for pid in parents_first if is_running(pid) and sent(pid, signal.SIGSTOP)]
        self.ended.wait(for_s)
        for pid in reversed(stopped):  # Whoever would notice comes last.
            sent(pid, signal.SIGCONT)
        return bool(stopped)

    def _bury(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.wait()
                if pid == self._pid:
                    self.code = os.waitstatus_to_exitcode(status)
                    self.ended.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
