"""Ports for servers that have to be told theirs before they start, or again after a restart."""

import random
import socket
from typing import Final

_GIVEN: Final[set[int]] = set()  # By this process. Whoever got one may not listen yet, or not at the moment.


def free_port(in_a_row: int = 1) -> int:
    """A port below those that Linux hands to outgoing connections: nothing else may take it between two starts.

    With `in_a_row` the first of several that follow each other.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        ports = range(port, port + in_a_row)
        if _GIVEN.isdisjoint(ports) and all(map(_is_free, ports)):
            _GIVEN.update(ports)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
