"""One suite, run on RocksDB and on the simulated index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.bookie.index import Index
from tests.contract.index.backends import Backend, RocksBackend, SimBackend


@pytest.fixture(params=["rocks", "sim"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return RocksBackend(tmp_path) if request.param == "rocks" else SimBackend()


@pytest.fixture
def index(backend: Backend) -> Iterator[Index]:
    with backend.open() as opened:
        yield opened
