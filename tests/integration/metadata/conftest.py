"""Real servers for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.etcd import EtcdServer


@pytest.fixture
def shared_etcd(etcd: EtcdServer) -> EtcdServer:
    """For tests that leave the server as it was; each keeps to a tree of its own."""
    return etcd


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server for one test, to be killed, stopped and changed at will."""
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.kill()
