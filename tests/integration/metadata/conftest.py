"""Real servers for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.etcd import EtcdServer


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server for all tests that leave it as it was; each test keeps to a tree of its own."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server for one test, to be killed, stopped and changed at will."""
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.kill()
