"""Whether ports can be listened on, asked before anything is started."""

import errno
import socket
from collections.abc import Mapping
from typing import Final

from quire.app.addresses import parse_address
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


def check_gateway(text: str) -> None:
    """Raises `PortInUse` if HOST:PORT cannot be listened on, `InvalidArgument` if it is no such thing."""
    host, port = parse_address(text, example="127.0.0.1:8400")
    error = _refusal(port, host) if port else None
    if error is None:
        return
    taken = error.errno == errno.EADDRINUSE
    problem = "is taken by another program" if taken else f"cannot be used: {error.strerror or error}"
    raise PortInUse(
        f"{text}, which the gateway should listen on, {problem}",
        hint="Choose another with --gateway; with port 0 any free one is taken.",
        port=port,
    )


def _refusal(port: int, host: str = HOST) -> OSError | None:
    """Why the system says no."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: ports rest for a while after use.
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
