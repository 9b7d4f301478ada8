from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.metadata.backends import Backend, MemoryBackend, NetworkBackend, SqliteBackend, ready
from tests.support.virtual_time import virtual_time


@pytest.fixture(params=["memory", "sqlite", "zk", "etcd"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    stack = AsyncExitStack()
    made: Backend
    if request.param == "memory":
        stack.enter_context(virtual_time())
        made = MemoryBackend(stack)
    elif request.param == "sqlite":
        made = SqliteBackend(stack, tmp_path)
    else:
        server = request.getfixturevalue("zookeeper" if request.param == "zk" else "etcd")
        made = NetworkBackend(stack, request.param, request.param, server.port)
    async with ready(made, stack) as backend:
        yield backend
