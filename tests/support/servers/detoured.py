"""`quire` on a machine that reaches some ports by another way, which a test can cut.

    python -m tests.support.servers.detoured 2181=40001,3181=40002 write-proxy run …

The program is the real one, and knows nothing of it: as with a router between.
"""

import socket
import sys
from typing import Any

from quire.runtime import AsyncioNetwork, Runtime, real_runtime


class DetouredNetwork(AsyncioNetwork):
    """This machine's, with other ways to some ports of it."""

    def __init__(self, detours: dict[int, int]) -> None:
        self._detours = detours

    async def connect(self, host: str, port: int, *rest: Any, **options: Any) -> Any:
        return await super().connect(host, self._detours.get(port, port), *rest, **options)


def detoured_runtime(detours: dict[int, int]) -> Runtime:
    real = real_runtime()
    return Runtime(real.clock, real.disk, DetouredNetwork(detours), real.rng)


def _main() -> None:
    pairs = [pair.partition("=") for pair in sys.argv.pop(1).split(",") if pair]
    detours = {int(port): int(way) for port, _, way in pairs}
    direct = AsyncioNetwork.connect

    async def connect_by_detour(self: AsyncioNetwork, host: str, port: int, *rest: Any, **options: Any) -> Any:
        return await direct(self, host, detours.get(port, port), *rest, **options)

    class DetouredSocket(socket.socket):
        def connect_ex(self, address: Any) -> int:  # ZooKeeper's client goes past the runtime.
            host, port = address
            return super().connect_ex((host, detours.get(port, port)))

    AsyncioNetwork.connect = connect_by_detour  # type: ignore[method-assign]
    socket.socket = DetouredSocket  # type: ignore[misc]
    sys.argv[0] = "quire"
    from quire.cli.main import main

    main()


if __name__ == "__main__":
    _main()
