"""Ports for servers that have to be told theirs before they start, or again after a restart."""

import os
import random
import socket
from typing import Final

_PORTS: Final = range(20_000, 32_000)  # Below those that Linux hands to outgoing connections.
_GIVEN: Final[set[int]] = set()  # Whoever got one may not listen yet, or not at the moment.


def free_port(in_a_row: int = 1) -> int:
    """A port that nothing else may take between two starts, nor another worker of these tests.

    With `in_a_row` the first of several that follow each other.
    """
    own = _own_ports()
    while True:
        port = random.SystemRandom().choice(own[: 1 - in_a_row or None])
        ports = range(port, port + in_a_row)
        if _GIVEN.isdisjoint(ports) and all(map(_is_free, ports)):
            _GIVEN.update(ports)
            return port


def _own_ports() -> range:
    """Those of this worker, if several run at once: each has a share."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    share = len(_PORTS) // count
    return _PORTS[number * share : (number + 1) * share]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
