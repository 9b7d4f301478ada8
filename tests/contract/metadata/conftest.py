from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.metadata.backends import Backend, MemoryBackend, NetworkBackend, SqliteBackend, ready

# One group for each backend: a group runs on one worker, so that each real server is started once.
BACKENDS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("memory", "sqlite", "zk", "etcd")]


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    stack = AsyncExitStack()
    made: Backend
    if request.param == "memory":
        made = MemoryBackend(stack)
    elif request.param == "sqlite":
        made = SqliteBackend(stack, tmp_path)
    else:
        server = request.getfixturevalue("zookeeper" if request.param == "zk" else "etcd")
        made = NetworkBackend(stack, request.param, request.param, server.port)
    async with ready(made, stack) as backend:
        yield backend
