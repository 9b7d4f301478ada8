"""What a simulated loop will not do, and what to use instead: everything that leaves this process and this thread.

Real sockets, children, signals and threads answer in their own time, so one such call would make a run unrepeatable.
"""

import asyncio
from typing import Any, Final

from quire.testing.sim_errors import SimRefused

_NETWORK: Final = "use the runtime's Network, which a simulation provides"
_CHILDREN: Final = "a simulation has no child processes and no pipes"
_SIGNALS: Final = "a simulation has no signals"
_ENDING: Final = "a simulation ends with its main coroutine"
_THREADS: Final = "a simulation has no threads: executor calls run on the loop"
_FACTORY: Final = "tasks must be of the loop's own kind, which can be ordered by a seed"
_GENERATORS: Final = "run() closes async generators at the end"


class _Refused:
    """A method of the loop that raises, naming itself and the way out."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise SimRefused(f"loop.{self._name}() is refused in a simulation: {self._instead}")


class RefusesReality(asyncio.AbstractEventLoop):
    """The part of the event loop's interface that a simulation refuses."""

    create_connection: Any = _Refused(_NETWORK)
    create_server: Any = _Refused(_NETWORK)
    create_unix_connection: Any = _Refused(_NETWORK)
    create_unix_server: Any = _Refused(_NETWORK)
    create_datagram_endpoint: Any = _Refused(_NETWORK)
    connect_accepted_socket: Any = _Refused(_NETWORK)
    start_tls: Any = _Refused(_NETWORK)
    sendfile: Any = _Refused(_NETWORK)
    sock_recv: Any = _Refused(_NETWORK)
    sock_recv_into: Any = _Refused(_NETWORK)
    sock_recvfrom: Any = _Refused(_NETWORK)
    sock_recvfrom_into: Any = _Refused(_NETWORK)
    sock_sendall: Any = _Refused(_NETWORK)
    sock_sendto: Any = _Refused(_NETWORK)
    sock_connect: Any = _Refused(_NETWORK)
    sock_accept: Any = _Refused(_NETWORK)
    sock_sendfile: Any = _Refused(_NETWORK)
    getaddrinfo: Any = _Refused(_NETWORK)
    getnameinfo: Any = _Refused(_NETWORK)
    add_reader: Any = _Refused(_NETWORK)
    remove_reader: Any = _Refused(_NETWORK)
    add_writer: Any = _Refused(_NETWORK)
    remove_writer: Any = _Refused(_NETWORK)
    subprocess_exec: Any = _Refused(_CHILDREN)
    subprocess_shell: Any = _Refused(_CHILDREN)
    connect_read_pipe: Any = _Refused(_CHILDREN)
    connect_write_pipe: Any = _Refused(_CHILDREN)
    add_signal_handler: Any = _Refused(_SIGNALS)
    remove_signal_handler: Any = _Refused(_SIGNALS)
    run_forever: Any = _Refused(_ENDING)
    stop: Any = _Refused(_ENDING)
    set_default_executor: Any = _Refused(_THREADS)
    shutdown_default_executor: Any = _Refused(_THREADS)
    set_task_factory: Any = _Refused(_FACTORY)
    get_task_factory: Any = _Refused(_FACTORY)
    shutdown_asyncgens: Any = _Refused(_GENERATORS)
