from pathlib import Path

import pytest

from tests.integration.stream.namespaces import Place, place_for


@pytest.fixture(params=["sqlite", "zk", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server = {"zk": "zookeeper", "etcd": "etcd"}.get(request.param)
    return place_for(request.param, tmp_path, None if server is None else request.getfixturevalue(server))
