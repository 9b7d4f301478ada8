"""Every implementation of `ColdStore`, each with nothing in it. One suite runs on all of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from quire.cold import ColdStore, ColdStores
from tests.support.servers.s3 import KEYS, S3Server
from tests.support.servers.webhdfs import WebHdfsServer

KINDS = ("memory", "file", "s3", "webhdfs")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def webhdfs_server() -> Iterator[WebHdfsServer]:
    server = WebHdfsServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    own = uuid4().hex
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return server.root("archive", own)
    if request.param == "webhdfs":
        hdfs: WebHdfsServer = request.getfixturevalue("webhdfs_server")
        return hdfs.root(own)
    return f"file:{tmp_path / 'archive'}" if request.param == "file" else f"memory:{own}"


@pytest.fixture
async def stores() -> AsyncIterator[ColdStores]:
    stores = ColdStores(s3_options=KEYS, timeout_s=20)
    yield stores
    await stores.aclose()


@pytest.fixture
def store(root: str, stores: ColdStores) -> ColdStore:
    return stores.at(root)
