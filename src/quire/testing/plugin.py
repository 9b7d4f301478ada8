"""pytest's door to Quire: the fixtures `quire_log` and `quire_cluster`, there for everybody who has installed Quire.

    def test_a_payment_is_in_the_log(quire_log):
        with quire_log.connect_sync() as client: ...

    @pytest.mark.quire_bookies(4)
    async def test_a_lost_bookie_goes_unnoticed(quire_cluster):
        async with quire_cluster.connect() as client: ...

pytest loads this module in every run, also in those that have nothing to do with Quire. So it imports nothing of Quire
before a test asks for it.
"""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quire.testing import EmbeddedLog, LocalCluster

_MARK = "quire_bookies"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARK}(count): how many bookies the fixture quire_cluster has. Default: 3.")


@pytest.fixture
def quire_log(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[EmbeddedLog]":
    """A log in a temporary folder: `.uri`, `.folder`, `.connect()`, `.connect_sync()`. Nothing runs until it is
    opened.
    """
    from quire.testing import local_log

    with local_log(tmp_path_factory.mktemp("quire_log")) as log:
        yield log


@pytest.fixture
def quire_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalCluster]":
    """A cluster of three real bookies in this process: `.uri`, `.ledgers_uri`, `.connect()`, `.connect_sync()`,
    `.bookies`, `.stop_bookie(n)`, `.start_bookie(n)`. The mark `quire_bookies(count)` changes how many they are.
    """
    from quire.testing import local_cluster

    marked = request.node.get_closest_marker(_MARK)
    folder = tmp_path_factory.mktemp("quire_cluster")
    with local_cluster(folder, bookies=marked.args[0] if marked else 3) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)  # Nobody can open it any more, and megabytes for each test add up.
    folder.mkdir(exist_ok=True)  # Some versions of pytest would give its name to the next test, whose URI must be new.
