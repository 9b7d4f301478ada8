"""The clients of Spark's processes: one for each log, none inherited by a fork, closed when nobody needs them."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from quire.errors import InvalidUri, NotBound, NotInitialised
from quire.spark import client_cache
from quire.spark.client_cache import borrowed, close_all
from quire.testing.local import LocalCluster, local_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster") / "data", bookies=1) as cluster:
        with cluster.connect_sync() as client:
            client.create_stream("orders")
        yield cluster
        close_all()


def test_a_log_has_one_client_whoever_borrows_it(cluster: LocalCluster) -> None:
    found: list[object] = []

    def borrow() -> None:
        with borrowed(cluster.uri) as access:
            found.append(access.namespace)

    threads = [threading.Thread(target=borrow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    borrow()
    assert len(found) == 9
    assert len(set(map(id, found))) == 1


def test_errors_and_values_come_back_from_the_loop(cluster: LocalCluster) -> None:
    async def fail() -> None:
        raise ValueError("as it is")

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    with borrowed(cluster.uri) as access:
        assert access.run(access.namespace.list_streams()) == ["orders"]
        assert list(access.each(numbers())) == [0, 1, 2]
        with pytest.raises(ValueError, match="as it is"):
            access.run(fail())


def test_a_fork_opens_a_client_of_its_own(cluster: LocalCluster) -> None:
    with borrowed(cluster.uri) as access:
        access.run(access.namespace.list_streams())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # Whatever happens here must not come back to pytest.
        try:
            with borrowed(cluster.uri) as access:
                os.write(writing, ",".join(access.run(access.namespace.list_streams())).encode())
            close_all()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "orders"
    os.waitpid(child, 0)


async def test_a_client_that_nobody_borrows_is_closed_after_a_while(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_cache, "_IDLE_S", 0.05)
    closed: list[str] = []

    async def on_close() -> None:
        closed.append("what was opened through it")

    def borrow() -> object:
        with borrowed(cluster.uri) as access:
            access.call_at_close(on_close)
            return access

    close_all()
    first = await asyncio.to_thread(borrow)

    async def is_closed() -> bool:
        return closed == ["what was opened through it"]

    await eventually(is_closed)
    assert await asyncio.to_thread(borrow) is not first


def test_what_cannot_be_opened_is_told_with_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(InvalidUri, match="leads to proxies") as refused, borrowed("quire://proxy:7400/ns"):
        pass
    assert refused.value.__notes__ == [refused.value.hint]
    nowhere = tmp_path_factory.mktemp("nowhere") / "metadata.db"
    with pytest.raises((NotBound, NotInitialised)), borrowed(f"distributedlog+sqlite:{nowhere}/ns"):
        pass
