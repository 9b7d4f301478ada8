import threading
from collections.abc import Iterator

import pytest

from quire.spark import client_cache
from quire.spark.sink_commit import close_writers


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """What a process of Spark keeps open for the next task would be met by the tests of other modules."""
    yield
    close_writers()
    client_cache.close_all()
    assert not [thread for thread in threading.enumerate() if thread.name == "quire-sync"]
