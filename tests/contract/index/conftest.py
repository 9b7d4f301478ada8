"""One suite, run on RocksDB, on the simulated index, and on that for real threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.bookie.index import Index
from tests.contract.index.backends import Backend, MemoryBackend, RocksBackend, SimBackend


@pytest.fixture(params=["rocks", "sim", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "rocks":
        return RocksBackend(tmp_path)
    return SimBackend() if request.param == "sim" else MemoryBackend()


@pytest.fixture
def index(backend: Backend) -> Iterator[Index]:
    with backend.open() as opened:
        yield opened
