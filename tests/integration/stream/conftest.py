from pathlib import Path

import pytest

from tests.integration.stream.namespaces import Place, place_for

# One group for each backend: a group runs on one worker, so that each real server is started once.
BACKENDS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("sqlite", "zk", "etcd")]


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server = {"zk": "zookeeper", "etcd": "etcd"}.get(request.param)
    return place_for(request.param, tmp_path, None if server is None else request.getfixturevalue(server))
