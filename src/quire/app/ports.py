"""Whether ports can be listened on, asked before anything is started."""

import errno
import socket
from collections.abc import Mapping
from typing import Final

from quire.errors import InvalidArgument, PortInUse

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535


def is_free(port: int) -> bool:
    return _refusal(port) is None


def check_ports(ports: Mapping[str, int], *, option: str = "--port") -> None:
    """Raises `PortInUse` for the first that cannot be had, `InvalidArgument` for what is no port."""
    for name, port in ports.items():
        if not 0 <= port <= PORT_MAX:
            raise InvalidArgument(
                f"{name} would listen on port {port}, and ports end at {PORT_MAX}", hint=f"Choose a lower {option}."
            )
    for name, port in ports.items():
        error = _refusal(port) if port else None
        if error is None:
            continue
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port}, which {name} should listen on, is taken by another program"
        else:
            problem = f"port {port}, which {name} should listen on, cannot be used: {error.strerror}"
        raise PortInUse(
            problem, hint=f"Choose others with {option}, or leave it out: then any free ports are taken.", port=port
        )


def _refusal(port: int) -> OSError | None:
    """Why the system says no."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: ports rest for a while after use.
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
